"""The programs of course_lib/README.md do on two ranks what their comments say."""

import re
from pathlib import Path

import pytest

from mpi_classroom.launch import run_ranks

PAGE = (Path(__file__).parents[2] / "course_lib/README.md").read_text()
PROGRAMS = re.findall(r"^## ([^\n]+)\n```python\n(.*?)```", PAGE, re.MULTILINE | re.DOTALL)
RUN = """
import sys
from pathlib import Path
from mpi4py import MPI

for path in sorted(Path(sys.argv[1]).glob("*.py")):
    MPI.COMM_WORLD.Barrier()
    if MPI.COMM_WORLD.rank:
        sys.stdout = open("/dev/null", "w")
    exec(compile(path.read_text(), path.name, "exec"), {"__name__": "__main__"})
"""


def said(program: str) -> str:
    """What the comment behind the program's one print says."""
    (comment,) = re.findall(r"^print\(.*\)  # (.+)$", program, re.MULTILINE)
    return comment


@pytest.mark.timeout(150)
def test_the_programs_print_what_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "programs"
    folder.mkdir()
    for number, (_, program) in enumerate(PROGRAMS):
        (folder / f"{number}.py").write_text(program)
    monkeypatch.chdir(tmp_path)  # where the checkpoints go
    job = run_ranks(2, ["-m", "mpi4py", "-c", RUN, str(folder)], timeout=120)
    assert job.returncode == 0 and PROGRAMS, job.stderr
    assert job.stdout.splitlines() == [said(program) for _, program in PROGRAMS]
