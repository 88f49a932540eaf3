"""The image is built and holds its promises, where a builder is at hand: `make test-release`."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
WITHOUT_REGISTRY = ("buildah", "debootstrap", "unshare", "setpriv", "ip")


def builder() -> str:
    """`docker` where its daemon answers, else `buildah` where root can use it; "" where there is neither."""
    if shutil.which("docker") and subprocess.run(["docker", "info"], capture_output=True).returncode == 0:
        return "docker"
    return "buildah" if os.getuid() == 0 and all(map(shutil.which, WITHOUT_REGISTRY)) else ""


@pytest.mark.release
@pytest.mark.timeout(3 * 3600)
def test_the_image_is_built_and_holds_its_promises(tmp_path: Path) -> None:
    found = builder()
    if not found:
        pytest.skip("no Docker daemon answers; without one: root, buildah and debootstrap")
    environment = os.environ | {"BUILDER": found, "STORAGE": str(tmp_path)}
    if found == "buildah" and "BASE_IMAGE" not in environment:
        subprocess.run([HERE / "make_base.sh"], env=environment, check=True)
        environment["BASE_IMAGE"] = "localhost/debian-python"
    try:
        subprocess.run([HERE / "build_and_check.sh"], env=environment, check=True)
    finally:
        shutil.rmtree(tmp_path, ignore_errors=True)  # gigabytes, which pytest would keep
