"""What is said of a measured time holds for that time, on any number of cores and on a busy machine."""

import pytest

from course.lessons.shared.explained import why_longer, why_speedup


@pytest.mark.parametrize(
    ("speedup", "cores", "words"),
    [
        (3.9, 4, "Each of the four ranks has a core"),
        (3.9, 8, "Each of the four ranks has a core"),
        (1.95, 2, "Four ranks share two cores, so the speed-up ends near 2."),
        (0.95, 1, "There is one core"),
        (1.2, 2, "On two free cores, four ranks should come near 2. Here they don't: other programs were"),
        (0.95, 2, "using the cores, or two cores are hardware threads of one physical core."),
        (2.6, 2, "more than two cores can gain"),
        (0.5, 1, "four ranks should come near 1. Here they don't: other programs were using the core."),
    ],
)
def test_a_speed_up_is_explained_by_the_cores_or_by_other_programs(
    speedup: float, cores: int, words: str
) -> None:
    assert words in why_speedup(speedup, 4, cores)


@pytest.mark.parametrize(
    ("ratio", "cores", "words"),
    [
        (1.02, 4, "Each rank has its own core"),
        (2.05, 2, "Two cores have to do the work of four ranks, which takes about twice as long."),
        (4.1, 1, "One core has to do the work of four ranks, which takes about 4 times as long."),
        (3.4, 2, "On two free cores, it should take about twice as long. Here it took longer: other"),
        (1.6, 4, "On four free cores, it should take about as long."),
        (1.33, 3, "Three cores have to do the work of four ranks, which takes about 1.33 times as long."),
        (3.0, 1, "That is faster than one core allows, so"),
        (1.5, 2, "That is faster than two cores allow, so"),
    ],
)
def test_a_larger_job_is_explained_likewise(ratio: float, cores: int, words: str) -> None:
    assert words in why_longer(ratio, 4, cores)
