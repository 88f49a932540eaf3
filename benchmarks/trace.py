"""What a span costs: our `Recorder` beside torch's `record_function`, and beside merely reading the clock.

`record_function` is timed with its profiler running, when it records as a span of ours does, and without
it, when it finds out that nobody listens. One rank: a span sends nothing.

    python -m benchmarks.trace [--quick] [--json FILE]
"""

from collections.abc import Callable

from mpi4py import MPI
from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks.harness import Row, Timing, main, row, time_alternately
from course_lib.comm.trace import Recorder

SPANS = 1000  # in one repetition: short enough to run in one go on a busy machine


def measure(quick: bool) -> list[Row]:
    """Three rows, each in microseconds a span."""
    repetitions = 50 if quick else 300
    against_clock = race(read_clock_twice, repetitions)
    against_idle = race(torchs, repetitions)  # before any profiler ran
    with profile(activities=[ProfilerActivity.CPU]):
        against_torch = race(torchs, repetitions)
    return [
        row("a span", 1, *against_torch, "record_function, profiler running", unit="us"),
        row("a span, profiler idle", 1, *against_idle, "record_function, no profiler", unit="us"),
        row("a span against its limit", 1, *against_clock, "MPI.Wtime, read twice", unit="us"),
    ]


def race(peer: Callable[[], None], repetitions: int) -> tuple[Timing, Timing]:
    """Microseconds of one span, ours and the peer's."""
    timings = time_alternately(MPI.COMM_SELF, {"ours": ours, "peer": peer}, repetitions=repetitions)
    return timings["ours"].times(1e6 / SPANS), timings["peer"].times(1e6 / SPANS)


def ours() -> None:
    recorder = Recorder(MPI.COMM_SELF)  # a few microseconds among a thousand spans
    for _ in range(SPANS):
        with recorder.span("span"):
            pass


def torchs() -> None:
    for _ in range(SPANS):
        with record_function("span"):
            pass


def read_clock_twice() -> None:
    for _ in range(SPANS):
        MPI.Wtime()
        MPI.Wtime()


if __name__ == "__main__":
    main("What a span costs", measure)
