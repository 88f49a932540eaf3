"""Time against size: points, predicted lines, residuals, and what the title makes of them."""

import math

import pytest

from course.lessons.l04_collectives.figures.sizes import (
    crossover,
    crossover_title,
    fastest_title,
    predicted_ratios,
    residuals,
    say_crossover,
    say_hold,
    say_predictions,
    times_by_size,
)
from mpi_classroom.figures import Picture, say_bytes, say_ranks
from tests.unit.figures.pictures import check_legible, letters_of, title_of

SIZES = [4**power for power in range(1, 14)]
MPI = {size: 2e-6 + size / 2e9 for size in SIZES}
RING = {size: 2e-5 + size / 5e9 for size in SIZES}


def labels_of(picture: Picture) -> list[str]:
    legend = picture.figure.legends[0]
    return [text.get_text() for text in legend.get_texts()]


def test_the_title_says_who_is_faster_from_which_size_on() -> None:
    picture = times_by_size({"MPI": MPI, "ring": RING}, ranks=2, cores=2)
    check_legible(picture)
    assert title_of(picture) == "The fastest: MPI from 4 B on, ring from 64 KiB on"
    assert "MPI: 2 µs at 4 B and 33.6 ms at 64 MiB; ring: 20 µs at 4 B and 13.4 ms at 64 MiB" in picture.alt


def test_a_lead_that_changes_often_is_counted_instead() -> None:
    flips = {size: MPI[size] * (1.1 if index % 2 else 0.9) for index, size in enumerate(SIZES)}
    assert fastest_title({"MPI": MPI, "ring": flips}) == "The fastest of 13 sizes: MPI at 6 and ring at 7"


def test_both_axes_are_logarithmic_and_the_larger_size_stands_to_the_right() -> None:
    axes = times_by_size({"MPI": MPI}, ranks=2, cores=2).figure.axes[0]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert list(axes.lines[0].get_xdata()) == SIZES


def test_predicted_lines_are_called_so_and_have_their_residuals_below() -> None:
    said = {n: seconds * (2 if n == 4 else 0.8) for n, seconds in RING.items()}
    picture = times_by_size({"ring": RING}, {"ring": said}, ranks=2, cores=2)
    check_legible(picture)
    assert labels_of(picture) == ["ring: measured", "ring: predicted"]
    assert title_of(picture) == (
        "Half of the predictions are within a factor of 1.25; the worst is off by a factor of 2 (ring, 4 B)"
    )
    points = picture.figure.axes[1].lines[1].get_ydata()
    assert list(points) == pytest.approx([0.5, *12 * [1.25]])


@pytest.mark.parametrize("worst", [2.21, 0.44, 30.0])
def test_the_marker_of_the_worst_residual_is_whole(worst: float) -> None:
    said = {n: seconds / (worst if n == SIZES[-1] else 0.8) for n, seconds in RING.items()}
    picture = times_by_size({"ring": RING}, {"ring": said}, ranks=2, cores=2)
    picture.figure.canvas.draw()
    axes = picture.figure.axes[1]
    marker = axes.lines[1]
    points = marker.get_transform().transform(marker.get_xydata())[:, 1]
    radius = (marker.get_markersize() + marker.get_markeredgewidth()) / 2 * picture.figure.dpi / 72
    assert axes.bbox.y0 <= min(points) - radius and max(points) + radius <= axes.bbox.y1


def test_only_sizes_that_were_predicted_have_a_residual() -> None:
    assert residuals({"a": {8: 2.0, 16: 3.0}, "b": {8: 1.0}}, {"a": {8: 1.0}}) == {"a": {8: 2.0}}


def test_a_predicted_line_may_have_more_points_than_were_measured() -> None:
    picture = times_by_size({"ring": {4: 2e-5}}, {"ring": RING}, ranks=2, cores=2)
    assert len(picture.figure.axes[0].lines[0].get_xdata()) == 13


ALPHA, BETA = 4e-6, 1e-10  # seconds per message, seconds per byte


def test_the_crossover_is_where_a_predicted_line_passes_one() -> None:
    exact = {2: math.inf, 4: 8 * ALPHA / BETA, 64: 120 / (6 - 126 / 64) * ALPHA / BETA}  # by hand
    picture = predicted_ratios(ALPHA, BETA, list(exact))
    check_legible(picture)
    assert title_of(picture) == (
        f"Predicted: the ring is faster from {say_bytes(exact[4])} on with 4 ranks, "
        f"from {say_bytes(exact[64])} on with 64, never with 2"
    )
    lines = [line for line in picture.figure.axes[0].lines if len(line.get_xdata()) > 2]
    for line, nbytes in zip(lines, exact.values(), strict=True):
        points = dict(zip(line.get_xdata(), line.get_ydata(), strict=True))
        assert all((ratio > 1) == (size > nbytes) for size, ratio in points.items())
        assert crossover(points) == pytest.approx(nbytes, rel=0.1)
    dots = [line for line in picture.figure.axes[0].lines if len(line.get_xdata()) == 1]
    assert [dot.get_xdata()[0] for dot in dots] == pytest.approx([exact[4], exact[64]])
    assert "predicted" in picture.alt and "2 ranks: never" in picture.alt


def test_two_algorithms_may_take_turns_before_one_stays_ahead() -> None:
    assert crossover({1: 0.5, 2: 2.0, 4: 0.5, 8: 2.0}) == pytest.approx(4 * 2**0.5)
    assert crossover({1: 2.0, 2: 3.0}) == 0
    assert crossover({1: 2.0, 2: 0.9}) == math.inf


@pytest.mark.parametrize(
    ("crossovers", "told"),
    [
        ({2: float("inf")}, "never with 2 ranks"),
        ({4: 0.0}, "at every size with 4 ranks"),
        ({2: float("inf"), 3: float("inf"), 4: 4096.0}, "from 4 KiB on with 4 ranks, never with 2 and 3"),
    ],
)
def test_a_crossover_may_be_nowhere_or_everywhere(crossovers: dict[int, float], told: str) -> None:
    assert crossover_title(crossovers) == f"Predicted: the ring is faster {told}"


@pytest.mark.parametrize(
    ("ratios", "told"),
    [
        ({4: 0.5, 16: 0.5, 64: 2.0}, "the ring is faster from 32 B on"),
        ({4: 0.5, 16: 2.0, 64: 0.5, 256: 2.0}, "no clear crossover (the order changes 3 times)"),
        ({4: 2.0, 16: 0.5, 64: 2.0}, "no clear crossover (the order changes 2 times)"),
        ({4: 2.0, 16: 3.0}, "the ring is faster at every size"),
        ({4: 0.2, 16: 0.3}, "the ring is never faster"),
        ({4: 2.0, 16: 0.3}, "the ring is faster for small arrays only"),
    ],
)
def test_a_crossover_is_said_only_where_there_is_one(ratios: dict[float, float], told: str) -> None:
    assert say_crossover(ratios) == told


def test_where_a_prediction_holds_and_where_not() -> None:
    assert say_hold({4: 1.5, 16: 0.6}) == "within a factor of 2 at 2 of 2 sizes"
    assert say_hold({4: 1.5, 16: 3.0, 64: 0.25}) == (
        "within a factor of 2 at 1 of 3 sizes, not at 16 B and 64 B; off most at 64 B (0.25 × predicted)"
    )


APART = "The times hold within a factor of 2; the crossover does not."


@pytest.mark.parametrize(
    ("doubling", "told"),
    [
        ((0.6, 0.6, 1 / 0.6, 1.7), ""),  # the same crossover
        ((0.6, 0.9, 1.7, 1.7), ""),  # another, less than twice as far
        ((0.6, 1.1, 1.7, 1.7), APART),
        ((0.6, 1.1, 0.9, 1.7), APART),  # no clear one
        ((0.9, 0.9, 0.9, 0.9), APART),  # none
        ((0.1, 1.1, 1.7, 1.7), ""),  # where the times do not hold, nothing follows
    ],
)
def test_times_may_hold_where_the_crossover_does_not(doubling: tuple[float, ...], told: str) -> None:
    sizes = (64, 256, 1024, 4096)
    ring = dict.fromkeys(sizes, 1.0)
    measured = {"ring": ring, "doubling": dict(zip(sizes, doubling, strict=True))}
    predicted = {"ring": ring, "doubling": dict(zip(sizes, (0.6, 0.6, 1 / 0.6, 1.7), strict=True))}
    said = say_predictions(measured, predicted).splitlines()
    assert said[0] == "ring: within a factor of 2 at 4 of 4 sizes" and said[1].startswith("doubling: within")
    assert said[3] == "predicted: the ring is faster from 512 B on"
    assert said[4:5] == ([told] if told else [])


def test_oversubscribed_runs_say_so_on_the_axis_and_in_words() -> None:
    picture = times_by_size({"MPI": MPI}, ranks=4, cores=2)
    assert f"array size ({say_ranks(4, 2)})" in [t.get_text() for t in letters_of(picture)]
    assert say_ranks(4, 2) in picture.alt


def test_one_point_and_no_time_at_all_can_be_drawn() -> None:
    check_legible(times_by_size({"ring": {8: 1e-6}}, {"ring": {8: 2e-6}}, ranks=1, cores=1))
    check_legible(times_by_size({"ring": {8: 0.0}}, ranks=1, cores=1))


def test_many_algorithms_are_told_apart_by_more_than_colour() -> None:
    picture = times_by_size(dict.fromkeys("abcdef", MPI), ranks=2, cores=2)
    check_legible(picture)
    lines = [line for line in picture.figure.axes[0].lines if len(line.get_xdata()) == 13]
    assert len({(line.get_marker(), str(line.get_linestyle())) for line in lines}) == 6


@pytest.mark.parametrize("measured", [{}, {"ring": {}}])
def test_no_size_is_refused(measured: dict[str, dict[int, float]]) -> None:
    with pytest.raises(ValueError, match="one without any size"):
        times_by_size(measured, ranks=2, cores=2)


def test_zero_bytes_have_no_place_on_the_axis() -> None:
    with pytest.raises(ValueError, match="0 bytes have no place on a logarithmic axis"):
        times_by_size({"ring": {0: 1e-6, 8: 1e-6}}, ranks=2, cores=2)


def test_sizes_are_said_in_units_of_1024() -> None:
    said = [say_bytes(nbytes) for nbytes in (4, 1000, 1024, 4096, 3 << 20, 1 << 30)]
    assert said == ["4 B", "1000 B", "1 KiB", "4 KiB", "3 MiB", "1 GiB"]
