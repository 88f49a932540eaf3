"""Scripts of lessons 06, 07 and 12 on nodes of a lab: however they start, they train the same network."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest
import torch

from course.lessons.shared.programs import output_of
from course.paths import NOTEBOOKS
from mpi_classroom.launch import find_mpiexec, mpiexec_command, rank_environment
from mpi_classroom.network import Lab
from packages.mpi_classroom.tests.waiting import until

pytestmark = pytest.mark.slow
CODE = NOTEBOOKS / "code"
DDP, DEEPSPEED = CODE / "train_mnist_ddp.py", CODE / "train_cifar_deepspeed.py"
TIMEOUT = 240  # seconds; some ten are enough on a quiet machine
MNIST = ("--samples", "256", "--epochs", "2")
CIFAR = ("--samples", "256", "--epochs", "2", "--net", "cifar")  # no batch-norm, which sees micro-batches


def alike(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` with one thread and the stand-ins for data: the same everywhere."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    own = {"COURSE_OFFLINE": "1", "PYTHON": sys.executable}
    return {name: value for name, value in environment.items() if name != "COURSE_DATA"} | threads | own


def said(lab: Lab, host: str, command: Sequence[str], **more: str) -> str:
    """What `command` prints on `host`; RuntimeError unless its exit code is 0."""
    return output_of(lab.on(host, command), alike(lab.environment()) | more, timeout=TIMEOUT)


def ranks(script: Path, *options: str) -> list[str]:
    """The command that runs `script` on n1 and n2, a rank on each."""
    return [str(find_mpiexec()), "-n", "2", sys.executable, "-m", "mpi4py", str(script), *options]


# ------------------------------------------------------------------ DDP


def torchrun(lab: Lab, *options: str) -> str:
    """What rank 0 prints when torchrun is started on each of two nodes."""
    meet = ("--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-endpoint=n1:29400")
    command = [sys.executable, "-m", "torch.distributed.run", *meet, str(DDP), *options]
    with subprocess.Popen(
        lab.on("n2", command), env=alike(lab.environment()), stdout=subprocess.PIPE
    ) as second:
        first = said(lab, "n1", command)
        assert second.stdout is not None
        return first + second.stdout.read().decode()  # either node may have rank 0


@pytest.mark.release
def test_ddp_on_two_hosts_trains_as_one_process_does(lab: Lab, tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("alone", "mpi4py", "gloo", "torchrun")]
    alone, mpi, gloo, torchruns = ((*MNIST, "--save", str(file)) for file in files)
    output_of([sys.executable, str(DDP), *alone, "--spawn", "1"], alike(rank_environment(1)), timeout=TIMEOUT)
    lines = [said(lab, "head", ranks(DDP, *mpi)), said(lab, "head", ranks(DDP, *gloo, "--backend", "gloo"))]
    lines.append(torchrun(lab, *torchruns))
    assert [line.split(":")[0] for line in lines] == ["2 ranks, mpi4py", "2 ranks, gloo", "2 ranks, gloo"]
    assert len({line.split(": ")[1] for line in lines}) == 1  # to the last bit, and so the accuracy
    one, *others = (torch.load(file, weights_only=True) for file in files)
    for other in others:
        difference = sum(float((one[name] - other[name]).norm() ** 2) for name in one) ** 0.5
        assert difference < 1e-5 * sum(float(value.norm() ** 2) for value in one.values()) ** 0.5


# ------------------------------------------------------------------ DeepSpeed


@pytest.fixture(scope="module")
def hostfile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two nodes for DeepSpeed's launcher; beside it, what it sets on them: over ssh nothing else comes."""
    folder = tmp_path_factory.mktemp("hosts")
    (folder / "env").write_text("OMP_NUM_THREADS=1\nCOURSE_OFFLINE=1\n")
    (folder / "hostfile").write_text("n1 slots=1\nn2 slots=1\n")
    return folder / "hostfile"


def launched(lab: Lab, hostfile: Path, **more: str) -> list[str]:
    """What the ranks print when DeepSpeed's launcher starts them on the hosts of the file."""
    given = {"HOSTFILE": str(hostfile), "DS_ENV_FILE": str(hostfile.with_name("env"))} | more
    lines = said(lab, "head", ["sh", str(CODE / "run_ds.sh"), "0", *CIFAR], **given).splitlines()
    lines = [line.removeprefix("n1: ") for line in lines]  # pdsh says who speaks
    return [line for line in lines if line.startswith(("epoch", "2 ranks"))]  # the launchers say more


@pytest.fixture(scope="module")
def over_mpi(lab: Lab) -> list[str]:
    """The lines of the training over two hosts that mpiexec has started."""
    return said(lab, "head", ranks(DEEPSPEED, *CIFAR)).splitlines()


def test_deepspeed_on_two_hosts_trains_as_one_process_does(over_mpi: list[str], tmp_path: Path) -> None:
    config = json.loads((CODE / "train_cifar_deepspeed.json").read_text())
    config["gradient_accumulation_steps"] *= 2  # the same global batch
    (tmp_path / "config.json").write_text(json.dumps(config))
    options = [*CIFAR, "--deepspeed_config", str(tmp_path / "config.json")]
    command = mpiexec_command(1, [sys.executable, "-m", "mpi4py", str(DEEPSPEED), *options])
    alone = output_of(command, alike(rank_environment(1)), timeout=TIMEOUT).splitlines()
    for one, two in zip(alone[:2], over_mpi[:2], strict=True):
        assert float(one.split()[-1]) == pytest.approx(float(two.split()[-1]), abs=0.002)
    assert over_mpi[-1].startswith("2 ranks, mpi4py, ZeRO-2: weights ")
    assert alone[-1].split(", ")[-1] == over_mpi[-1].split(", ")[-1]


@pytest.mark.parametrize("launcher", ("openmpi", "pdsh"))
def test_deepspeeds_launcher_with_a_hostfile_trains_the_same(
    lab: Lab, over_mpi: list[str], hostfile: Path, launcher: str
) -> None:
    if launcher == "pdsh" and not shutil.which("pdsh"):
        pytest.skip("there is no command pdsh; on Debian or Ubuntu: sudo apt install pdsh")
    lines = launched(lab, hostfile, LAUNCHER=launcher)
    assert lines[:2] == over_mpi[:2]
    backend = "mpi4py" if launcher == "openmpi" else "gloo"
    assert lines[-1] == over_mpi[-1].replace("mpi4py", backend)


# ------------------------------------------------------------------ a program to take home


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """The folder `code` of a learner, with the program of lesson 06 and its data, in a folder of its own."""
    shutil.copytree(CODE / "data", tmp_path / "code" / "data")
    shutil.copy(CODE / "06_by_hand.py", tmp_path / "code")
    return tmp_path / "code"


def as_typed() -> dict[str, str]:
    """PATH, where the environment's `mpiexec` and `python` come first, as after `source activate`."""
    return {"PATH": f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}"}


@cache
def trained_alone() -> str:
    """What the program prints at its end on one rank, without the number of ranks."""
    program = CODE / "06_by_hand.py"
    command = mpiexec_command(1, [sys.executable, str(program)])
    return output_of(command, alike(rank_environment(1)), timeout=TIMEOUT).strip().removeprefix("ranks: 1, ")


def test_a_program_trains_on_the_hosts_in_a_file(lab: Lab, code: Path) -> None:
    hosts = code.parent / "hosts"
    hosts.write_text("".join(f"n{node} slots=1\n" for node in range(1, 5)))
    typed = f"cd {code.parent} && mpiexec -n 4 --hostfile hosts python code/06_by_hand.py"
    assert said(lab, "head", ["sh", "-c", typed], **as_typed()).strip() == f"ranks: 4, {trained_alone()}"


# ------------------------------------------------------------------ Slurm


def test_a_program_trains_on_the_ranks_that_slurm_gives(slurm_lab: Lab, code: Path) -> None:
    out = code.parent / "out"
    wrap = ["--wrap", "mpiexec python code/06_by_hand.py"]
    batch = ["sbatch", "-n", "4", f"--chdir={code.parent}", f"--output={out}", *wrap]
    said(slurm_lab, "head", batch, **as_typed())
    until(lambda: out.exists() and out.read_text().endswith("right\n"), TIMEOUT)
    assert out.read_text().strip() == f"ranks: 4, {trained_alone()}"


@pytest.mark.release
def test_a_job_that_lost_a_node_is_requeued_and_goes_on_with_equal_losses(
    slurm_lab: Lab, tmp_path: Path
) -> None:
    options = ["--samples", "2560", "--epochs", "4"]
    reference = said(slurm_lab, "head", ranks(DDP, *options, "--checkpoint", str(tmp_path / "reference.pt")))
    for name in (DDP.name, "train_mnist_ddp.sbatch"):
        shutil.copy(CODE / name, tmp_path)
    batch = [
        "sbatch",
        "--parsable",
        "--nodes=2",
        f"--chdir={tmp_path}",
        str(tmp_path / "train_mnist_ddp.sbatch"),
    ]
    job = said(slurm_lab, "head", [*batch, *options]).strip()
    out = tmp_path / f"mnist-ddp-{job}.out"
    until(lambda: out.exists() and "epoch 2" in out.read_text(), TIMEOUT)
    slurm_lab.power_off("n2")
    until(lambda: "right" in out.read_text(), TIMEOUT)
    lines = out.read_text().splitlines()
    starts = [line for line in lines if line.startswith("start ")]
    assert [line.split(" on ")[0] for line in starts] == [f"start {number} of job {job}" for number in (1, 2)]
    assert starts[0].endswith("n[1-2]") and starts[1].endswith(("n[1,3]", "n[1,4]", "n[3-4]"))
    again = next(line for line in lines if line.startswith("going on after epoch "))
    assert 2 <= int(again.split()[-1]) < 4
    assert [line for line in lines if line.startswith(("epoch", "2 ranks"))] == reference.splitlines()
    assert os.path.exists(tmp_path / f"run-{job}" / "weights.pt")
