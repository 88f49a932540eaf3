"""Lesson 15's figures are legible, and their titles say what happened; published figures beside the model."""

from dataclasses import replace

import numpy as np
import pytest

from course.lessons.l15_when_things_fail.figures import (
    efficiency_curves,
    elastic_timeline,
    failure_timeline,
    loss_of_survivors,
    save_states,
)
from course.lessons.l15_when_things_fail.jobs import (
    ElasticRun,
    Failure,
    Moment,
    Notice,
    Step,
    SurvivorRun,
    Worker,
)
from course.lessons.l15_when_things_fail.kill_points import Instant
from course.lessons.l15_when_things_fail.published import claims, claims_table
from course_lib.theory.failures import Unreliable
from tests.unit.figures.pictures import check_legible, title_of

LANES = {
    0: [Moment("compute", -0.2, 0.0), Moment("wait", 0.0, 2.5)],
    1: [Moment("compute", -0.2, 0.0), Moment("fails", 0.0, 2.4)],
    2: [Moment("compute", -0.2, 0.0), Moment("wait", 0.0, 2.5)],
}
LATE = "rank 2: the all-reduce of step 2 is not there after 2 s"
HANG = Failure(
    "hangs",
    1,
    LANES,
    {2: Notice(2.05, LATE), 0: Notice(2.5, "ended by mpiexec")},
    2,
    {1: "hangs, line 44"},
    1,
    LATE,
)


def test_the_timeline_of_a_hang_names_the_victim_that_noticed() -> None:
    picture = failure_timeline(HANG)
    check_legible(picture)
    assert title_of(picture) == "Rank 1 hangs; rank 2 is the first to notice, after 2.05 s"
    assert "rank 0: ends 2.5 s after the failure" in picture.alt


def test_who_is_ended_has_not_noticed() -> None:
    ended = replace(HANG, how="dies", noticed={0: Notice(0.4, "ended by mpiexec")})
    picture = failure_timeline(ended)
    check_legible(picture)
    assert title_of(picture) == "Rank 1 dies; rank 0 is the first to be ended, after 0.40 s"


def test_a_slow_rank_is_noticed_by_nobody() -> None:
    picture = failure_timeline(replace(HANG, how="is slow", noticed={}, blamed=None))
    check_legible(picture)
    assert title_of(picture) == "Rank 1 is slow, and nobody notices: the job ends well after 2.4 s"


NAIVE = [
    Instant("open checkpoint", "old", "old", True),
    Instant("write checkpoint", "lost", "lost", True),
    Instant("rest of write checkpoint", "half", "lost", True),
    Instant("the end", "new", "lost", True),
]
ATOMIC = [
    Instant("open checkpoint.new", "old", "old", True),
    Instant("rename checkpoint.new to checkpoint", "old", "old", True),
    Instant("the end", "new", "new", True),
]


def test_the_states_of_savers_count_the_damage() -> None:
    picture = save_states({"naive": NAIVE, "atomic": ATOMIC})
    check_legible(picture)
    assert title_of(picture) == (
        "Damaged files: naive, 2 of 4 kills and 3 of 4 power cuts; atomic, 0 of 3 kills and 0 of 3 power cuts"
    )
    assert "naive, in the middle of write checkpoint: kill half, power cut lost" in picture.alt
    check_legible(save_states({"one": ATOMIC * 3}))


@pytest.mark.parametrize("machine", [Unreliable(11_135.0, 60.0, 600.0), Unreliable(100.0, 10.0, 20.0)])
def test_the_efficiency_curve_has_its_top_at_the_best_interval(machine: Unreliable) -> None:
    picture = efficiency_curves(machine, runs=4)
    check_legible(picture)
    assert title_of(picture).startswith("Best: save every ")
    (curve,) = [line for line in picture.figure.axes[0].get_lines() if line.get_label() == "exact model"]
    heights = np.asarray(curve.get_ydata())
    assert heights.argmax() == len(heights) // 2  # the middle of the axis is the best interval


def test_lines_at_the_same_interval_are_drawn_as_one() -> None:
    picture = efficiency_curves(Unreliable(11_135.0, 60.0, 600.0), runs=4)
    names = [line.get_label() for line in picture.figure.axes[0].get_lines()]
    assert "Young: 19.3 min" in names and "best = Daly: 18.6 min" in names
    assert "Intervals: Young 19.3 min and best = Daly 18.6 min." in picture.alt


STEPS = [Step(step, 3 if step < 2 else 2, 9.0 / (step + 1), 0.001) for step in range(4)]


def test_the_loss_of_survivors_says_who_died_and_how_far_it_is_from_the_undisturbed_one() -> None:
    undisturbed = SurvivorRun(1, [replace(each, ranks=3, loss=each.loss + 2e-15) for each in STEPS])
    picture = loss_of_survivors(SurvivorRun(1, STEPS, 0.04, 0.07, 0.09), undisturbed)
    check_legible(picture)
    assert title_of(picture) == (
        "Rank 1 dies in step 2; from then on the losses differ from the undisturbed ones by at most 2e-15"
    )
    nobody = loss_of_survivors(SurvivorRun(1, STEPS[:2]), SurvivorRun(1, STEPS[:2]))
    assert title_of(nobody) == "All 3 ranks take all 2 steps"


def test_the_elastic_timeline_says_when_the_killed_step_was_done() -> None:
    workers = [
        Worker(0, 0, -3.0, -1.0, {0: -0.9, 11: -0.1}, 0.3),
        Worker(0, 1, -3.0, -1.0, {0: -0.9, 11: -0.1}, 0.0),
        Worker(1, 0, 0.5, 2.5, {10: 2.6, 12: 2.8}, 3.5),
        Worker(1, 1, 0.5, 2.5, {10: 2.6, 12: 2.8}, 3.5),
    ]
    losses = [dict.fromkeys(range(12), 1.0), dict.fromkeys(range(10, 15), 1.0)]
    run = ElasticRun(losses, 12, workers, 0.3, 0.5, 2.5, 2.8)
    picture = elastic_timeline(run)
    check_legible(picture)
    assert title_of(picture) == (
        "Worker 1 is killed in step 12; 2.8 s later step 12 is done; 2 steps were computed twice"
    )


# ------------------------------------------------------------------ published


def test_published_figures_are_those_of_their_sources() -> None:
    """What is printed, typed a second time; and what follows from it."""
    found = {each.claim.what: each for each in claims()}
    assert found["Llama 3, 16,384 GPUs: MTBF"].claim.published == pytest.approx(54 * 24 / 419)
    rsc = found["Meta RSC-1, 1,024 GPUs: MTBF (measured)"].claim
    assert (rsc.published, rsc.predicted) == (7.9, pytest.approx(47.7 * 24 / 128))
    daly = [each.claim for each in found.values() if each.source.startswith("Daly")]
    assert [each.published for each in daly] == [117, 9.1]
    assert all(abs(each.error) < 0.01 for each in daly)
    assert abs(found["best interval on 64 machines"].claim.error) < 0.01
    assert all(len(each.source.split()) > 5 for each in found.values())


def test_the_table_names_every_source_once_and_shows_the_misses() -> None:
    table = claims_table(claims())
    assert table.count("arXiv:2410.21680") == table.count("arXiv:2407.21783") == 1
    assert table.count("5 min per save") == 1 and "lacks   \n" not in table
    assert "-42%" in table and "-0%" not in table
    assert max(map(len, table.splitlines())) <= 90
