"""A model that one limited process cannot hold, and two can; the limit is theirs alone."""

import re

import pytest

from course.lessons.l08_pipeline_parallelism import boundary as search
from course.lessons.l08_pipeline_parallelism.figures import depth_boundary
from course.lessons.shared.memory_limit import STATUS, Fit, fits, layer_bytes
from tests.unit.figures.pictures import check_legible, title_of

pytestmark = pytest.mark.skipif(not STATUS.exists(), reason="memory can be limited on Linux only")


def test_one_rank_fails_in_clear_words_and_two_ranks_train() -> None:
    alone, together = fits(1, 192), fits(2, 192)
    assert not alone.trained and together.trained
    assert (found := re.fullmatch(r"rank 0 has no memory left after (\d+) of its 16 layers", alone.story))
    assert int(found[1]) * layer_bytes() < 192 * 2**20 < 16 * layer_bytes()


@pytest.mark.slow
def test_where_it_ends_is_the_same_every_time() -> None:
    """Eight layers are 128 MiB; their training needs little more, and nothing that was freed."""
    assert not fits(2, 132).trained
    assert all(fits(2, 150).trained for _ in range(3))


@pytest.mark.slow
def test_this_process_may_still_use_what_it_likes() -> None:
    import resource

    before = resource.getrlimit(resource.RLIMIT_DATA)
    fits(1, 64, layers=2)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_ranks_without_a_layer_are_refused() -> None:
    with pytest.raises(ValueError, match="16 layers on 17 ranks"):
        fits(17, 192)


@pytest.mark.parametrize("per_rank", [1, 9, 11, 13])
def test_the_search_ends_at_the_last_depth_that_trains_and_the_first_that_does_not(
    per_rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fits(ranks: int, limit_mib: int, *, layers: int, timeout: float) -> Fit:
        return Fit(ranks, limit_mib, layers, layers <= ranks * per_rank, "")

    monkeypatch.setattr(search, "fits", fits)
    found = search.boundary((1, 2, 4), 192)
    assert [(fit.ranks, fit.layers, fit.trained) for fit in found] == [
        (n, n * per_rank + more, more == 0) for n in (1, 2, 4) for more in (0, 1)
    ]
    picture = depth_boundary(found)
    check_legible(picture)
    assert f"{per_rank}, {2 * per_rank} and {4 * per_rank} layers" in title_of(picture)


def test_a_limit_too_small_for_any_model_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def fits(ranks: int, limit_mib: int, *, layers: int, timeout: float) -> Fit:
        return Fit(ranks, limit_mib, layers, False, "")

    monkeypatch.setattr(search, "fits", fits)
    with pytest.raises(ValueError, match="8 MiB are too few"):
        search.deepest(2, 8, 2)


@pytest.mark.slow
def test_two_ranks_train_a_model_that_is_twice_as_deep() -> None:
    found = search.boundary((1, 2), 64)
    assert [(fit.ranks, fit.layers, fit.trained) for fit in found] == [
        (1, 3, True),
        (1, 4, False),
        (2, 6, True),
        (2, 7, False),
    ]
