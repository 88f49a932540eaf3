"""The stack of layers: what the machine has is filled, and the title counts it."""

from course.lessons.l04_collectives.figures.stack import HERE, LAYERS, stack
from tests.unit.figures.pictures import check_legible, letters_of, title_of

LAPTOP = {
    "Gloo": True,
    "NCCL": False,
    "oneCCL": False,
    "Horovod": False,
    "InfiniBand": False,
    "GPU to GPU": False,
}


def test_the_title_counts_what_the_machine_has() -> None:
    picture = stack(LAPTOP)
    check_legible(picture)
    assert title_of(picture) == "Of 4 communication runtimes, this machine has 2: MPI and Gloo"
    assert "Communication runtime: MPI, Gloo, NCCL (not here), oneCCL (not here)." in picture.alt


def test_every_part_is_drawn_and_what_is_elsewhere_is_hatched() -> None:
    picture = stack(LAPTOP)
    filled = [box.get_hatch() is None for box in picture.figure.axes[0].patches]
    assert filled == [LAPTOP.get(part, True) for parts in LAYERS.values() for part in parts]
    assert "hatch" not in HERE
    letters = {text.get_text() for text in letters_of(picture)}
    assert {part for parts in LAYERS.values() for part in parts} <= letters
    assert "communication\nruntime" in letters


def test_a_cluster_with_everything_has_no_hatching() -> None:
    picture = stack(dict.fromkeys(LAPTOP, True))
    assert title_of(picture).endswith("has 4: MPI, Gloo, NCCL and oneCCL")
    assert not any(box.get_hatch() for box in picture.figure.axes[0].patches)
