"""What the ranks of benchmarks/torch_mpi.py do: torch.distributed over mpi4py and over Gloo, in turn.

The default group is ours; a second group of the same ranks is Gloo's. "ours" and "peer" in the results. In
DDP and FSDP2 also "alone": the ranks compute the same and send nothing, which no backend can beat.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from course_lib.measure import timed
from course_lib.network import loopback
from mpi_classroom.launch import threads_per_rank

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist
    from mpi4py import MPI

MIB = 2**20
TIMEOUT = timedelta(seconds=120)
MOST_TIMES = 300  # in a row: after Gloo's sleeps both ranks may share a core for the first milliseconds
IMAGES = 64  # per rank and step
STEPS = {"mlp": 200, "cnn": 20, "lstm": 60}  # a round
WIDTH, LENGTH, SEQUENCES, LAYERS = 512, 128, 8, 2  # the Transformer; sequences of all ranks together
FEW = 2  # sequences, so that moving the weights takes a larger part of a step

Work = Callable[[], object]
Contenders = Mapping[str, Work]
Times = dict[str, list[float]]  # what each contender took, in every round


@contextmanager
def groups(comm: MPI.Intracomm) -> Iterator[dict[str, dist.ProcessGroup]]:
    """torch.distributed over mpi4py ("ours") and over Gloo ("peer"), among the ranks of `comm`."""
    import torch
    import torch.distributed as dist

    import torch_mpi4py

    os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback())
    torch.set_num_threads(threads_per_rank(comm.size))
    torch_mpi4py.init_process_group(comm, timeout=TIMEOUT)
    try:
        world = dist.distributed_c10d._get_default_group()
        yield {"ours": world, "peer": dist.new_group(backend="gloo", timeout=TIMEOUT)}
    finally:
        comm.Barrier()  # rank 0 hosts the store that Gloo's goodbye needs
        dist.destroy_process_group()


def alternate(comm: MPI.Intracomm, contenders: Contenders, rounds: int, times: int = 1) -> Times:
    """Seconds of one run of each, `times` runs in a row being one turn; a warm-up first."""
    found: Times = {name: [] for name in contenders}
    for work in contenders.values():
        work()
    for _ in range(rounds):
        for name, work in contenders.items():
            found[name].append(timed(comm, work, times))
    return found


# ---------------------------------------------------------------- collectives


def collectives(group: dist.ProcessGroup, nbytes: int) -> dict[str, Work]:
    """Every collective with `nbytes` of float32 per rank, sent or, where that is more, received."""
    import torch
    import torch.distributed as dist

    rank, size = group.rank(), group.size()
    full = torch.zeros(max(size, nbytes // 4))  # zeros: sums of sums never overflow
    shard = torch.zeros(full.numel() // size)
    full = full[: shard.numel() * size]
    shards, one = list(full.chunk(size)), torch.zeros(max(1, nbytes // 4))
    into, at_root = torch.empty_like(full), rank == 0
    return {
        "all_reduce": lambda: dist.all_reduce(one, group=group),
        "broadcast": lambda: dist.broadcast(one, 0, group=group),
        "reduce": lambda: dist.reduce(one, 0, group=group),
        "all_gather": lambda: dist.all_gather(shards, shard, group=group),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(full, shard, group=group),
        "reduce_scatter": lambda: dist.reduce_scatter(shard, shards, group=group),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(shard, full, group=group),
        "all_to_all_single": lambda: dist.all_to_all_single(into, full, group=group),
        "gather": lambda: dist.gather(shard, shards if at_root else None, 0, group=group),
        "scatter": lambda: dist.scatter(shard, shards if at_root else None, 0, group=group),
        "send, recv to and fro": partial(to_and_fro, group, one),
    }


def to_and_fro(group: dist.ProcessGroup, tensor: torch.Tensor) -> None:
    """From rank 0 to rank 1 and back."""
    import torch.distributed as dist

    if group.rank() == 0:
        dist.send(tensor, 1, group=group)
        dist.recv(tensor, 1, group=group)
    elif group.rank() == 1:
        dist.recv(tensor, 0, group=group)
        dist.send(tensor, 0, group=group)


def race_collectives(comm: MPI.Intracomm, sizes: list[int], rounds: int) -> dict[str, dict[str, Times]]:
    """Seconds of each collective (by name) on each size."""
    import torch.distributed as dist

    found: dict[str, dict[str, Times]] = {}
    with groups(comm) as both:
        for nbytes in sizes:
            works = {who: collectives(group, nbytes) for who, group in both.items()}
            for name in works["ours"]:
                contenders = {who: works[who][name] for who in both}
                times = max(1, min(MOST_TIMES, 16 * MIB // nbytes))
                found.setdefault(name, {})[str(nbytes)] = alternate(comm, contenders, rounds, times)
        barriers = {who: partial(dist.barrier, group=group) for who, group in both.items()}
        found["barrier"] = {"0": alternate(comm, barriers, rounds, 100)}
    return found


# ---------------------------------------------------------------- DDP


def race_ddp(comm: MPI.Intracomm, rounds: int, share: float) -> dict[str, Any]:
    """Images per second of the three MNIST models; `share` of the usual steps per round."""
    from course_lib.data.mnist import load_mnist

    data = load_mnist()
    found: dict[str, Any] = {"data": data.name}
    with groups(comm) as both:
        for name, usual in STEPS.items():
            steps = max(2, int(usual * share))
            indices = indices_of(comm.rank, comm.size, len(data.train_labels), steps)
            contenders = {
                who: ddp_steps(name, group, data, indices) for who, group in {**both, "alone": None}.items()
            }
            seconds = alternate(comm, contenders, rounds)
            images = IMAGES * comm.size * steps
            found[name] = {who: [images / s for s in each] for who, each in seconds.items()}
    return found


def ddp_steps(name: str, group: dist.ProcessGroup | None, data: Any, indices: list[Any]) -> Work:
    """A function that trains a model of its own on the images of `indices`, step by step."""
    from torch.nn.parallel import DistributedDataParallel
    from torch.optim import SGD

    from course_lib.training.loop import image_batch, make_step, summed_cross_entropy
    from course_lib.training.models import build

    model = build(name, seed=0)
    if group is not None:
        model = DistributedDataParallel(model, process_group=group, gradient_as_bucket_view=True)
    step = make_step(model, summed_cross_entropy, SGD(model.parameters(), lr=0.01))
    batches = [image_batch(data.train_images, data.train_labels, of_step, IMAGES) for of_step in indices]

    def run() -> None:
        for batch in batches:
            step(batch)

    return run


def indices_of(rank: int, size: int, samples: int, steps: int) -> list[Any]:
    """The images of each step of `rank`."""
    import numpy as np

    order = np.random.default_rng(0).permutation(samples)[rank::size]
    return [np.take(order, range(IMAGES * s, IMAGES * (s + 1)), mode="wrap") for s in range(steps)]


# ---------------------------------------------------------------- FSDP2


def race_fsdp(comm: MPI.Intracomm, rounds: int, steps: int) -> dict[str, Times]:
    """Seconds of one step of a sharded Transformer, by the number of sequences."""
    found = {}
    with groups(comm) as both:
        for sequences in (SEQUENCES, FEW):
            contenders = {who: fsdp_step(group, sequences) for who, group in both.items()}
            contenders["alone"] = transformer_step(transformer(), sequences // comm.size)
            found[str(sequences)] = alternate(comm, contenders, rounds, steps)
    return found


def fsdp_step(group: dist.ProcessGroup, sequences: int) -> Work:
    """A step of a Transformer whose blocks are sharded over `group`."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    model, mesh = transformer(), DeviceMesh.from_group(group, "cpu")
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return transformer_step(model, sequences // group.size())


def transformer(layers: int = LAYERS) -> Any:
    """The model of all benchmarks of sharding."""
    from course_lib.training.transformer import build_transformer

    return build_transformer(length=LENGTH, width=WIDTH, heads=8, layers=layers, seed=0)


def transformer_step(model: Any, share: int) -> Work:
    """Forward, backward and update on this rank's share of the sequences."""
    import torch
    from torch.nn.functional import cross_entropy
    from torch.optim import SGD

    optimizer = SGD(model.parameters(), lr=0.01)
    tokens = torch.randint(0, 256, (share, LENGTH))

    def step() -> None:
        optimizer.zero_grad()
        cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()

    return step
