"""Speed-up and efficiency: numbers in the title, the ideal and the cores as lines, oversubscription said."""

import pytest

from course.lessons.l03_arctan_pi.figures import strong_scaling, weak_scaling
from mpi_classroom.figures import Picture
from tests.unit.figures.pictures import check_legible, title_of

STRONG = {1: 8.0, 2: 4.4, 4: 4.0}
WEAK = {1: 8.0, 2: 8.8, 4: 17.6}


def legend_of(picture: Picture) -> list[str]:
    return [text.get_text() for text in picture.figure.legends[0].get_texts()]


def line(picture: Picture, label: str, panel: int = 0) -> tuple[list[float], list[float]]:
    found = next(one for one in picture.figure.axes[panel].lines if one.get_label() == label)
    return list(found.get_xdata()), list(found.get_ydata())


def test_the_same_job_on_more_ranks() -> None:
    picture = strong_scaling(STRONG, cores=2)
    check_legible(picture)
    assert title_of(picture) == (
        "2 ranks on 2 cores: 1.82× as fast, efficiency 91%; "
        "4 ranks taking turns on 2 cores: 2.00× as fast, efficiency 50%"
    )
    assert "4 ranks, oversubscribed: 4 s, 2.00 times as fast as 1 rank, efficiency 50%" in picture.alt


def test_more_work_on_more_ranks() -> None:
    picture = weak_scaling(WEAK, cores=4)
    check_legible(picture)
    assert title_of(picture) == "4 ranks on 4 cores: 4× the work in 2.20× the time, efficiency 45%"
    assert line(picture, "measured")[1] == pytest.approx([1, 20 / 11, 20 / 11])


def test_the_ideal_and_the_cores_are_lines() -> None:
    picture = strong_scaling(STRONG, cores=2)
    assert line(picture, "ideal") == ([1, 2, 4], [1, 2, 4])
    assert line(picture, "2 cores") == ([1, 2, 4], [1, 2, 2])
    assert line(picture, "2 cores", panel=1)[1] == [1, 1, 0.5]


def test_the_line_of_the_cores_bends_at_the_cores_even_if_nothing_was_measured_there() -> None:
    assert line(strong_scaling({1: 1.0, 8: 0.4}, cores=3), "3 cores") == ([1, 3, 8], [1, 3, 3])


def test_points_beyond_the_cores_are_open_and_called_oversubscribed() -> None:
    picture = strong_scaling(STRONG, cores=2)
    assert line(picture, "measured")[0] == [1, 2]
    assert line(picture, "oversubscribed")[0] == [4]
    assert "oversubscribed" in legend_of(picture)
    assert "oversubscribed" not in legend_of(strong_scaling(STRONG, cores=4))


def test_a_model_is_called_predicted() -> None:
    picture = strong_scaling(STRONG, cores=4, predicted={1: 8.0, 2: 4.0, 4: 2.0, 8: 1.0})
    check_legible(picture)
    assert line(picture, "predicted") == ([1, 2, 4, 8], [1, 2, 4, 8])
    assert line(weak_scaling(WEAK, cores=4, predicted=WEAK), "predicted")[1] == pytest.approx(
        [1, 20 / 11, 20 / 11]
    )
    assert "predicted" not in legend_of(strong_scaling(STRONG, cores=4))


@pytest.mark.parametrize("draw", [strong_scaling, weak_scaling])
@pytest.mark.parametrize("counts", [[1], [1, 2], [1, 2, 3, 4], [1, 2, 4, 8]])
def test_any_number_of_ranks_can_be_read(draw, counts: list[int]) -> None:
    picture = draw({n: 1 / n for n in counts}, cores=4)
    check_legible(picture)
    ticks = picture.figure.axes[0].get_xticks()
    assert set(counts) <= set(ticks)
    assert all(f"{n} rank" in picture.alt for n in counts)


def test_one_rank_alone_is_not_compared() -> None:
    assert (
        title_of(strong_scaling({1: 0.5}, cores=2))
        == "1 rank on 2 cores: 500 ms, and no other time to compare"
    )


def test_times_of_zero_are_left_out() -> None:
    check_legible(strong_scaling({1: 0.0, 2: 0.0}, cores=2))
    check_legible(weak_scaling({1: 1.0, 2: 0.0}, cores=2))


def test_a_time_on_one_rank_is_needed() -> None:
    with pytest.raises(ValueError, match=r"times on \[2, 4\] ranks; add the one on 1 rank"):
        strong_scaling({2: 1.0, 4: 1.0}, cores=2)
