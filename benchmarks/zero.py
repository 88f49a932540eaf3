"""The course's own ZeRO beside DeepSpeed's and FSDP2, all over mpi4py.

One job of two ranks runs them alternately: a step of AdamW on a Transformer (d 512, 6 layers, 8 sequences of
128 tokens per rank) by our stages 1, 2 and 3 (that of `fast/zero.py`), by DeepSpeed's, and by `fully_shard`,
which is stage 3, or stage 2 when it keeps the weights after forward. Buckets are of the same size; the
slowest rank counts.

    python -m benchmarks.zero [--quick] [--json FILE]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Row, Timing, main, on_ranks, row
from benchmarks.torch_mpi_races import Times, alternate, transformer

Work = Callable[[], float]  # a step, and its loss

if TYPE_CHECKING:
    from mpi4py import MPI

RANKS, ROUNDS = 2, 5
WIDTH, LENGTH, SEQUENCES, LAYERS = 512, 128, 8, 6  # sequences per rank
BUCKET_BYTES = 8 * 2**20
STAGES = (1, 2, 3)
FIRST, TOLERANCE = 2, 1e-3  # steps whose losses must agree; AdamW in float32 amplifies rounding


def measure(quick: bool) -> list[Row]:
    """All rows."""
    layers, rounds = (2, 3) if quick else (LAYERS, ROUNDS)
    raced = on_ranks(RANKS, race, timeout=600, layers=layers, rounds=rounds)
    must_agree(raced["losses"])
    return rows(raced["seconds"], layers)


def must_agree(losses: Mapping[str, Sequence[float]]) -> None:
    """RuntimeError unless all contenders train the same: then their times mean nothing."""
    for name, each in losses.items():
        if any(abs(mine - first) > TOLERANCE for mine, first in zip(each, losses["own 1"], strict=True)):
            raise RuntimeError(f"{name} and own 1 do not train alike, one of us is wrong: {losses}")


def rows(seconds: Times, layers: int) -> list[Row]:
    """Ours beside DeepSpeed's, stage by stage, and beside FSDP2's two."""
    found = {name: Timing.of(each) for name, each in seconds.items()}
    pairs = [(f"own {stage}", f"DeepSpeed {stage}") for stage in STAGES]
    pairs += [("own 2", "FSDP2 2"), ("own 3", "FSDP2 3"), ("own 3, prefetch", "own 3")]
    return [
        row(f"a step, {layers} layers: {ours}", RANKS, found[ours], found[peer], peer) for ours, peer in pairs
    ]


# ---------------------------------------------------------------- on the ranks


def race(comm: MPI.Intracomm, layers: int, rounds: int) -> dict[str, Any]:
    """Seconds of one step of every contender, and the losses of its first steps, the mean of all ranks."""
    import torch

    from benchmarks.parts.deepspeed_engine import deepspeed_world

    with deepspeed_world(comm) as deepspeed:
        torch.set_num_threads(1)
        contenders = {f"own {stage}": own_step(comm, layers, stage) for stage in STAGES}
        contenders |= {"own 3, prefetch": own_step(comm, layers, 3, prefetch=True)}
        contenders |= {f"DeepSpeed {stage}": deepspeed_step(deepspeed, layers, stage) for stage in STAGES}
        contenders |= {f"FSDP2 {stage}": fsdp_step(comm, layers, stage) for stage in (2, 3)}
        losses = {
            name: [comm.allreduce(work()) / comm.size for _ in range(FIRST)]
            for name, work in contenders.items()
        }
        return {"losses": losses, "seconds": alternate(comm, contenders, rounds)}


def adamw(parameters: Any) -> Any:
    from torch.optim import AdamW

    return AdamW(parameters, lr=1e-4)


def loss_of(model: Any, rank: int) -> Any:
    """The loss of a rank's own sequences: random ones, as the time does not depend on them."""
    import torch
    from torch.nn.functional import cross_entropy

    tokens = torch.randint(0, 256, (SEQUENCES, LENGTH), generator=torch.Generator().manual_seed(rank))
    return cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())


def own_step(comm: MPI.Intracomm, layers: int, stage: int, *, prefetch: bool = False) -> Work:
    """A step of ours."""
    from course_lib.fast.zero import Zero3
    from course_lib.parallel.zero import Zero1, Zero2

    model = transformer(layers)
    zero: Any
    if stage == 3:
        zero = Zero3(comm, model, adamw, layers=model.blocks, prefetch=prefetch)
    else:
        zero = (Zero1, Zero2)[stage - 1](comm, model, adamw, bucket_bytes=BUCKET_BYTES)

    def step() -> float:
        loss = loss_of(model, comm.rank)
        (loss / comm.size).backward()
        zero.step()
        zero.zero_grad()
        return float(loss)

    return step


def deepspeed_step(deepspeed: Any, layers: int, stage: int) -> Work:
    """A step of DeepSpeed's engine."""
    elements = BUCKET_BYTES // 4
    zero = {
        "stage": stage,
        "reduce_bucket_size": elements,
        "allgather_bucket_size": elements,
        "stage3_prefetch_bucket_size": elements,
    }
    settings = {
        "train_micro_batch_size_per_gpu": SEQUENCES,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": zero,
        "gradient_clipping": 0.0,  # clips to a norm of 1 unless set to 0
        "steps_per_print": 10**9,
    }
    model = transformer(layers)
    engine, *_ = deepspeed.initialize(model=model, optimizer=adamw(model.parameters()), config=settings)

    def step() -> float:
        loss = loss_of(engine, engine.global_rank)
        engine.backward(loss)
        engine.step()
        return float(loss)

    return step


def fsdp_step(comm: MPI.Intracomm, layers: int, stage: int) -> Work:
    """A step of a Transformer whose blocks are sharded; in stage 2 they stay gathered until backward."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model, mesh = transformer(layers), init_device_mesh("cpu", (comm.size,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=stage == 3)
    fully_shard(model, mesh=mesh, reshard_after_forward=stage == 3)
    optimizer = adamw(model.parameters())

    def step() -> float:
        loss = loss_of(model, comm.rank)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return float(loss)

    return step


if __name__ == "__main__":
    main("Own ZeRO beside DeepSpeed's and FSDP2, over mpi4py", measure)
