"""Lesson 14's figures are legible, their titles say what the numbers say, and so do its sentences."""

from typing import Any

import pytest

from course.lessons.l14_scaling_out.figures import (
    efficiency_curves,
    forecasts,
    link_bars,
    slower,
    step_bars,
    throughput,
    trainings,
)
from course.lessons.l14_scaling_out.fits import fitted, fitted_by_round, ring_band, ring_seconds
from course.lessons.l14_scaling_out.published import (
    FRONTERA,
    HOURS_HYBRID,
    HOURS_MASTER,
    SUMMIT,
    claims,
    claims_table,
    modelled,
    repeated,
)
from course.lessons.l14_scaling_out.words import (
    explain_choice,
    explain_crossing,
    explain_doubling,
    explain_forecast,
    explain_many,
    explain_step,
    explain_throughput,
    highest_jump,
    say_all_choices,
    say_jobs,
    say_link,
    say_step,
)
from course_lib.theory.hockney import Hockney
from course_lib.theory.scale_out import DataParallelStep
from tests.unit.figures.pictures import check_legible, title_of

STEPS = {
    "one node": {"computing": 0.030, "allreduce": 0.001},
    "fast link": {"computing": 0.031, "allreduce": 0.005},
    "slow link": {"computing": 0.032, "allreduce": 0.154},
}
FAST, SLOW = Hockney(5e-5, 2e-9), Hockney(5e-5, 8e-8)
RESULTS: dict[str, dict[str, Any]] = {
    "ring": {"seconds": 0.45, "link_nbytes": 5.4e6, "right": True},
    "ring, ranks in turn": {"seconds": 0.90, "link_nbytes": 10.8e6, "right": True},
    "hierarchical": {"seconds": 0.30, "link_nbytes": 3.6e6, "right": True},
    "MPI's own": {"seconds": 0.31, "link_nbytes": 3.6e6, "right": True},
    "MPI's own, ranks in turn": {"seconds": 0.31, "link_nbytes": 3.6e6, "right": True},
}
SIZES = [4, 1024, 65536, 262144]
RUNS: dict[str, dict[str, Any]] = {
    "plain": {"seconds": 9.0, "losses": [2.3, 1.0, 0.5, 0.4], "accuracy": 0.90, "link_nbytes": 1e8},
    "bfloat16": {"seconds": 5.0, "losses": [2.3, 1.0, 0.5, 0.4], "accuracy": 0.903, "link_nbytes": 5e7},
    "accumulate": {"seconds": 3.0, "losses": [2.3], "accuracy": 0.70, "link_nbytes": 2.5e7},
}


def exchange(*links: Hockney) -> dict[str, Any]:
    """What the lab would measure in one round over each of these links."""
    return {"nbytes": SIZES, "seconds": [[link.one_way_seconds(size) for size in SIZES] for link in links]}


def test_the_bars_of_a_step_say_how_many_times_as_long_it_takes() -> None:
    picture = step_bars(STEPS)
    check_legible(picture)
    assert slower(STEPS) == pytest.approx(6)
    assert title_of(picture) == "The step over the slow link takes 6 times as long as on one node"
    assert say_step(STEPS["one node"]) == "computing 30.0 ms, all-reduce 1.0 ms"
    words = explain_step(STEPS)
    assert (
        "153 ms more than on one node, and is now 83 % of the step" in words
        and "30, 31 and 32 ms differ as repeated runs do" in words
    )
    busy = STEPS | {"slow link": {"computing": 0.060, "allreduce": 0.154}}
    assert "other programs" in explain_step(busy)


def test_forecasts_differ_and_have_a_band() -> None:
    worse = Hockney(1e-4, 8e-8)
    exchanges = {"fast link": exchange(FAST, FAST, FAST), "slow link": exchange(SLOW, SLOW, worse)}
    picture = forecasts(exchanges, 1_686_568, {2: 0.135, 4: 0.2025})
    check_legible(picture)
    many, two = (ring_seconds(ranks, 1_686_568, SLOW) for ranks in (2048, 2))
    said = f"over the slow link: α and β say {many / two:.3g}, β alone 2, repeated doubling 57.7"
    assert said in title_of(picture)
    most = ring_seconds(2048, 1_686_568, worse)
    assert ring_band(2048, 1_686_568, exchanges["slow link"]) == pytest.approx((many, most), rel=0.01)
    assert f"slow link, α and β between {1e3 * many:.0f} ms and {1e3 * most:.0f} ms" in picture.alt
    words = explain_many(exchanges, 1_686_568, 2048)
    assert "Their α alone is 97 % of the time over the fast link and 43 % of the time over the slow" in words
    assert words.endswith(f"For the slow link, the 3 rounds say {1e3 * many:.0f} ms to {1e3 * most:.0f} ms.")
    same = explain_many({"slow link": exchange(SLOW, SLOW)}, 1_686_568, 2048)
    assert same.endswith(f"For the slow link, all 2 rounds say {1e3 * many:.0f} ms.")


def test_a_doubling_is_said_beside_its_bytes() -> None:
    assert "1.5 times" in explain_doubling({2: 0.135, 4: 0.2025})
    assert "which adds to it" in explain_doubling({2: 0.135, 4: 0.4})
    assert "on 2 ranks something else took time" in explain_doubling({2: 0.135, 4: 0.135})


def test_a_fit_forecasts_what_it_was_made_of() -> None:
    found = exchange(SLOW, SLOW, SLOW)
    assert fitted(found).alpha_seconds == pytest.approx(5e-5, rel=0.01)
    assert len(fitted_by_round(found)) == 3
    assert say_link(SLOW) == "α = 50 µs, 1/β = 100 Mbit/s"
    assert say_link(FAST) == "α = 50 µs, 1/β = 4 Gbit/s"
    assert say_link(Hockney(7e-3, 0.0)).startswith(
        "α = 7 ms; longer messages took no longer, so β does not show: "
    )
    assert "holds within 5 %" in explain_forecast(0.1, 0.105)
    assert "50 % more" in explain_forecast(0.1, 0.15) and "50 % less" in explain_forecast(0.1, 0.05)


def test_the_link_bars_compare_bytes_and_seconds() -> None:
    picture = link_bars(RESULTS, 1_686_568)
    check_legible(picture)
    assert "sends 1.5 times as many bytes" in title_of(picture)
    words = explain_crossing(RESULTS)
    assert "1.5 times as many bytes" in words and "3 times with its ranks in turn" in words
    assert words.endswith(
        "MPI's own sends as few bytes, also with its ranks in turn: it is hierarchical, too."
    )
    flat = RESULTS | {"MPI's own, ranks in turn": {"seconds": 0.6, "link_nbytes": 7.2e6, "right": True}}
    assert explain_crossing(flat).endswith("and 2 times as many with its ranks in turn: it is flat.")
    more = RESULTS | {"MPI's own": {"seconds": 0.5, "link_nbytes": 6e6, "right": True}}
    assert "sends more bytes between the nodes" in explain_crossing(more)
    wrong = RESULTS | {"hierarchical": {"seconds": 0.1, "link_nbytes": 1.0, "right": False}}
    assert explain_crossing(wrong) == "The sum of hierarchical is wrong, so its time says nothing."


def test_trainings_show_seconds_and_accuracy() -> None:
    picture = trainings({name: RUNS[name] for name in ("plain", "bfloat16")})
    check_legible(picture)
    assert title_of(picture) == "The fastest is bfloat16, with 5 s; both are equally accurate, within a point"
    assert title_of(trainings(RUNS)) == "The fastest is accumulate, with 3 s; bfloat16 is the most accurate"
    words = explain_choice(RUNS, "bfloat16")
    assert "0.5 times as many bytes as plain, in 4 updates. The accuracy is the same" in words
    assert "20.0 points lower" in explain_choice(RUNS, "accumulate")
    assert "jump" not in explain_choice(RUNS, "bfloat16")
    jumping = {name: RUNS[name] | {"losses": [2.3, 1.1, 2.5, 1.0]} for name in ("plain", "bfloat16")}
    assert "All losses jump at update 3" in explain_choice(jumping, "bfloat16")
    other = jumping | {"bfloat16": RUNS["bfloat16"] | {"losses": [2.3, 1.1, 1.0, 2.5]}}
    assert "jump" not in explain_choice(other, "bfloat16")
    assert highest_jump([2.3, 2.4, 1.0, 1.7, 1.1]) == 4 and highest_jump([2.3]) is None
    assert say_all_choices(RUNS).splitlines()[3].split() == ["accumulate", "3.0", "25.0", "1", "70.0%"]


def test_efficiency_has_a_band() -> None:
    step = DataParallelStep(0.03, 1_686_568, 64)
    picture = efficiency_curves(step, {"slow": [SLOW, Hockney(1e-4, 8e-8)], "fast": [FAST]})
    check_legible(picture)
    low = 100 * step.efficiency(4096, Hockney(1e-4, 8e-8))
    assert f"{low:.2g} to" in title_of(picture)


def test_throughput_by_batch_and_image() -> None:
    picture = throughput({28: {1: 500.0, 16: 2000.0}, 112: {1: 90.0, 16: 100.0}})
    check_legible(picture)
    assert "A batch of 1 reaches 25 %" in title_of(picture) and "90 % with 112 × 112" in title_of(picture)
    found = explain_throughput({28: {1: 500.0, 16: 2000.0}, 112: {1: 90.0, 16: 95.0, 64: 80.0}})
    assert found == (
        "28 × 28 pixels: a batch of 16 gives 4 times the rate of 1.\n"
        "112 × 112 pixels: larger batches do not help; 64 is slower again, by 16 %.\n"
        "Small images need larger batches here than large ones do."
    )
    assert "on free cores" in explain_throughput({28: {1: 100.0, 64: 200.0}, 112: {1: 10.0, 64: 30.0}})
    jobs = {"small": {"one": 1000.0, "two": 1480.0}}
    assert say_jobs(jobs) == "small: one job 1000 images/s, two jobs 1480 together (+48 %)"
    assert "slowed the one job" in say_jobs({"small": {"one": 1000.0, "two": 2200.0}})


def test_claims_are_those_of_the_sources() -> None:
    found = {claim.what: claim for claim in claims()}
    pair = found["Two V100 GPUs on two nodes"]
    assert (pair.published, pair.predicted) == (pytest.approx(94.7, abs=0.05), pytest.approx(97.8, abs=0.05))
    assert found["Summit, 1,536 GPUs"].published == 420
    minutes = [90 * 1_281_167 / rate / 60 for rate in (SUMMIT, FRONTERA)]  # 90 epochs of ImageNet-1k
    assert minutes == pytest.approx([4.6, 7.4], abs=0.05)  # the lesson says so beside the talk's 4.5 and 7
    assert found["GEMS, 128 GPUs against 4"].published == pytest.approx(16.1, rel=1e-3)
    assert abs(found["Summit, 1,536 GPUs"].error) < 0.1 < abs(found["GEMS, 128 GPUs against 4"].error)
    more_gpus = HOURS_MASTER / HOURS_HYBRID  # with the same schedule
    assert more_gpus == pytest.approx(9.4, abs=0.05)
    assert repeated() == pytest.approx(289e3, rel=0.01)
    assert modelled() > 420e3
    table = claims_table(claims())
    assert table.count("assumes") == table.count("lacks") == len(found)
    assert max(map(len, table.splitlines())) < 100
