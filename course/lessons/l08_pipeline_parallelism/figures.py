"""The pictures of lesson 08: schedules played on paper, and measured speed-ups beside the formula."""

from collections.abc import Callable, Mapping

from course.lessons.shared.figures.schedules import schedule_grids
from course_lib.theory.schedules import Action, simulate
from mpi_classroom.figures import Picture
from mpi_classroom.show import show

Schedule = Callable[[int, int, int], list[tuple[str, int]]]  # of stage, stages, m: ("F" or "B", micro-batch)
TITLES = {"gpipe": "GPipe", "one_f_one_b": "1F1B", "at_once": "backward at once"}  # by the function's name


def draw_schedules(m: int, *schedules: Schedule, stages: int = 4) -> Picture:
    """A panel per schedule, a row per rank: a forward takes 1, a backward 2, messages nothing."""
    played = {}
    for schedule in schedules:
        rows = [
            [Action("F" if kind == "F" else "B", rank, i) for kind, i in schedule(rank, stages, m)]
            for rank in range(stages)
        ]
        title = TITLES.get(schedule.__name__, schedule.__name__)
        played[f"{title}, {m} micro-batches"] = simulate(rows, 1, 2)
    return schedule_grids(played)


def draw_speed(measured: Mapping[int, float], formula: Mapping[int, float]) -> Picture:
    """Draw how many times as fast as one rank, by micro-batches: as measured, and dashed by the formula."""
    points = [
        {"labels": {"micro-batches": m}, "value": value, "unit": "times one rank", "kind": kind}
        for kind, values in (("measured", measured), ("predicted", formula))
        for m, value in values.items()
    ]
    return show(points, x="micro-batches", y="speed-up")
