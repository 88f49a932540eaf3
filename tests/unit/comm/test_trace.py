"""The recorder on one rank, and moments of one clock on another."""

import pytest
from mpi4py import MPI

from course_lib.comm.spans import Span
from course_lib.comm.trace import Recorder


@pytest.fixture
def recorder() -> Recorder:
    return Recorder(MPI.COMM_SELF)


def gathered(recorder: Recorder) -> list[Span]:
    spans = recorder.gather()
    assert spans is not None
    return spans


def test_spans_nest_and_the_first_begins_at_zero(recorder: Recorder) -> None:
    with recorder.span("step"):
        with recorder.span("forward"):
            pass
        with recorder.span("sum", kind="collective"):
            pass
    step, forward, total = gathered(recorder)
    assert [(span.name, span.kind) for span in (step, forward, total)] == [
        ("step", "compute"),
        ("forward", "compute"),
        ("sum", "transfer"),
    ]
    assert 0 == step.start <= forward.start <= forward.end <= total.start <= total.end <= step.end


def test_a_span_that_raised_is_recorded_and_the_error_goes_on(recorder: Recorder) -> None:
    with pytest.raises(ZeroDivisionError), recorder.span("bad"):
        _ = 1 / 0
    assert [span.name for span in gathered(recorder)] == ["bad"]


def test_an_unknown_kind_is_named_with_those_that_exist(recorder: Recorder) -> None:
    with recorder.span("sum", kind="colective"):  # type: ignore[arg-type]
        pass
    with pytest.raises(
        ValueError, match="rank 0 has a span of the kind 'colective'; use one of compute, wait"
    ):
        recorder.gather()
    assert gathered(recorder) == []
