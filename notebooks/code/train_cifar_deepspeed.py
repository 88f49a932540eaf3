"""Train a small net on CIFAR-10 with DeepSpeed: one file, three ways to start it.

    mpiexec -n 2 python -m mpi4py train_cifar_deepspeed.py             over MPI (--backend gloo: over Gloo)
    sh run_ds.sh 2                                                     DeepSpeed's own launcher, over Gloo
    HOSTFILE=hostfile sh run_ds.sh 0                                   the same on several machines

All settings of the training are in train_cifar_deepspeed.json (--deepspeed_config names another). Where the
file leaves a batch size out, DeepSpeed computes it from the other two and the number of ranks. Where it says
"auto", this script fills in the length of the learning rate's climb and of its fall.

With `--device cuda` (and DS_ACCELERATOR=cuda before run_ds.sh), each rank trains on a GPU of its own.
"""

import argparse
import contextlib
import gc
import hashlib
import json
import os
import sys
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from course_lib.data.cifar10 import load_cifar10
from course_lib.training.device import NoGPU, backend_for, use_device
from course_lib.training.models import build

CONFIG = Path(__file__).with_name("train_cifar_deepspeed.json")
TIMEOUT = timedelta(seconds=120)  # that a rank waits for the others before it raises
ended: list[Any] = []  # the group: kept to the exit, because whoever frees it last waits for Gloo's threads

# ------------------------------------------------------------------ how the ranks find each other


def join(options: argparse.Namespace) -> torch.device:
    """Join DeepSpeed's world; return this rank's device. Open MPI and DeepSpeed set different variables."""
    launched = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()
    local_rank = os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", os.environ.get("LOCAL_RANK", "0"))
    device = use_device(options.device, int(local_rank))
    os.environ |= {"LOCAL_RANK": local_rank, "DS_ACCELERATOR": device.type}
    if "OMPI_COMM_WORLD_RANK" in os.environ:
        from mpi4py import MPI  # only here: DeepSpeed's launcher starts no MPI

        from course_lib.parallel import ddp  # has torch's backend "mpi4py"

        ddp.start_group(MPI.COMM_WORLD, backend_for(device, options.backend), timeout=TIMEOUT)
    elif launched:
        dist.init_process_group(backend_for(device, "gloo"), timeout=TIMEOUT)
    else:
        raise RuntimeError("this process was given no rank; start it with run_ds.sh or with mpiexec")
    deprecated = r"`torch\.distributed\.(all_gather_into_tensor|reduce_scatter_tensor)` is deprecated"
    warnings.filterwarnings("ignore", deprecated, FutureWarning)  # of DeepSpeed's calls, not yours
    import deepspeed

    deepspeed.utils.logger.setLevel("ERROR")
    deepspeed.ops.__compatible_ops__ = {}  # else it compiles C++ to find out what it could compile
    deepspeed.init_distributed(auto_mpi_discovery=False, verbose=False)
    return device


# ------------------------------------------------------------------ training, the same for all launchers


def train(options: argparse.Namespace, device: torch.device) -> None:
    """All epochs on this rank's share of the images, then a test that counts every image once."""
    import deepspeed

    first_on_node = int(os.environ["LOCAL_RANK"]) == 0
    if not first_on_node:
        dist.barrier()  # one rank of every machine comes first: it downloads, the others find the files
    data = load_cifar10(train=options.samples, test=options.samples)
    if first_on_node:
        dist.barrier()
    config = json.loads(Path(options.deepspeed_config).read_text())
    fill_in(config, len(data.train_labels), options.epochs)
    net = build(options.net, seed=options.seed)
    engine, *_ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=config)
    dtype = next(engine.module.parameters()).dtype

    images = TensorDataset(*tensors(data.train_images, data.train_labels))
    sampler = DistributedSampler(images, shuffle=True, seed=options.seed, drop_last=True)
    size = engine.train_micro_batch_size_per_gpu()  # of the file: the global batch is larger
    loader = DataLoader(images, batch_size=size, sampler=sampler, drop_last=True)
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)  # or every epoch has the order of the first
        total = torch.zeros(1, device=device)
        for inputs, labels in loader:
            loss = F.cross_entropy(engine(inputs.to(device, dtype)).float(), labels.to(device))
            engine.backward(loss)  # averages over the ranks and the micro-batches
            engine.step()  # an update when the last micro-batch of a global batch is in
            total += loss.detach() / len(loader)
        dist.all_reduce(total, op=dist.ReduceOp.AVG)
        if dist.get_rank() == 0:
            print(f"epoch {epoch + 1}: loss {total.item():.3f}", flush=True)
    net = whole(engine, build(options.net, seed=options.seed).to(device))
    accuracy = evaluate(net, *tensors(data.test_images, data.test_labels))
    if options.save:
        engine.save_checkpoint(options.save)  # on all ranks: each writes its own part
    if dist.get_rank() == 0:
        about = (
            f"{dist.get_world_size()} ranks, {dist.get_backend()}, ZeRO-{engine.zero_optimization_stage()}"
        )
        weights = torch.nn.utils.parameters_to_vector(net.parameters()).detach().cpu().numpy()
        digits = hashlib.sha256(weights.tobytes()).hexdigest()[:16]
        print(f"{about}: weights {digits}, {accuracy:.1%} right", flush=True)
    engine.destroy()


def fill_in(config: dict[str, Any], samples: int, epochs: int) -> None:
    """Replace "auto" in the schedule: the rate climbs for a quarter of the updates, then falls to 0."""
    schedule = config.get("scheduler", {}).get("params", {})
    if "auto" not in schedule.values():
        return
    names = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    micro, accumulation = (config.get(name, 1) for name in names)
    batch_size = config.get("train_batch_size", micro * accumulation * dist.get_world_size())
    updates = epochs * (samples // batch_size)
    for name, length in {"warmup_num_steps": updates // 4, "total_num_steps": updates}.items():
        if schedule.get(name) == "auto":
            schedule[name] = max(1, length)


def whole(engine: Any, net: torch.nn.Module) -> torch.nn.Module:
    """`net` with the weights of `engine`, and the mean over the ranks of batch-norm's statistics."""
    import deepspeed

    stage_3 = engine.zero_optimization_stage() == 3  # no rank has all weights; all take part
    trained = list(engine.module.parameters())
    with (
        torch.no_grad(),
        deepspeed.zero.GatheredParameters(trained) if stage_3 else contextlib.nullcontext(),
    ):
        for mine, theirs in zip(net.parameters(), trained, strict=True):
            mine.copy_(theirs)
    for mine, theirs in zip(net.buffers(), engine.module.buffers(), strict=True):
        mine.copy_(theirs)
        if mine.is_floating_point():
            dist.all_reduce(mine, op=dist.ReduceOp.AVG)
    return net


def tensors(images: np.ndarray, labels: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Images (N, 3, 32, 32) of bytes as numbers from -1 to 1, and their labels (N)."""
    return torch.from_numpy(images).float() / 127.5 - 1, torch.from_numpy(labels.astype(np.int64))


@torch.no_grad()
def evaluate(model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """The accuracy on all test images; each is tested by one rank: no sampler, which may repeat some."""
    model.eval()
    device = next(model.parameters()).device
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    parts = zip(images[mine].split(500), labels[mine].split(500), strict=True)
    right = torch.zeros(1, device=device)
    for part, wanted in parts:
        right += (model(part.to(device)).argmax(1) == wanted.to(device)).sum()
    dist.all_reduce(right)
    return right.item() / len(labels)


# ------------------------------------------------------------------ the command line


def main() -> None:
    """Find out how we were started, join the process group, train, and destroy the group."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--deepspeed_config", default=str(CONFIG), help="the JSON file")
    parser.add_argument("--backend", choices=("mpi4py", "gloo"), default="mpi4py", help="under mpiexec")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: one GPU per rank")
    parser.add_argument(
        "--net", choices=("convnet", "cifar"), default="convnet", help="cifar: the net of DeepSpeed's example"
    )
    parser.add_argument("--samples", type=int, help="train and test on the first so many; default: all")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", metavar="FOLDER", help="where the ranks write a checkpoint")
    parser.add_argument(
        "--local_rank", type=int, help="DeepSpeed's launcher passes it; LOCAL_RANK says it too"
    )
    options = parser.parse_args()
    try:
        train(options, join(options))
    except NoGPU as error:
        sys.exit(str(error))
    finally:
        gc.collect()  # the engine holds the group, and Gloo's threads must end before Python does
        if dist.is_initialized():
            ended.append(dist.group.WORLD)
            dist.destroy_process_group()


if __name__ == "__main__":
    main()
