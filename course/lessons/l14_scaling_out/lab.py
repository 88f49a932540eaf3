"""The lesson's measurements in a lab of slow links, and those of the reference machine where there is no lab.

    in_lab("step", nodes=2, rate="100mbit", batch=64, steps=10)

runs a task of `runs.py` on ranks in the lab and returns its result. It first prints whether it measured, or
why it shows what was recorded.

    python -m course.lessons.l14_scaling_out.lab        measure all of `RUNS` again and record them
"""

import json
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FunctionType
from typing import Any

from course.lessons.l14_scaling_out.packed import packed
from course.paths import NOTEBOOKS
from course_lib.data.mnist import load_mnist
from mpi_classroom.launch import available_cores
from mpi_classroom.network import network
from mpi_classroom.network_commands import NetworkError, parse_rate, rate_words

RECORDED = Path(__file__).with_name("recorded.json")
RANKS = "course.lessons.l14_scaling_out.runs"
JOB_SECONDS = 300.0  # a job takes 5 to 20 s on free cores
SLOW = "100mbit"
# both directions of a link at once: see "What an all-reduce costs on such a link" in docs/several-machines.md
BOTH_WAYS = {
    "OMPI_MCA_btl_tcp_eager_limit": str(8 * 2**20),
    "OMPI_MCA_btl_tcp_max_send_size": str(8 * 2**20),
    "OMPI_MCA_coll_libnbc_iallreduce_algorithm": "4",  # recursive doubling
}
GRADIENTS = 1_686_568  # bytes of the CNN's gradients
SMALL_TO_LARGE = [4, 64, 1024, 4096, 16384, 65536, 262144]
ALL_REDUCES = ["ring", "ring, ranks in turn", "hierarchical", "MPI's own", "MPI's own, ranks in turn"]
CHOICES = ("plain", "bigger buckets", "overlap", "bfloat16", "accumulate", "PowerSGD", "top-k", "local SGD")
RUNS: tuple[dict[str, Any], ...] = (
    {"task": "step", "nodes": 1, "slots": 2, "batch": 64, "steps": 10},
    {"task": "step", "nodes": 2, "batch": 64, "steps": 10},
    {"task": "step", "nodes": 2, "rate": SLOW, "batch": 64, "steps": 10},
    {"task": "exchange", "nodes": 2, "sizes": SMALL_TO_LARGE, "rounds": 3},
    {"task": "exchange", "nodes": 2, "rate": SLOW, "sizes": SMALL_TO_LARGE, "rounds": 3},
    {"task": "allreduces", "nodes": 2, "rate": SLOW, "nbytes": GRADIENTS, "names": ["ring"]},
    {"task": "allreduces", "nodes": 4, "rate": SLOW, "nbytes": GRADIENTS, "names": ["ring"]},
    {
        "task": "allreduces",
        "nodes": 2,
        "slots": 2,
        "rate": SLOW,
        "nbytes": GRADIENTS,
        "names": ALL_REDUCES,
    },
    *({"task": "train", "nodes": 2, "rate": SLOW, "choice": choice, "images": 6144} for choice in CHOICES),
    {
        "task": "script",
        "nodes": 2,
        "script": "train_mnist_ddp.py",
        "options": ["--samples", "2000", "--epochs", "1"],
    },
)


def in_lab(task: str, *, nodes: int = 2, slots: int = 1, rate: str | None = None, **options: Any) -> Any:
    """The result of a task of `runs.py` on `slots` ranks on each of `nodes` nodes, joined by links of `rate`.

    An option `own` is a function of the notebook. LookupError where there is no lab and no record either.
    """
    where = say_where(nodes, slots, rate)
    try:
        result = measure(task, nodes=nodes, slots=slots, rate=rate, **options)
    except NetworkError as error:
        result = recorded(task, nodes=nodes, slots=slots, rate=rate, **options)
        whose = ", with the course's function, not yours" if "own" in options else ""
        print(f"{where}: RECORDED on the reference machine{whose}. No lab here: {error}")
    else:
        print(f"{where}: measured on this machine")
    return result


def say_where(nodes: int, slots: int, rate: str | None) -> str:
    """The lab in words: `2 nodes, 1 rank per node, links at 100 Mbit/s`."""
    links = f", links {rate_words(parse_rate(rate) if rate else None)}" if nodes > 1 else ""
    return f"{nodes} node{'s' * (nodes > 1)}, {slots} rank{'s' * (slots > 1)} per node{links}"


def ring_in_lab(nodes: int, nbytes: int) -> float:
    """Seconds of a ring all-reduce of `nbytes`, with one rank on each of `nodes` nodes, over slow links."""
    found = in_lab("allreduces", nodes=nodes, rate=SLOW, nbytes=nbytes, names=["ring"])
    return float(found["ring"]["seconds"])


def all_reduces_in_lab(nbytes: int, own: Any) -> Any:
    """`ALL_REDUCES` of `nbytes`, by name: two ranks on each of two nodes, over a slow link.

    The hierarchical one is the function `own`.
    """
    return in_lab("allreduces", slots=2, rate=SLOW, nbytes=nbytes, names=ALL_REDUCES, own=own)


def script_in_lab(script: str, *options: str, nodes: int = 2) -> str:
    """What rank 0 of `notebooks/code/SCRIPT` prints last, on one rank on each of `nodes` nodes."""
    found = in_lab("script", nodes=nodes, script=script, options=list(options))
    return str(found)


def measure(task: str, *, nodes: int, slots: int, rate: str | None, **options: Any) -> Any:
    """Run the task in a new lab. NetworkError where there can be none, RuntimeError where the task fails."""
    if task in ("train", "script"):
        load_mnist()  # here, once: the nodes have no way to download it
    own = options.get("own")
    if isinstance(own, FunctionType):
        options["own"] = packed(own)
    script = options.get("script")
    program = ["-m", RANKS, task, json.dumps(options)] if script is None else script_arguments(**options)
    try:
        with network(nodes=nodes, slots=slots, rate=rate) as lab:
            job = lab.run_ranks(["-m", "mpi4py", *program], timeout=JOB_SECONDS, environment=BOTH_WAYS)
    except subprocess.TimeoutExpired:
        raise RuntimeError(
            f"the lab was not done after {JOB_SECONDS:.0f} s; close other programs and try again"
        ) from None
    lines = job.stdout.splitlines()
    if job.returncode or not lines:  # mpiexec may end with 0 when a node is lost
        raise RuntimeError(f"the ranks in the lab ended without a result:\n{job.stderr[-2000:]}")
    return lines[-1] if script else json.loads(lines[-1])


def script_arguments(script: str, options: list[str]) -> list[str]:
    """The command line of a script of the course, below `python -m mpi4py`."""
    return [str(NOTEBOOKS / "code" / script), *options]


# ------------------------------------------------------------------ what was recorded


def recorded(task: str, *, nodes: int, slots: int, rate: str | None, **options: Any) -> Any:
    """What the reference machine measured for this; LookupError where it did not."""
    wanted = key({"task": task, "nodes": nodes, "slots": slots, "rate": rate, **options})
    for run in json.loads(RECORDED.read_text(encoding="utf-8"))["runs"]:
        if run["key"] == wanted:
            return run["result"]
    raise LookupError(
        f"without a lab there is no measurement of {wanted}; use the numbers that the lesson has"
    )


def key(run: Mapping[str, Any]) -> str:
    """What a record is found by: all that was asked for, but not the learner's own function."""
    asked = {"slots": 1, "rate": None} | {name: value for name, value in run.items() if name != "own"}
    return json.dumps(asked, sort_keys=True)


def measure_all() -> Iterator[dict[str, Any]]:
    """Measure all of `RUNS`, one after the other."""
    for run in RUNS:
        options = {"slots": 1, "rate": None} | run
        print(key(run), file=sys.stderr)
        yield {"key": key(run), "result": measure(**options)}


def main() -> None:
    """Record."""
    machine = f"{available_cores()} cores, {platform.machine()}"
    record = {"machine": machine, "runs": list(measure_all())}
    RECORDED.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
