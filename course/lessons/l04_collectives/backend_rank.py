"""A rank of the job that `backends.py` starts: `python -m … backend_rank FOLDER`.

FOLDER/tasks.json holds the module of the checks and a list of [backend, operation]; every rank writes what
happens to FOLDER/rank-R.jsonl, a line of JSON each, so that a hang or a crash can be read about afterwards.
Each operation gets a process group of its own: what one leaves behind cannot meet the next.
"""

import importlib
import importlib.util
import json
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from course.lessons.l04_collectives.backend_operations import Garbage, ProbeGroup
from mpi_classroom.job_output import event_file

OUR_BACKEND = "torch_mpi4py"


def absence(backend: str) -> str:
    """Why this backend cannot be used here; "" when it can."""
    if backend == "gloo":
        return "" if dist.is_gloo_available() else "this PyTorch was built without Gloo"
    if backend == "mpi":
        without = "this PyTorch was built without MPI, as are all PyTorch builds from pip"
        return "" if dist.is_mpi_available() else without
    if backend == "nccl":
        if not dist.is_nccl_available():
            return "this PyTorch was built without CUDA, and NCCL moves data between NVIDIA GPUs only"
        few = torch.cuda.device_count() < 2
        return f"NCCL wants a GPU for each of 2 ranks; there are {torch.cuda.device_count()}" if few else ""
    if backend == "mpi4py":
        there = importlib.util.find_spec(OUR_BACKEND) is not None
        return "" if there else f"there is no {OUR_BACKEND}"
    return f"nobody has registered a backend {backend!r}"


class Rank:
    """One rank of the throwaway job."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rank, self.size = (int(os.environ[f"OMPI_COMM_WORLD_{name}"]) for name in ("RANK", "SIZE"))
        self.backend = ""

    def start(self, backend: str) -> None:
        """Make `backend` the one of the default process group."""
        if backend == self.backend:
            return
        if dist.is_initialized():
            dist.destroy_process_group()
        self.backend = ""
        if backend == "mpi4py":
            importlib.import_module(OUR_BACKEND)
        dist.init_process_group(
            backend,
            init_method=(self.folder / f"store-{backend}").as_uri(),
            rank=self.rank,
            world_size=self.size,
        )
        self.backend = backend

    def run(self, backend: str, check: Callable[[ProbeGroup], None]) -> tuple[str, str]:
        """Try one operation: what came of it on this rank, and why."""
        if reason := absence(backend):
            return "absent", reason
        try:
            self.start(backend)
            device = torch.device("cuda", self.rank) if backend == "nccl" else torch.device("cpu")
            check(ProbeGroup(dist.new_group(), self.rank, self.size, device, self.folder))
        except Garbage as garbage:
            return "wrong", str(garbage)
        except Exception as error:
            return "raises", f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        return "works", ""


def main() -> None:
    """Try all that FOLDER/tasks.json lists, and note what happens."""
    warnings.simplefilter("ignore")  # torch renames operations; both names are tried while there are two
    folder = Path(sys.argv[1])
    tasks = json.loads((folder / "tasks.json").read_text())
    checks = importlib.import_module(tasks["module"]).CHECKS
    rank = Rank(folder)
    with open(event_file(folder, rank.rank), "w", buffering=1) as log:
        log.write(json.dumps({"event": "ready"}) + "\n")
        for number, (backend, operation) in enumerate(tasks["tasks"]):
            log.write(json.dumps({"event": "began", "task": number}) + "\n")
            state, reason = rank.run(backend, checks[operation])
            log.write(json.dumps({"event": state, "task": number, "reason": reason}) + "\n")
        log.write(json.dumps({"event": "done"}) + "\n")


if __name__ == "__main__":
    main()
