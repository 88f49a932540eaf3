"""Which runs a study has: each once, with the batch and the rate that its rule says."""

import pytest

from course.lessons.l07_ddp_on_mnist.study_results import (
    ACCURACY,
    FIXED,
    GLOBAL,
    LOCAL,
    PARTS,
    SCALED,
    THREADS,
    TIMING,
)
from course.tools.study.plan import (
    DRAWN,
    FULL,
    MNIST,
    MODELS,
    QUICK,
    Choice,
    estimated_seconds,
    job_size,
    jobs,
    plan,
    powers_of_two,
)
from course_lib.training.recipes import RECIPES


@pytest.mark.parametrize("scale", [FULL, QUICK])
@pytest.mark.parametrize("cores", [1, 2, 3, 8])
def test_every_case_is_there_once_and_every_job_has_one_size(scale, cores):
    cases = plan(Choice(scale), cores=cores, data=MNIST)
    assert len(cases) == len(set(cases))
    assert [case for job in jobs(cases) for case in job] == cases
    assert all(len({job_size(case) for case in job}) == 1 for job in jobs(cases))


def test_the_full_study_has_all_models_engines_and_rules():
    cases = plan(Choice(), cores=2, data=MNIST)
    assert {case.part for case in cases} == set(PARTS)
    assert {case.model for case in cases} == set(MODELS)
    timed = {
        (case.engine, case.ranks, case.threads) for case in cases if case.part == TIMING and not case.replayed
    }
    assert timed == {("sequential", 1, 1), ("sequential", 1, 2)} | {
        (engine, ranks, 1) for engine in ("mpi", "ddp-gloo", "ddp-mpi4py") for ranks in (2, 4)
    }
    assert {case.ranks for case in cases if case.replayed} == {2, 4, 8}
    cnn = [case for case in cases if case.part == ACCURACY and case.model == "cnn"]
    assert {(case.ranks, case.seed) for case in cnn if case.batch_rule == GLOBAL} == {
        (ranks, seed) for ranks in (1, 2, 4) for seed in range(3)
    }
    assert all(case.epochs == 5 and case.images == 60_000 for case in cnn)
    grid = {(case.ranks, case.threads) for case in cases if case.part == THREADS}
    assert grid == {(ranks, threads) for ranks in (1, 2, 4) for threads in (1, 2, 4)}


def test_batch_and_rate_follow_their_rules():
    cases = plan(Choice(models=("cnn",), parts=(ACCURACY,), ranks=(4,), seeds=1), cores=2, data=MNIST)
    found = {(case.batch_rule, case.rate_rule): (case.batch_size, case.learning_rate) for case in cases}
    size, rate = RECIPES["cnn"].batch_size, RECIPES["cnn"].learning_rate
    assert found == {
        (GLOBAL, FIXED): (size, rate),
        (LOCAL, FIXED): (4 * size, rate),
        (LOCAL, SCALED): (4 * size, pytest.approx(4 * rate)),
    }


def test_an_unknown_name_names_those_that_there_are():
    with pytest.raises(ValueError, match=r"there is no model 'resnet50'; choose from mlp, cnn, lstm"):
        plan(Choice(models=("mlp", "resnet50")), cores=2, data=DRAWN)
    with pytest.raises(ValueError, match=r"there is no part 'speed'; choose from timing, threads, accuracy"):
        plan(Choice(parts=("speed",)), cores=2, data=DRAWN)
    with pytest.raises(ValueError, match="give 1 to 64 ranks"):
        plan(Choice(ranks=(0,)), cores=2, data=DRAWN)


@pytest.mark.parametrize(("most", "counts"), [(1, (1,)), (2, (1, 2)), (6, (1, 2, 4, 6)), (8, (1, 2, 4, 8))])
def test_powers_of_two_end_with_the_most(most, counts):
    assert powers_of_two(most) == counts


def test_more_epochs_are_guessed_to_take_longer_and_more_ranks_than_cores_no_shorter():
    two, four, eight = (
        plan(Choice(models=("cnn",), parts=(TIMING,), ranks=(ranks,), seeds=1), cores=2, data=MNIST)[-2]
        for ranks in (2, 4, 8)
    )
    assert estimated_seconds(two, 1) > estimated_seconds(two, 2)
    assert estimated_seconds(four, 2) == estimated_seconds(eight, 2)
