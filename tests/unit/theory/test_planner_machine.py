"""Machines: measured ones are read from JSON, and every operation of every model has its seconds."""

import json
from typing import Any

import pytest

from course.lessons.l16_choose_your_strategy.planner.machine import (
    POINTWISE,
    PRODUCTS,
    Machine,
    machine_on_paper,
)
from course.lessons.l16_choose_your_strategy.planner.measured import fit_product, machine_from_json
from course.lessons.l16_choose_your_strategy.planner.models import Operation, Part, TransformerShape
from course.lessons.l16_choose_your_strategy.planner.plan import Plan
from course.lessons.l16_choose_your_strategy.planner.quantity import counted
from course.lessons.l16_choose_your_strategy.planner.seconds import seconds_of
from course.lessons.shared import operation_times
from course.lessons.shared.machine import summary
from course_lib.theory.hockney import Hockney
from tests.formulas import leaves

SHAPE = TransformerShape(2, 32, 16, 32, 4)


def products(start: float = 5e-6, flops: float = 1e9, numbers: float = 1e8) -> dict[str, list[float]]:
    """Products of several shapes that take exactly what the roofline says."""
    shapes = [(8, 64, 64), (8, 512, 512), (512, 64, 64), (512, 512, 512), (64, 512, 64)]
    flop = [2.0 * rows * inputs * outputs for rows, inputs, outputs in shapes]
    through = [float(rows * inputs + inputs * outputs + rows * outputs) for rows, inputs, outputs in shapes]
    forward = [start + f / flops + n / numbers for f, n in zip(flop, through, strict=True)]
    backward = [2 * each for each in forward]
    return {"work": flop, "numbers": through, "forward_seconds": forward, "backward_seconds": backward}


def found() -> dict[str, Any]:
    """What a job would measure on a machine of two cores."""

    def table(rate: float) -> dict[str, list[float]]:
        work = [1e3, 1e5, 1e7]
        forward = [1e-6 + each / rate for each in work]
        return {"work": work, "numbers": [0.0] * 3, "forward_seconds": forward, "backward_seconds": forward}

    operations = {kind: products() for kind in PRODUCTS} | {kind: table(1e8) for kind in POINTWISE}
    tiny = {"work": [1.0], "numbers": [0.0], "forward_seconds": [1e-3], "backward_seconds": [1e-6]}
    operations["block"] = tiny
    nbytes = [4, 1024, 2**20]
    messages = {
        "nbytes": nbytes,
        "exchange_seconds": [1e-5 + 1e-9 * n for n in nbytes],
        "sum_seconds": [1e-7 + 1e-10 * n for n in nbytes],
    }
    return {
        "name": "two cores",
        "cores": 2,
        "memory_nbytes": 1e9,
        "alone": operations,
        "together": operations,
        "messages": messages,
        "calls": calls(10e-6),
        "crowded_calls": calls(1e-3),
    }


def calls(start: float) -> dict[str, Any]:
    """Each exchange of the library takes so long besides its messages."""
    names = ("tensor all-reduce", "tensor all-gather", "tensor reduce-scatter")
    names += ("data reduce-scatter", "data all-gather", "pipeline message")
    nbytes = [256, 4096, 2**20]
    return {name: {"nbytes": nbytes, "seconds": [start + 3e-5 + 4e-9 * n for n in nbytes]} for name in names}


def on_paper(**rest: Any) -> Machine:
    """A machine of round numbers."""
    line = Hockney(1e-6, 1e-9)
    numbers = {"memory_nbytes": 1e9, "flop_per_second": 1e12, "memory_bytes_per_second": 1e11}
    return machine_on_paper("paper", "nobody", **({"inside": line, "between": line} | numbers | rest))


@pytest.fixture(scope="module")
def machine() -> Machine:
    return machine_from_json(json.dumps(found()))


def test_a_product_takes_its_call_its_arithmetic_and_its_memory(machine: Machine) -> None:
    one = Operation("linear", counted(1e9, "", "flop"), 1, counted(1e6, "", "numbers"))
    seconds = machine.operation(one, "forward", alone=True)
    assert seconds.value == pytest.approx(5e-6 + 1 + 1e-2)
    assert seconds["per_flop"].value == pytest.approx(1e-9)
    assert machine.operation(one, "backward", alone=True).value == pytest.approx(2 * seconds.value)


@pytest.mark.parametrize("part", ["start", "flops", "numbers"])
def test_a_product_that_lacks_a_part_has_none_of_it(part: str) -> None:
    table = products(**{part: 0.0 if part == "start" else float("inf")})
    fitted = fit_product(table["work"], table["numbers"], table["forward_seconds"])
    lacking = {"start": fitted.start, "flops": fitted.per_flop, "numbers": fitted.per_number}[part]
    assert lacking == pytest.approx(0, abs=1e-12)
    said = [
        fitted.start + fitted.per_flop * f + fitted.per_number * n
        for f, n in zip(table["work"], table["numbers"], strict=True)
    ]
    assert said == pytest.approx(table["forward_seconds"], rel=1e-6)


def test_wild_measurements_do_not_move_a_fit() -> None:
    table = products()
    seconds = [*table["forward_seconds"], 20 * table["forward_seconds"][0]]
    fitted = fit_product(
        [*table["work"], table["work"][0]], [*table["numbers"], table["numbers"][0]], seconds
    )
    assert fitted.per_flop == pytest.approx(1e-9, rel=0.05)


def test_what_a_block_takes_besides_its_operations_is_counted_once(machine: Machine) -> None:
    calls = 7 * 5e-6 + 5 * 1e-6  # six linear layers and attention; GeLU, two norms, two sums
    one = Operation("block", counted(1, "", "calls"))
    assert machine.operation(one, "forward", alone=True).value == pytest.approx(1e-3 - calls, rel=0.01)
    assert machine.operation(one, "backward", alone=True).value == 0  # never less than nothing


def test_an_operation_that_was_not_timed_is_named(machine: Machine) -> None:
    with pytest.raises(KeyError, match="two cores has no seconds of sorting; it has"):
        machine.operation(Operation("sorting", counted(1, "")), "forward", alone=True)


def test_every_operation_of_a_model_is_timed(machine: Machine) -> None:
    kinds = {one.kind for layer in SHAPE.layers(Part(4)) for one in layer.operations}
    assert kinds <= set(machine.alone)
    seconds = seconds_of(SHAPE, 8, Plan(data=2), machine)
    assert {leaf.source for leaf in leaves(seconds)} == {
        "given",
        "counted",
        "measured",
        "fitted to measurements",
    }


def test_four_ranks_on_two_cores_take_twice_as_long(machine: Machine) -> None:
    both = [seconds_of(SHAPE, 64, Plan(data=n), machine) for n in (2, 4)]
    assert [each["crowd"].value for each in both] == [1, 2]
    assert both[1]["update"].value == both[0]["update"].value


def test_an_axis_that_leaves_its_node_shares_the_nodes_link() -> None:
    paper = on_paper(ranks_per_node=4)
    assert paper.link(4, 1) == (paper.inside, 1)
    assert paper.link(2, 4) == (paper.between, 4)  # data ranks outside a tensor group of 4: four rings
    assert paper.link(8, 1) == (paper.between, 1)
    assert paper.link(4, 2) == (paper.between, 2)


def test_the_groups_of_a_node_share_its_ports_and_one_group_uses_all() -> None:
    node = {"ranks_per_node": 8, "inside": Hockney(1e-6, 1e-10), "context_nbytes": 1e9, "waste": 0.1}
    nodes = {ports: on_paper(**node, ports=ports) for ports in (1, 4, 16)}
    assert [nodes[ports].link(2, 8)[1] for ports in (1, 4)] == [8, 2]
    assert nodes[4].link(16, 1) == (nodes[4].between, 1 / 4)
    assert nodes[16].link(16, 1) == (nodes[16].inside, 1)  # more ports than the node's own link can feed
    assert nodes[1].allocated(counted(2e9, "", "bytes")).value == 1e9 + 1.1 * 2e9


def test_16_bit_numbers_need_half_the_time_to_read_and_write() -> None:
    # 1 byte per second, products for free
    paper = on_paper(flop_per_second=float("inf"), memory_bytes_per_second=1.0, ranks_per_node=1)
    numbers = Operation("gelu", counted(10, "", "numbers"))
    for element in (4, 2):  # reads 10 and writes 10
        seconds = paper.operation(numbers, "forward", alone=True, element=element)
        assert seconds.value == 2 * 10 * element
    full, mixed = (seconds_of(SHAPE, 8, Plan(mixed=how), paper) for how in (False, True))
    assert mixed["computing"].value == pytest.approx(full["computing"].value / 2)
    assert mixed["update"].value == full["update"].value  # master weights and moments have 32 bits


def test_a_call_takes_as_long_with_16_bit_numbers(machine: Machine) -> None:
    product = Operation("linear", counted(1e6, "", "flop"), numbers=counted(1e4, "", "numbers"))
    for one in (product, Operation("block", counted(1, "", "calls"))):
        full, half = (machine.operation(one, "forward", alone=True, element=n).value for n in (4, 2))
        saved = 1e4 / 1e8 / 2 if one is product else 0.0  # half of its numbers, at 1e8 per second
        assert full - half == pytest.approx(saved)


def test_the_summary_has_the_numbers_that_were_measured() -> None:
    told = "\n".join(summary(found()))
    for number in ("2 cores", "1.0 GB free", "1 Gflop/s", "100 million", "10.0 µs", "1.0 GB/s"):
        assert number in told


def test_operations_are_timed_forward_and_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operation_times, "NUMBERS", (256, 1024))
    monkeypatch.setattr(operation_times, "ROWS", (8,))
    monkeypatch.setattr(operation_times, "WIDTHS", (16,))
    monkeypatch.setattr(operation_times, "HEADS", ((16, 8),))
    monkeypatch.setattr(operation_times, "MOST_COPIES", 2)
    monkeypatch.setattr(operation_times, "ENOUGH_SECONDS", 0.0)
    calls = []
    tables = operation_times.operation_seconds(lambda: calls.append(1))
    assert set(tables) == {*PRODUCTS, *POINTWISE, "block"}
    for kind, table in tables.items():
        lengths = {len(column) for column in table.values()}
        assert len(lengths) == 1 and min(lengths) >= (1 if kind == "block" else 2), kind
        assert min(table["forward_seconds"] + table["backward_seconds"]) > 0
        assert (min(table["numbers"]) > 0) == (kind in PRODUCTS)
    assert len(calls) > 10
