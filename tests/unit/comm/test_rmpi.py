"""The R program: π over R's own MPI, and machines where R, MPI or Rmpi is missing."""

import os
import subprocess
from pathlib import Path

import pytest

from course.lessons.l03_arctan_pi import rmpi
from course.paths import NOTEBOOKS
from course_lib.pi import arctan_part

PROGRAM = NOTEBOOKS / "code" / "arctan_pi.R"
needs_r = pytest.mark.skipif(rmpi.why_no_r() is not None, reason=str(rmpi.why_no_r()))


def printed(text: str) -> tuple[int, int, float]:
    """Ranks, terms and π of the line that the program prints."""
    words = text.replace(",", "").split()
    return int(words[2]), int(words[4]), float(words[7])


@needs_r
@pytest.mark.parametrize(("size", "terms"), [(1, 1000), (3, 1000), (4, 3)])
def test_r_adds_up_the_terms_that_python_does(size: int, terms: int) -> None:
    ranks, added, pi = printed(rmpi.run_r(size, PROGRAM, [str(terms)]))
    assert (ranks, added) == (size, terms)
    assert pi == pytest.approx(arctan_part(terms), abs=1e-11)


@needs_r
def test_rs_own_words_are_shown_when_it_fails(tmp_path: Path) -> None:
    broken = tmp_path / "broken.R"
    broken.write_text('stop("I have had enough")')
    with pytest.raises(RuntimeError, match=r"exit code \d+:\n(.|\n)*I have had enough"):
        rmpi.run_r(2, broken)


@needs_r
def test_an_r_program_that_hangs_is_ended_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    hanging = tmp_path / "hanging.R"
    hanging.write_text("Sys.sleep(600)")
    with pytest.raises(subprocess.TimeoutExpired):
        rmpi.run_r(2, hanging, timeout=3)
    assert list(temporary.iterdir()) == []


def test_a_machine_without_r_gets_the_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(rmpi, "SYSTEM_PATH", str(tmp_path))
    assert "found no R " in str(rmpi.why_no_r())
    with pytest.raises(RuntimeError, match="sudo apt install r-cran-rmpi"):
        rmpi.run_r(2, PROGRAM)


def test_r_hears_nothing_of_pythons_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_MCA_btl", "self,sm,tcp")
    monkeypatch.setenv("PMIX_RANK", "0")
    monkeypatch.setenv("LD_PRELOAD", "x")
    environment = rmpi.clean_environment(2)
    assert environment["PATH"] == rmpi.SYSTEM_PATH
    assert not {"PMIX_RANK", "LD_PRELOAD"} & environment.keys()
    assert environment["OMPI_MCA_btl"] == "^tcp", "its ranks listen on no port"
    assert ("OMPI_ALLOW_RUN_AS_ROOT" in environment) == (os.geteuid() == 0)
