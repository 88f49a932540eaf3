"""Strong beside weak scaling: seconds, with the ideal and the cores as lines; oversubscription is shown."""

import pytest

from course.lessons.l03_arctan_pi.figures import scaling
from mpi_classroom.figures import Picture
from tests.unit.figures.pictures import check_legible, title_of

SAME = {1: 8.0, 2: 4.4, 4: 4.0}
GROWN = {1: 8.0, 2: 8.8, 4: 17.6}


def line(picture: Picture, label: str, panel: int) -> tuple[list[float], list[float]]:
    found = next(one for one in picture.figure.axes[panel].lines if one.get_label() == label)
    return list(found.get_xdata()), list(found.get_ydata())


def test_the_title_compares_both_jobs_on_the_most_ranks_with_one_rank() -> None:
    picture = scaling(SAME, GROWN, cores=2)
    check_legible(picture)
    assert title_of(picture) == (
        "On 2 cores, 4 ranks: the same job 2.00 times as fast; 4 times the job takes 2.20 times as long"
    )
    assert picture.alt.startswith(
        "Two charts of seconds against ranks, with the ideal and the best possible on 2 cores. "
        "On 2 cores, 4 ranks: the same job 2.00 times as fast; 4 times the job takes 2.20 times as long. "
    )
    assert "The same job: 1 rank 8 s, efficiency 100%; 2 ranks 4.4 s, efficiency 91%" in picture.alt
    assert "4 ranks (oversubscribed) 17.6 s, efficiency 45%" in picture.alt


def test_both_panels_show_seconds_on_one_scale() -> None:
    left, right = scaling(SAME, GROWN, cores=2).figure.axes
    assert left.get_ylim() == right.get_ylim()
    assert left.get_ylabel() == "seconds"


def test_the_same_job_falls_ideally_and_the_larger_one_stays_level() -> None:
    picture = scaling(SAME, GROWN, cores=2)
    assert line(picture, "ideal", 0) == ([1, 2, 3, 4], pytest.approx([8, 4, 8 / 3, 2]))
    assert line(picture, "ideal", 1) == ([1, 2, 3, 4], [8, 8, 8, 8])
    assert line(picture, "best possible on 2 cores", 0)[1] == [8, 4, 4, 4]
    assert line(picture, "best possible on 2 cores", 1)[1] == [8, 8, 12, 16]


@pytest.mark.parametrize("late", [1.0, 1.05])
def test_no_label_touches_the_line_of_the_best_possible(late: float) -> None:
    """Where each time is what the cores allow, or a little more, the grey line runs close to the points."""
    for cores in (1, 2, 4):
        same = {1: 1.0} | {n: late / min(n, cores) for n in (2, 4)}
        grown = {1: 1.0} | {n: late * max(1, n / cores) for n in (2, 4)}
        picture = scaling(same, grown, cores=cores)
        picture.png()
        for axes in picture.figure.axes:
            best = next(one for one in axes.lines if str(one.get_label()).startswith("best possible"))
            path = axes.transData.transform_path(best.get_path())
            for text in axes.texts:
                label = f"{text.get_text()} of {axes.get_title()}, {cores} cores"
                assert not path.intersects_bbox(text.get_window_extent().padded(4), filled=False), label


def test_points_beyond_the_cores_are_open_and_called_oversubscribed() -> None:
    picture = scaling(SAME, GROWN, cores=2)
    assert line(picture, "measured", 0)[0] == [1, 2]
    assert line(picture, "oversubscribed", 1) == ([4], [17.6])
    roomy = scaling(SAME, GROWN, cores=4)
    assert "oversubscribed" not in [text.get_text() for text in roomy.figure.legends[0].get_texts()]


@pytest.mark.parametrize("cores", [1, 3, 4])
@pytest.mark.parametrize("counts", [[1], [1, 2], [1, 2, 3, 4], [1, 2, 4, 8]])
def test_any_number_of_ranks_and_cores_can_be_read(counts: list[int], cores: int) -> None:
    picture = scaling({n: 1 / n for n in counts}, dict.fromkeys(counts, 1.0), cores=cores)
    check_legible(picture)
    assert set(counts) <= set(picture.figure.axes[0].get_xticks())
    assert all(f"{n} rank" in picture.alt for n in counts)


def test_a_time_on_one_rank_is_needed() -> None:
    with pytest.raises(ValueError, match=r"times on \[2, 4\] ranks; add the one on 1 rank"):
        scaling({2: 1.0, 4: 1.0}, GROWN, cores=2)
