"""The probe of backends tells apart what works, garbage, an exception, a hang and a crash."""

import os
import textwrap
from pathlib import Path

import pytest
import torch.distributed as dist

from course.lessons.l04_collectives import backend_operations
from course.lessons.l04_collectives.backends import OPERATIONS, BackendTable, Probe, ProbeJob, probe_backends
from mpi_classroom.lessons import predictions_of

FAKES = '''
import os, signal, time
import torch
import torch.distributed as dist
from course.lessons.l04_collectives.backend_operations import all_reduce, expect

def hangs(p):
    time.sleep(60)

def hangs_on_rank_1(p):
    if p.rank == 1:
        time.sleep(60)

def garbage(p):
    """An all-reduce that forgets the others."""
    expect(p.mine(), p.total())

def garbage_on_rank_1(p):
    tensor = p.mine()
    dist.all_reduce(tensor, group=p.group)
    expect(tensor + p.rank, p.total())

def raises(p):
    raise NotImplementedError("no such thing here\\nand more words")

def raises_on_rank_0(p):
    """One rank refuses, the other waits for it."""
    if p.rank == 0:
        raise ValueError("not with me")
    time.sleep(60)

def killed(p):
    if p.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)

def leaves(p):
    os._exit(3)

def changes_the_group(p):
    """Half a message: its receiver never comes."""
    if p.rank == 0:
        dist.isend(torch.ones(2), 1, p.group)

CHECKS = {f.__name__: f for f in (
    hangs, hangs_on_rank_1, garbage, garbage_on_rank_1, raises, raises_on_rank_0, killed, leaves,
    changes_the_group, all_reduce)}
'''


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "fake_operations.py").write_text(textwrap.dedent(FAKES))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    return "fake_operations"


def only(table: BackendTable, operation: str) -> Probe:
    return next(probe for probe in table.probes if probe.operation == operation)


# -------------------------------------------------------------------- five ways not to work


def test_garbage_a_hang_and_a_crash_are_told_apart_and_the_rest_is_tried_all_the_same(fakes: str) -> None:
    operations = ["garbage", "hangs", "raises", "killed", "all_reduce"]
    table = probe_backends(["gloo"], operations=operations, seconds=4.0, module=fakes)
    states = {probe.operation: probe.state for probe in table.probes}
    expected = ["wrong", "hangs", "raises", "crashes", "works"]
    assert states == dict(zip(operations, expected, strict=True))
    assert only(table, "garbage").reason.startswith("got [1")
    assert only(table, "hangs").reason == "rank 0 and rank 1 did not come back"
    assert only(table, "raises").reason == "NotImplementedError: no such thing here"
    assert "rank 1 was ended by signal 9" in only(table, "killed").reason
    assert only(table, "all_reduce").reason == ""


@pytest.mark.slow
def test_one_rank_is_enough_to_fail(fakes: str) -> None:
    operations = ["garbage_on_rank_1", "raises_on_rank_0", "hangs_on_rank_1", "leaves"]
    table = probe_backends(["gloo"], operations=operations, seconds=4.0, module=fakes)
    assert [probe.state for probe in table.probes] == ["wrong", "raises", "hangs", "crashes"]
    assert "in place of [11.0, 11.0]" in only(table, "garbage_on_rank_1").reason
    assert only(table, "raises_on_rank_0").reason == (
        "ValueError: not with me (on rank 0; rank 1 then waits for ever)"
    )
    assert only(table, "hangs_on_rank_1").reason == "rank 1 did not come back"


@pytest.mark.slow
def test_what_one_operation_leaves_behind_does_not_reach_the_next(fakes: str) -> None:
    operations = ["changes_the_group", "all_reduce"]
    table = probe_backends(["gloo"], operations=operations, seconds=4.0, module=fakes)
    assert only(table, "all_reduce").state == "works"


@pytest.mark.slow
def test_ranks_that_cannot_start_are_an_error_not_a_verdict() -> None:
    with (
        pytest.raises(RuntimeError, match=r"(?s)did not start; they said: .*no_such_module"),
        ProbeJob([("gloo", "all_reduce")], "no_such_module") as job,
    ):
        job.watch(4.0)


# -------------------------------------------------------------------- the real ones


def test_every_operation_has_a_check_in_the_same_order() -> None:
    assert tuple(backend_operations.CHECKS) == OPERATIONS


def test_the_lesson_asks_about_as_many_operations_as_are_tried() -> None:
    asked = [prediction.question for prediction in predictions_of("04")]
    assert f"Of {len(OPERATIONS)} operations, how many work on Gloo?" in asked


@pytest.mark.slow
def test_gloo_does_what_its_torch_says_and_absent_backends_have_their_reason() -> None:
    table = probe_backends(["gloo", "mpi", "nccl", "carrier pigeon"])
    assert table.state("gloo", "all_reduce") == "works"
    assert not [p for p in table.probes if p.backend == "gloo" and p.state in ("wrong", "hangs", "crashes")]
    for backend, there in (("mpi", dist.is_mpi_available()), ("nccl", dist.is_nccl_available())):
        if not there:
            assert {p.state for p in table.probes if p.backend == backend} == {"absent"}
            assert sum(reason.startswith(f"{backend}: ") for reason in table.reasons()) == 1
    assert "nobody has registered" in table.reasons()[-1]


# -------------------------------------------------------------------- the table

TABLE = BackendTable(
    (
        Probe("gloo", "all_reduce", "works"),
        Probe("gloo", "all_to_all", "hangs", "rank 1 did not come back"),
        Probe("nccl", "all_reduce", "absent", "no GPU"),
        Probe("nccl", "all_to_all", "absent", "no GPU"),
    )
)


def test_the_table_prints_as_text_with_each_reason_once() -> None:
    assert str(TABLE).splitlines() == [
        "operation   gloo     nccl",
        "all_reduce  ✓        –",
        "all_to_all  ✗ hangs  –",
        "",
        "gloo, all_to_all: rank 1 did not come back",
        "nccl: no GPU",
    ]


def test_the_table_shows_itself_as_markdown() -> None:
    assert TABLE._repr_markdown_().splitlines() == [
        "| operation | gloo | nccl |",
        "| --- | --- | --- |",
        "| `all_reduce` | ✓ | – |",
        "| `all_to_all` | ✗ hangs | – |",
        "",
        "- gloo, all_to_all: rank 1 did not come back",
        "- nccl: no GPU",
    ]


def test_asking_for_what_was_not_tried_says_what_was() -> None:
    with pytest.raises(LookupError, match="barrier was not tried on gloo; tried were gloo, nccl"):
        TABLE.state("gloo", "barrier")
