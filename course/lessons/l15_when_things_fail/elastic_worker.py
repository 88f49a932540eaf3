"""A training that torchrun restarts after a failure: the program that each worker runs.

    torchrun --standalone --max-restarts 1 … -m ….elastic_worker FOLDER STEPS SAVE_EVERY KILL_AT

Every worker loads the last checkpoint when it starts, if there is one. The first worker saves. In the first
attempt, the last worker kills itself in step KILL_AT. Each notes what it does in a file of its own in FOLDER.
"""

import io
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

STARTED = time.monotonic()  # before torch is imported, which takes seconds

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

from course.lessons.l15_when_things_fail.kill_points import loaded_saver  # noqa: E402
from mpi_classroom.job_output import event_file  # noqa: E402

CHECKPOINT, SAVER = "checkpoint", "saver"
BATCH = 64


def note(folder: Path, **what: Any) -> None:
    """Write an event with its time; a restarted worker writes into the same file."""
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    with event_file(folder, dist.get_rank()).open("a") as file:
        file.write(json.dumps({"at": time.monotonic(), "attempt": attempt, **what}) + "\n")


def take_step(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> float:
    """A data-parallel step: each worker computes on its part of the global batch; the global loss."""
    random = torch.Generator().manual_seed(step)
    inputs = torch.randn(BATCH, 8, generator=random)
    targets = inputs[:, :1] - inputs[:, 1:2]
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    loss = (model(inputs[mine]) - targets[mine]).square().sum() / BATCH
    optimizer.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    total = loss.detach().clone()
    dist.all_reduce(total)
    optimizer.step()
    return float(total)


def main(place: str, steps: str, save_every: str, kill_at: str) -> None:
    """A worker, from its checkpoint to the last step."""
    dist.init_process_group("gloo")
    folder, first_attempt = Path(place), os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    note(folder, started=STARTED, pid=os.getpid())
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    save, path, done = loaded_saver((folder / SAVER).read_text()), folder / CHECKPOINT, 0
    if path.exists():
        state = torch.load(path, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["step"]
    dist.barrier()  # nobody saves before all have loaded
    note(folder, loaded=done)
    is_last = dist.get_rank() == dist.get_world_size() - 1
    for step in range(done, int(steps)):
        if step == int(kill_at) and is_last and first_attempt:
            note(folder, killed=step)
            os.kill(os.getpid(), signal.SIGKILL)
        loss = take_step(model, optimizer, step)
        note(folder, step=step, loss=loss)
        if (step + 1) % int(save_every) == 0 and dist.get_rank() == 0:
            content = io.BytesIO()
            whole = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
            torch.save(whole, content)
            save(path, content.getvalue())
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
