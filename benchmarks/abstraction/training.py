"""Fine-tune SmolLM2 with DeepSpeed on all ranks, or its first steps in one process without DeepSpeed.

Every rank computes the losses of its articles of the batch, one by one: sums over tokens, divided by the
tokens of all ranks. Every so often the loss of validation articles is logged, and what a later run needs is
kept.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.abstraction.articles import RUN, keep, kept, load, prompt, read_parts, summed_loss, target
from course.tools.smollm2 import smollm2_folder
from course_lib.data.cnn_dailymail import Article

if TYPE_CHECKING:
    from mpi4py import MPI

STAGE, BATCH = 1, 4  # articles per update
RATE, CLIMB, CLIP = 1e-5, 10, 1.0  # the rate climbs in so many steps and stays
WATCHED, EVERY = 20, 40  # validation articles, whose loss is logged every so many steps
FIRST = 4  # steps that are compared with one process
TRAINED = RUN / "model"


def batch_at(tokenizer: Any, articles: Sequence[Article], step: int) -> list[tuple[list[int], list[int]]]:
    """Prompts and references of the global batch of `step`, the same on all ranks."""
    chosen = [articles[(BATCH * step + i) % len(articles)] for i in range(BATCH)]
    return [(prompt(tokenizer, each), target(tokenizer, each)) for each in chosen]


def rate_at(step: int) -> float:
    """The learning rate of the update after `step` others."""
    return RATE * min(1.0, (step + 1) / CLIMB)


def train_together(comm: MPI.Intracomm, seconds: float, steps: int) -> dict[str, Any]:
    """Go on training until `steps` updates are done or `seconds` have passed, and keep all that is needed."""
    from benchmarks.parts.deepspeed_engine import deepspeed_world, stage_config, start_engine

    end, parts, (tokenizer, model) = time.monotonic() + seconds, read_parts(), load(smollm2_folder())
    config = stage_config(
        STAGE,
        comm.size,
        micro_batch=1,
        accumulation=BATCH // comm.size,
        learning_rate=RATE,
        clip=CLIP,
        bucket=20_000_000,
    )
    with deepspeed_world(comm):
        engine = start_engine(model, config)
        log = Log(comm, resume(engine))

        def look(due: bool) -> None:
            if due:
                log.add(validation=watch(comm, engine.module, tokenizer, parts.choosing[:WATCHED]))
                checkpoint(comm, engine, log.step)

        look(log.step == 0)
        while comm.bcast(log.step < steps and time.monotonic() < end):
            start = time.monotonic()
            loss, tokens = update(comm, engine, batch_at(tokenizer, parts.training, log.step), log.step)
            log.add(loss=loss, tokens=tokens, seconds=round(time.monotonic() - start, 2))
            look(log.step % EVERY == 0)
        look(log.step % EVERY > 0)
        if comm.rank == 0:
            engine.module.save_pretrained(TRAINED)
        comm.Barrier()
    return {"steps": log.step}


def update(comm: MPI.Intracomm, engine: Any, batch: Sequence[Any], step: int) -> tuple[float, int]:
    """One update; the mean loss over the tokens of all ranks, and how many these are."""
    tokens, total = sum(len(right) for _, right in batch), 0.0
    for group in engine.optimizer.param_groups:
        group["lr"] = rate_at(step)
    for read, right in batch[comm.rank :: comm.size]:
        part = summed_loss(engine, read, right) / tokens
        engine.backward(BATCH * part)  # DeepSpeed averages over BATCH parts, which must be added
        engine.step()
        total += part.item()
    return comm.allreduce(total), tokens


def watch(comm: MPI.Intracomm, model: Any, tokenizer: Any, articles: Sequence[Article]) -> float:
    """The mean loss over the tokens of the references of `articles`."""
    import torch

    pairs = [(prompt(tokenizer, each), target(tokenizer, each)) for each in articles[comm.rank :: comm.size]]
    with torch.no_grad():
        losses = sum(summed_loss(model, *pair).item() for pair in pairs)
    return comm.allreduce(losses) / comm.allreduce(sum(len(right) for _, right in pairs))


class Log:
    """What was measured after each number of updates, written by rank 0 at once."""

    def __init__(self, comm: MPI.Intracomm, step: int) -> None:
        """Lines of updates that the checkpoint after `step` updates does not contain are left out."""
        self.writes, self.step = comm.rank == 0, step
        self.lines = [line for line in kept("log.json") or [] if line["step"] <= step and step]

    def add(self, **values: float) -> None:
        """A line; one with a loss counts as an update."""
        self.step += "loss" in values
        self.lines.append({"step": self.step} | {name: round(value, 6) for name, value in values.items()})
        if self.writes:
            keep("log.json", self.lines)


def checkpoint(comm: MPI.Intracomm, engine: Any, step: int) -> None:
    """Keep weights and optimizer, then let go of older ones; all ranks together."""
    folder, tag = RUN / "checkpoint", f"step{step}"
    if step:
        engine.save_checkpoint(str(folder), tag=tag, client_state={"done": step})
    comm.Barrier()
    if comm.rank == 0:
        for old in folder.glob("step*"):
            if old.name != tag:
                shutil.rmtree(old)
    comm.Barrier()


def resume(engine: Any) -> int:
    """Load the last checkpoint, if there is one; how many updates it has seen."""
    folder = RUN / "checkpoint"
    if not (folder / "latest").exists():
        return 0
    _, state = engine.load_checkpoint(str(folder))
    return int(state["done"])


def first_alone(comm: MPI.Intracomm) -> list[float]:
    """The losses of the first steps in one process, with PyTorch's AdamW and without DeepSpeed."""
    import torch

    (tokenizer, model), articles, losses = load(smollm2_folder()), read_parts().training, []
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(FIRST):
        batch = batch_at(tokenizer, articles, step)
        tokens = sum(len(right) for _, right in batch)
        optimizer.param_groups[0]["lr"] = rate_at(step)
        losses.append(0.0)
        for pair in batch:
            part = summed_loss(model, *pair) / tokens
            part.backward()
            losses[-1] += part.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
    return losses
