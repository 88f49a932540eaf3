"""The planner's bytes and seconds against the formulas of the papers, on a machine of round numbers."""

from dataclasses import replace

import pytest

from course.lessons.l16_choose_your_strategy.planner.machine import Machine, machine_on_paper
from course.lessons.l16_choose_your_strategy.planner.models import Part, TransformerShape, parameter_count
from course.lessons.l16_choose_your_strategy.planner.plan import Plan, plans, why_not
from course.lessons.l16_choose_your_strategy.planner.quantity import counted
from course.lessons.l16_choose_your_strategy.planner.seconds import exchange_seconds, seconds_of, sent_by
from course_lib.theory.cost_model import predict_seconds, ring_allreduce_cost, ring_reduce_scatter_cost
from course_lib.theory.hockney import Hockney
from course_lib.theory.memory import STAGES
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


@pytest.mark.parametrize("ways", [2, 3])
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


def test_a_pipeline_with_few_micro_batches_is_idle_as_the_bubble_says() -> None:
    wide = TransformerShape(blocks=4, width=2048, length=128, vocabulary=16, heads=4)
    for microbatches in (4, 16):
        step = seconds_of(wide, 64, Plan(pipeline=4, microbatches=microbatches), PAPER)
        busy = step["computing"].value
        assert step["idle"].value == pytest.approx(3 / microbatches * busy, rel=0.3)  # and messages


def test_ranks_that_share_a_device_take_turns() -> None:
    free = seconds_of(SHAPE, 8, Plan(data=4), PAPER)
    shared = seconds_of(SHAPE, 8, Plan(data=4), replace(PAPER, devices=counted(2, "")))
    assert (free["crowd"].value, shared["crowd"].value) == (1, 2)
    assert shared["sharing"].value == 2 and shared["computing"].value == free["computing"].value


def test_an_idle_stage_costs_nothing_where_another_rank_has_its_device() -> None:
    plan = Plan(pipeline=4, microbatches=4)
    own, shared = (replace(PAPER, devices=counted(n, "")) for n in (4, 1))
    step, crowded = seconds_of(SHAPE, 64, plan, own), seconds_of(SHAPE, 64, plan, shared)
    total = sum(crowded[name].value for name in ("computing", "idle"))
    assert crowded["idle"].value > step["idle"].value > 0
    assert total > 3 * crowded["computing"].value  # one device does the work of all stages


SMALL = {"data": 4, "bucket_nbytes": 2**14}  # more than one bucket
OFTEN = [*(Plan(**SMALL, zero=zero) for zero in STAGES), Plan(**SMALL, zero=3, no_sync=True)]


@pytest.mark.parametrize("plan", OFTEN, ids=lambda plan: plan.name)
def test_what_can_hide_hides_but_for_its_last_message(plan: Plan) -> None:
    bare, hiding = (seconds_of(SHAPE, 64, plan, replace(PAPER, overlap=share)) for share in (0.0, 1.0))
    left = [each["gathers"].value + each["synchronize"].value for each in (bare, hiding)]
    assert 0 < left[1] < left[0]
    assert all(bare[name].value == hiding[name].value for name in ("computing", "update", "tensor_messages"))
    half = seconds_of(SHAPE, 64, plan, replace(PAPER, overlap=0.5)).value
    assert hiding.value <= half <= bare.value


def test_messages_of_tensor_ranks_hide_nowhere() -> None:
    steps = [seconds_of(SHAPE, 64, Plan(tensor=4), replace(PAPER, overlap=share)) for share in (0.0, 1.0)]
    assert steps[0].value == steps[1].value
    assert steps[0]["tensor_messages"].value > 0


def test_no_sync_sums_once_per_step() -> None:
    often, once = (Plan(data=4, zero=3, microbatches=4, no_sync=how) for how in (False, True))
    numbers = parameter_count(SHAPE.layers(Part(1))).value
    saved = sent_by(SHAPE, 64, often).value - sent_by(SHAPE, 64, once).value
    assert saved == pytest.approx(3 * 3 / 4 * 4 * numbers, rel=1e-3)  # three of four reduce-scatters


def test_groups_gather_inside_and_sum_their_shards_between() -> None:
    flat, hybrid = Plan(data=4, zero=3), Plan(data=4, zero=3, groups=2)
    numbers = 4 * parameter_count(SHAPE.layers(Part(1))).value
    assert sent_by(SHAPE, 64, flat).value == pytest.approx(3 * 3 / 4 * numbers, rel=1e-3)
    assert sent_by(SHAPE, 64, hybrid).value == pytest.approx((3 / 2 + 1 / 2) * numbers, rel=1e-3)
    two_nodes = replace(machine(ranks_per_node=2), overlap=0.0)
    assert seconds_of(SHAPE, 64, hybrid, two_nodes).value < seconds_of(SHAPE, 64, flat, two_nodes).value


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (Plan(data=3), "a batch of 8 makes no 3 equal micro-batches"),
        (Plan(zero=2), "ZeRO-2 shards over data ranks, and there is one"),
        (Plan(tensor=8), "4 heads are no multiple of 8 tensor ranks"),
        (Plan(pipeline=8), "4 blocks make no 8 stages"),
        (Plan(sequence=True), "tensor is 1"),
        (Plan(data=-2, tensor=-2), "data is -2; use 1 or more"),
        (Plan(pipeline=2, schedule="gpipe"), "there is no schedule 'gpipe'; use GPipe or 1F1B"),
        (Plan(data=2, zero=3, recompute=True), "only stages of a pipeline"),
        (Plan(data=4, zero=3, groups=3), "4 ranks in ZeRO-3 make no 3 groups"),
    ],
)
def test_what_cannot_run_says_why(plan: Plan, reason: str) -> None:
    assert reason in str(why_not(SHAPE, 8, plan))


@pytest.mark.parametrize("ranks", [1, 4])
def test_all_plans_are_for_these_ranks_and_none_comes_twice(ranks: int) -> None:
    found = plans(SHAPE, 32, ranks)
    assert len(set(found)) == len(found) > 0
    assert {plan.ranks for plan in found} == {ranks}
    assert all(seconds_of(SHAPE, 32, plan, PAPER).value > 0 for plan in found[::20])
