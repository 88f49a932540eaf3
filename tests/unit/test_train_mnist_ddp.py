"""The script of lesson 07 under each launcher, with two ranks: one training, whichever way it is started."""

import os
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest
import torch

from course.lessons.shared.programs import output_of
from course.paths import NOTEBOOKS
from course_lib.network import loopback
from mpi_classroom.launch import mpiexec_command, rank_environment

SCRIPT = NOTEBOOKS / "code" / "train_mnist_ddp.py"
TIMEOUT = 300  # seconds; a few are enough on a quiet machine
OPTIONS = ("--samples", "256", "--epochs", "2")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(SCRIPT), *OPTIONS)
SPAWN = (str(SCRIPT), *OPTIONS, "--spawn", "2", "--meet")
WAYS: Mapping[str, list[str]] = {
    "torchrun": [sys.executable, *TORCHRUN],
    "mpiexec": mpiexec_command(2, [sys.executable, "-m", "mpi4py", str(SCRIPT), *OPTIONS]),
    "mpiexec, gloo": mpiexec_command(
        2, [sys.executable, "-m", "mpi4py", str(SCRIPT), *OPTIONS, "--backend", "gloo"]
    ),
    "spawn, file": [sys.executable, *SPAWN, "file"],
    "spawn, tcp": [sys.executable, *SPAWN, "tcp"],
    "spawn, env": [sys.executable, *SPAWN, "env"],
}


def environment() -> dict[str, str]:
    """As a lesson starts it; without the real images, so that it is the same everywhere."""
    base = {name: value for name, value in os.environ.items() if name != "COURSE_DATA"}
    return rank_environment(2, base) | {"GLOO_SOCKET_IFNAME": loopback(), "COURSE_OFFLINE": "1"}


KILLED = """
import os, signal
import torch.distributed as dist
import train_mnist_ddp as script

def die_in_the_second_epoch(sampler, epoch, set_epoch=script.DistributedSampler.set_epoch):
    if epoch == 1 and dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    set_epoch(sampler, epoch)

script.DistributedSampler.set_epoch = die_in_the_second_epoch
script.main()
"""


@cache
def said(way: str) -> str:
    return output_of(WAYS[way], environment(), timeout=TIMEOUT)


@pytest.mark.slow
@pytest.mark.parametrize(
    "way",
    [
        *("mpiexec", "torchrun"),
        *(
            pytest.param(way, marks=pytest.mark.release)
            for way in ("mpiexec, gloo", "spawn, tcp", "spawn, file", "spawn, env")
        ),
    ],
)
def test_every_launcher_trains_the_same_network(way: str) -> None:
    size, backend, result = said(way).replace(", ", ": ", 1).split(": ")
    assert size == "2 ranks"
    assert backend == ("mpi4py" if way == "mpiexec" else "gloo")
    assert result == said("mpiexec").split(": ")[1]


@pytest.mark.slow
def test_two_ranks_train_as_one_does(tmp_path: Path) -> None:
    alone = [sys.executable, str(SCRIPT), *OPTIONS, "--spawn", "1"]
    weights = []
    for number, command in enumerate((alone, WAYS["mpiexec"])):
        file = tmp_path / f"{number}.pt"
        output_of([*command, "--save", str(file)], environment(), timeout=TIMEOUT)
        state = torch.load(file, weights_only=True)
        weights.append(torch.cat([tensor.flatten() for tensor in state.values()]))
    assert float((weights[0] - weights[1]).norm() / weights[0].norm()) < 1e-5


@pytest.mark.release
def test_a_killed_training_goes_on_and_ends_with_the_weights_of_one_that_was_not(tmp_path: Path) -> None:
    command = [*WAYS["mpiexec"], "--checkpoint", str(tmp_path / "runs" / "last.pt")]
    dies = [word for each in command for word in (("-c", KILLED) if each == str(SCRIPT) else (each,))]
    given = environment() | {"PYTHONPATH": f"{SCRIPT.parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    first = subprocess.run(dies, env=given, capture_output=True, text=True, timeout=TIMEOUT).stdout
    assert [line.split(":")[0] for line in first.splitlines()] == ["epoch 1"], first
    second = output_of(command, environment(), timeout=TIMEOUT).splitlines()
    assert [line.split(":")[0] for line in second[:2]] == ["going on after epoch 1", "epoch 2"]
    assert second[2:] == said("mpiexec").splitlines()


def test_a_training_that_takes_too_long_is_ended_with_all_its_ranks() -> None:
    late = (
        "import sys, train_mnist_ddp as script\n"
        "script.SPAWN_TIMEOUT = 0.5\n"
        "if __name__ == '__main__':\n"
        "    script.main()\n"
    )
    given = environment() | {"PYTHONPATH": str(SCRIPT.parent)}
    command = [sys.executable, "-c", late, *OPTIONS, "--spawn", "2"]
    done = subprocess.run(command, env=given, capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 1
    assert "TimeoutError: training took longer than 0.5 s" in done.stderr


def test_without_a_gpu_one_sentence_says_so() -> None:
    command = mpiexec_command(1, [sys.executable, "-m", "mpi4py", str(SCRIPT), *OPTIONS, "--device", "cuda"])
    given = environment() | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=given, capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "PyTorch finds no GPU on this machine. Leave out --device cuda" in done.stderr


@pytest.mark.release
def test_it_ends_above_90_percent() -> None:
    """As lesson 07 starts it, and in a few seconds of a core."""
    options = ["--samples", "5000", "--epochs", "2"]
    command = mpiexec_command(2, [sys.executable, "-m", "mpi4py", str(SCRIPT), *options])
    said = output_of(command, dict(os.environ) | rank_environment(2), timeout=TIMEOUT)
    assert float(said.split()[-2].rstrip("%")) > 90, said
