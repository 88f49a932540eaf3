"""The script of lesson 12 under each launcher, with two ranks: one training, and nothing is compiled."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import pytest

from course.lessons.shared.programs import output_of
from course.paths import NOTEBOOKS
from course_lib.network import loopback
from mpi_classroom.launch import end_job, mpiexec_command, rank_environment
from tests.ports import free_port

SCRIPT, LAUNCH = NOTEBOOKS / "code" / "train_cifar_deepspeed.py", NOTEBOOKS / "code" / "run_ds.sh"
TIMEOUT = 300  # seconds; a few are enough on a quiet machine
OPTIONS = ["--samples", "256", "--epochs", "2"]
COMPILERS = ("cc", "gcc", "g++", "c++", "clang", "clang++", "ninja", "nvcc", "hipcc")
PYTHON = [sys.executable, "-m", "mpi4py", str(SCRIPT), *OPTIONS]
WAYS = {
    "mpiexec": mpiexec_command(2, PYTHON),
    "mpiexec, gloo": mpiexec_command(2, [*PYTHON, "--backend", "gloo"]),
    "deepspeed": ["sh", str(LAUNCH), "2", *OPTIONS],
}


Said = Callable[[str], str]


def environment() -> dict[str, str]:
    """As a lesson starts it; without the real images, so that it is the same everywhere."""
    base = {name: value for name, value in os.environ.items() if name != "COURSE_DATA"}
    mine = {"GLOO_SOCKET_IFNAME": loopback(), "COURSE_OFFLINE": "1", "PYTHON": sys.executable}
    return rank_environment(2, base) | mine


def all_said(command: list[str], environment: Mapping[str, str]) -> str:
    """What `command` prints on either stream; RuntimeError unless its exit code is 0."""
    return output_of(["sh", "-c", '"$@" 2>&1', "sh", *command], environment, timeout=TIMEOUT)


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with compilers that leave a note and fail, to stand before the real ones."""
    folder = tmp_path_factory.mktemp("fresh")
    (folder / "bin").mkdir()
    for name in COMPILERS:
        tool = folder / "bin" / name
        tool.write_text(f"#!/bin/sh\necho {name} $* >> {folder / 'notes'}\nexit 1\n")
        tool.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def trapped(fresh: Path) -> dict[str, str]:
    """The environment of a machine on which nobody has compiled anything, and nobody can."""
    path = f"{fresh / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return environment() | {"PATH": path, "TORCH_EXTENSIONS_DIR": str(fresh / "extensions")}


@pytest.fixture(scope="module")
def said(trapped: dict[str, str]) -> Said:
    """What each way prints there; each runs once."""
    return cache(lambda way: all_said(WAYS[way], trapped))


@pytest.mark.slow
@pytest.mark.parametrize(
    "way",
    (*(pytest.param(way, marks=pytest.mark.release) for way in ("mpiexec", "mpiexec, gloo")), "deepspeed"),
)
def test_every_launcher_trains_the_same_network(said: Said, way: str) -> None:
    *epochs, last = said(way).splitlines()
    size, backend, stage, *_ = last.replace(":", ",").split(", ")
    assert [line.split(":")[0] for line in epochs] == ["epoch 1", "epoch 2"], said(way)
    assert (size, stage) == ("2 ranks", "ZeRO-2")
    assert backend == ("mpi4py" if way == "mpiexec" else "gloo")
    assert last.split(": ")[1] == said("mpiexec").splitlines()[-1].split(": ")[1]


@pytest.mark.slow
def test_a_fresh_machine_compiles_nothing(said: Said, fresh: Path, trapped: dict[str, str]) -> None:
    for way in WAYS:
        said(way)
    assert not (fresh / "notes").exists()
    assert not (fresh / "extensions").exists() or not any((fresh / "extensions").iterdir())
    assert subprocess.run(["cc", "--version"], env=trapped).returncode == 1  # the trap would have told
    assert (fresh / "notes").read_text() == "cc --version\n"
    (fresh / "notes").unlink()


@pytest.mark.release
def test_a_hostfile_of_two_machines_started_by_hand(said: Said, tmp_path: Path) -> None:
    """Both are this one, for a network of its own is not to be had everywhere; the launchers do not know."""
    hosts = tmp_path / "hostfile"
    hosts.write_text("# two machines\nnode-a slots=1\nnode-b slots=1\n")
    given = environment() | {"HOSTFILE": str(hosts), "MASTER": "127.0.0.1", "PORT": str(free_port())}
    command = ["sh", str(LAUNCH), "0", *OPTIONS]
    with subprocess.Popen(command, env=given | {"NODE": "1"}, stdout=subprocess.PIPE) as second:
        try:
            first = all_said(command, given | {"NODE": "0"})
            assert second.wait(TIMEOUT) == 0
        finally:
            end_job(second)
    assert first.splitlines()[-1] == said("deepspeed").splitlines()[-1]


def test_a_process_that_nobody_has_told_its_rank_says_what_to_do() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], env=environment(), capture_output=True, text=True, timeout=TIMEOUT
    )
    assert done.returncode == 1 and "start it with run_ds.sh or with mpiexec" in done.stderr


def test_without_a_gpu_one_sentence_says_so() -> None:
    command = mpiexec_command(1, [*PYTHON, "--device", "cuda"])
    given = environment() | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=given, capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "PyTorch finds no GPU on this machine. Leave out --device cuda" in done.stderr


@pytest.mark.release
@pytest.mark.parametrize("real", (True, False))
def test_it_ends_above_50_percent(real: bool) -> None:
    """On the real images where they are, and on the stand-in, in seconds of a core; the loss falls."""
    if real and "COURSE_DATA" not in os.environ:
        pytest.skip("COURSE_DATA names no folder with real data")
    base = (dict(os.environ) | rank_environment(2)) if real else environment()
    options = ["--samples", "10000", "--epochs", "2"]
    command = mpiexec_command(2, [sys.executable, "-m", "mpi4py", str(SCRIPT), *options])
    *epochs, last = output_of(command, base, timeout=TIMEOUT).splitlines()
    first, second = (float(line.rpartition(" ")[2]) for line in epochs)
    assert second < 0.9 * first
    assert float(last.split()[-2].rstrip("%")) > 50, last


@pytest.mark.slow
def test_stage_3_trains_on_gloo_and_every_rank_saves(tmp_path: Path, trapped: dict[str, str]) -> None:
    config = json.loads(SCRIPT.with_suffix(".json").read_text())
    config["zero_optimization"]["stage"] = 3
    (tmp_path / "stage_3.json").write_text(json.dumps(config))
    options = ["--deepspeed_config", str(tmp_path / "stage_3.json"), "--save", str(tmp_path / "saved")]
    said = all_said([*WAYS["mpiexec, gloo"], *options], trapped)
    assert "2 ranks, gloo, ZeRO-3" in said
    assert len(list((tmp_path / "saved").rglob("*optim_states*"))) == 2
