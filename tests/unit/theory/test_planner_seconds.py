"""The planner's bytes and seconds against the formulas of the papers, on a machine of round numbers."""

import pytest

from course_lib.theory.cost_model import predict_seconds, ring_allreduce_cost, ring_reduce_scatter_cost
from course_lib.theory.hockney import Hockney
from course_lib.theory.memory import STAGES
from course_lib.theory.planner.machine import Machine, machine_on_paper
from course_lib.theory.planner.models import Part, TransformerShape, parameter_count
from course_lib.theory.planner.nets import ConvShape, MLPShape
from course_lib.theory.planner.plan import Plan, plans, why_not
from course_lib.theory.planner.quantity import counted, leaves
from course_lib.theory.planner.ranking import estimate, questions, ranked, report, under, why
from course_lib.theory.planner.seconds import exchange_seconds, seconds_of, sent_by
from tests.formulas import moved_bytes

SHAPE = TransformerShape(blocks=4, width=64, length=32, vocabulary=64, heads=4)
FAST, SLOW = Hockney(1e-6, 1e-9, 1e-10), Hockney(1e-5, 1e-8, 1e-10)


def machine(memory_nbytes: float = 1e9, ranks_per_node: int = 4) -> Machine:
    return machine_on_paper(
        "a machine of round numbers",
        "nobody",
        memory_nbytes=memory_nbytes,
        flop_per_second=1e12,
        memory_bytes_per_second=1e11,
        inside=FAST,
        between=SLOW,
        ranks_per_node=ranks_per_node,
    )


PAPER = machine()


@pytest.mark.parametrize("ways", [2, 3, 4])
@pytest.mark.parametrize(
    ("collective", "cost"),
    [("all-reduce", ring_allreduce_cost), ("reduce-scatter", ring_reduce_scatter_cost)],
)
def test_collectives_are_those_of_the_cost_model(ways: int, collective: str, cost) -> None:
    nbytes = counted(1e6, "gradients", "bytes")
    seconds = exchange_seconds(collective, nbytes, Plan(data=ways), "data", PAPER)
    assert seconds.value == pytest.approx(predict_seconds(cost(ways, 1e6), FAST))


@pytest.mark.parametrize("stage", STAGES)
def test_zero_sends_what_the_paper_says(stage: int) -> None:
    parameters = parameter_count(SHAPE.layers(Part(1))).value
    sent = sent_by(SHAPE, 8, Plan(data=4, zero=stage)).value
    assert 4 * sent == pytest.approx(moved_bytes(int(parameters), stage, 4), rel=1e-3)


def test_a_pair_of_cut_layers_needs_one_all_reduce_each_way() -> None:
    sent = sent_by(SHAPE, 8, Plan(tensor=2))["each"].value
    hidden, tokens = 4 * 8 * 32 * 64, 4 * 8 * 32
    blocks = 4 * (2 + 2) * hidden  # 2(n-1)/n is 1 for two ranks
    assert sent == blocks + 2 * hidden + 3 * tokens  # the embedding's sum, the head's, and the loss's three


def test_sequence_parallelism_sends_one_gather_more_per_column_layer() -> None:
    whole = sent_by(SHAPE, 8, Plan(tensor=2)).value
    cut = sent_by(SHAPE, 8, Plan(tensor=2, sequence=True)).value
    hidden = 4 * 8 * 32 * 64
    assert cut - whole == pytest.approx((4 * 2 + 1) * hidden / 2)


def test_a_pipeline_is_as_long_as_its_schedule() -> None:
    shape = MLPShape((4096,) * 5)
    alone = seconds_of(shape, 512, Plan(microbatches=8), PAPER)["compute"].value
    pipeline = seconds_of(shape, 512, Plan(pipeline=4, microbatches=8), PAPER)["compute"].value
    assert alone / 4 < pipeline < alone
    longer = seconds_of(shape, 512, Plan(pipeline=4, microbatches=1), PAPER)["compute"].value
    assert longer > pipeline


def test_ranks_that_share_a_core_take_turns() -> None:
    free = seconds_of(SHAPE, 8, Plan(data=4), PAPER)
    assert free["crowd"].value == 1


def test_tensor_parallelism_belongs_inside_a_node() -> None:
    inside = seconds_of(SHAPE, 64, Plan(tensor=4), machine(ranks_per_node=4)).value
    across = seconds_of(SHAPE, 64, Plan(tensor=4), machine(ranks_per_node=2)).value
    pipeline_across = seconds_of(SHAPE, 64, Plan(pipeline=4, microbatches=8), machine(ranks_per_node=2)).value
    pipeline_inside = seconds_of(SHAPE, 64, Plan(pipeline=4, microbatches=8), machine(ranks_per_node=4)).value
    assert across / inside > pipeline_across / pipeline_inside


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (Plan(data=3), "a batch of 8 makes no 3 equal micro-batches"),
        (Plan(zero=2), "ZeRO-2 shards over data ranks, and there is one"),
        (Plan(tensor=8), "4 heads are no multiple of 8 tensor ranks"),
        (Plan(pipeline=8), "4 layers make no 8 stages"),
        (Plan(tiles=(2, 1)), "tiles are of images"),
        (Plan(sequence=True), "tensor is 1"),
        (Plan(data=2, zero=7), "there is no ZeRO stage 7"),
        (Plan(microbatches=0), "microbatches is 0; use 1 or more"),
        (Plan(data=-2, tensor=-2), "data is -2; use 1 or more"),
        (Plan(tiles=(0, 2)), "tiles is (0, 2); use 1 or more"),
        (Plan(pipeline=2, schedule="gpipe"), "there is no schedule 'gpipe'; use GPipe or 1F1B"),
        (Plan(data=2, zero=3, recompute=True), "only stages of a pipeline"),
    ],
)
def test_what_cannot_run_says_why(plan: Plan, reason: str) -> None:
    assert reason in str(why_not(SHAPE, 8, plan))


@pytest.mark.parametrize("shape", [SHAPE, MLPShape((64, 64, 64, 10)), ConvShape(16, (3, 8, 8))])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_all_plans_are_for_these_ranks_and_none_comes_twice(shape, ranks: int) -> None:
    found = plans(shape, 32, ranks)
    assert len(set(found)) == len(found) > 0
    assert {plan.ranks for plan in found} == {ranks}
    assert all(estimate(shape, 32, plan, PAPER).seconds.value > 0 for plan in found[::7])


def test_those_that_fit_come_first_and_the_fastest_of_them_first() -> None:
    found = ranked(SHAPE, 32, machine(memory_nbytes=3e6), 4)
    fits = [one.fits for one in found]
    assert any(fits) and not all(fits)
    assert fits == sorted(fits, reverse=True)
    seconds = [one.seconds.value for one in found if one.fits]
    assert seconds == sorted(seconds)


def test_the_report_says_what_was_chosen_and_why() -> None:
    found = ranked(SHAPE, 32, machine(memory_nbytes=3e6), 4)
    text = report(found, most=3)
    assert found[0].plan.name in text
    assert f"{sum(one.fits for one in found)} of {len(found)} plans fit into 3 MB per rank." in text
    assert "per step" in text and "AdamW" in text
    nothing = why(ranked(SHAPE, 32, machine(memory_nbytes=1e3), 4))
    assert nothing[0] == f"None of {len(found)} plans fits into 1 kB per rank."
    with pytest.raises(ValueError, match="no plan can run"):
        why([])


def test_the_questions_compare_what_the_plans_need_with_what_there_is() -> None:
    found = ranked(SHAPE, 32, machine(memory_nbytes=3e6), 4)
    asked = questions(found)
    assert [decision.answer for decision in asked] == [one.smallest.memory.value <= 3e6 for one in asked]
    assert len(asked) == 7
    for decision in asked:
        assert (decision.fastest is not None) == decision.answer
        if decision.fastest:
            assert decision.fastest.seconds.value <= decision.smallest.seconds.value
    fastest = min(one.fastest.seconds.value for one in asked if one.fastest)
    assert fastest == found[0].seconds.value  # each plan belongs to a question


def test_another_limit_changes_what_fits_and_nothing_else() -> None:
    found = ranked(SHAPE, 32, machine(memory_nbytes=3e6), 4)
    roomy = under(found, 1e12)
    assert all(one.fits for one in roomy)
    assert roomy[0].seconds.value == min(one.seconds.value for one in found)
    again = under(roomy, 3e6)
    assert [one.fits for one in again] == [one.fits for one in found]
    assert again[0].seconds.value == found[0].seconds.value


def test_every_number_in_a_step_is_given_counted_or_cited() -> None:
    for plan in (Plan(data=2, zero=3, tensor=2), Plan(pipeline=4, microbatches=8, recompute=True)):
        assert {leaf.source for leaf in leaves(seconds_of(SHAPE, 64, plan, PAPER))} <= {
            "given",
            "counted",
            "cited: nobody",
        }
