"""Windows, halos and their costs, held to drawings, to brute force and to the papers' formulas."""

import pytest

from course_lib.theory.partition import even_ranges
from course_lib.theory.tiles import Window, fused_needs, halo_of

WINDOWS = [
    Window(1),
    Window(3, before=1, after=1),
    Window(4, stride=2, before=2, after=1),
    Window(3, stride=3, before=1, after=1, dilation=2),
]


def seen_by(window: Window, output: int) -> list[int]:
    """Straight from the definition of a convolution."""
    return [output * window.stride - window.before + window.dilation * i for i in range(window.kernel)]


@pytest.mark.parametrize("window", WINDOWS)
def test_needs_are_all_places_from_the_first_to_the_last(window: Window) -> None:
    for outputs in (range(1), range(2, 5), range(4, 4)):
        places = [place for output in outputs for place in seen_by(window, output)]
        needs = window.needs(outputs)
        assert len(needs) == (max(places) - min(places) + 1 if places else 0)
        assert not places or (needs.start, needs.stop) == (min(places), max(places) + 1)


def test_the_halo_of_the_drawing() -> None:
    owned, window = even_ranges(10, 2), Window(3, before=1, after=1)
    first, second = (halo_of(owned, [window.needs(part) for part in owned], rank) for rank in range(2))
    assert first.needed == range(-1, 6)
    assert (first.sends, first.receives) == (((1, range(4, 5)),), ((1, range(5, 6)),))
    assert (first.before, first.after, first.kept) == (1, 1, range(5))
    assert (second.needed, second.sends, second.receives) == (
        range(4, 11),
        ((0, range(5, 6)),),
        ((0, range(4, 5)),),
    )
    assert not first.changes_nothing


def test_a_tile_may_need_nothing_of_its_own() -> None:
    halo = halo_of([range(4), range(4, 8)], [range(6, 8), range(2)], 0)
    assert (halo.kept, halo.before, halo.after) == (range(6, 6), 0, 2)
    assert halo.in_tile(halo.kept) == (0, 0)
    other = halo_of([range(4), range(4, 8)], [range(6, 8), range(2)], 1)
    assert (len(other.kept), other.before, other.after) == (0, 2, 0)


def test_a_fused_halo_grows_from_the_last_layer_to_the_first() -> None:
    strided = [Window(3, stride=2, before=1, after=1), Window(5, before=2, after=2)]
    assert fused_needs(strided, range(4, 8))[0] == range(2 * 4 - 2 * 2 - 1, 2 * 8 + 2 * 2)
    needs = fused_needs([Window(3, before=1, after=1)] * 3, range(4, 8))
    assert needs == [range(1, 11), range(2, 10), range(3, 9), range(4, 8)]


def test_a_window_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="a window of 9 pixels does not fit into 8"):
        Window(5, dilation=2).outputs(8)
    with pytest.raises(ValueError, match="give one need per tile"):
        halo_of([range(3)], [], 0)
