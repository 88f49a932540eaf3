"""Workflows, compose.yaml and CITATION.cff keep to the schemas that check-jsonschema brings with it."""

import subprocess

import pytest

from course.paths import ROOT


@pytest.mark.release
@pytest.mark.timeout(300)
def test_files_keep_to_their_schemas() -> None:
    ran = subprocess.run(["make", "schemas"], cwd=ROOT, text=True, capture_output=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
