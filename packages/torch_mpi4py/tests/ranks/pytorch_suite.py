"""PyTorch's own tests of torch.distributed, on the ranks of this MPI job, over any backend.

    python -m mpi_classroom.launch 3 pytorch_suite.py mpi4py [--only NAME …] [--json FILE]

The suite (torch.testing._internal.distributed.distributed_test, in every wheel of torch) starts processes of
its own; here the ranks are there already, and each test gets a group, new and destroyed afterwards. The suite
reads the name of the backend when it is imported, to skip what that one cannot do. It is imported as if for
gloo, and once more as if for torch's own MPI, which alone is given the all_to_all tests; the real name is
told only then: nothing is skipped because of it. Nor because there are fewer than 8 ranks, which only MPI
may have.

What passes over gloo is in pytorch_suite_gloo.json. With another torch: run with `gloo` on 3 and on 4 ranks,
each with `--record`, which rewrites the list of that size.
"""

import argparse
import faulthandler
import importlib.util
import json
import os
import shutil
import sys
import tempfile
import time
import types
import unittest
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from mpi4py import MPI

from mpi_classroom.launch import job_folder

# What torch refuses by the name of the backend, before it asks the group.
ONLY_GLOO = {
    "monitored_barrier": "torch.distributed.monitored_barrier takes the name gloo only; the group's is called"
}
# These tests make their model `if BACKEND == "mpi" or BACKEND == "gloo"`, and run over the group under test.
BY_NAME = {
    "test_accumulate_gradients_no_sync",
    "test_accumulate_gradients_no_sync_allreduce_hook",
    "test_accumulate_gradients_no_sync_allreduce_with_then_hook",
    "test_accumulate_gradients_no_sync_grad_is_view",
}

# These give a rank a second or two to come. On a machine with other work it may be late: they may try again.
BY_THE_CLOCK = ("monitored_barrier", "timeout")
TRIES = 3

GLOO_LIST = Path(__file__).with_name("pytorch_suite_gloo.json")
WORLD = MPI.COMM_WORLD.Dup()  # ours: no message of a test reaches it
TIMEOUT = timedelta(seconds=20)  # of the groups: how long a rank waits for one that has failed
HUNG_SECONDS = 150  # a test that is not done by then ends the job, with everyone's stack


def prepare() -> None:
    """Stand in the same temporary folder on all ranks, and for what the suite would have set up."""
    folder = tempfile.mkdtemp(prefix="pytorch-suite-", dir=job_folder()) if WORLD.rank == 0 else None
    folder = WORLD.bcast(folder)
    for name in ("barrier", "test_dir", "init_dir"):
        Path(folder, name).mkdir(exist_ok=True)
    os.environ |= {
        "TEMP_DIR": folder, "WORLD_SIZE": str(WORLD.size), "RANK": str(WORLD.rank),
        "GLOO_SOCKET_IFNAME": "lo",
        "INIT_METHOD": f"file://{folder}/init_dir/shared", "MASTER_ADDR": "127.0.0.1",
    }  # fmt: skip
    stand_in_for_expecttest()


def load_suite(imitated: str) -> Any:
    """The suite, imported as if for the backend `imitated`."""
    os.environ["BACKEND"] = imitated
    spec = importlib.util.find_spec("torch.testing._internal.distributed.distributed_test")
    assert spec and spec.loader
    suite = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = suite  # its classes are pickled by this name
    spec.loader.exec_module(suite)
    os.environ["BACKEND"] = "mpi"  # may have fewer than 8 ranks
    return suite


def stand_in_for_expecttest() -> None:
    """torch's test helpers want this package as a base class; no test of the suite uses what it adds."""
    if importlib.util.find_spec("expecttest") is None:
        module = types.ModuleType("expecttest")
        module.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        sys.modules["expecttest"] = module


def make_case(suite: Any) -> type[unittest.TestCase]:
    """The suite's tests as a class whose ranks are the ranks of this job."""
    from torch.testing._internal.common_utils import TestCase

    class Case(suite.DistributedTest._DistTestBase, TestCase):  # type: ignore[misc, valid-type]
        rank, world_size = WORLD.rank, WORLD.size
        meeting: MPI.Intracomm

        def _barrier(self, wait_for: int = 0, timeout: float = 30) -> None:
            request, start = self.meeting.Ibarrier(), time.monotonic()
            while not request.Test():
                if time.monotonic() - start > timeout:
                    raise RuntimeError("barrier timeout")
                time.sleep(1e-4)

    return Case


class Result(unittest.TestResult):
    """The suite skips in the middle of a test by leaving the process with a number that says why."""

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        from torch.testing._internal.common_distributed import TEST_SKIPS

        reasons = {skip.exit_code: skip.message for skip in TEST_SKIPS.values()}
        if isinstance(err[1], SystemExit) and err[1].code in reasons:
            self.addSkip(test, reasons[err[1].code])
        else:
            super().addError(test, err)


def start_group(backend: str, timeout: timedelta) -> None:
    import torch.distributed as dist

    if backend == "mpi4py":
        import torch_mpi4py

        torch_mpi4py.init_process_group(WORLD, timeout=timeout)
        return
    store = (
        dist.TCPStore("127.0.0.1", 0, WORLD.size, True, wait_for_workers=False) if WORLD.rank == 0 else None
    )
    port = WORLD.bcast(store.port if store else None)
    store = store or dist.TCPStore("127.0.0.1", port, WORLD.size, False)
    dist.init_process_group(backend, store=store, rank=WORLD.rank, world_size=WORLD.size, timeout=timeout)


def run_one(case: type[unittest.TestCase], backend: str, name: str, timeout: timedelta) -> tuple[str, str]:
    """Run one test here. Returns its outcome on this rank, passed, failed or skipped, and the reason."""
    import torch.distributed as dist

    case.meeting = WORLD.Dup()
    start_group(backend, timeout)
    WORLD.Barrier()
    result = Result()
    case(name).run(result)
    bad = result.failures + result.errors
    outcome = (
        ("failed", bad[0][1])
        if bad
        else ("skipped", result.skipped[0][1])
        if result.skipped
        else ("passed", "")
    )
    outcomes = WORLD.allgather(outcome)
    with suppress(Exception):
        dist.destroy_process_group()
    return combine(outcomes)


def monitored_barrier(
    group: Any = None, timeout: timedelta | float | None = None, wait_all_ranks: bool = False
) -> None:
    """torch.distributed.monitored_barrier without its question for the backend's name (see ONLY_GLOO)."""
    import torch.distributed as dist

    group = group or dist.group.WORLD
    if group is not dist.GroupMember.NON_GROUP_MEMBER:
        group.monitored_barrier(timeout, wait_all_ranks)


def combine(outcomes: list[tuple[str, str]]) -> tuple[str, str]:
    """What all ranks say together: failed if one did, skipped if all did."""
    for rank, (outcome, reason) in enumerate(outcomes):
        if outcome == "failed":
            return "failed", f"rank {rank}: {reason}"
    return (
        ("skipped", outcomes[0][1]) if {outcome for outcome, _ in outcomes} == {"skipped"} else ("passed", "")
    )


def run(backend: str, only: list[str]) -> dict[str, tuple[str, str, float]]:
    """Every test, or those of `only`: its outcome, the reason, seconds. The same on all ranks."""
    prepare()
    outcomes = run_suite(load_suite("gloo"), "gloo", backend, only)
    all_to_all = [name for name in outcomes if name.startswith("test_all_to_all")]
    if all_to_all:
        outcomes |= run_suite(load_suite("mpi"), "mpi", backend, all_to_all)
    faulthandler.cancel_dump_traceback_later()
    WORLD.Barrier()
    if WORLD.rank == 0:
        shutil.rmtree(os.environ["TEMP_DIR"], ignore_errors=True)
    return outcomes


def run_suite(suite: Any, imitated: str, backend: str, only: list[str]) -> dict[str, tuple[str, str, float]]:
    case = make_case(suite)
    if backend == "mpi4py":
        suite.dist.monitored_barrier = monitored_barrier
    outcomes = {}
    for name in unittest.TestLoader().getTestCaseNames(case):
        if only and name not in only:
            continue
        faulthandler.dump_traceback_later(HUNG_SECONDS, exit=True)
        suite.BACKEND = imitated if name in BY_NAME else backend
        custom = suite.CUSTOM_PG_TIMEOUT.get(name)
        start = time.monotonic()
        for _ in range(TRIES if any(words in name for words in BY_THE_CLOCK) else 1):
            outcome, reason = run_one(case, backend, name, timedelta(seconds=custom) if custom else TIMEOUT)
            if outcome != "failed":
                break
        outcomes[name] = (outcome, reason, round(time.monotonic() - start, 2))
        if WORLD.rank == 0 and outcome != "skipped":
            print(f"{outcome} {name} {outcomes[name][2]:.1f} s {reason[-1500:]}", flush=True)
    return outcomes


def record(outcomes: dict[str, tuple[str, str, float]]) -> None:
    """Write what has passed here into the list, for this torch and this number of ranks."""
    import torch

    version = torch.__version__.split("+")[0]
    known = json.loads(GLOO_LIST.read_text()) if GLOO_LIST.exists() else {}
    known = known if known.get("torch") == version else {"torch": version}
    known[str(WORLD.size)] = [name for name, outcome in outcomes.items() if outcome[0] == "passed"]
    GLOO_LIST.write_text(json.dumps(known, indent=0) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("backend", choices=["mpi4py", "gloo"])
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--record", action="store_true", help="rewrite the list of what passes over gloo")
    options = parser.parse_args()
    outcomes = run(options.backend, options.only)
    if WORLD.rank == 0:
        count = {
            kind: sum(o[0] == kind for o in outcomes.values()) for kind in ("passed", "failed", "skipped")
        }
        print(
            f"{options.backend} on {WORLD.size} ranks: {count}, {sum(o[2] for o in outcomes.values()):.0f} s"
        )
        if options.record:
            record(outcomes)
        if options.json:
            options.json.write_text(json.dumps(outcomes, indent=1))
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    raise SystemExit(main())
