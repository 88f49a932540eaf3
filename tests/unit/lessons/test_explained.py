"""What is said of a measured time holds for that time, on any number of cores and on a busy machine."""

import pytest

from course.lessons.shared.explained import why_no_fraction, why_speedup


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
    ("speedups", "ranks", "cores", "words"),
    [
        ((1.92, 1.98, 2.05), 2, 2, ""),
        ((0.92, 1.8, 2.0), 2, 2, "The cores were busy, or are hardware threads of one physical core: this"),
        ((1.1, 1.3, 1.5), 2, 2, "The cores were busy"),
        ((2.1, 2.6, 3.0), 2, 2, "The cores were busy"),
        ((0.8, 0.9, 1.0), 4, 1, "Four ranks share one core: this measurement says nothing"),
    ],
)
def test_a_measurement_gives_a_serial_fraction_or_the_reason_why_not(
    speedups: tuple[float, float, float], ranks: int, cores: int, words: str
) -> None:
    why = why_no_fraction(speedups, ranks, cores)
    assert why.startswith(words) and bool(why) == bool(words)
