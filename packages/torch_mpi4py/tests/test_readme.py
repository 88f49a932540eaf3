"""The programs of packages/torch_mpi4py/README.md, as they stand there."""

import re
import subprocess
import sys
from pathlib import Path

from mpi_classroom.launch import find_mpiexec, rank_environment, run_ranks

PAGE = (Path(__file__).parents[1] / "README.md").read_text()


def program(words: str, folder: Path) -> str:
    """The page's one Python program with `words` in it, in a file."""
    (found,) = [code for code in re.findall(r"```python\n(.*?)```", PAGE, re.S) if words in code]
    (folder / "program.py").write_text(found)
    return str(folder / "program.py")


def test_the_first_program_prints_what_the_page_says(tmp_path: Path) -> None:
    job = run_ranks(2, ["-m", "mpi4py", program("DistributedDataParallel(", tmp_path)], timeout=120)
    assert job.returncode == 0, job.stderr
    lines = sorted(line for line in job.stdout.splitlines() if line.startswith("rank "))
    assert len(lines) == 2 and all(line in PAGE for line in lines), lines


def test_the_survivors_of_a_killed_rank_go_on(tmp_path: Path) -> None:
    command = [
        str(find_mpiexec()),
        "--with-ft",
        "ulfm",
        "-n",
        "3",
        sys.executable,
        program("Shrink", tmp_path),
    ]
    job = subprocess.run(command, env=rank_environment(3), capture_output=True, text=True, timeout=120)
    survivors = sorted(line for line in job.stdout.splitlines() if line.startswith("was"))
    assert survivors == ["was rank 0, is 0 of 2: 2.0", "was rank 2, is 1 of 2: 2.0"], job.stdout + job.stderr


def test_deepspeed_starts_as_the_page_says(tmp_path: Path) -> None:
    path = program("init_distributed", tmp_path)
    with open(path, "a") as file:
        file.write(
            "\nprint('ranks:', deepspeed.comm.get_world_size())\ndeepspeed.comm.destroy_process_group()\n"
        )
    job = run_ranks(2, [path], timeout=200)
    assert job.returncode == 0 and job.stdout.count("ranks: 2") == 2, job.stdout + job.stderr
