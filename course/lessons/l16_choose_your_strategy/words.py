"""Sentences and tables of lesson 16, from what was predicted and measured. It needs neither MPI nor torch."""

from collections.abc import Mapping, Sequence

from course_lib.theory.planner.plan import AXES, Plan
from course_lib.theory.planner.quantity import Quantity, given
from course_lib.theory.planner.ranking import Decision, Estimate
from mpi_classroom.figures import listed, three_digits
from mpi_classroom.job_output import marked_lines
from mpi_classroom.launch import run_ranks

FAMILIES = ("data and ZeRO", "pipeline", "tensor", "combined")
NEAR = 0.1  # a plan that takes at most so much longer is as good
LEGEND = (
    "Each row shows the fastest plan for all limits from its own up to the next row's.\n"
    f"≈  less than {NEAR:.0%} faster than the last row without this mark: we call such plans equally fast."
)
ESTIMATORS = "estimators: "  # marks the line of the job that asks them
Runs = Sequence[Mapping[str, float]]


def in_mb(nbytes: float) -> str:
    """Megabytes: 64 MB."""
    return f"{three_digits(nbytes / 1e6)} MB"


def short(name: str, width: int) -> str:
    """A plan's name in lines of about `width` letters, broken between its words."""
    lines = [""]
    for word in name.split(" "):
        if len(lines[-1]) + len(word) > width:
            lines.append("")
        lines[-1] += f"{word} "
    return "\n".join(line.strip() for line in lines if line.strip())


def family_of(plan: Plan) -> str:
    """What a plan splits: one thing, or several."""
    if max(plan.ways(axis) for axis in AXES) < plan.ranks:
        return "combined"
    if plan.data == plan.ranks:
        return "data and ZeRO"
    return "pipeline" if plan.pipeline == plan.ranks else "tensor"


def peak_of(need: Quantity) -> Quantity:
    """The sum that a plan's memory is, of the fullest stage if there are several."""
    if "weights" in dict(need.parts):
        return need
    return max((part for _, part in need.parts), key=lambda part: part.value)


def explain_fitting(needs: Mapping[str, Quantity], limit: float) -> str:
    """Which plans do not fit although their state would, and why."""
    hidden, all_in = [], []
    for name, need in needs.items():
        peak = peak_of(need)
        state = sum(peak[part].value for part in ("weights", "gradients", "optimizer"))
        if state <= limit < need.value:
            hidden.append(f"{name} ({in_mb(state)})")
            all_in.append(in_mb(need.value))
    if not hidden:
        return "Each plan whose state fits does fit."
    need_it = "they need" if len(hidden) > 1 else "it needs"
    return (
        f"The state of {listed(hidden)} would fit; with activations and buffers {need_it} {listed(all_in)}."
    )


def choices(estimates: Sequence[Estimate]) -> list[Estimate]:
    """The fastest plan for every limit, from the smallest limit on: each needs more than the one before."""
    found: list[Estimate] = []
    for one in sorted(estimates, key=lambda one: (one.memory.value, one.seconds.value)):
        if not found or one.seconds.value < found[-1].seconds.value:
            found.append(one)
    return found


def choice_table(estimates: Sequence[Estimate], error: float) -> str:
    """Which plan is the choice from which memory per rank on; ≈ marks those that hardly save time.

    `error` is the largest one of a predicted time, as a part of what was measured.
    """
    lines, last = [f"{'from':>9} {'step':>9}     choice"], float("inf")
    for one in choices(estimates):
        near = one.seconds.value >= (1 - NEAR) * last
        last = last if near else one.seconds.value
        memory = f"{one.memory.value / 1e6:.2f} MB"
        lines.append(f"{memory:>9} {one.seconds.text:>9} {'≈' if near else ' '}   {one.plan.name}")
    advice = ": measure two plans before you trust their order" if error > NEAR else ""
    caution = f"   In the runs above, predicted times were off by up to {error:.0%}{advice}."
    return "\n".join([*lines, LEGEND, caution])


def explain_runs(estimates: Sequence[Estimate], runs: Runs) -> str:
    """Whether the first plan, the choice, was the fastest that ran, and where the planner is wrong."""
    pairs = list(zip(estimates, runs, strict=True))
    limit = estimates[0].limit.value
    over = [one.plan.name for one, run in pairs if one.fits != (run["nbytes"] <= limit)]
    chosen, fastest = pairs[0], min(pairs, key=lambda pair: pair[1]["seconds"])
    slower = chosen[1]["seconds"] / fastest[1]["seconds"] - 1
    said = []
    if over:
        said.append(f"Wrong about what fits: {listed(over)}.")
    if fastest is chosen:
        said.append("The choice was the fastest of the plans that ran.")
    elif slower <= NEAR:
        said.append(f"The choice took {slower:.0%} longer than {fastest[0].plan.name}: no real difference.")
    else:
        said.append(f"Wrong: {fastest[0].plan.name} was faster; the choice took {slower:.0%} longer.")
    error, name = worst_error(estimates, runs)
    said.append(f"The largest error of a predicted time is {error:.0%} of the measured time: {name}.")
    return " ".join(said)


def worst_error(estimates: Sequence[Estimate], runs: Runs) -> tuple[float, str]:
    """The largest error of a predicted time, as a part of what was measured, and the plan's name."""
    pairs = zip(estimates, runs, strict=True)
    return max((abs(one.seconds.value / run["seconds"] - 1), one.plan.name) for one, run in pairs)


def explain_star(decisions: Sequence[Decision], error: float) -> str:
    """The first plan that fits, the fastest one, and whether they differ by more than the times' error."""
    fitting = [one.fastest for one in decisions if one.fastest]
    if not fitting:
        return "No plan fits."
    first, quick = fitting[0], min(fitting, key=lambda one: one.seconds.value)
    if first is quick:
        return f"The first plan that fits, {first.plan.name}, is also the fastest."
    shorter = 1 - quick.seconds.value / first.seconds.value
    verdict = "which is smaller than this difference"
    if shorter < error:
        verdict = "so take the first plan, which is plainer, or measure both"
    said = [
        f"The first plan that fits is {first.plan.name}: {first.seconds.text} per step.",
        f"The fastest (★) is {quick.plan.name}: {quick.seconds.text}, which is {shorter:.0%} less.",
        f"In the runs above, predicted times were off by up to {error:.0%}, {verdict}.",
    ]
    if quick.sent.value < first.sent.value:
        said.append(f"The fastest plan sends {quick.sent.text} per step instead of {first.sent.text}.")
    return " ".join(said)


def explain_many(estimates: Sequence[Estimate], runs: Runs) -> str:
    """What the last plan, which combines many strategies, needs and takes beside the first, the choice."""
    first, last = estimates[0], estimates[-1]
    memory = runs[-1]["nbytes"] / runs[0]["nbytes"]
    said = f"The combined plan needs {memory:.0%} of the memory of the planner's choice."
    if last.plan.pipeline > 1:
        return said
    again, exchanged = (given(each, "", "s").text for each in recomputing_and_communicating(last))
    return (
        f"{said} Of its predicted {last.seconds.text} per step, recomputing takes {again} and communication "
        f"{exchanged}. For the choice, the planner predicted {first.seconds.text} in all."
    )


def recomputing_and_communicating(one: Estimate) -> tuple[float, float]:
    """Predicted seconds per step in which a plan computes again, and communicates; it has no pipeline."""
    compute = one.seconds["compute"]
    microbatches, backward = compute["microbatches"].value, compute["backward"]
    again = 0.0
    for term in backward.formula.split(" + "):  # 4 * block + head + 4 * block_again
        count, _, name = term.rpartition(" * ")
        if "_again" in name:
            again += int(count or 1) * backward[name].value
    exchanging = microbatches * compute["exchanging"].value
    return microbatches * compute["crowd"].value * again, exchanging + one.seconds["synchronize"].value


def explain_half(estimates: Sequence[Estimate], smaller: Sequence[Estimate]) -> str:
    """The choices under two limits."""
    if not smaller[0].fits:
        return f"Nothing fits into {smaller[0].limit.text} per rank."
    one, other = estimates[0].plan.name, smaller[0].plan.name
    return f"The choice is still {one}." if one == other else f"The choice was {one}; now it is {other}."


def estimators_table() -> str:
    """What DeepSpeed's and Hugging Face's estimators say beside the planner, asked in a job of its own."""
    done = run_ranks(1, ["-m", "course.lessons.l16_choose_your_strategy.estimators"], timeout=120)
    found = marked_lines(done.stdout, ESTIMATORS)
    if done.returncode or not found:
        return f"The estimators did not answer (code {done.returncode}); `course doctor` checks DeepSpeed."
    return str(found[-1])
