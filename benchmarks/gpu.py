"""A day on a GPU machine in one command: everything this project could not measure, in a few minutes.

    python -m benchmarks.gpu --minutes 9 --out gpu.json           on a machine with an NVIDIA GPU
    python -m benchmarks.gpu --device cpu --small --out FILE      tries the command: the numbers say nothing

It needs PyTorch for CUDA and this project's packages; no network. Every part runs in processes of its own,
with a share of the minutes as its deadline. What fails, or is missing, is a row with its reason.
"""

import argparse
import contextlib
import json
import math
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from course_lib.rows import Label, Row
from mpi_classroom.launch import run_ranks

ROOT = Path(__file__).parents[1]
CODE = ROOT / "notebooks" / "code"
MARK = "gpu row: "  # gpu_parts must not be imported here: it starts MPI and torch
MPS = "nvidia-cuda-mps-control"


@dataclass(frozen=True, slots=True)
class Part:
    """What runs by itself: a part of gpu_parts or a script, on so many ranks, with or without MPS."""

    name: str
    ranks: int = 1
    mps: bool = False
    script: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Its name, its ranks, and whether processes share the GPU by MPS."""
        ranks = f" on {self.ranks}" if self.ranks > 1 else ""
        return self.name + ranks + " with MPS" * self.mps


def parts_for(gpus: int) -> list[Part]:
    """All parts, on a machine with so many GPUs."""
    mnist = ("train_mnist_ddp.py", "--epochs", "1", "--samples", "2000")
    cifar = ("train_cifar_deepspeed.py", "--epochs", "1", "--samples", "2000")
    shared = [Part("sharing", ranks, mps) for mps in (False, True) for ranks in (1, 2, 4)]
    return [
        Part("device"),
        Part("synthetic"),
        Part("memory"),
        Part("train_mnist_ddp.py", max(gpus, 1), script=mnist),
        Part("train_cifar_deepspeed.py", max(gpus, 1), script=cifar),
        *[part for part in shared if part.ranks > 1 or not part.mps],
        Part("throughput"),
        Part("deepspeed"),
        Part("staged", 2),
        Part("nccl", max(gpus, 1)),
    ]


def measure(part: Part, device: str, small: bool, seconds: float) -> list[Row]:
    """The rows of a part, whose processes have so many seconds; one row with a reason if it fails."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    start = time.monotonic()
    try:
        with contextlib.ExitStack() as stack:
            more = stack.enter_context(mps()) if part.mps else dict[str, str]()
            done = run_ranks(
                part.ranks, command(part, device, small), timeout=seconds, environment=environment | more
            )
    except subprocess.TimeoutExpired as late:
        text = late.stdout or b""
        printed = text.decode(errors="replace") if isinstance(text, bytes) else text
        return [*rows_in(printed), missing(f"not done after {seconds:.0f} s")]
    except OSError as reason:
        return [missing(str(reason))]
    rows = rows_in(done.stdout)
    if done.returncode:
        rows.append(missing(last_words(done.stderr)))
    elif part.script:
        took = time.monotonic() - start
        rows.append(Row({"case": "start, one epoch of 2,000 images, end"}, took, took, took))
    return rows or [missing("it printed nothing")]


def rows_in(printed: str) -> list[Row]:
    """The rows among the lines that a part has printed; a line that was cut off is none."""
    lines = [line.removeprefix(MARK) for line in printed.splitlines() if line.startswith(MARK)]
    return [Row(**json.loads(line)) for line in lines if line.endswith("}")]


def command(part: Part, device: str, small: bool) -> list[str]:
    """What Python is called with."""
    if part.script:
        return ["-m", "mpi4py", str(CODE / part.script[0]), *part.script[1:], "--device", device]
    return ["-m", "mpi4py", "-m", "benchmarks.gpu_parts", part.name, "--device", device, *["--small"] * small]


@contextlib.contextmanager
def mps() -> Iterator[dict[str, str]]:
    """A server of our own by which processes share the GPU; yields the variables that lead to it."""
    if not shutil.which(MPS):
        raise FileNotFoundError(f"{MPS} is not installed; it comes with NVIDIA's driver")
    with tempfile.TemporaryDirectory() as folder:
        there = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        subprocess.run([MPS, "-d"], env=os.environ | there, check=True, timeout=30)
        try:
            yield there
        finally:
            subprocess.run([MPS], env=os.environ | there, input="quit\n", text=True, timeout=30)


def missing(reason: str, **labels: Label) -> Row:
    """A row without a number: why there is none."""
    return Row({**labels, "reason": reason}, math.nan, math.nan, math.nan, "")


def last_words(errors: str) -> str:
    """The line of a failed job that names the error, or its last line."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"[\w.]*(Error|Exception): ", line)]
    return (named or lines or ["it failed without a word"])[-1]


def number_of_gpus() -> int:
    """As PyTorch counts them; in a process of its own, for this one must not use a GPU."""
    count = [sys.executable, "-c", "import torch; print(torch.cuda.device_count())"]
    return int(subprocess.run(count, capture_output=True, text=True, check=True, timeout=120).stdout)


def as_text(row: Row) -> str:
    """A row in a line."""
    labels = dict(row.labels)
    reason = labels.pop("reason", None)
    words = ", ".join(f"{name} {value}" if name != "case" else str(value) for name, value in labels.items())
    if reason is not None:
        return f"{words + ': ' if words else ''}no number: {reason}"
    return f"{words}: {row.value:.4g} {row.unit} ({row.low:.4g} to {row.high:.4g}, {row.kind})"


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="All that a GPU can tell about this project")
    parser.add_argument("--minutes", type=float, default=9, help="all parts together; default 9")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="sizes that only try the command")
    parser.add_argument("--out", metavar="FILE", type=Path, help="the rows, as JSON")
    options = parser.parse_args(arguments)
    gpus = number_of_gpus() if options.device == "cuda" else 0
    if options.device == "cuda" and not gpus:
        sys.exit(
            "PyTorch sees no GPU; install its build for CUDA, or try the command with --device cpu --small"
        )
    end = time.monotonic() + 60 * options.minutes
    found: list[dict[str, Any]] = []
    parts = parts_for(gpus)
    for index, part in enumerate(parts):
        share = max(5.0, 2 * (end - time.monotonic()) / (len(parts) - index))  # twice: most need less
        share = max(5.0, min(share, end - time.monotonic()))
        for row in measure(part, options.device, options.small, share):
            print(f"{part.title:32} {as_text(row)}", flush=True)
            found.append({"part": part.title, **asdict(row)})
        if options.out:
            about = {"python": platform.python_version(), "command": " ".join(sys.argv), "gpus": gpus}
            options.out.write_text(json.dumps({"about": about, "rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
