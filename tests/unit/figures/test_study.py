"""The figures of a study: titles and alt texts are chosen from the numbers, and labels are never lost."""

import pytest

from course.lessons.l07_ddp_on_mnist.figures import study
from mpi_classroom.figures import FONT_SIZE, MAX_WIDTH_INCHES

BARS = {
    "one process": study.Bar(8.0, 0.0, 0.0, study.MEASURED),
    "two ranks": study.Bar(4.0, 0.5, 0.5, study.MEASURED),
    "four ranks": study.Bar(3.0, 0.5, 0.5, study.OVERSUBSCRIBED),
    "eight ranks": study.Bar(1.0, 0.5, 0.5, study.REPLAYED),
}
MPI = study.WAYS["mpi"]
GAINS = {
    "own MPI": study.Gains(MPI, {2: (1.6, study.MEASURED), 4: (1.7, study.OVERSUBSCRIBED)}),
    "own MPI, replayed": study.Gains(MPI, {4: (3.0, study.REPLAYED), 8: (4.0, study.REPLAYED)}),
}
LINES = {
    "one process": study.Line(study.way_style("sequential", 1), (10.0, 20.0), (0.2, 0.1), (0.98, 0.9912)),
    "two ranks": study.Line(study.way_style("mpi", 2), (6.0, 12.0), (0.2, 0.1), (0.98, 0.9902)),
}
POINTS = {
    "a": study.Point(study.way_style("mpi", 2), 10.0, [0.99, 0.992]),
    "b": study.Point(study.way_style("mpi", 4), 5.0, [0.98, 0.98]),
}


def pictures():
    return {
        "bars": study.epoch_bars(BARS, what="cnn"),
        "speedups": study.speedups(GAINS, cores=2, what="cnn"),
        "curves": study.learning_curves(LINES, what="cnn"),
        "scatter": study.time_and_accuracy(POINTS, what="cnn"),
        "rules": study.accuracy_by_rule(
            {"same": {1: [0.9], 4: [0.9]}, "other": {4: [0.7, 0.8]}}, what="cnn", first=[0.9]
        ),
        "grid": study.thread_grid(
            {(1, 1): 10.0, (1, 2): 15.0, (2, 1): 20.0, (2, 2): 16.0}, cores=2, what="cnn"
        ),
    }


@pytest.mark.parametrize("name", pictures())
def test_a_figure_is_readable_and_says_in_words_what_it_shows(name):
    picture = pictures()[name]
    assert picture.figure.get_figwidth() <= MAX_WIDTH_INCHES
    assert len(picture.alt) > 80
    assert "\n" not in picture.alt
    picture.png()
    texts = [text for axes in picture.figure.axes for text in axes.texts]
    assert all(text.get_fontsize() >= FONT_SIZE for text in texts)


def test_the_fastest_bar_of_the_title_was_measured_and_not_replayed():
    title = study.bars_title(BARS, "cnn")
    assert title == (
        "CNN: the fastest way that was measured is\n"
        "two ranks, 5 s per epoch; of that, 10% is waiting and 10% transfer"
    )


def test_labels_of_bars_and_gains_are_in_the_words():
    found = pictures()
    assert "four ranks (oversubscribed): 4 s" in found["bars"].alt
    assert "eight ranks (replayed): 2 s, computing 50%, waiting 25%, transfer 25%" in found["bars"].alt
    assert "4 ranks 1.70× (oversubscribed)" in found["speedups"].alt
    assert "8 ranks 4.00× (replayed)" in found["speedups"].alt


def test_a_replay_is_said_once_in_the_words_for_its_bar():
    alt = study.epoch_bars({"by hand, 2 ranks, replayed": study.Bar(1, 0, 0, study.REPLAYED)}, what="cnn").alt
    assert "by hand, 2 ranks (replayed): 1 s" in alt


def test_the_best_speedup_of_the_title_was_measured_with_a_core_each():
    assert study.speedup_title(GAINS, "cnn") == (
        "CNN: own MPI on 2 ranks has\na speed-up of 1.60 over one thread, an efficiency of 80%"
    )
    crowded = {"own MPI": study.Gains(MPI, {4: (1.7, study.OVERSUBSCRIBED)})}
    assert "on 4 ranks (oversubscribed) has\na speed-up of 1.70" in study.speedup_title(crowded, "cnn")


def test_the_curves_title_says_how_far_apart_they_end_and_who_is_first():
    assert study.curves_title(LINES, "cnn") == (
        "CNN: all curves end within 0.10 points of each other,\ntwo ranks after 12 s, one process after 20 s"
    )


def test_the_rules_title_has_the_change_from_one_rank_to_most():
    alt = pictures()["rules"].alt
    title = "CNN: at 4 ranks, +0.00 points with the same; −15.00 points with the other."
    assert title in alt
    assert "other: 1 rank 90.00 %, 4 ranks 70.00 % and 80.00 %" in alt


def test_the_scatter_has_the_spread_of_each_ways_own_seeds():
    alt = pictures()["scatter"].alt
    assert "a: 10 s, 99.10 % (99.00 to 99.20)" in alt
    assert "differ by at most 1.10 points, seeds of one way by 0.20" in alt


def test_replayed_bars_alone_are_hatched_all_over():
    bars = pictures()["bars"].figure.axes[0].containers
    hatched = {patch.get_y() for group in bars for patch in group if patch.get_hatch() == "xxx"}
    assert len(hatched) == 1  # the row of "eight ranks"


def test_the_replay_is_named_once_and_activities_have_one_order():
    found = study.epoch_bars({"eight ranks, replayed": BARS["eight ranks"]} | BARS, what="cnn").figure
    assert found.axes[0].texts[0].get_text().strip() == "2 s"
    legend = [text.get_text() for text in found.legends[0].get_texts()]
    assert legend[:3] == ["compute", "wait", "transfer"]
    assert [bar.get_hatch() for group in found.axes[0].containers[3:6] for bar in group] == ["", "...", "///"]


def test_a_way_has_one_colour_and_ranks_a_marker_each():
    two, four, gloo = (study.way_style(*way) for way in (("mpi", 2), ("mpi", 4), ("ddp-gloo", 4)))
    assert two["color"] == four["color"] != gloo["color"] and four["linestyle"] != gloo["linestyle"]
    assert two["marker"] != four["marker"] == gloo["marker"]
    left = pictures()["speedups"].figure.axes[0]
    named = {line.get_label(): line for line in left.lines}
    assert named["own MPI"].get_color() == named["own MPI, replayed"].get_color()
    assert named["own MPI"].get_markerfacecolor() != named["own MPI, replayed"].get_markerfacecolor()
    assert "bound of 2 cores" in named


def test_the_grid_marks_what_is_oversubscribed():
    picture = pictures()["grid"]
    marked = [text.get_text() for text in picture.figure.axes[0].texts if "oversubscribed" in text.get_text()]
    assert marked == ["16\noversubscribed"]
    assert "most images per second with 2 ranks × 1 thread" in picture.alt
    assert "oversubscribed, at most 80% of that" in picture.alt
