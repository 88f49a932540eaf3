"""Train a CNN on MNIST with DistributedDataParallel: one file, three ways to start it.

    torchrun --standalone --nproc-per-node 2 train_mnist_ddp.py
    mpiexec -n 2 python -m mpi4py train_mnist_ddp.py
    python train_mnist_ddp.py --spawn 2 --meet file         (or tcp, or env)

Two ranks end with the same weights whichever way, to the last bit. With `--device cuda`, each rank trains
on a GPU of its own, and NCCL moves the gradients.

Several machines take `mpiexec --hostfile`, `torchrun --nnodes`, or Slurm: `sbatch train_mnist_ddp.sbatch`.
With `--checkpoint FILE`, a training that was killed goes on after the last epoch that it finished, with the
losses that it would have had.
"""

import argparse
import gc
import hashlib
import os
import socket
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from course_lib.data.mnist import load_mnist
from course_lib.training.device import NoGPU, backend_for, use_device
from course_lib.training.models import build

TIMEOUT = timedelta(seconds=120)  # that a rank waits for the others before it raises
SPAWN_TIMEOUT = 600.0  # seconds for all of training, when we start the ranks ourselves

# ------------------------------------------------------------------ how the ranks find each other


def join_group(options: argparse.Namespace) -> torch.device:
    """Join the process group; return this rank's device. Each launcher has its own way to say the rank."""
    device = use_device(options.device, local_rank())
    if "TORCHELASTIC_RUN_ID" in os.environ:  # torchrun has set RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
        dist.init_process_group(backend_for(device, "gloo"), init_method="env://", timeout=TIMEOUT)
        return device
    from mpi4py import MPI  # only here: the other launchers start no MPI

    from course_lib.parallel import ddp  # has torch's backend "mpi4py"

    ddp.start_group(MPI.COMM_WORLD, backend_for(device, options.backend), timeout=TIMEOUT)
    return device


def local_rank() -> int:
    """This rank's number on its machine, as Open MPI, torchrun or `spawn` says it."""
    return int(os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", os.environ.get("LOCAL_RANK", "0")))


def start_spawned(rank: int, options: argparse.Namespace, address: str) -> None:
    """What each process of `spawn` runs: its rank comes as the first argument, the rest from us."""
    os.environ["LOCAL_RANK"] = str(rank)
    device = use_device(options.device, rank)
    backend = backend_for(device, "gloo")
    if address == "env://":
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(options.spawn)}
        dist.init_process_group(backend, timeout=TIMEOUT)
    else:
        dist.init_process_group(
            backend, init_method=address, rank=rank, world_size=options.spawn, timeout=TIMEOUT
        )
    train_in_group(options, device)


def spawn_all(options: argparse.Namespace) -> None:
    """Start the ranks ourselves, with an address where they meet; end them when they take too long."""
    use_device(options.device, options.spawn - 1)  # says here, once, that there are too few GPUs
    with tempfile.TemporaryDirectory() as folder:
        address = {"file": f"file://{folder}/meet", "tcp": f"tcp://127.0.0.1:{free_port()}", "env": "env://"}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}  # read by env:// alone
        ranks = mp.spawn(start_spawned, (options, address[options.meet]), options.spawn, join=False)
        deadline = time.monotonic() + SPAWN_TIMEOUT
        while not ranks.join(timeout=1):  # raises what a rank has raised
            if time.monotonic() > deadline:
                for process in ranks.processes:
                    process.terminate()
                raise TimeoutError(f"training took longer than {SPAWN_TIMEOUT:g} s")


def free_port() -> int:
    """A port that nobody uses now: 12355, as in many a tutorial, may be your neighbour's."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# ------------------------------------------------------------------ training, the same for all launchers


def train_in_group(options: argparse.Namespace, device: torch.device) -> None:
    """Train in the group that this rank has joined, then destroy the group."""
    try:
        train(options, device)
    finally:
        gc.collect()  # the model holds the group, and Gloo's threads must end before Python does
        dist.destroy_process_group()


def train(options: argparse.Namespace, device: torch.device) -> None:
    """All epochs on this rank's shard of the images."""
    rank, size = dist.get_rank(), dist.get_world_size()
    if local_rank() > 0:
        dist.barrier()  # one rank of every machine comes first: it downloads, the others find the files
    data = load_mnist()
    if local_rank() == 0:
        dist.barrier()
    images = TensorDataset(*tensors(data.train_images, data.train_labels, options.samples))
    sampler = DistributedSampler(images, shuffle=True, seed=options.seed)  # a shard for each rank
    loader = DataLoader(images, batch_size=options.batch_size // size, sampler=sampler)
    model = DistributedDataParallel(build("cnn", seed=options.seed).to(device))  # with rank 0's weights
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    steps = options.epochs * len(loader)
    decay = LambdaLR(optimizer, lambda step: max(0.0, 1 - step / steps))  # along a line to 0
    finished = load_checkpoint(options.checkpoint, model.module, optimizer, decay)  # epochs
    for epoch in range(finished, options.epochs):
        sampler.set_epoch(epoch)  # or every epoch has the order of the first
        total = torch.zeros(1, device=device)
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs.to(device)), labels.to(device))
            loss.backward()  # shards are equal: the mean of means is right
            optimizer.step()
            decay.step()
            total += loss.detach() / len(loader)
        save_checkpoint(options.checkpoint, epoch + 1, total / size, model.module, optimizer, decay)
    accuracy = evaluate(model.module, *tensors(data.test_images, data.test_labels, options.samples))
    if rank == 0:
        weights = weight_hash(model.module)
        print(f"{size} ranks, {dist.get_backend()}: weights {weights}, {accuracy:.1%} right")
        if options.save:
            torch.save(model.module.cpu().state_dict(), options.save)


def tensors(images: np.ndarray, labels: np.ndarray, samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The first `samples` images (N, 1, 28, 28), standardised, and their labels (N)."""
    pixels = torch.from_numpy(images[:samples]).unsqueeze(1).float() / 255
    return (pixels - 0.1307) / 0.3081, torch.from_numpy(labels[:samples].astype(np.int64))


@torch.no_grad()
def evaluate(model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """The accuracy on all test images; each is tested by one rank: no sampler, which may repeat some."""
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    model.eval()
    device = next(model.parameters()).device
    right = (model(images[mine].to(device)).argmax(1) == labels[mine].to(device)).sum()
    dist.all_reduce(right)
    return right.item() / len(labels)


# ------------------------------------------------------------------ checkpoints, one file for all ranks


def save_checkpoint(
    file: Path | None,
    finished: int,
    loss: torch.Tensor,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    decay: LRScheduler,
) -> None:
    """Rank 0 writes what the next epoch needs: all of it or nothing, for a machine may fail meanwhile.

    Of the data it needs no more than the epoch's number: the sampler makes the order from that. `loss` is
    this rank's part of the epoch's mean.
    """
    if file is None:
        return
    dist.all_reduce(loss)
    if dist.get_rank() == 0:
        parts = {"model": model, "optimizer": optimizer, "decay": decay}
        state = {name: part.state_dict() for name, part in parts.items()} | {"finished": finished}
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_name(f"{file.name}.part")
        with partial.open("wb") as stream:
            torch.save(state, stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(partial, file)
        print(f"epoch {finished}: loss {loss.item():.9g}, saved", flush=True)


def load_checkpoint(
    file: Path | None, model: torch.nn.Module, optimizer: torch.optim.Optimizer, decay: LRScheduler
) -> int:
    """Go on from `file`, if there is one; return how many epochs are finished.

    Rank 0 alone reads it and sends it to the others: no other machine needs to see that disk.
    """
    if file is None:
        return 0
    found = [None]
    if dist.get_rank() == 0 and file.exists():
        found = [torch.load(file, map_location="cpu", weights_only=True)]
    dist.broadcast_object_list(found)
    state = found[0]
    if state is None:
        return 0
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    decay.load_state_dict(state["decay"])
    if dist.get_rank() == 0:
        print(f"going on after epoch {state['finished']}", flush=True)
    return int(state["finished"])


def weight_hash(model: torch.nn.Module) -> str:
    """A few digits that change when any bit of the weights does."""
    numbers = b"".join(tensor.cpu().contiguous().numpy().tobytes() for tensor in model.state_dict().values())
    return hashlib.sha256(numbers).hexdigest()[:16]


# ------------------------------------------------------------------ the command line


def main() -> None:
    """Find out how we were started, join the others, train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--spawn", type=int, metavar="N", help="start N ranks from here")
    parser.add_argument("--meet", choices=("file", "tcp", "env"), default="file", help="where they meet")
    parser.add_argument("--backend", choices=("mpi4py", "gloo"), default="mpi4py", help="under mpiexec")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: one GPU per rank")
    parser.add_argument("--samples", type=int, default=60_000)
    parser.add_argument("--batch-size", type=int, default=64, help="of all ranks together")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", metavar="FILE", help="where rank 0 writes the weights")
    parser.add_argument(
        "--checkpoint", type=Path, metavar="FILE", help="save here after each epoch; go on from here"
    )
    options = parser.parse_args()
    try:
        if options.spawn:
            spawn_all(options)
        else:
            train_in_group(options, join_group(options))
    except NoGPU as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
