"""A small training of a few milliseconds per step, which saves often and goes on where it was: to be killed.

python -m mpi4py -m tests.unit.parallel.killed_training FOLDER LOG STAGE STEPS

Every rank appends lines of JSON to LOG: who it is, where it goes on, each loss, each checkpoint.
"""

import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mpi4py import MPI
from torch import nn
from torch.nn import functional as F
from torch.optim import AdamW

from course_lib.parallel.checkpoint import load_training, save_training
from course_lib.parallel.data_parallel import sum_gradients
from course_lib.parallel.zero import Zero1, Zero2
from course_lib.parallel.zero3 import Zero3
from course_lib.theory.partition import even_range
from course_lib.training.loop import shuffled_batches

EVERY, SAMPLES, BATCH, WIDTH = 3, 48, 12, 17


def build(stage: int) -> nn.Sequential:
    """A network, and the random-number state from its start."""
    torch.manual_seed(stage)
    random.seed(stage)
    np.random.seed(stage)
    return nn.Sequential(
        nn.Linear(5, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1)
    ).double()


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(SAMPLES, 5, generator=generator, dtype=torch.float64)
    return inputs, inputs.square().sum(1, keepdim=True)


def adamw(parameters: Any) -> AdamW:
    return AdamW(parameters, lr=0.01)


def optimizer_for(comm: MPI.Intracomm, model: nn.Sequential, stage: int) -> Any:
    if stage == 0:
        return adamw(model.parameters())
    if stage == 3:
        return Zero3(comm, model, adamw, layers=[model[0], model[2]])
    return (Zero1, Zero2)[stage - 1](comm, model, adamw, bucket_bytes=1000)


def batch_of(step: int) -> np.ndarray:
    """The samples of the global batch of a step."""
    epoch, index = divmod(step, SAMPLES // BATCH)
    return shuffled_batches(SAMPLES, BATCH, seed=0, epoch=epoch)[index]


def train_step(comm: MPI.Intracomm, model: nn.Sequential, optimizer: Any, step: int) -> float:
    """One step; the loss of the global batch. Noise is drawn for all samples by all ranks alike."""
    inputs, targets = data()
    batch = batch_of(step)
    noise = torch.rand(BATCH, 1, dtype=torch.float64) * np.random.rand() * random.random()
    mine = even_range(BATCH, comm.size, comm.rank)
    rows = batch[mine.start : mine.stop]
    outputs = model(inputs[rows]) + noise[mine.start : mine.stop]
    loss = F.mse_loss(outputs, targets[rows], reduction="sum") / BATCH
    loss.backward()
    if isinstance(optimizer, torch.optim.Optimizer):
        sum_gradients(comm, model)
    optimizer.step()
    optimizer.zero_grad()
    return float(comm.allreduce(loss.item()))


def main(folder: str, log: str, stage: str, steps: str) -> None:
    comm = MPI.COMM_WORLD
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def report(**what: object) -> None:
        os.write(file, (json.dumps(what) + "\n").encode())

    report(rank=comm.rank, pid=os.getpid())
    torch.set_num_threads(1)
    model = build(int(stage))
    optimizer = optimizer_for(comm, model, int(stage))
    found = load_training(comm, Path(folder), model, optimizer)
    begin = found.progress["batch"] if found else 0
    if comm.rank == 0:
        report(resumed=begin, refused=list(found.refused) if found else [])
    for step in range(begin, int(steps)):
        loss = train_step(comm, model, optimizer, step)
        if comm.rank == 0:
            report(step=step, loss=loss.hex())
        if (step + 1) % EVERY == 0:
            save_training(comm, Path(folder), model, optimizer, step=step + 1, progress={"batch": step + 1})
            if comm.rank == 0:
                report(saved=step + 1)


if __name__ == "__main__":
    main(*sys.argv[1:])
