"""The stack of layers: what the machine has is filled, and the title counts it."""

from course.lessons.l04_collectives.figures.stack import NOT_HERE, stack
from tests.unit.figures.pictures import check_legible, letters_of, title_of

LAYERS = {
    "application": {"your training script": True},
    "communication runtime": {"MPI": True, "Gloo": True, "NCCL": False},
}


def test_the_title_counts_what_the_machine_has() -> None:
    picture = stack(LAYERS, "communication runtime")
    check_legible(picture)
    assert title_of(picture) == "Of 3 kinds of communication runtime, this machine has 2: MPI and Gloo"
    assert "Communication runtime: MPI, Gloo, NCCL (not here)." in picture.alt


def test_every_part_is_drawn_and_what_is_elsewhere_is_hatched() -> None:
    picture = stack(LAYERS, "communication runtime")
    hatched = [box.get_hatch() for box in picture.figure.axes[0].patches]
    assert hatched == [None, None, None, NOT_HERE["hatch"]]
    letters = [text.get_text() for text in letters_of(picture)]
    assert {"your training script", "MPI", "Gloo", "NCCL", "application", "communication\nruntime"} <= set(
        letters
    )


def test_a_machine_without_any_says_so() -> None:
    assert (
        title_of(stack({"runtime": {"NCCL": False}}, "runtime"))
        == "Of 1 kinds of runtime, this machine has 0"
    )
