"""The picture of lesson 17: which rank does what when, replayed from the images' directions."""

from collections.abc import Mapping

from course.lessons.shared.figures.schedules import schedule_grids
from course_lib.theory.schedules import Action, TimedAction
from mpi_classroom.figures import Picture


def draw_directions(arrows: Mapping[str, str]) -> Picture:
    """A panel per string of arrows, one arrow per image: "→" starts on rank 0 of four, "←" on rank 3.

    Images of replica 1 (←) have its colours, and a prime in the picture's words.
    """
    picture = schedule_grids({name: replay(way) for name, way in arrows.items()})
    return Picture(picture.figure, f"{picture.alt} A prime marks replica 1, which starts on rank 3.")


def replay(arrows: str) -> list[TimedAction]:
    """All passes on four ranks. Each rank takes the images in order; a forward takes 1 slot, a backward 2.

    A pass starts when its input has arrived and its rank has finished the image before; messages are free.
    """
    passes: list[TimedAction] = []
    free = [0] * 4  # when each rank has finished what it began
    for image, arrow in enumerate(arrows):
        way, arrived = (range(4) if arrow == "→" else range(3, -1, -1)), 0
        replica = "→←".index(arrow)
        forward = [(Action("F", stage, image, replica), rank, 1) for stage, rank in enumerate(way)]
        backward = [(Action("B", 3 - stage, image, replica), rank, 2) for stage, rank in enumerate(way[::-1])]
        for action, rank, slots in forward + backward:
            start = max(arrived, free[rank])
            arrived = free[rank] = start + slots
            passes.append(TimedAction(rank, action, start, arrived))
    return passes
