"""Workflows, compose.yaml and CITATION.cff keep to the schemas that check-jsonschema brings with it."""

import re
import subprocess
from pathlib import Path

import pytest

from course.paths import ROOT

pytestmark = [pytest.mark.release, pytest.mark.timeout(300)]
WRONG = [
    ("tests.yml", "runs-on:", "run-on:", "github-workflows"),
    ("release.yml", "needs: tests", "needs: [1]", "github-workflows"),
    ("compose.yaml", "cap_drop:", "cap-drop:", "compose-spec"),
    ("CITATION.cff", "cff-version:", "cff:", "citation-file-format"),
]


@pytest.fixture(scope="module")
def tool() -> str:
    """The tool in an environment that the Makefile makes; it has found nothing in the files as shipped."""
    ran = subprocess.run(["make", "schemas"], cwd=ROOT, text=True, capture_output=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (folder,) = re.findall(r"^SCHEMAS := (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return str(ROOT / folder / "check-jsonschema")


@pytest.mark.parametrize(("name", "right", "wrong", "schema"), WRONG)
def test_files_keep_to_their_schemas_and_one_that_does_not_is_found_out(
    tool: str, tmp_path: Path, name: str, right: str, wrong: str, schema: str
) -> None:
    (path,) = [path for path in (ROOT / name, ROOT / ".github" / "workflows" / name) if path.exists()]
    changed = path.read_text().replace(right, wrong)
    assert changed != path.read_text()
    (tmp_path / name).write_text(changed)
    ran = subprocess.run([tool, "--builtin-schema", f"vendor.{schema}", tmp_path / name], capture_output=True)
    assert ran.returncode == 1, ran.stdout
