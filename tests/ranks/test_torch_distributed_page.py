"""The Python of `docs/torch-distributed.md`, block after block, on as many ranks as this session has."""

import re

from mpi4py import MPI

from course.paths import ROOT

TEXT = (ROOT / "docs" / "torch-distributed.md").read_text(encoding="utf-8")
CODE = "\n".join(re.findall(r"^```python\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE))


def raised_by(code: str, comm: MPI.Intracomm) -> list[str]:
    """What the code raises on each rank; "" where nothing."""
    try:
        exec(compile(code, "torch-distributed.md", "exec"), {})
    except AssertionError as error:
        return comm.allgather(f"line {error.__traceback__.tb_next.tb_lineno}")
    return comm.allgather("")


def test_the_page_runs(comm: MPI.Intracomm) -> None:
    assert CODE.count("assert") == 4
    assert raised_by(CODE, comm) == [""] * comm.size


def test_known_wrong_code_is_found(comm: MPI.Intracomm) -> None:
    """Gradients of replicas that are averaged: on one rank, there is one replica."""
    assert ".sum(0)" in CODE
    assert all(raised_by(CODE.replace(".sum(0)", ".mean(0)"), comm)) == (comm.size > 1)
