"""The seconds of GEMS's variants, as their schedules say."""

import pytest

from course.lessons.l10_spatial_and_hybrid.gems_runs import BACKWARD, BATCHES, FORWARD, predicted_seconds


def test_the_variants_of_gems_take_what_the_formulas_say() -> None:
    p, f, b, n = 4, FORWARD, BACKWARD, BATCHES
    assert predicted_seconds("GEMS-Basic") == pytest.approx(p * (f + b))
    assert predicted_seconds("GEMS-MAST") == pytest.approx((p * f + 2 * p * b + f) / 2)
    assert predicted_seconds("GEMS-MASTER") == pytest.approx((p * f + n * p * b + (n - 1) * f) / n)
    half, twice = n // 2, (2 * f, 2 * b)
    assert predicted_seconds("GEMS-Hybrid") == pytest.approx(
        (2 * twice[0] + half * 2 * twice[1] + (half - 1) * twice[0]) / n
    )


def test_no_number_of_batches_takes_gems_beyond_the_bound() -> None:
    bound = (FORWARD + BACKWARD) / (BACKWARD + FORWARD / 4)
    assert predicted_seconds("GEMS-Basic") / predicted_seconds("GEMS-MASTER") < bound
