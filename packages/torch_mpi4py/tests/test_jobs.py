"""The "mpi4py" backend as whole jobs: PyTorch's own test suite, a killed rank, a quiet exit."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mpi_classroom.launch import find_mpiexec, rank_environment, run_ranks
from torch_mpi4py import internals

RANKS = Path(__file__).parent / "ranks"
PASSED_OVER_GLOO = json.loads(
    (RANKS / "pytorch_suite_gloo.json").read_text()
)  # see pytorch_suite.py, --record


def test_torch_has_every_name_the_backend_stands_on() -> None:
    assert internals.moved() == [], f"torch {torch.__version__} has moved what was read in {internals.TORCH}"


def test_a_name_that_moved_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(internals.CALLED_FROM_PYTHON, "gather", "group.gather_renamed(")
    monkeypatch.setattr(internals, "CALLED_FROM_CPP", ["allreduceRenamed"])
    assert internals.moved() == [
        "group.gather_renamed( in distributed_c10d.py",
        "allreduceRenamed in PyProcessGroup.hpp",
    ]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "size", [pytest.param(3, marks=pytest.mark.release), pytest.param(4, marks=pytest.mark.slow)]
)
def test_what_passes_over_gloo_in_pytorchs_own_suite_passes_over_mpi4py(size: int, tmp_path: Path) -> None:
    if not torch.__version__.startswith(PASSED_OVER_GLOO["torch"]):
        pytest.fail(f"the list is of torch {PASSED_OVER_GLOO['torch']}; record it anew, see pytorch_suite.py")
    job = run_ranks(
        size,
        [str(RANKS / "pytorch_suite.py"), "mpi4py", "--json", str(tmp_path / "outcomes.json")],
        timeout=800,
    )
    outcomes = json.loads((tmp_path / "outcomes.json").read_text())
    assert job.returncode == 0
    assert {name: o for name, o in outcomes.items() if o[0] == "failed"} == {}
    passed = {name for name, outcome in outcomes.items() if outcome[0] == "passed"}
    assert set(PASSED_OVER_GLOO[str(size)]) - passed == set()
    assert sum(name.startswith("test_all_to_all") for name in passed) == 12


CYCLES = """
import torch, torch.distributed as dist
import torch_mpi4py
for cycle in range(10):
    torch_mpi4py.init_process_group()
    group = dist.new_group()
    work = dist.all_reduce(torch.ones(3), async_op=True)
    dist.all_reduce(torch.ones(3), group=group)
    work.wait()
    dist.destroy_process_group()
"""
NOT_DESTROYED = """
import torch, torch.distributed as dist
import torch_mpi4py
torch_mpi4py.init_process_group()
work = dist.all_reduce(torch.ones(3), async_op=True)
dist.irecv(torch.empty(1), 0).get_future() if dist.get_rank() else None
dist.barrier()
"""


@pytest.mark.parametrize(
    ("program", "size"),
    [
        pytest.param(NOT_DESTROYED, 3, id="not destroyed, 3 ranks"),
        pytest.param(CYCLES, 3, id="ten cycles, 3 ranks", marks=pytest.mark.slow),
    ],
)
def test_a_job_ends_with_code_0_and_no_message(program: str, size: int) -> None:
    job = run_ranks(size, ["-c", program], timeout=120)
    assert (job.returncode, job.stdout, job.stderr) == (0, "", "")


KILLED = """
import os, signal, sys, time
import torch, torch.distributed as dist
from mpi4py import MPI
import torch_mpi4py
torch_mpi4py.init_process_group()
rank, large = dist.get_rank(), torch.ones(4_000_000)
dist.barrier()
try:
    for step in range(10**6):
        if rank == 1 and step == 20:
            os.kill(os.getpid(), signal.SIGKILL)
        start = time.monotonic()
        dist.all_reduce(large) if step % 2 else dist.all_reduce(torch.ones(3), async_op=True).wait()
except torch_mpi4py.BrokenGroupError as error:
    sys.stdout.write(f"rank {rank} raised after {time.monotonic() - start:.3f} s: {error}\\n")
    sys.stdout.flush()
    os._exit(0)
"""


def test_a_killed_rank_makes_the_others_raise() -> None:
    """Needs fault tolerance in mpiexec; without it mpiexec ends the whole job.

    The first that is told ends at once. So the other may find two dead ranks.
    """
    command = [str(find_mpiexec()), "--with-ft", "ulfm", "-n", "3", sys.executable, "-c", KILLED]
    job = subprocess.run(command, env=rank_environment(3), capture_output=True, text=True, timeout=120)
    lines = sorted(line for line in job.stdout.splitlines() if "raised after" in line)
    assert [line[:13] for line in lines] == ["rank 0 raised", "rank 2 raised"], job.stdout + job.stderr
    named = [re.search(r"ranks? (\d, )?1(, \d)? of the group died", line) is not None for line in lines]
    assert any(named), lines
    assert all(named[n] or "another rank met a failure" in line for n, line in enumerate(lines)), lines
