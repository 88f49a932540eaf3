"""The picture of lesson 17: which rank does what when, as the lesson's replay says."""

from collections.abc import Mapping, Sequence

from course.lessons.shared.figures.schedules import schedule_grids
from course_lib.theory.schedules import Action, TimedAction
from mpi_classroom.figures import Picture

Pass = tuple[int, str, int, float, float]  # rank, "F" or "B", batch, start and seconds


def draw_replays(replays: Mapping[str, Sequence[Pass]]) -> Picture:
    """A panel per replay, a row per rank, the digits are batches."""
    return schedule_grids(
        {
            name: [
                TimedAction(rank, Action("F" if kind == "F" else "B", rank, batch), start, start + seconds)
                for rank, kind, batch, start, seconds in passes
            ]
            for name, passes in replays.items()
        }
    )
