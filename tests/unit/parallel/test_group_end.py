"""A group of torch may end right after a step, while Gloo's threads still want Python's lock."""

import subprocess
import sys
from pathlib import Path

import pytest

TRAINING = """
import faulthandler
import time

faulthandler.dump_traceback_later({deadline}, exit=True)
import torch
import torch.distributed as dist
from mpi4py import MPI
from torch.nn.parallel import DistributedDataParallel
from course_lib.parallel import ddp


class Slow:
    def __call__(self, done):
        return done.value()[0]

    def __del__(self):  # Gloo's thread frees the callback: it has the lock, drops it, wants it back
        time.sleep(0.3)


def hook(state, bucket):
    return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(Slow())


def train():
    model = torch.nn.Linear(3, 2)
    with ddp.process_group(MPI.COMM_WORLD, "gloo"):
        replica = DistributedDataParallel(model)
        replica.register_comm_hook(None, hook)
        replica(torch.ones(4, 3)).sum().backward()
    {after}


train()
train()
print("two trainings")
"""


def train_twice(folder: Path, *, after: str, deadline: float) -> str:
    script = folder / "train.py"
    script.write_text(TRAINING.replace("{after}", after).replace("{deadline}", str(deadline)))
    job = [sys.executable, "-m", "mpi_classroom.launch", "2", str(script)]
    return subprocess.run(job, capture_output=True, text=True, timeout=120).stdout


@pytest.mark.slow
def test_a_group_may_end_right_after_a_step(tmp_path: Path) -> None:
    assert train_twice(tmp_path, after="pass", deadline=60).count("two trainings") == 2


@pytest.mark.slow
def test_a_model_that_outlives_its_group_waits_for_ever(tmp_path: Path) -> None:
    """The known-wrong way: nobody keeps the group, so the model is the last that holds it."""
    assert train_twice(tmp_path, after="ddp.ended.clear()", deadline=12).count("two trainings") < 2
