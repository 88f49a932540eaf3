"""C programs: those of a page and of lesson 03, broken ones, and machines without a compiler."""

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from course.lessons.shared import programs as c
from course.paths import NOTEBOOKS, ROOT
from course_lib.pi import arctan_part

SEND_RECV = NOTEBOOKS / "code" / "send_recv.c"
ARCTAN = NOTEBOOKS / "code" / "arctan_pi.c"
needs_compiler = pytest.mark.skipif(c.why_no_c() is not None, reason=str(c.why_no_c()))


PAGE = (ROOT / "docs" / "mpi-and-others.md").read_text()


@pytest.mark.parametrize(
    ("command", "says"), re.findall(r"```sh\n(.*?)```\n\nIt prints `(.*?)`", PAGE, re.DOTALL)
)
def test_the_page_on_c_and_other_words_prints_what_it_says(command: str, says: str, tmp_path: Path) -> None:
    if "mpicc" in command and c.why_no_c():
        pytest.skip(str(c.why_no_c()))
    (tmp_path / "send_recv.c").write_bytes(SEND_RECV.read_bytes())
    path = f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "OMPI_CC": str(c.find_c_compiler())}
    done = subprocess.run(
        ["sh", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    assert (done.stdout.strip(), done.returncode) == (says, 0), done.stderr


@pytest.fixture(scope="module")
def arctan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return c.compile_c(ARCTAN, tmp_path_factory.mktemp("c") / "made" / "arctan_pi")


@needs_compiler
@pytest.mark.parametrize(("size", "terms"), [(1, 1000), (3, 1000), (4, 3)])
def test_c_adds_up_the_terms_that_python_does(arctan: Path, size: int, terms: int) -> None:
    head, pi = c.run_program(size, [arctan, str(terms)]).split(", pi = ")
    assert head == f"C, ranks: {size}, terms: {terms}"
    assert float(pi) == pytest.approx(arctan_part(terms), abs=1e-11)


@needs_compiler
def test_c_counts_terms_in_64_bits(tmp_path: Path) -> None:
    last = ARCTAN.read_text().replace("k = rank;", "k = terms - size + rank;")
    assert last != ARCTAN.read_text()
    (tmp_path / "last.c").write_text(last)
    terms = 2**33 + 6
    told = c.run_program(3, [c.compile_c(tmp_path / "last.c", tmp_path / "last"), str(terms)])
    assert told.startswith(f"C, ranks: 3, terms: {terms}, pi = ")
    assert abs(float(told.split()[-1])) < 1e-8


@needs_compiler
def test_the_compilers_own_words_are_shown(tmp_path: Path) -> None:
    broken = tmp_path / "broken.c"
    broken.write_text("int main(void) { return undeclared; }")
    with pytest.raises(RuntimeError, match=r"broken\.c does not compile:\n(.|\n)*undeclared"):
        c.compile_c(broken, tmp_path / "broken")


def test_a_machine_without_a_compiler_gets_the_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert c.find_c_compiler() is None
    assert "found no C compiler (cc, gcc, clang)" in str(c.why_no_c())
    with pytest.raises(RuntimeError, match="sudo apt install gcc"):
        c.compile_c(SEND_RECV, tmp_path / "send_recv")


def test_a_program_that_hangs_is_ended_within_its_time() -> None:
    code = "from mpi4py import MPI; MPI.COMM_WORLD.recv(source=0)"
    with pytest.raises(subprocess.TimeoutExpired):
        c.run_program(2, [sys.executable, "-c", code], timeout=3)
