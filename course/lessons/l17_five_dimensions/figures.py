"""The picture of lesson 17: which rank does what when, replayed from the images' directions."""

from collections.abc import Mapping, Sequence

from course.lessons.shared.figures.schedules import schedule_grids
from course_lib.theory.schedules import Action, TimedAction
from mpi_classroom.figures import Picture

Pass = tuple[int, str, int, float, float]  # rank, "F" or "B", image, start and slots


def draw_replays(replays: Mapping[str, Sequence[Pass]]) -> Picture:
    """A panel per replay, a row per rank, the digits are images."""
    return schedule_grids(
        {
            name: [
                TimedAction(rank, Action("F" if kind == "F" else "B", rank, image), start, start + slots)
                for rank, kind, image, start, slots in passes
            ]
            for name, passes in replays.items()
        }
    )


def draw_directions(arrows: Mapping[str, str]) -> Picture:
    """A panel per string of arrows, one arrow per image: "→" starts on rank 0 of four, "←" on rank 3."""
    return draw_replays({name: replay(way) for name, way in arrows.items()})


def replay(arrows: str) -> list[Pass]:
    """All passes on four ranks. Each rank takes the images in order; a forward takes 1 slot, a backward 2.

    A pass starts when its input has arrived and its rank has finished the image before; messages are free.
    """
    passes: list[Pass] = []
    free = [0] * 4  # when each rank has finished what it began
    for image, arrow in enumerate(arrows):
        way, arrived = (range(4) if arrow == "→" else range(3, -1, -1)), 0
        for rank, kind, slots in [(r, "F", 1) for r in way] + [(r, "B", 2) for r in reversed(way)]:
            start = max(arrived, free[rank])
            passes.append((rank, kind, image, start, slots))
            arrived = free[rank] = start + slots
    return passes
