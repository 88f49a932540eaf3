"""What is said of a study is chosen from its rows: ranges of seeds, what was not run, published figures."""

from dataclasses import replace

import pytest

from course.lessons.l07_ddp_on_mnist.study_results import EpochRow, Study, load
from course.lessons.l07_ddp_on_mnist.study_words import (
    after_equal_epochs,
    epoch_tables,
    explain_accuracies,
    explain_threads,
    gap_between,
    not_in,
)

COMMITTED = load().rows


def local(rows: tuple[EpochRow, ...], **changes: object) -> tuple[EpochRow, ...]:
    """`rows` with these changes to those that keep the batch of four or eight ranks and its learning rate."""
    return tuple(
        replace(row, **changes)  # type: ignore[arg-type]
        if (row.batch_rule, row.rate_rule) == ("local", "fixed") and row.ranks > 2
        else row
        for row in rows
    )


def rules_of(row: EpochRow) -> tuple[str, str, str, int]:
    """The model, both rules and the ranks of an accuracy row."""
    return row.model, row.batch_rule, row.rate_rule, row.ranks


def test_the_gap_between_ranges_is_negative_where_they_overlap() -> None:
    assert gap_between([0.1, 0.3], [0.2, 0.4]) < 0
    assert gap_between([0.1, 0.4], [0.2, 0.3]) < 0
    assert gap_between([0.1, 0.2], [0.3, 0.4]) == pytest.approx(0.1)
    assert gap_between([0.3, 0.4], [0.1, 0.2]) == pytest.approx(0.1)


def test_a_change_counts_only_outside_of_what_seeds_change() -> None:
    found = explain_accuracies(COMMITTED, "cnn").splitlines()
    assert found[0] == "1 rank, batch 128: 99.15 % (99.13 to 99.16) over 3 seeds"
    same, larger = (next(line for line in found if rule in line) for rule in ("same global", "same learning"))
    assert "+0.00 points, within what seeds change" in same
    assert larger.startswith("8 ranks")
    assert "(97.78 to 98.36): −0.99 points, more than seeds change" in larger
    scaled = next(line for line in found if "learning rate ×" in line)
    assert "(98.81 to 99.12): −0.14 points, too little to tell from chance with 3 seeds" in scaled
    as_before = explain_accuracies(local(COMMITTED, test_accuracy=0.9915), "cnn")
    line = next(line for line in as_before.splitlines() if "same learning" in line)
    assert line.endswith("within what seeds change")


def test_a_learning_rate_that_grows_wins_points_back_only_where_some_were_lost() -> None:
    told = explain_accuracies(COMMITTED, "cnn")
    won = "On 4 ranks, a learning rate that grows with the ranks wins back"
    assert f"{won} 0.22 of the 0.36 points lost there; this is within what seeds change." in told
    small = explain_accuracies(COMMITTED, "mlp")
    assert f"{won} 1.01 of the 1.01 points lost there; this is more than seeds change." in small
    assert "wins back" not in explain_accuracies(local(COMMITTED, test_accuracy=0.9925), "cnn")


def test_a_guess_is_made_where_more_threads_than_cores_are_far_slower_than_even_more() -> None:
    study = load()
    told = explain_threads(study)
    assert told.startswith("Why are 2 ranks × 2 threads (779 images per second) slower than 2 × 4 (2356)?\n")
    calm = tuple(replace(row, epoch_seconds=1.0) for row in study.rows)
    assert explain_threads(Study(calm, study.about)) == ""


def test_the_published_accuracy_is_compared_with_each_rule() -> None:
    last = explain_accuracies(COMMITTED, "cnn").splitlines()[-1]
    assert last.startswith("Published: 99.1 % on 1, 98.88 % on 4, 98.7 % on 8.")
    assert last.endswith("nearest to that here: same batch per rank, same learning rate (98.79 %).")
    worse = explain_accuracies(local(COMMITTED, test_accuracy=0.9), "cnn").splitlines()[-1]
    assert "learning rate × ranks" in worse


def test_only_ranks_that_several_rules_ran_on_can_be_nearest_to_the_published_accuracy() -> None:
    eight = tuple(replace(row, ranks=8) for row in COMMITTED if row.ranks == 4 and row.batch_rule == "local")
    fixed = tuple(row for row in eight if row.rate_rule == "fixed")
    assert "On 4 ranks, nearest" in explain_accuracies((*COMMITTED, *fixed), "cnn")
    assert "On 8 ranks, nearest" in explain_accuracies((*COMMITTED, *eight), "cnn")


def test_it_says_what_was_not_run_and_nothing_when_all_was() -> None:
    rest = "5 epochs by DDP over Gloo and DDP over MPI."
    assert not_in(COMMITTED) == f"Not measured: {rest}"
    no_lstm = tuple(row for row in COMMITTED if row.part != "accuracy" or row.model != "lstm")
    assert not_in(no_lstm) == f"Not measured: LSTM for 5 epochs; {rest}"
    without = tuple(row for row in COMMITTED if row.ranks < 8)
    told = not_in(without)
    assert told.startswith(
        "Not measured: the CNN on 8 ranks with the same batch per rank (the most are 4), so"
    )
    assert told.endswith(f"; {rest}")
    eight = tuple(row for row in COMMITTED if rules_of(row) == ("cnn", "local", "fixed", 8))
    others = tuple(
        replace(row, model="lstm", engine=engine) for row in eight for engine in ("ddp-gloo", "ddp-mpi4py")
    )
    assert not_in((*COMMITTED, *others)) == ""
    small = tuple(replace(row, model="mlp") for row in eight)
    assert "the CNN on 8 ranks" in not_in((*without, *small, *others))


def test_every_model_and_way_has_its_mean_accuracy_and_every_model_the_range_of_its_seeds() -> None:
    lines = after_equal_epochs(COMMITTED).splitlines()
    assert lines[0] == "test accuracy after 2 epochs in %, mean of 3 seeds"
    assert lines[1].split() == ["mlp", "cnn", "lstm"]
    assert lines[2].startswith("one process ")
    assert lines[2].split()[-3:] == ["97.72", "99.00", "97.72"]
    assert lines[-1].split()[-3:] == ["0.07", "0.16", "0.29"]


def test_ours_stands_above_what_was_published_and_both_fit_on_a_screen() -> None:
    told = epoch_tables(COMMITTED)
    ours, theirs = ({line[:24].strip(): line for line in part.splitlines()} for part in told.split("\n\n"))
    assert "ours, on 2 cores" in ours and "published, on 8 cores" in theirs
    assert "22.4 s 1.00×" in ours["one process"] and "65 s 1×" in theirs["one process"]
    assert "5.06 s 4.42× r" in ours["by hand, 8 ranks"] and "19 s 3.42×" in theirs["by hand, 8 ranks"]
    assert theirs["DDP over Gloo, 8 ranks"].endswith("17 s 3.9×")
    assert "15.2 s 1.48× o" in ours["by hand, 4 ranks"]
    assert told.endswith("Their 3.9× is 67 s / 17 s: they give one process both 65 s and 67 s.")
    assert max(len(line) for line in told.splitlines()) <= 80
