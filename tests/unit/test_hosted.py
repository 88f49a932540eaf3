"""Hosted CI and the container's settings, as far as they can be held without running them."""

import re

import pytest
import yaml

from course.paths import ROOT
from course.tools import moved

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def read(path):
    return yaml.safe_load(path.read_text())


def commands(workflow):
    """All `run` and all `uses` of the steps of a workflow."""
    steps = [step for job in workflow["jobs"].values() for step in job.get("steps", [])]
    return [step["run"] for step in steps if "run" in step], [
        step["uses"] for step in steps if "uses" in step
    ]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_may_only_read_names_actions_by_commit_and_runs_make_targets(path):
    workflow = read(path)
    assert workflow["permissions"] == {"contents": "read"}
    own = [job for job in workflow["jobs"].values() if "uses" not in job]
    assert all(job["timeout-minutes"] <= 90 for job in own)
    runs, uses = commands(workflow)
    assert [each for each in uses if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", each)] == []
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    called = {target for run in runs for target in re.findall(r"\bmake ([a-z-]+)", run)}
    assert called and called <= targets


def test_a_release_is_tested_before_it_is_published():
    jobs = read(ROOT / ".github" / "workflows" / "release.yml")["jobs"]
    called = {name for name, job in jobs.items() if job.get("uses") == "./.github/workflows/tests.yml"}
    publishing = [
        job for job in jobs.values() if any("gh release" in str(step) for step in job.get("steps", []))
    ]
    assert publishing and all({job.get("needs")} & called for job in publishing)
    assert "workflow_call" in read(ROOT / ".github" / "workflows" / "tests.yml")[True], (
        "YAML reads on as true"
    )


def test_a_container_of_compose_may_do_no_more_than_it_must():
    course = read(ROOT / "compose.yaml")["services"]["course"]
    assert course["cap_drop"] == ["ALL"] and "cap_add" not in course
    assert course["security_opt"] == ["no-new-privileges:true"]
    assert course["pids_limit"] > 0 and course["mem_limit"] and course["shm_size"] == "1g"
    assert course["read_only"] is True
    assert [port.split(":")[0] for port in course["ports"]] == ["127.0.0.1"]
    assert all(":exec," in each for each in course["tmpfs"]), (
        "Docker's default is noexec; lessons run what they compile"
    )
    written = {each.split(":")[0] for each in course["tmpfs"]} | {
        each.split(":")[1] for each in course["volumes"]
    }
    assert written == {"/tmp", "/home/learner", "/course/build", "/course/my_course", "/course/data"}


def test_what_moved_is_asked_of_every_inventory(monkeypatch, capsys):
    files = [*ROOT.glob("course*/**/*internals.py"), *ROOT.glob("packages/*/*/internals.py")]
    assert len(moved.INVENTORIES) == len(files)
    assert moved.main() == 0
    monkeypatch.setattr("torch_mpi4py.internals.moved", lambda: ["ReduceOp.op"])
    assert moved.main() == 1
    assert "torch_mpi4py.internals: 1 moved\n  ReduceOp.op" in capsys.readouterr().out
