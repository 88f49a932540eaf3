"""A folder of Debian 13 in which a test runs a program of it, or an ordinary user who may install nothing.

debootstrap makes it, as root and from its own default mirror; `chroot` enters it. DEBIAN_13 names a folder
that is there already. Like Debian itself, its Python comes without python3-venv.
"""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MOUNTS = """
set -e
mount -t proc proc "$0/proc"
mount -t tmpfs shm "$0/dev/shm"
if [ -n "$2" ]; then
  mount --bind "$2" "$0/mnt"
  mount -o remount,bind,ro "$0/mnt"
  ip link set lo up
fi
exec chroot "$0" sh -c "$1"
"""
PACKAGES = ("ca-certificates", "docker-compose", "passwd", "python3")


def needs_debian_13() -> None:
    """Skip, with the reason, where such a folder can be neither made nor entered."""
    if os.name != "posix" or os.geteuid() != 0:
        pytest.skip("only root makes a folder of Debian and enters it")
    if "DEBIAN_13" not in os.environ and not shutil.which("debootstrap"):
        pytest.skip("debootstrap is not installed")


@contextlib.contextmanager
def debian_13() -> Iterator[Path]:
    """Make the folder, about 340 MB in a minute, and remove it; or the one that DEBIAN_13 names."""
    needs_debian_13()
    if made := os.environ.get("DEBIAN_13"):
        yield Path(made)
        return
    folder = Path(tempfile.mkdtemp(prefix="debian-13-"))
    command = ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", "trixie", str(folder)]
    try:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=900)
        folder.chmod(0o755)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def inside(
    debian: Path, script: str, seconds: float = 60, stick: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a line of shell in the folder, as root, with mounts that end with it; its code and its words.

    With a `stick`, a folder that is then /mnt, there is no network but loopback.
    """
    own = ["--mount", "--pid", "--fork", "--kill-child", *(["--net"] if stick else [])]
    command = ["unshare", *own, "sh", "-c", MOUNTS, str(debian), script, str(stick or "")]
    plain = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "HOME": "/root"}
    return subprocess.run(
        command, env=plain, timeout=seconds, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
