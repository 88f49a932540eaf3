"""What is said of a study is chosen from its rows: ranges of seeds, what was not run, published figures."""

from dataclasses import replace

from course.lessons.l07_ddp_on_mnist.study_results import EpochRow, load
from course.lessons.l07_ddp_on_mnist.study_words import (
    after_equal_epochs,
    beside_published,
    explain_accuracies,
    not_in,
    ranges_overlap,
)

COMMITTED = load().rows


def local(rows: tuple[EpochRow, ...], **changes: object) -> tuple[EpochRow, ...]:
    """`rows` with these changes to those that keep the batch of each of four ranks and its learning rate."""
    return tuple(
        replace(row, **changes)  # type: ignore[arg-type]
        if (row.batch_rule, row.rate_rule, row.ranks) == ("local", "fixed", 4)
        else row
        for row in rows
    )


def test_ranges_overlap_when_no_gap_is_between_them() -> None:
    assert ranges_overlap([0.1, 0.3], [0.2, 0.4])
    assert ranges_overlap([0.1, 0.4], [0.2, 0.3])
    assert not ranges_overlap([0.1, 0.2], [0.3, 0.4])


def test_a_change_counts_only_outside_of_what_seeds_change() -> None:
    found = explain_accuracies(COMMITTED, "cnn").splitlines()
    assert found[0] == "1 rank, batch 128: 99.15 % (99.13 to 99.16) over 3 seeds"
    same, larger = (next(line for line in found if rule in line) for rule in ("same global", "same learning"))
    assert "+0.00 points, within what seeds change" in same
    assert "(98.74 to 98.86): −0.36 points, and the ranges of the seeds do not overlap" in larger
    as_before = explain_accuracies(local(COMMITTED, test_accuracy=0.9915), "cnn")
    assert "do not overlap" not in next(line for line in as_before.splitlines() if "same learning" in line)


def test_the_published_accuracy_is_compared_with_each_rule() -> None:
    last = explain_accuracies(COMMITTED, "cnn").splitlines()[-1]
    assert last.startswith("Published: 99.1 % on 1, 98.88 % on 4, 98.7 % on 8.")
    assert last.endswith("nearest to that here: same batch per rank, same learning rate.")
    worse = explain_accuracies(local(COMMITTED, test_accuracy=0.9), "cnn").splitlines()[-1]
    assert "learning rate × ranks" in worse


def test_it_says_what_was_not_run_and_nothing_when_all_was() -> None:
    told = not_in(COMMITTED)
    assert "8 ranks with the same batch per rank (the most are 4)" in told
    assert "mlp and lstm for 5 epochs" in told
    eight = local(COMMITTED, ranks=8)
    others = tuple(
        replace(row, model=model, engine=engine)
        for row in eight
        if row.part == "accuracy" and row.ranks == 8
        for model, engine in (("mlp", "ddp-gloo"), ("lstm", "ddp-mpi4py"))
    )
    assert not_in((*eight, *others)) == ""


def test_every_model_and_way_has_its_own_range_of_seeds() -> None:
    lines = after_equal_epochs(COMMITTED).splitlines()
    assert lines[0] == "test accuracy after 2 epochs: mean (lowest to highest) of 3 seeds"
    assert lines[1].split() == ["mlp", "cnn", "lstm"]
    assert lines[2].startswith("one process ")
    assert "97.72 % (97.70 to 97.73)" in lines[2] and "99.00 % (98.95 to 99.05)" in lines[2]


def test_ours_stands_beside_what_was_published() -> None:
    lines = {line[:32].strip(): line for line in beside_published(COMMITTED).splitlines()}
    assert "22.4 s 1.00×" in lines["one process"] and "65 s 1.00×" in lines["one process"]
    assert "5.06 s 4.42× r" in lines["by hand, 8 ranks"] and "19 s 3.42×" in lines["by hand, 8 ranks"]
    assert lines["DDP over Gloo, 8 ranks"].endswith("17 s 3.90×")
    assert "15.2 s 1.48× o" in lines["by hand, 4 ranks"]
