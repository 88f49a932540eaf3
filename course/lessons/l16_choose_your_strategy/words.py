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
        said.append("The planner's choice was the fastest of the plans that ran.")
    elif slower <= NEAR:
        said.append(
            f"The planner's choice took {slower:.0%} longer than {fastest[0].plan.name}: no real difference."
        )
    else:
        said.append(
            f"Wrong: {fastest[0].plan.name} was faster; the planner's choice took {slower:.0%} longer."
        )
    error = worst_errors(estimates, runs)[1]
    name = next(one.plan.name for one, run in pairs if error_of(one.seconds, run["seconds"]) == error)
    said.append(f"The largest error of a predicted time is {error:.0%} of the measured time: {name}.")
    return " ".join(said)


def error_of(predicted: Quantity, found: float) -> float:
    """The error of a prediction, as a part of what was measured."""
    return abs(predicted.value / found - 1)


def worst_errors(estimates: Sequence[Estimate], runs: Runs) -> tuple[float, float]:
    """The largest errors of predicted memory and of predicted times, as parts of what was measured."""
    pairs = list(zip(estimates, runs, strict=True))
    return (
        max(error_of(one.memory, run["nbytes"]) for one, run in pairs),
        max(error_of(one.seconds, run["seconds"]) for one, run in pairs),
    )


def explain_star(decisions: Sequence[Decision], errors: tuple[float, float]) -> str:
    """The first plan that fits, the fastest one, and which to take if predictions have these errors.

    `errors` are those of memory and of times. The advice is the plainest plan from which the fastest differs
    by no more than the error.
    """
    fitting = [one.fastest for one in decisions if one.fastest]
    if not fitting:
        return "No plan fits."
    first, quick = fitting[0], min(fitting, key=lambda one: one.seconds.value)
    if first is quick:
        found = f"The first plan that fits, {first.plan.name}, is also the fastest."
        return f"{found}{warn_of_memory(first, errors[0])}"
    advised = next(one for one in fitting if percent_less(one, quick) <= round(100 * errors[1]))
    said = [
        f"The first plan that fits is {first.plan.name}: {first.seconds.text} per step.",
        f"The fastest (★) is {quick.plan.name}: {quick.seconds.text}, which is "
        f"{percent_less(first, quick)}% less.",
    ]
    error = f"than the error of the predicted times above (up to {errors[1]:.0%})"
    if advised is first:
        said.append(f"That is not more {error}, so take the first plan, which is plainer, or measure both.")
    else:
        said.append(f"That is more {error}, so a plan with more moving parts is worth it here.")
        if advised is quick:
            said.append("No plainer plan comes within this error of the fastest.")
        else:
            said.append(
                f"The plainest plan within this error of the fastest is {advised.plan.name}: "
                f"{advised.seconds.text}."
            )
    return f"{' '.join(said)}{warn_of_memory(advised, errors[0])}"


def percent_less(one: Estimate, quick: Estimate) -> int:
    """How much less time a step of `quick` takes than a step of `one`, in percent of the latter."""
    return round(100 * (1 - quick.seconds.value / one.seconds.value))


def warn_of_memory(one: Estimate, error: float) -> str:
    """That a plan may not fit, if memory is predicted with this error; "" if it fits all the same."""
    if one.memory.value * (1 + error) <= one.limit.value:
        return ""
    return (
        f" It needs {one.memory.text} of {one.limit.text}. Above, memory was off by up to {error:.0%}, so "
        "check that it fits."
    )


def explain_combined(estimates: Sequence[Estimate], runs: Runs) -> str:
    """What the last plan, which combines many strategies, needs and takes beside the first, the choice."""
    first, last = estimates[0], estimates[-1]
    factor = last.seconds.value / first.seconds.value
    said = [
        f"The predicted factor is {three_digits(factor)}: {last.seconds.text} against {first.seconds.text}."
    ]
    if last.plan.pipeline == 1:
        again, exchanged = (given(each, "", "s").text for each in recomputing_and_communicating(last))
        said.append(f"Of the {last.seconds.text}, recomputing takes {again} and communication {exchanged}.")
    long, short_one = (given(run["seconds"], "", "s").text for run in (runs[-1], runs[0]))
    memory = runs[-1]["nbytes"] / runs[0]["nbytes"]
    said.append(f"Measured were {long} against {short_one}.")
    said.append(f"The five-strategy plan needs {memory:.0%} of the memory of the planner's choice.")
    return " ".join(said)


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


def explain_half(estimates: Sequence[Estimate], smaller: Sequence[Estimate], error: float) -> str:
    """The choices under two limits, and whether their times differ by more than the times' error."""
    if not smaller[0].fits:
        return f"Nothing fits into {smaller[0].limit.text} per rank."
    one, other = estimates[0], smaller[0]
    if one.plan == other.plan:
        return f"The choice is still {one.plan.name}."
    said = f"The choice was {one.plan.name}; now it is {other.plan.name}."
    if percent_less(other, one) <= round(100 * error):
        said += f" The two times differ by no more than the error (up to {error:.0%})."
    return said


def estimators_table() -> str:
    """What DeepSpeed's and Hugging Face's estimators say beside the planner, asked in a job of its own."""
    done = run_ranks(1, ["-m", "course.lessons.l16_choose_your_strategy.estimators"], timeout=120)
    found = marked_lines(done.stdout, ESTIMATORS)
    if done.returncode or not found:
        return f"The estimators did not answer (code {done.returncode}); `course doctor` checks DeepSpeed."
    return str(found[-1])
