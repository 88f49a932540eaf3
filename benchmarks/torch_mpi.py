"""torch.distributed over mpi4py beside Gloo: collectives, DDP, FSDP2. (DeepSpeed: benchmarks/deepspeed.py.)

One job has both: the default group is ours, a second group of the same ranks is Gloo's, and they alternate
on the same tensors, models and batches. Each rank has its share of the cores' threads, and the slowest rank
counts. Gloo talks over loopback, as it does on one machine.

    python -m benchmarks.torch_mpi [--quick] [--json FILE]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.allreduce import KIB, MIB, say_bytes
from benchmarks.harness import Row, Timing, main, on_ranks, row
from benchmarks.torch_mpi_races import (
    IMAGES,
    LAYERS,
    LENGTH,
    STEPS,
    WIDTH,
    Times,
    race_collectives,
    race_ddp,
    race_fsdp,
)

RANKS = 2
SIZES = (4, KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB)
ROUNDS = 7
PEERS = {"peer": "Gloo", "alone": "no communication"}


def measure(quick: bool) -> list[Row]:
    """All rows."""
    rounds = 3 if quick else ROUNDS
    sizes = [4, 64 * KIB, 4 * MIB] if quick else list(SIZES)
    raced = on_ranks(RANKS, race_collectives, timeout=1200, sizes=sizes, rounds=rounds)
    trained = on_ranks(RANKS, race_ddp, timeout=1200, rounds=rounds, share=0.1 if quick else 1.0)
    sharded = on_ranks(RANKS, race_fsdp, timeout=600, rounds=rounds, steps=2 if quick else 10)
    return [
        *collective_rows(raced),
        *ddp_rows(trained),
        *fsdp_rows(sharded),
    ]


def collective_rows(raced: Mapping[str, Mapping[str, Times]]) -> list[Row]:
    return [
        beside(f"{name}, {say_bytes(int(nbytes))}" if nbytes != "0" else name, times, 1e6, "us")
        for name, sizes in raced.items()
        for nbytes, times in sizes.items()
    ]


def ddp_rows(trained: Mapping[str, Any]) -> list[Row]:
    digits = trained["data"]
    return [
        beside(f"DDP, {name}, {digits}, {IMAGES} images per rank", trained[name], 1, "images/s", peer)
        for name in STEPS
        for peer in PEERS
    ]


def fsdp_rows(sharded: Mapping[str, Times]) -> list[Row]:
    return [
        beside(f"FSDP2, one step of {the_model(int(sequences))}", times, 1e3, "ms", peer)
        for sequences, times in sharded.items()
        for peer in PEERS
    ]


def the_model(sequences: int) -> str:
    return f"a Transformer (width {WIDTH}, length {LENGTH}, batch {sequences}, {LAYERS} blocks)"


def beside(case: str, times: Mapping[str, list[float]], factor: float, unit: str, peer: str = "peer") -> Row:
    """A row of what both took, in `unit`s."""
    ours, theirs = (Timing.of(times[who]).times(factor) for who in ("ours", peer))
    return row(case, RANKS, ours, theirs, PEERS[peer], unit=unit)


if __name__ == "__main__":
    main("torch.distributed over mpi4py beside Gloo", measure)
