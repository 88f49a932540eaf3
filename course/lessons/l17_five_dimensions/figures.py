"""The picture of lesson 17: which rank does what when, as the lesson's `replay` says."""

from collections.abc import Mapping, Sequence

from course.lessons.shared.figures.schedules import schedule_grids
from course_lib.theory.schedules import Action, TimedAction
from mpi_classroom.figures import Picture

STAGES = 4
Pass = tuple[int, float, float]  # rank, start, end


def draw_directions(replays: Mapping[str, Sequence[Pass]]) -> Picture:
    """A panel per replay: its passes image by image, four forwards, then four backwards.

    Images of replica 1, which begin on rank 3, have its colours, and a prime in the picture's words.
    """
    picture = schedule_grids({name: in_time(passes) for name, passes in replays.items()})
    picture.figure.axes[-1].set_xlabel("time (slots)")
    return Picture(picture.figure, f"{picture.alt} A prime marks replica 1, which starts on rank 3.")


def in_time(passes: Sequence[Pass]) -> list[TimedAction]:
    """Each pass with its image, stage and replica."""
    found = []
    for number, (rank, start, end) in enumerate(passes):
        image, place = divmod(number, 2 * STAGES)
        replica = int(passes[2 * STAGES * image][0] != 0)
        forward = place < STAGES
        stage = place if forward else 2 * STAGES - 1 - place
        action = Action("F" if forward else "B", stage, image, replica)
        found.append(TimedAction(rank, action, start, end))
    return found
