"""What the system says that a rank of ZeRO holds; first, so that no earlier test has freed memory for it."""

import ctypes
import gc

import torch
from mpi4py import MPI
from torch import nn
from torch.optim import AdamW

from course.lessons.l11_zero_from_scratch.runs import held_state, start
from course.lessons.shared.resident import resident_bytes


def give_back_freed_memory() -> None:
    """What earlier tests freed goes back to the system: else new tensors take it, and nothing grows."""
    gc.collect()
    if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)


def test_resident_memory_shrinks_with_the_stage(comm: MPI.Intracomm) -> None:
    """The system sees it, too: 16 MiB of weights in float32, 64 with gradients and Adam's state."""
    if comm.size < 3:
        return
    grown = {}
    for turn, stage in enumerate((0, 0, 3)):  # the first loads what torch loads at first use
        comm.Barrier()
        give_back_freed_memory()
        before = resident_bytes()
        model = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(4)))
        zero = start(comm, model, stage, lambda shards: AdamW(shards, foreach=False), layers=model)
        model(torch.ones(1, 1024)).sum().backward()
        zero.step()
        grown[stage] = resident_bytes() - before
        held = held_state(zero, model).total
        assert turn == 0 or 0.9 * held < grown[stage] < held + 40 * 2**20
        del model, zero
    assert grown[3] < 0.8 * grown[0]
