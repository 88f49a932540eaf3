"""Python 3.13, an ordinary user, no compiler, PyTorch's build for GPUs and no GPU: Debian 13 in a folder."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("debian_13.sh")
NEEDED = ("debootstrap", "unshare", "setpriv", "chroot", "git")


@pytest.mark.release
@pytest.mark.timeout(3 * 3600)
def test_the_course_is_set_up_and_tested_on_debian_13(tmp_path: Path) -> None:
    missing = [name for name in NEEDED if not shutil.which(name)]
    if os.getuid() or missing:
        pytest.skip(f"needs root and {', '.join(missing or NEEDED)}")
    subprocess.run([SCRIPT], env=os.environ | {"STORAGE": str(tmp_path)}, check=True)
