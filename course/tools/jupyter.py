"""How JupyterLab is started for a learner: in their own copy of the lessons, at the first one.

Its token and its address, localhost, stay as Jupyter makes them: who can open a notebook can run any program.
"""

import os
import socket
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from course.paths import MY_COURSE
from course.tools.catalogue import find_lessons
from mpi_classroom.commands import search_path

DATA = Path(__file__).parent / "jupyter_data"
PRINTED = "printed"  # how a notebook becomes a page, in DATA


def lab_command(port: int, browser: bool, more: Sequence[str] = (), folder: Path = MY_COURSE) -> list[str]:
    """The command that opens JupyterLab on `folder`, showing its first lesson; `more` is passed on.

    Where a JupyterHub starts it, the hub says on which port, and who may come in.
    """
    in_hub = "JUPYTERHUB_SERVICE_URL" in os.environ
    command = [sys.executable, "-m", "jupyterhub.singleuser" if in_hub else "jupyterlab"]
    command.append(f"--HTMLExporter.template_name={PRINTED}")
    command += [f"--ServerApp.root_dir={folder}", *([] if in_hub else [f"--ServerApp.port={port}"])]
    lessons = find_lessons(folder)
    if lessons:
        command.append(f"--LabApp.default_url=/lab/tree/{lessons[0].path.name}")
    if not browser:
        command.append("--no-browser")
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")
    return [*command, *more]


def lab_environment() -> dict[str, str]:
    """This environment without make's marks; this Python's kernel and commands come before all others.

    So a terminal in JupyterLab knows `course`, and a kernel python3 installed elsewhere is not taken: ours
    says what to run first when the notebook was restarted (course.kernel).
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    here = Path(__file__).parent
    ours = [str(DATA), str(Path(sys.prefix) / "share" / "jupyter")]
    environment["JUPYTER_PATH"] = os.pathsep.join(filter(None, [*ours, os.environ.get("JUPYTER_PATH")]))
    # A workshop needs no news and no question about them; our settings come before the user's own defaults.
    settings = str(here / "jupyter_config")
    others = os.environ.get("JUPYTER_CONFIG_PATH")
    environment["JUPYTER_CONFIG_PATH"] = os.pathsep.join(filter(None, [settings, others]))
    environment["PATH"] = search_path(sysconfig.get_path("scripts"))
    return environment


def port_in_use(port: int) -> bool:
    """Whether something on this machine listens on `port` of localhost already."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False
