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
    say_range,
    say_step,
)
from course_lib.theory.hockney import Hockney
from course_lib.theory.scale_out import DataParallelStep
from tests.unit.figures.pictures import check_legible, title_of

STEPS = {
    "one node": {"computing": 0.030, "allreduce": 0.001, "nbytes": 1_686_568},
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
    "accumulate": {"seconds": 3.0, "losses": [2.3, 2.2], "accuracy": 0.70, "link_nbytes": 2.5e7},
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
    assert "153 ms more than on one node, and is now 83 % of the step" in words
    assert words.endswith(
        "It took 30, 31 and 32 ms. Such differences are chance: in another run the order may be different."
    )
    busy = STEPS | {"slow link": {"computing": 0.060, "allreduce": 0.154}}
    assert explain_step(busy).endswith(
        "It took 30, 31 and 60 ms, because other programs were using the cores."
    )


def test_forecasts_differ_and_have_a_band() -> None:
    worse = Hockney(1e-4, 8e-8)
    exchanges = {"fast link": exchange(FAST, FAST, FAST), "slow link": exchange(SLOW, SLOW, worse)}
    picture = forecasts(exchanges, 1_686_568, {2: 0.135, 4: 0.2025})
    check_legible(picture)
    many, two = (ring_seconds(ranks, 1_686_568, SLOW) for ranks in (2048, 2))
    said = (
        f"takes {many / two:.3g} times as long as on 2 by α and β, 2 times by β alone, 57.7 times by repeated"
    )
    assert said in title_of(picture)
    most = ring_seconds(2048, 1_686_568, worse)
    assert ring_band(2048, 1_686_568, exchanges["slow link"]) == pytest.approx((many, most), rel=0.01)
    assert f"slow link, α and β between {1e3 * many:.0f} ms and {1e3 * most:.0f} ms" in picture.alt
    words = explain_many(exchanges, STEPS, 2048)
    assert "these α make up 97 % over the fast link and 43 % over the slow link." in words
    assert f"if we fit each round by itself, it is {1e3 * many:.0f} to {1e3 * most:.0f} ms." in words
    same = explain_many({"slow link": exchange(SLOW, SLOW)}, STEPS, 2048)
    assert same.endswith(
        f"Over the slow link the forecast is {1e3 * many:.0f} ms; "
        f"if we fit each round by itself, it is {1e3 * many:.0f} ms."
    )
    assert say_range(0.9, 1.1) == "900 ms to 1.1 s"


def test_a_forecast_that_missed_on_two_ranks_is_said_beside_that_for_many() -> None:
    exchanges = {"fast link": exchange(FAST), "slow link": exchange(SLOW)}
    seconds = {name: ring_seconds(2, 1_686_568, link) for name, link in (("fast", FAST), ("slow", SLOW))}
    for fast, slow, missed in (
        (1.0, 1.0, ""),
        (1.3, 1.0, "Over the fast link"),
        (1.0, 0.7, "Over the slow link"),
        (2.0, 2.0, "Over the fast link and the slow link"),
    ):
        steps = STEPS | {
            "fast link": {"computing": 0.03, "allreduce": fast * seconds["fast"]},
            "slow link": {"computing": 0.03, "allreduce": slow * seconds["slow"]},
        }
        words = explain_many(exchanges, steps, 2048)
        assert ("missed" in words) == bool(missed)
        assert f"{missed} the forecast missed already on two ranks" in words or not missed


def test_a_doubling_is_said_beside_its_bytes() -> None:
    assert explain_doubling({2: 0.135, 4: 0.2025}) == (
        "The ring takes 135 ms on 2 ranks and 202 ms on 4, 1.5 times as long. "
        "By the bytes alone it would be 1.5 times as long: "
        "each rank sends one and a half arrays instead of one."
    )
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
    assert "holds within 5 %" in explain_forecast(0.154 / 1.05, STEPS, "slow link")
    more = explain_forecast(0.0008, STEPS, "fast link")
    assert more.startswith("forecast 0.8 ms, measured 5 ms, 6.2 times as long")
    assert more.endswith("On one node, without a link, these take 1 ms.")
    together = explain_forecast(0.0038, STEPS, "fast link")
    assert together.endswith("these take 1 ms. Together 4.8 ms, close to the measured time.")
    assert "forecast 10 ms, measured 5 ms, 50 % less" in explain_forecast(0.01, STEPS, "fast link")


def test_the_link_bars_compare_bytes_and_seconds() -> None:
    picture = link_bars(RESULTS, 1_686_568)
    check_legible(picture)
    assert "sends 1.5 times as many bytes" in title_of(picture)
    words = explain_crossing(RESULTS, 1_686_568)
    assert words.startswith("Two ranks send 1.5 arrays each over the link: 5.06 MB, and the rest is headers")
    assert "1.5 times as many bytes" in words
    assert "all four ranks send over the link: 3 times as many." in words
    assert "The ring takes 450 ms, with its ranks in turn 900 ms, and the hierarchy 300 ms.\n" in words
    assert words.endswith("even with its ranks in turn. So it is hierarchical, too.")
    late = RESULTS | {"ring": RESULTS["ring"] | {"seconds": 0.6}}
    said = "takes 2 times as long as the hierarchy, more than the bytes say: each of its six steps"
    assert said in explain_crossing(late, 1_686_568)
    in_turn = {"ring, ranks in turn": RESULTS["ring, ranks in turn"] | {"seconds": 1.125}}
    said = "With its ranks in turn, the ring sends 2 times as many bytes and takes 2.5 times as long."
    assert said in explain_crossing(RESULTS | in_turn, 1_686_568)
    flat = RESULTS | {"MPI's own, ranks in turn": {"seconds": 0.6, "link_nbytes": 7.2e6, "right": True}}
    said = "but 2 times as many with its ranks in turn. So it is flat."
    assert explain_crossing(flat, 1_686_568).endswith(said)
    more = RESULTS | {"MPI's own": {"seconds": 0.5, "link_nbytes": 6e6, "right": True}}
    assert "sends more bytes between the nodes" in explain_crossing(more, 1_686_568)
    wrong = RESULTS | {"hierarchical": {"seconds": 0.1, "link_nbytes": 1.0, "right": False}}
    said = "The sum of hierarchical is wrong, so its time says nothing."
    assert explain_crossing(wrong, 1_686_568) == said


def test_trainings_show_seconds_and_accuracy() -> None:
    picture = trainings({name: RUNS[name] for name in ("plain", "bfloat16")})
    check_legible(picture)
    assert title_of(picture) == "bfloat16 takes 5 s instead of 9 s; the accuracy is the same within a point"
    worse = trainings({name: RUNS[name] for name in ("plain", "accumulate")})
    assert title_of(worse) == "accumulate takes 3 s instead of 9 s; plain is more accurate"
    assert title_of(trainings({"plain": RUNS["plain"]})) == "plain takes 9 s"
    words = explain_choice(RUNS, "bfloat16")
    assert words.startswith(
        "It sends 50 % of the bytes that plain sends. Both make 4 updates, and the accuracy is the same"
    )
    words = explain_choice(RUNS, "accumulate")
    assert "25 % of the bytes that plain sends. It makes 2 updates instead of 4, and" in words
    assert "the accuracy of accumulate is 20.0 points lower." in words
    jumping = {name: RUNS[name] | {"losses": [2.3, 1.1, 2.5, 1.0]} for name in ("plain", "bfloat16")}
    assert "Both curves jump at update 3 of 4:" in explain_choice(jumping, "bfloat16")
    assert "jump" not in explain_choice({"plain": jumping["plain"]}, "plain")
    fewer = jumping | {"accumulate": RUNS["accumulate"] | {"losses": [2.3, 1.1, 2.5]}}
    del fewer["bfloat16"]
    assert "jump" not in explain_choice(fewer, "accumulate")
    other = jumping | {"bfloat16": RUNS["bfloat16"] | {"losses": [2.3, 1.1, 1.0, 2.5]}}
    assert "jump" not in explain_choice(other, "bfloat16")
    assert highest_jump([2.3, 2.4, 1.0, 1.7, 1.1]) == 4 and highest_jump([2.3]) is None
    assert say_all_choices(RUNS).splitlines()[3].split() == ["accumulate", "3.0", "25.0", "2", "70.0", "%"]


def test_efficiency_has_a_band() -> None:
    step = DataParallelStep(0.03, 1_686_568, 64)
    links = {"slow link": [SLOW, Hockney(1e-4, 8e-8)], "fast link": [FAST]}
    picture = efficiency_curves(step, links, STEPS)
    check_legible(picture)
    low = 100 * step.efficiency(4096, Hockney(1e-4, 8e-8))
    assert f"{low:.2g} to" in title_of(picture)
    assert picture.alt.endswith("Measured on 2 ranks: 17 % over the slow link and 86 % over the fast link.")


def test_throughput_by_batch_and_image() -> None:
    picture = throughput({28: {1: 500.0, 16: 2000.0}, 112: {1: 90.0, 16: 100.0}})
    check_legible(picture)
    assert "A batch of 1 reaches 25 %" in title_of(picture) and "90 % with 112 × 112" in title_of(picture)
    found = explain_throughput({28: {1: 500.0, 16: 2000.0}, 112: {1: 90.0, 16: 95.0, 64: 80.0}})
    assert found == (
        "28 × 28 pixels: a batch of 16 gives 4 times the rate of 1.\n"
        "112 × 112 pixels: larger batches do not help; 64 is slower again, by 16 %.\n"
        "So it holds on this CPU, too: larger batches help, and larger images need them less.\n"
        "Why batches of 64 images of 112 × 112 pixels are slower again, we have not examined."
    )
    assert "on free cores" in explain_throughput({28: {1: 100.0, 64: 200.0}, 112: {1: 10.0, 64: 30.0}})
    jobs = {"small": {"one": 1000.0, "two": 1480.0}}
    assert say_jobs(jobs) == "small: one job 1000 images/s, two jobs 1480 together (+48 %)"
    noise = {"small": {"one": 1000.0, "two": 1050.0}, "large": {"one": 100.0, "two": 98.0}}
    assert say_jobs(noise).endswith("so this shows no gain: one job leaves hardly any core idle.")
    assert "no gain" not in say_jobs(noise | jobs)
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
