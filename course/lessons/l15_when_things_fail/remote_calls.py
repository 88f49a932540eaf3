"""Remote calls over tags and with PyTorch, timed on the same two ranks: the program that each rank runs.

    python -m mpi4py -m course.lessons.l15_when_things_fail.remote_calls CALLS FOLDER

Rank 0 prints a line of JSON for each of the two.
"""

from __future__ import annotations

import json
import operator
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch.distributed.rpc as torch_rpc
from mpi4py import MPI

from course_lib.comm.rpc import call, serve, stop

MARK = "calls: "
SERVER, CLIENT = 1, 0
LATE, DEADLINE = 1.0, 0.1  # seconds that a function takes, and that its caller waits
Call = Callable[..., Any]


def timed(one_call: Call, times: int) -> float:
    """Median seconds of a call that adds two numbers."""
    seconds = []
    for number in range(times):
        start = time.perf_counter()
        assert one_call(operator.add, number, 1) == number + 1
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def words_of(one_call: Call, *task: Any, **deadline: float) -> str:
    """The type of the exception of a call, and the first line of what it says."""
    try:
        one_call(*task, **deadline)
    except Exception as error:  # what it is, is the result
        lines = [line for line in str(error).replace("\\n", "\n").splitlines() if line.strip()]
        return f"{type(error).__name__}: {lines[0]}"
    return ""


def report(name: str, one_call: Call, times: int) -> None:
    """Time calls, let one raise and one be late, and print what was found."""
    timed(one_call, 10)
    found = {
        "seconds": timed(one_call, times),
        "error": words_of(one_call, operator.truediv, 1, 0),
        "late": words_of(one_call, time.sleep, LATE, seconds=DEADLINE),
    }
    print(MARK + json.dumps([name, found]), flush=True)


def over_tags(comm: MPI.Intracomm, times: int) -> None:
    """Ours: rank 1 serves, rank 0 calls."""
    functions: dict[str, Call] = {"add": operator.add, "truediv": operator.truediv, "sleep": time.sleep}
    if comm.rank == SERVER:
        serve(comm, functions)
    else:

        def one_call(function: Call, *arguments: Any, seconds: float = 10.0) -> Any:
            return call(comm, SERVER, function.__name__, *arguments, seconds=seconds)

        report("ours", one_call, times)
        stop(comm, SERVER)


def with_torch(comm: MPI.Intracomm, times: int, folder: str) -> None:
    """PyTorch's: threads answer; the ranks meet in a file."""
    options = torch_rpc.TensorPipeRpcBackendOptions(
        init_method=f"file://{folder}/store", num_worker_threads=2
    )
    torch_rpc.init_rpc(
        f"worker{comm.rank}", rank=comm.rank, world_size=comm.size, rpc_backend_options=options
    )
    if comm.rank == CLIENT:

        def one_call(function: Call, *arguments: Any, seconds: float = 10.0) -> Any:
            return torch_rpc.rpc_sync(f"worker{SERVER}", function, args=arguments, timeout=seconds)

        report("torch", one_call, times)
    torch_rpc.shutdown()


def main(calls: str, folder: str) -> None:
    """A rank of the job, which has two."""
    comm = MPI.COMM_WORLD
    over_tags(comm, int(calls))
    with_torch(comm, int(calls), folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
