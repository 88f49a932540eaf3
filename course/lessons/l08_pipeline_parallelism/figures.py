"""The picture of lesson 08: which rank does what when, played on paper."""

from collections.abc import Mapping, Sequence

from course.lessons.shared.figures.schedules import schedule_grids
from course_lib.theory.schedules import Action, simulate
from mpi_classroom.figures import Picture

Pass = tuple[str, int]  # "F" or "B", and the micro-batch


def draw_schedules(schedules: Mapping[str, Sequence[Sequence[Pass]]]) -> Picture:
    """A panel per schedule, a row per rank: a forward takes 1, a backward 2, messages nothing."""
    played = {
        name: [
            [Action("F" if kind == "F" else "B", rank, i) for kind, i in row] for rank, row in enumerate(rows)
        ]
        for name, rows in schedules.items()
    }
    return schedule_grids({name: simulate(schedule, 1, 2) for name, schedule in played.items()})
