"""What needs more ranks than a session has: tiles on 5 and 6, five dimensions on 8. Oversubscribed."""

from subprocess import TimeoutExpired

import pytest

from mpi_classroom.launch import run_ranks


def lines(size: int, module: str) -> list[str]:
    done = run_ranks(size, ["-m", module], timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("size", [pytest.param(5, marks=pytest.mark.release), 6])
def test_tiles_in_all_shapes_equal_the_whole_image(size: int) -> None:
    told = lines(size, "tests.ranks.tiled")
    assert len(told) >= 2 and all(line.endswith(": equal") for line in told), told
    assert {f"1 x {size}: equal", f"{size} x 1: equal"} <= set(told)


@pytest.mark.slow
def test_five_dimensions_on_8_ranks_equal_one_process() -> None:
    told = lines(8, "tests.ranks.hybrids")
    assert "Hy-Fi: equal" in told, told
    assert all(line.endswith(": equal") for line in told), told


@pytest.mark.slow
def test_hy_fi_of_lesson_17_equals_one_process_and_with_its_mistake_does_not() -> None:
    _, told = lines(8, "course.lessons.l17_five_dimensions.strategies")
    assert told.startswith("hybrid: Hy-Fi") and " equal " in told and "DIFFERS" not in told
    assert float(told.partition("off by ")[2].partition(":")[0]) > 1e-6


@pytest.mark.slow
def test_replicas_summed_in_another_order_wait_for_ever() -> None:
    program = ["-m", "tests.ranks.gems_swapped"]
    assert run_ranks(2, program, timeout=120).stdout.splitlines() == ["summed"] * 2
    with pytest.raises(TimeoutExpired):
        run_ranks(2, [*program, "swapped"], timeout=12)
