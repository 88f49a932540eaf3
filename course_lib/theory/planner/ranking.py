"""Which plans fit, which is the fastest, and why: a table, sentences, and questions for a decision tree."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from course_lib.theory.planner.machine import Machine
from course_lib.theory.planner.memory import memory_of
from course_lib.theory.planner.models import Shape
from course_lib.theory.planner.plan import AXES, Plan, plans
from course_lib.theory.planner.quantity import Quantity, given
from course_lib.theory.planner.seconds import seconds_of, sent_by


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


@dataclass(frozen=True, slots=True)
class Decision:
    """A question of the decision tree, its answer, and what it is compared with.

    `smallest` is the plan of this kind that needs least, `fastest` the fastest of them that fits.
    """

    question: str
    smallest: Estimate
    fastest: Estimate | None

    @property
    def answer(self) -> bool:
        """Whether a plan of this kind fits."""
        return self.smallest.fits


def estimate(shape: Shape, batch: int, plan: Plan, machine: Machine) -> Estimate:
    """Memory, bytes and seconds of one plan."""
    return Estimate(
        plan,
        memory_of(shape, batch, plan),
        sent_by(shape, batch, plan),
        seconds_of(shape, batch, plan, machine),
        machine.memory,
    )


def ranked(
    shape: Shape, batch: int, machine: Machine, ranks: int, *, microbatches: tuple[int, ...] = (1, 4, 8)
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


def under(estimates: Iterable[Estimate], nbytes: float) -> list[Estimate]:
    """The same estimates, ordered for another limit: `nbytes` per rank."""
    limit = given(nbytes, "the limit per rank", "bytes")
    return in_order(replace(one, limit=limit) for one in estimates)


def report(estimates: Sequence[Estimate], most: int = 12) -> str:
    """The table of the first plans, and why the first one is the choice."""
    lines = [f"{'plan':56}{'memory':>10}{'sent':>10}{'step':>10}   fits"]
    for one in estimates[:most]:
        numbers = f"{one.memory.text:>10}{one.sent.text:>10}{one.seconds.text:>10}"
        lines.append(f"{one.plan.name:56}{numbers}   {'yes' if one.fits else 'no'}")
    if len(estimates) > most:
        lines.append(f"… and {len(estimates) - most} more")
    return "\n".join([*lines, "", *why(estimates)])


def why(estimates: Sequence[Estimate]) -> list[str]:
    """Sentences: what fits, what the choice spends its step on, and what the next plan does otherwise.

    Raises ValueError when there is no plan.
    """
    if not estimates:
        raise ValueError("no plan can run on these ranks; use another number of ranks, or another batch")
    first, fitting = estimates[0], [one for one in estimates if one.fits]
    limit = first.limit.text
    if not fitting:
        over = first.memory.value / first.limit.value
        return [
            f"None of {len(estimates)} plans fits into {limit} per rank.",
            f"{first.plan.name} comes nearest: it needs {first.memory.text}, {over:.2f} times as much.",
        ]
    said = [f"{len(fitting)} of {len(estimates)} plans fit into {limit} per rank.", spends(first)]
    if len(fitting) > 1:
        second = fitting[1]
        ratio = second.seconds.value / first.seconds.value
        said.append(f"The next, {second.plan.name}, takes {ratio:.2f} times as long. {spends(second)}")
    faster = [one for one in estimates if not one.fits and one.seconds.value < first.seconds.value]
    if faster:
        best = min(faster, key=lambda one: one.seconds.value)
        said.append(
            f"{best.plan.name} would be faster ({best.seconds.text}), but needs {best.memory.text} per rank."
        )
    return said


def spends(one: Estimate) -> str:
    """What a step of the plan is spent on, in a sentence."""
    step, crowd = one.seconds.value, one.seconds["crowd"].value
    parts = [("in forward and backward passes", one.seconds["compute"].value)]
    parts += [("in sums and gathers over the ranks", one.seconds["synchronize"].value)]
    parts += [("in AdamW", crowd * one.seconds["update"].value)]
    shares = ", ".join(f"{value / step:.0%} {what}" for what, value in parts if value >= 0.005 * step)
    return f"{one.plan.name} takes {one.seconds.text} per step: {shares}."


# ---------------------------------------------------------------- the decision tree

QUESTIONS: tuple[tuple[str, Callable[[Plan], bool]], ...] = (
    (
        "Does a plan fit when every rank keeps all weights, gradients and optimizer state?",
        lambda plan: plan.data == plan.ranks and plan.zero == 0,
    ),
    (
        "Does a plan fit when ZeRO-1 shards the optimizer state?",
        lambda plan: plan.data == plan.ranks and plan.zero == 1,
    ),
    (
        "Does a plan fit when ZeRO-2 shards the gradients, too?",
        lambda plan: plan.data == plan.ranks and plan.zero == 2,
    ),
    (
        "Does a plan fit when layers are on different ranks, in a pipeline?",
        lambda plan: plan.pipeline == plan.ranks,
    ),
    (
        "Does a plan fit when ranks divide every single layer?",
        lambda plan: plan.tensor == plan.ranks or plan.ways("tiles") == plan.ranks,
    ),
    (
        "Does a plan fit when ZeRO-3 shards the weights, too?",
        lambda plan: plan.data == plan.ranks and plan.zero == 3,
    ),
    (
        "Does a plan fit when several of these are combined?",
        lambda plan: plan.ranks > max(plan.ways(axis) for axis in AXES),
    ),
)


def questions(estimates: Sequence[Estimate]) -> list[Decision]:
    """The questions from the plainest way to split to the most involved, each answered by its smallest plan.

    A question whose plans cannot run on this model is left out.
    """
    found = []
    for question, belongs in QUESTIONS:
        asked = [one for one in estimates if belongs(one.plan)]
        if asked:
            first, *_ = in_order(asked)
            least = min(asked, key=lambda one: one.memory.value)
            found.append(Decision(question, least, first if first.fits else None))
    return found
