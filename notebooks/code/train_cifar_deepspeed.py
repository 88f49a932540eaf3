"""Train a small net on CIFAR-10 with DeepSpeed, on CPUs: one file, three ways to start it.

    mpiexec -n 2 python -m mpi4py train_cifar_deepspeed.py             over MPI (--backend gloo: over Gloo)
    sh run_ds.sh 2                                                     DeepSpeed's own launcher, over Gloo
    HOSTFILE=hostfile sh run_ds.sh 0                                   the same on several machines

All settings of the training are in ds_config.json (--deepspeed_config names another). Where the file leaves a
batch size out, DeepSpeed computes it from the other two and the number of ranks.
"""

import argparse
import gc
import hashlib
import json
import os
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from course_lib.data.cifar10 import load_cifar10
from course_lib.parallel import deepspeed_engine

CONFIG = Path(__file__).with_name("ds_config.json")


class Net(nn.Module):
    """Two convolutions and three fully connected layers: images (B, 3, 32, 32) to logits (B, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.pool = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5), nn.MaxPool2d(2, 2)
        self.fc1, self.fc2, self.fc3 = nn.Linear(16 * 5 * 5, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits (B, 10)."""
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x))).flatten(1)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


# ------------------------------------------------------------------ how the ranks find each other


def join(options: argparse.Namespace) -> None:
    """Join DeepSpeed's world as the launcher says: Open MPI and DeepSpeed set different variables."""
    if "OMPI_COMM_WORLD_RANK" not in os.environ:
        deepspeed_engine.start_launched()
        return
    from mpi4py import MPI  # only here: DeepSpeed's launcher starts no MPI

    deepspeed_engine.start_deepspeed(MPI.COMM_WORLD, options.backend)


# ------------------------------------------------------------------ training, the same for all launchers


def train(options: argparse.Namespace) -> None:
    """All epochs on this rank's share of the images, then a test that counts every image once."""
    first_on_node = int(os.environ["LOCAL_RANK"]) == 0
    if not first_on_node:
        dist.barrier()  # one rank of every machine comes first: it downloads, the others find the files
    data = load_cifar10(train=options.samples, test=options.samples)
    if first_on_node:
        dist.barrier()
    torch.manual_seed(options.seed)  # DeepSpeed takes the weights of rank 0 anyhow
    config = json.loads(Path(options.deepspeed_config).read_text())
    engine = deepspeed_engine.start_engine(Net(), config)
    dtype = next(engine.module.parameters()).dtype

    images = TensorDataset(*tensors(data.train_images, data.train_labels))
    sampler = DistributedSampler(images, shuffle=True, seed=options.seed, drop_last=True)
    size = engine.train_micro_batch_size_per_gpu()  # of the file: the global batch is larger
    loader = DataLoader(images, batch_size=size, sampler=sampler, drop_last=True)
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)  # or every epoch has the order of the first
        total = torch.zeros(1)
        for inputs, labels in loader:
            loss = F.cross_entropy(engine(inputs.to(dtype)).float(), labels)
            engine.backward(loss)  # averages over the ranks and the micro-batches
            engine.step()  # an update when the last micro-batch of a global batch is in
            total += loss.detach() / len(loader)
        dist.all_reduce(total, op=dist.ReduceOp.AVG)
        if dist.get_rank() == 0:
            print(f"epoch {epoch + 1}: loss {total.item():.3f}", flush=True)
    weights = deepspeed_engine.gathered_weights(engine)  # in stage 3 no rank has them; all take part
    accuracy = evaluate(weights, *tensors(data.test_images, data.test_labels))
    if options.save:
        engine.save_checkpoint(options.save)  # on all ranks: each writes its own part
    if dist.get_rank() == 0:
        about = (
            f"{dist.get_world_size()} ranks, {dist.get_backend()}, ZeRO-{engine.zero_optimization_stage()}"
        )
        digits = hashlib.sha256(weights.float().numpy().tobytes()).hexdigest()[:16]
        print(f"{about}: weights {digits}, {accuracy:.1%} right", flush=True)


def tensors(images: np.ndarray, labels: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Images (N, 3, 32, 32) of bytes as numbers from -1 to 1, and their labels (N)."""
    return torch.from_numpy(images).float() / 127.5 - 1, torch.from_numpy(labels.astype(np.int64))


@torch.no_grad()
def evaluate(weights: torch.Tensor, images: torch.Tensor, labels: torch.Tensor) -> float:
    """The accuracy on all test images; each is tested by one rank: no sampler, which may repeat some."""
    model, place = Net().eval(), 0
    for parameter in model.parameters():
        parameter.copy_(weights[place : place + parameter.numel()].view_as(parameter))
        place += parameter.numel()
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    right = (model(images[mine]).argmax(1) == labels[mine]).sum()
    dist.all_reduce(right)
    return right.item() / len(labels)


# ------------------------------------------------------------------ the command line


def main() -> None:
    """Find out how we were started, join the process group, train, and destroy the group."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--deepspeed_config", default=str(CONFIG), help="the JSON file")
    parser.add_argument("--backend", choices=("mpi4py", "gloo"), default="mpi4py", help="under mpiexec")
    parser.add_argument("--samples", type=int, help="train and test on the first so many; default: all")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", metavar="FOLDER", help="where the ranks write a checkpoint")
    parser.add_argument(
        "--local_rank", type=int, help="DeepSpeed's launcher passes it; LOCAL_RANK says it too"
    )
    options = parser.parse_args()
    join(options)
    try:
        train(options)
    finally:
        gc.collect()
        deepspeed_engine.stop_deepspeed()  # or Gloo's threads may crash the program when it exits


if __name__ == "__main__":
    main()
