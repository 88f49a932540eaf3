"""`course --version` names the commit in a git clone, so that thirty laptops can be compared."""

import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest

from course.version import MADE_FROM, course_version, made_from

NUMBER = version("course-lib")
AUTHOR = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *AUTHOR, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    git(tmp_path, "init", "--quiet")
    (tmp_path / "lesson").write_text("one")
    git(tmp_path, "add", "lesson")
    git(tmp_path, "commit", "--quiet", "--message", "one", "--date", "2026-11-20T12:00:00Z")
    return tmp_path


def test_a_clone_tells_its_commit_and_date_and_whether_files_of_it_were_changed(clone: Path) -> None:
    commit, day = git(clone, "rev-parse", "--short=12", "HEAD"), git(clone, "log", "-1", "--format=%cs")
    (clone / "my_course").write_text("a learner's own file is no change")
    assert course_version(clone) == f"{NUMBER}, commit {commit} of {day}"
    (clone / "lesson").write_text("two")
    assert course_version(clone) == f"{NUMBER}, commit {commit} of {day}, with local changes"


def test_a_folder_that_is_no_clone_tells_the_version_even_inside_another_clone(clone: Path) -> None:
    (clone / "bundle").mkdir()
    assert course_version(clone / "bundle") == NUMBER


def test_a_folder_from_a_bundle_tells_the_commit_that_it_was_made_from_and_whether_files_differ(
    clone: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    commit, folder = course_version(clone), tmp_path_factory.mktemp("laptop")
    (folder / MADE_FROM).write_text(made_from(clone, [clone / "lesson"]))
    (folder / "lesson").write_text("one")
    assert course_version(folder) == commit and "commit" in commit
    (folder / "my_course").write_text("a learner's own file is no change")
    assert course_version(folder) == commit
    (folder / "lesson").write_text("two")
    assert course_version(folder) == f"{commit}, with local changes"
    (folder / "lesson").unlink()
    assert course_version(folder) == f"{commit}, with local changes"


def test_a_machine_without_git_and_a_git_that_refuses_tell_the_version(
    clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (clone / ".git" / "HEAD").write_text("nonsense")
    assert course_version(clone) == NUMBER
    monkeypatch.setenv("PATH", "/nowhere")
    assert course_version(clone) == NUMBER
