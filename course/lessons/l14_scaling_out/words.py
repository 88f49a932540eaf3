"""What lesson 14's measurements say: each sentence is chosen from the numbers."""

from collections.abc import Mapping, Sequence
from typing import Any

from course.lessons.l14_scaling_out.figures import SAME_POINTS, Runs
from course.lessons.l14_scaling_out.fits import fitted, ring_band, ring_seconds
from course_lib.theory.hockney import Hockney
from mpi_classroom.figures import listed, say_seconds, three_digits

NEAR = 0.2  # a forecast that is off by less holds
SAME_COMPUTING = 1.25  # what repeated runs of the same step may differ by
JUMP = 0.5  # a loss that rises by more above what it was jumps
ALIKE = 1.1  # times and bytes that differ by less are not told apart


def say_link(link: Hockney) -> str:
    """α and 1/β with their units; a sentence in place of a 1/β that the measurement does not show."""
    if not link.beta_seconds_per_byte:
        latency = f"α = {say_seconds(link.alpha_seconds)}"
        return f"{latency}; longer messages took no longer, so β does not show: run the cell again"
    rate = 8 * link.gbyte_per_s  # Gbit/s
    words = f"{three_digits(rate)} Gbit/s" if rate >= 1 else f"{three_digits(1e3 * rate)} Mbit/s"
    return f"α = {say_seconds(link.alpha_seconds)}, 1/β = {words}"


def say_step(step: Mapping[str, Any]) -> str:
    """Milliseconds of the two parts of a step."""
    return f"computing {1e3 * step['computing']:.1f} ms, all-reduce {1e3 * step['allreduce']:.1f} ms"


def explain_step(steps: Runs) -> str:
    """What the networks of a step change, and what they do not."""
    first, *_, last = steps.values()
    more = last["allreduce"] - first["allreduce"]
    share = last["allreduce"] / (last["computing"] + last["allreduce"])
    words = (
        f"The all-reduce takes {say_seconds(more)} more than on one node, "
        f"and is now {100 * share:.0f} % of the step. Computing sends nothing"
    )
    computing = [each["computing"] for each in steps.values()]
    times = f"{listed(three_digits(1e3 * each) for each in computing)} ms"
    if max(computing) < SAME_COMPUTING * min(computing):
        return f"{words}, so the link does not change it: {times} differ as repeated runs do."
    return f"{words}. But it took {times}: other programs were using the cores."


def explain_forecast(forecast: float, measured: float) -> str:
    """Whether α and β of a link forecast the all-reduce of the step."""
    words = f"forecast {say_seconds(forecast)}, measured {say_seconds(measured)}"
    off = measured / forecast - 1
    if abs(off) < NEAR:
        return f"{words}: the forecast holds within {max(1, round(100 * abs(off)))} %"
    if off > 0:
        return f"{words}, {100 * off:.0f} % more: adding, copying and waiting are not in the model"
    return f"{words}, {-100 * off:.0f} % less: the exchanges were disturbed, or MPI sends less than we think"


def explain_many(exchanges: Mapping[str, Mapping[str, Any]], nbytes: float, ranks: int) -> str:
    """How much of the all-reduce on `ranks` ranks is latency, by the model, and what its rounds say."""
    steps = 2 * (ranks - 1)
    shares = {}
    for name, exchange in exchanges.items():
        link = fitted(exchange)
        shares[name] = 100 * steps * link.alpha_seconds / ring_seconds(ranks, nbytes, link)
    words = listed(f"{share:.0f} % of the time over the {name}" for name, share in shares.items())
    *_, last = exchanges.values()
    low, high = (say_seconds(each) for each in ring_band(ranks, nbytes, last))
    sure = f"all {len(last['seconds'])} rounds say {low}"
    if low != high:
        sure = f"the {len(last['seconds'])} rounds say {low} to {high}"
    return f"The ring has {steps:,} steps. Their α alone is {words}. For the {name}, {sure}."


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
    ring, ours = results["ring"], results["hierarchical"]
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
    lines.append(explain_own(results, ours["link_nbytes"]))
    return "\n".join(lines)


def explain_own(results: Runs, fewest: float) -> str:
    """Whether MPI's own all-reduce is hierarchical: then it sends the `fewest` bytes for each placement."""
    own, in_turn = (results[f"MPI's own{each}"]["link_nbytes"] for each in ("", ", ranks in turn"))
    if max(own, in_turn) < ALIKE * fewest:
        return "MPI's own sends as few bytes, also with its ranks in turn: it is hierarchical, too."
    times = three_digits(in_turn / own)
    if own < ALIKE * fewest:
        return f"MPI's own sends as few bytes, and {times} times as many with its ranks in turn: it is flat."
    return "MPI's own sends more bytes between the nodes than the hierarchy does."


def explain_choice(runs: Runs, choice: str) -> str:
    """What the choice gained in bytes and accuracy, and whether the learning rate made the losses jump."""
    plain, chosen = runs["plain"], runs[choice]
    sent = chosen["link_nbytes"] / plain["link_nbytes"]
    points = 100 * (chosen["accuracy"] - plain["accuracy"])
    words = (
        f"It sends {three_digits(sent)} times as many bytes as plain, in {len(chosen['losses'])} updates. "
    )
    if abs(points) < SAME_POINTS:
        words += "The accuracy is the same within a point."
    else:
        words += f"The accuracy is {abs(points):.1f} points {'higher' if points > 0 else 'lower'}."
    jumps = {highest_jump(run["losses"]) for run in runs.values()}
    if len(runs) > 1 and len(jumps) == 1 and (update := jumps.pop()):
        words += (
            f" All losses jump at update {update}: it is the same batch everywhere, "
            "and the learning rate is large. The link has nothing to do with it."
        )
    return words


def highest_jump(losses: Sequence[float]) -> int | None:
    """The update, counted from 1, whose loss is highest above the lowest one before; None without a jump."""
    rises = [after - min(losses[: n + 1]) for n, after in enumerate(losses[1:])]
    highest = max(range(len(rises)), key=rises.__getitem__, default=None)
    return None if highest is None or rises[highest] < JUMP else highest + 2


def say_jobs(jobs: Mapping[str, Mapping[str, float]]) -> str:
    """Images per second of one job and of two jobs together, by model."""
    lines = []
    for name, rates in jobs.items():
        gain = 100 * (rates["two"] / rates["one"] - 1)
        one, two = f"one job {rates['one']:.0f} images/s", f"two jobs {rates['two']:.0f} together"
        lines.append(f"{name}: {one}, {two} ({gain:+.0f} %)")
        if gain > 110:
            lines.append(
                "  More than twice as many: other programs slowed the one job. "
                "Run the cell again, on free cores."
            )
    return "\n".join(lines)


def explain_throughput(by_batch: Mapping[int, Mapping[int, float]]) -> str:
    """For each image side, whether larger batches helped; and whether larger images need them less."""
    lines: list[str] = []
    gains: list[float] = []
    for side, rates in by_batch.items():
        smallest, largest, best = min(rates), max(rates), max(rates, key=rates.__getitem__)
        gains.append(rates[best] / rates[smallest])
        words = f"a batch of {best} gives {three_digits(gains[-1])} times the rate of {smallest}"
        if gains[-1] < ALIKE:
            words = "larger batches do not help"
        if rates[largest] * ALIKE < rates[best]:
            words += f"; {largest} is slower again, by {100 * (1 - rates[largest] / rates[best]):.0f} %"
        lines.append(f"{side} × {side} pixels: {words}.")
    if gains[0] > ALIKE * gains[-1]:
        lines.append("Small images need larger batches here than large ones do.")
    else:
        lines.append("Small images gain no more here than large ones. Run the cell again, on free cores.")
    return "\n".join(lines)


def say_all_choices(runs: Runs) -> str:
    """All trainings as a table: seconds, MB over the link, updates, accuracy."""
    lines = [f"{'':14}{'seconds':>9}{'MB':>9}{'updates':>9}{'accuracy':>10}"]
    for name, run in runs.items():
        megabytes = run["link_nbytes"] / 1e6
        lines.append(
            f"{name:14}{run['seconds']:9.1f}{megabytes:9.1f}{len(run['losses']):9}{run['accuracy']:10.1%}"
        )
    return "\n".join(lines)
