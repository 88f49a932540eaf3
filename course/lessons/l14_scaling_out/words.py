"""What lesson 14's measurements say: each sentence is chosen from the numbers."""

from collections.abc import Mapping
from typing import Any

from course.lessons.l14_scaling_out.figures import SAME_POINTS, Runs, ring_seconds
from course_lib.theory.hockney import Hockney, fit_hockney
from course_lib.theory.scale_out import sharing_speedup
from mpi_classroom.figures import listed, say_seconds, three_digits

NEAR = 0.2  # a forecast that is off by less holds
ALIKE = 1.1  # times and bytes that differ by less are not told apart


def fitted(exchange: Mapping[str, Any]) -> Hockney:
    """α and β of all rounds of an exchange together."""
    rounds = exchange["seconds"]
    return fit_hockney(exchange["nbytes"] * len(rounds), [second for each in rounds for second in each])


def fitted_by_round(exchange: Mapping[str, Any]) -> list[Hockney]:
    """α and β of each round of an exchange."""
    return [fit_hockney(exchange["nbytes"], seconds) for seconds in exchange["seconds"]]


def say_link(link: Hockney) -> str:
    """α and 1/β with their units."""
    return f"α = {say_seconds(link.alpha_seconds)}, 1/β = {three_digits(8e3 * link.gbyte_per_s)} Mbit/s"


def explain_step(steps: Runs) -> str:
    """What the networks of a step change, and what they do not."""
    first, *_, last = steps.values()
    more = last["allreduce"] - first["allreduce"]
    share = last["allreduce"] / (last["computing"] + last["allreduce"])
    words = (
        f"The all-reduce takes {say_seconds(more)} more than on one node, "
        f"and is now {100 * share:.0f} % of the step."
    )
    if last["computing"] < 1.25 * first["computing"]:
        return f"{words} Computing takes as long as before, because it sends nothing."
    return f"{words} Computing took longer, too: other programs were using the cores."


def explain_forecast(forecast: float, measured: float) -> str:
    """Whether α and β of a link forecast the all-reduce of the step."""
    words = f"forecast {say_seconds(forecast)}, measured {say_seconds(measured)}"
    off = measured / forecast - 1
    if abs(off) < NEAR:
        return f"{words}: the forecast holds within {max(1, round(100 * abs(off)))} %"
    if off > 0:
        return f"{words}, {100 * off:.0f} % more: adding, copying and waiting are not in the model"
    return f"{words}, {-100 * off:.0f} % less: the exchanges were disturbed, or MPI sends less than we think"


def explain_many(link: Hockney, nbytes: float, ranks: int) -> str:
    """Why the all-reduce on `ranks` ranks takes as long as the model says."""
    steps = 2 * (ranks - 1)
    latency = steps * link.alpha_seconds
    share = latency / ring_seconds(ranks, nbytes, link)
    return (
        f"The ring has {steps:,} steps. Their α alone adds up to {say_seconds(latency)}, "
        f"{100 * share:.0f} % of the time."
    )


def explain_doubling(measured: Mapping[int, float]) -> str:
    """What the step from 2 to 4 ranks took, beside what the bytes say."""
    times = measured[4] / measured[2]
    words = f"On 4 ranks it takes {three_digits(times)} times as long as on 2."
    if abs(times / 1.5 - 1) < NEAR:
        return f"{words} By the bytes it is 1.5: each rank sends one and a half arrays instead of one."
    if times > 1.5:
        return (
            f"{words} By the bytes it is 1.5. Four nodes share the cores of this machine, which adds to it."
        )
    return (
        f"{words} By the bytes it is 1.5: on 2 ranks something else took time, too. "
        "Run the cell again, on free cores."
    )


def explain_crossing(results: Runs) -> str:
    """What the hierarchical all-reduce saves, beside the ring and MPI's own."""
    ring, ours, own = (results[name] for name in ("ring", "hierarchical", "MPI's own"))
    wrong = [name for name, each in results.items() if not each["right"]]
    if wrong:
        return f"The sum of {listed(wrong)} is wrong, so its time says nothing."
    times, in_turn = (
        three_digits(results[name]["link_nbytes"] / ours["link_nbytes"])
        for name in ("ring", "ring, ranks in turn")
    )
    lines = [
        f"The ring sends {times} times as many bytes between the nodes as the hierarchy, "
        f"and {in_turn} times with its ranks in turn.",
        f"The ring takes {say_seconds(ring['seconds'])}, the hierarchy {say_seconds(ours['seconds'])}.",
    ]
    if own["link_nbytes"] < ALIKE * ours["link_nbytes"]:
        lines.append(
            "MPI's own sends as few bytes. A flat algorithm can do so, too, when neighbours share a node."
        )
    else:
        lines.append("MPI's own sends more bytes between the nodes than the hierarchy does.")
    return "\n".join(lines)


def explain_choice(runs: Runs, choice: str) -> str:
    """What the choice gained in seconds, bytes and accuracy."""
    plain, chosen = runs["plain"], runs[choice]
    sent = chosen["link_nbytes"] / plain["link_nbytes"]
    points = 100 * (chosen["accuracy"] - plain["accuracy"])
    words = f"It sends {three_digits(sent)} times as many bytes as plain, in {len(chosen['losses'])} updates"
    if abs(points) < SAME_POINTS:
        return f"{words}. The accuracy is the same within a point."
    return f"{words}. The accuracy is {abs(points):.1f} points {'higher' if points > 0 else 'lower'}."


def say_jobs(jobs: Mapping[str, Mapping[str, float]]) -> str:
    """Images per second of one job and of two jobs together, by model."""
    lines = []
    for name, rates in jobs.items():
        gain = 100 * (rates["two"] / rates["one"] - 1)
        one, two = f"one job {rates['one']:.0f} images/s", f"two jobs {rates['two']:.0f} together"
        lines.append(f"{name}: {one}, {two} ({gain:+.0f} %)")
        if gain > 100:
            lines.append("  More than twice as many: other programs, or its own threads, slowed the one job.")
    return "\n".join(lines)


def say_sharing(jobs: int, busy_fraction: float) -> str:
    """What jobs that share a device gain at most, when one keeps it busy for a fraction of the time."""
    most = sharing_speedup(jobs, busy_fraction)
    busy = f"{100 * busy_fraction:.0f} % of the time"
    return f"If one job keeps a device busy for {busy}, {jobs} jobs gain at most a factor of {most:.2f}."


def say_all_choices(runs: Runs) -> str:
    """All trainings as a table: seconds, MB over the link, updates, accuracy."""
    lines = [f"{'':14}{'seconds':>9}{'MB':>9}{'updates':>9}{'accuracy':>10}"]
    for name, run in runs.items():
        megabytes = run["link_nbytes"] / 1e6
        lines.append(
            f"{name:14}{run['seconds']:9.1f}{megabytes:9.1f}{len(run['losses']):9}{run['accuracy']:10.1%}"
        )
    return "\n".join(lines)
