"""The doctor's checks of torch: the CPU, `torch.distributed` on two ranks, DeepSpeed.

Each that starts a program has a deadline and looks at a number that must be right, not only at an exit code.
"""

import importlib.util
import os
import platform
import subprocess
import sys

from course_lib.network import loopback
from mpi_classroom.check import Check
from mpi_classroom.doctor import RANKS, some
from mpi_classroom.job_output import last_line
from mpi_classroom.launch import available_cores, rank_environment, run_ranks, threads_per_rank

TORCH_RANKS = 2
TORCH_ROUND_TRIP = """
import datetime, importlib.util
from mpi4py import MPI
import torch
import torch.distributed as dist

comm, timeout = MPI.COMM_WORLD, datetime.timedelta(seconds=20)
port, store = None, None
if comm.rank == 0:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, timeout=timeout, wait_for_workers=False)
    port = store.port
port = comm.bcast(port)
store = store or dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timeout)

def there_and_back(backend):
    letter = torch.full((3,), 1.0 + comm.rank)
    dist.all_reduce(letter)
    print(backend, int(letter.sum()), flush=True)
    dist.barrier()
    dist.destroy_process_group()

dist.init_process_group("gloo", store=store, rank=comm.rank, world_size=comm.size, timeout=timeout)
there_and_back("gloo")
if importlib.util.find_spec("torch_mpi4py"):
    import torch_mpi4py
    torch_mpi4py.init_process_group(comm, timeout=timeout)
    there_and_back("mpi4py")
comm.Barrier()
"""
DEEPSPEED = "import deepspeed; print(deepspeed.__version__)"
SETUP = "make setup; if that does not help: rm -rf .venv && make setup"


def check_processor(instructions: str = "", machine: str = platform.machine()) -> Check:
    """What torch uses of the CPU, and how many cores the ranks share; nothing of it is a fault."""
    if not instructions:
        import torch

        instructions = torch.backends.cpu.get_cpu_capability()
    short = "an LSTM in bfloat16 runs in float32"
    meaning = instructions
    if machine in ("x86_64", "AMD64") and not instructions.startswith("AVX512"):
        known = instructions == "AVX2"
        meaning = f"AVX2: {short}" if known else f"no AVX2: training is slower, and {short}"
    cores, threads = available_cores(), threads_per_rank(RANKS)
    shared = f"{RANKS} ranks share them" if 1 < cores < RANKS else f"{RANKS} ranks share it"
    share = shared if cores < RANKS else f"one or more per rank for {RANKS} ranks"
    words = f"{cores} core{'s' * (cores > 1)}: {share}, {threads} thread{'s' * (threads > 1)} per rank"
    return Check("CPU", True, f"{meaning}; {words}")


def check_torch(program: str = TORCH_ROUND_TRIP, seconds: float = 60.0) -> Check:
    """An all-reduce of torch.distributed on two ranks, over Gloo and over MPI, gives the right sum."""
    name = "torch"
    remedy = (
        "if packages or ranks are red, repair them first; else set GLOO_SOCKET_IFNAME to your loopback "
        "interface"
    )
    environment = dict(os.environ) | {"GLOO_SOCKET_IFNAME": loopback(), "OMP_NUM_THREADS": "1"}
    try:
        job = run_ranks(TORCH_RANKS, ["-c", program], timeout=seconds, environment=environment)
    except subprocess.TimeoutExpired:
        return Check(
            name, False, f"torch.distributed on 2 ranks did not finish within {seconds:.0f} s", remedy
        )
    except OSError as error:
        return Check(name, False, str(error), remedy)
    said = sorted(line for line in job.stdout.splitlines() if line)
    backends = sorted({line.split()[0] for line in said})
    total = 3 * sum(range(1, TORCH_RANKS + 1))
    right = "gloo" in backends and said == sorted(f"{name} {total}" for name in backends * TORCH_RANKS)
    if right and job.returncode == 0:
        return Check(name, True, f"torch.distributed summed on 2 ranks, over {' and over '.join(backends)}")
    last = last_line(job.stderr) or "no error message"
    return Check(
        name, False, f"the sums were {some(said) or 'missing'}; exit code {job.returncode}: {last}", remedy
    )


def check_deepspeed(program: str = DEEPSPEED, seconds: float = 60.0) -> Check:
    """DeepSpeed can be imported for the CPU; only its own lesson needs it."""
    name = "DeepSpeed"
    if importlib.util.find_spec("deepspeed") is None:
        return Check(name, True, "not installed; only lessons 12 and 13 need it")
    environment = rank_environment(1) | {"DS_ACCELERATOR": "cpu"}
    try:
        child = subprocess.run(
            [sys.executable, "-c", program],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        return Check(
            name,
            False,
            f"its import did not finish within {seconds:.0f} s",
            "close other programs and run course doctor again",
        )
    if child.returncode != 0:
        last = last_line(child.stderr) or f"exit code {child.returncode}"
        return Check(name, False, f"it cannot be imported: {last}", SETUP)
    return Check(name, True, f"{last_line(child.stdout)}, on the CPU")
