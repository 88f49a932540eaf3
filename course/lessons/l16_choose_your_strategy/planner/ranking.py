"""Which plans fit, and which of them is the fastest."""

from collections.abc import Iterable
from dataclasses import dataclass

from course.lessons.l16_choose_your_strategy.planner.machine import Machine
from course.lessons.l16_choose_your_strategy.planner.memory import memory_of
from course.lessons.l16_choose_your_strategy.planner.models import TransformerShape
from course.lessons.l16_choose_your_strategy.planner.plan import Plan, plans
from course.lessons.l16_choose_your_strategy.planner.quantity import Quantity
from course.lessons.l16_choose_your_strategy.planner.seconds import seconds_of, sent_by


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a plan needs: bytes on the fullest rank, bytes that a rank sends per step, seconds per step."""

    plan: Plan
    memory: Quantity
    sent: Quantity
    seconds: Quantity
    limit: Quantity

    @property
    def fits(self) -> bool:
        """Whether the memory of a rank is enough."""
        return self.memory.value <= self.limit.value


def estimate(shape: TransformerShape, batch: int, plan: Plan, machine: Machine) -> Estimate:
    """Memory, bytes and seconds of one plan."""
    return Estimate(
        plan,
        machine.allocated(memory_of(shape, batch, plan)),
        sent_by(shape, batch, plan),
        seconds_of(shape, batch, plan, machine),
        machine.memory,
    )


def ranked(
    shape: TransformerShape,
    batch: int,
    machine: Machine,
    ranks: int,
    *,
    microbatches: tuple[int, ...] = (1, 4, 8),
) -> list[Estimate]:
    """All plans on exactly `ranks` ranks: first those that fit, the fastest first; then the others, the
    smallest first."""
    return in_order(
        estimate(shape, batch, plan, machine)
        for plan in plans(shape, batch, ranks, microbatches=microbatches)
    )


def in_order(estimates: Iterable[Estimate]) -> list[Estimate]:
    """First the plans that fit, the fastest first; then the others, the smallest first."""
    found = list(estimates)
    fitting = sorted((one for one in found if one.fits), key=lambda one: one.seconds.value)
    return fitting + sorted((one for one in found if not one.fits), key=lambda one: one.memory.value)
