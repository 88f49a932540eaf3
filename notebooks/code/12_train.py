"""Train as ds_config.json says, 48 images per update.

mpiexec -n 4 python code/12_train.py
deepspeed --num_gpus 4 code/12_train.py
sbatch -N 2 --ntasks-per-node 4 --gpus-per-node 4 --wrap "mpiexec python code/12_train.py"
"""

# %%
import json
import os
import warnings
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

warnings.filterwarnings("ignore", category=FutureWarning)
here = Path(__file__).parent  # the folder code


# %%
if not torch.cuda.is_available():  # CPUs only
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    os.environ.setdefault("LOCAL_RANK", os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", "0"))
    import deepspeed.ops

    deepspeed.ops.__compatible_ops__ = {}  # compile nothing
    if "RANK" not in os.environ and not dist.is_initialized():  # started by mpiexec
        import torch_mpi4py  # the course's backend

        torch_mpi4py.init_process_group()
import deepspeed

deepspeed.init_distributed(verbose=False)
rank, size = dist.get_rank(), dist.get_world_size()
torch.set_num_threads(1)


# %%
config = json.loads((here / "ds_config.json").read_text())
data = np.load(here / "data" / "shapes.npz")
images, labels = torch.from_numpy(data["images"]), torch.from_numpy(data["labels"])


class Block(nn.Linear):
    def forward(self, x):
        return x + super().forward(x).relu()


def network(width):
    layers = [nn.Linear(3072, width), *(Block(width, width) for _ in range(12)), nn.Linear(width, 10)]
    return nn.Sequential(nn.Flatten(), *layers)


# %%
# The course's solution of exercise 12.1: yours takes its place when it is right.
def batch_keys(global_batch, ranks, room):
    """The batch keys for updates of `global_batch` images; a rank has room for `room` images at a time."""
    share = global_batch // ranks  # images of one rank
    assert global_batch % ranks == 0, "no equal shares"
    micro = max(size for size in range(1, room + 1) if share % size == 0)
    return {"train_micro_batch_size_per_gpu": micro, "gradient_accumulation_steps": share // micro}


# %%
def train(config, steps=3, width=1536, room=24):
    """For `steps` updates, yield image count and mean loss."""
    torch.manual_seed(0)
    engine, *_ = deepspeed.initialize(model=network(width), config=config | batch_keys(48, size, room))
    batch, micro = engine.train_batch_size(), engine.train_micro_batch_size_per_gpu()
    for _ in range(steps):
        total = 0.0
        for part in torch.arange(rank, batch, size).split(micro):  # each update: the same 48 images
            x, y = images[part].to(engine.device), labels[part].to(engine.device)
            loss = F.cross_entropy(engine(x / 8 - 1), y)
            engine.backward(loss)
            engine.step()  # acts after the last micro-batch: updates, zeroes gradients
            total += loss.detach() * micro / batch  # summed over ranks: the batch's mean
        dist.all_reduce(total)
        yield batch, total.item()


if __name__ == "__main__":
    for batch, loss in train(config):
        if rank == 0:
            print(f"DeepSpeed {deepspeed.__version__}, images per update: {batch}, loss {loss:.3f}")
