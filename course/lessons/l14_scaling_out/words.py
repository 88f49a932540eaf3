"""What lesson 14's measurements say: each sentence is chosen from the numbers."""

from collections.abc import Mapping, Sequence
from typing import Any

from course.lessons.l14_scaling_out.figures import SAME_POINTS, Runs
from course.lessons.l14_scaling_out.fits import fitted, ring_band, ring_seconds
from course_lib.theory.hockney import Hockney
from mpi_classroom.figures import listed, say_seconds, three_digits, time_unit

NEAR = 0.2  # a forecast that is off by less holds
SAME_COMPUTING = 1.5  # what repeated runs of the same step may differ by
JUMP = 0.5  # a loss that rises by more above what it was jumps
ALIKE = 1.1  # times, bytes and rates that differ by less are not told apart


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
        f"The all-reduce takes {say_seconds(more)} more than on one node, and is now {100 * share:.0f} % of "
        "the step. Computing sends nothing, so the link does not change it."
    )
    computing = [each["computing"] for each in steps.values()]
    times = f"It took {listed(three_digits(1e3 * each) for each in computing)} ms"
    if max(computing) < SAME_COMPUTING * min(computing):
        return f"{words} {times}. Such differences are chance: in another run the order may be different."
    return f"{words} {times}, because other programs were using the cores."


def explain_forecast(forecast: float, steps: Runs, name: str) -> str:
    """Whether α and β of the link `name` forecast the all-reduce of its step; if not, what is missing."""
    measured, one_node = (steps[each]["allreduce"] for each in (name, "one node"))
    factor, unit = time_unit(max(forecast, measured))
    words = ", measured ".join(f"{three_digits(factor * each)} {unit}" for each in (forecast, measured))
    times = measured / forecast
    if abs(times - 1) < NEAR:
        return f"forecast {words}: the forecast holds within {max(1, round(100 * abs(times - 1)))} %"
    if times > 1:
        both = forecast + one_node
        near = f" Together {say_seconds(both)}, close to the measured time."
        return (
            f"forecast {words}, {times:.1f} times as long\n"
            "  The forecast leaves out waiting, copying and adding. On one node, without a link, these take "
            f"{say_seconds(one_node)}.{near if abs(measured / both - 1) < NEAR else ''}"
        )
    less = f"{100 * (1 - times):.0f} % less"
    return f"forecast {words}, {less}: the exchanges were disturbed, or MPI sends less than we think"


def explain_many(exchanges: Mapping[str, Mapping[str, Any]], steps: Runs, ranks: int) -> str:
    """The forecast on `ranks` ranks: what part is latency, its band, and on which links it missed on two."""
    nbytes = steps["one node"]["nbytes"]
    links = {name: fitted(exchange) for name, exchange in exchanges.items()}
    many = {name: ring_seconds(ranks, nbytes, link) for name, link in links.items()}
    ring_steps = 2 * (ranks - 1)
    words = listed(
        f"{100 * ring_steps * link.alpha_seconds / many[name]:.0f} % over the {name}"
        for name, link in links.items()
    )
    *_, (last, exchange) = exchanges.items()
    lines = [
        f"The ring has {ring_steps:,} steps, and each pays α. Of the forecast time, these α make up {words}.",
        f"Over the {last} the forecast is {say_seconds(many[last])}; if we fit each round by itself, it is "
        f"{say_range(*ring_band(ranks, nbytes, exchange))}.",
    ]
    missed = [
        f"the {name}"
        for name, link in links.items()
        if abs(steps[name]["allreduce"] / ring_seconds(2, nbytes, link) - 1) >= NEAR
    ]
    if missed:
        lines.append(f"Over {listed(missed)} the forecast missed already on two ranks: see section 2.")
    return " ".join(lines)


def say_range(low: float, high: float) -> str:
    """`327 to 334 ms`, or one duration where both read the same."""
    least, most = say_seconds(low), say_seconds(high)
    if least == most:
        return most
    return f"{least.removesuffix(most[most.index(' ') :])} to {most}"


def explain_doubling(measured: Mapping[int, float]) -> str:
    """What the step from 2 to 4 ranks took, beside what the bytes say."""
    times = measured[4] / measured[2]
    words = (
        f"The ring takes {say_seconds(measured[2])} on 2 ranks and {say_seconds(measured[4])} on 4, "
        f"{three_digits(times)} times as long. By the bytes alone it would be 1.5 times as long"
    )
    if abs(times / 1.5 - 1) < NEAR:
        return f"{words}: each rank sends one and a half arrays instead of one."
    if times > 1.5:
        return f"{words}. Four nodes share the cores of this machine, which adds to it."
    return f"{words}: on 2 ranks something else took time, too. Run the cell again, on free cores."


def explain_crossing(results: Runs, nbytes: int) -> str:
    """What the hierarchical all-reduce of `nbytes` saves, beside the ring and MPI's own."""
    ours = results["hierarchical"]
    wrong = [name for name, each in results.items() if not each["right"]]
    if wrong:
        return f"The sum of {listed(wrong)} is wrong, so its time says nothing."
    times, in_turn = (
        three_digits(results[name]["link_nbytes"] / ours["link_nbytes"])
        for name in ("ring", "ring, ranks in turn")
    )
    lines = [
        f"Two ranks send 1.5 arrays each over the link: {three_digits(3 * nbytes / 1e6)} MB, and the rest is "
        "headers and acknowledgements. The hierarchy's two leaders send one array each.",
        f"The ring sends {times} times as many bytes between the nodes as the hierarchy. With its ranks in "
        f"turn, all four ranks send over the link: {in_turn} times as many.",
        explain_seconds(results),
        explain_own(results, ours["link_nbytes"]),
    ]
    return "\n".join(lines)


def explain_seconds(results: Runs) -> str:
    """The seconds of the hierarchy and of the ring in both orders, and what the bytes do not explain."""
    ours, ring, in_turn = (results[each] for each in ("hierarchical", "ring", "ring, ranks in turn"))
    words = (
        f"The ring takes {say_seconds(ring['seconds'])}, with its ranks in turn "
        f"{say_seconds(in_turn['seconds'])}, and the hierarchy {say_seconds(ours['seconds'])}."
    )
    longer, more = (ring[each] / ours[each] for each in ("seconds", "link_nbytes"))
    if longer > ALIKE * more:
        words += (
            f" The ring takes {three_digits(longer)} times as long as the hierarchy, more than the bytes "
            "say: each of its six steps also waits for the slowest rank."
        )
    longer, more = (in_turn[each] / ring[each] for each in ("seconds", "link_nbytes"))
    if longer > ALIKE * more:
        words += (
            f" With its ranks in turn, the ring sends {three_digits(more)} times as many bytes and takes "
            f"{three_digits(longer)} times as long. Why it takes even longer than the bytes say, we have not "
            "examined."
        )
    return words


def explain_own(results: Runs, fewest: float) -> str:
    """Whether MPI's own all-reduce is hierarchical: then it sends the `fewest` bytes for each placement."""
    own, in_turn = (results[f"MPI's own{each}"]["link_nbytes"] for each in ("", ", ranks in turn"))
    if max(own, in_turn) < ALIKE * fewest:
        return (
            "MPI's own all-reduce sends as few bytes as the hierarchy, even with its ranks in turn. "
            "So it is hierarchical, too."
        )
    times = three_digits(in_turn / own)
    if own < ALIKE * fewest:
        return (
            f"MPI's own all-reduce sends as few bytes as the hierarchy, but {times} times as many with its "
            "ranks in turn. So it is flat."
        )
    return "MPI's own all-reduce sends more bytes between the nodes than the hierarchy does."


def explain_choice(runs: Runs, choice: str) -> str:
    """What the choice gained in bytes and accuracy, and whether the learning rate made both losses jump."""
    plain, chosen = runs["plain"], runs[choice]
    updates, of_plain = len(chosen["losses"]), len(plain["losses"])
    counted = f"Both make {updates} updates"
    if updates != of_plain:
        counted = f"It makes {updates} updates instead of {of_plain}"
    sent = 100 * chosen["link_nbytes"] / plain["link_nbytes"]
    points = 100 * (chosen["accuracy"] - plain["accuracy"])
    words = f"It sends {three_digits(sent)} % of the bytes that plain sends. {counted}, and "
    if abs(points) < SAME_POINTS:
        words += "the accuracy is the same within a point."
    else:
        higher = "higher" if points > 0 else "lower"
        words += f"the accuracy of {choice} is {abs(points):.1f} points {higher}."
    jumps = {highest_jump(run["losses"]) for run in runs.values()}
    if choice != "plain" and updates == of_plain and len(jumps) == 1 and (update := jumps.pop()):
        words += (
            f" Both curves jump at update {update} of {updates}: both runs see the same batch there, and the "
            "learning rate is large. The link is not the cause."
        )
    return words


def highest_jump(losses: Sequence[float]) -> int | None:
    """The update, counted from 1, whose loss is highest above the lowest one before; None without a jump."""
    rises = [after - min(losses[: n + 1]) for n, after in enumerate(losses[1:])]
    highest = max(range(len(rises)), key=rises.__getitem__, default=None)
    return None if highest is None or rises[highest] < JUMP else highest + 2


def say_jobs(jobs: Mapping[str, Mapping[str, float]]) -> str:
    """Images per second of one job and of two jobs together, by model, and whether that is a gain."""
    lines = []
    gains = {name: rates["two"] / rates["one"] for name, rates in jobs.items()}
    for name, rates in jobs.items():
        one, two = f"one job {rates['one']:.0f} images/s", f"two jobs {rates['two']:.0f} together"
        lines.append(f"{name}: {one}, {two} ({100 * (gains[name] - 1):+.0f} %)")
        if gains[name] > 2.1:
            lines.append(
                "  More than twice as many: other programs slowed the one job. "
                "Run the cell again, on free cores."
            )
    if all(1 / ALIKE < gain < ALIKE for gain in gains.values()):
        lines.append(
            "Repeated runs may differ by as much, so this shows no gain: one job leaves hardly any core idle."
        )
    return "\n".join(lines)


def explain_throughput(by_batch: Mapping[int, Mapping[int, float]]) -> str:
    """For each image side, whether larger batches helped; and whether larger images need them less."""
    lines: list[str] = []
    slower_again: list[str] = []
    gains: list[float] = []
    for side, rates in by_batch.items():
        smallest, largest, best = min(rates), max(rates), max(rates, key=rates.__getitem__)
        gains.append(rates[best] / rates[smallest])
        words = f"a batch of {best} gives {three_digits(gains[-1])} times the rate of {smallest}"
        if gains[-1] < ALIKE:
            words = "larger batches do not help"
        if rates[largest] * ALIKE < rates[best]:
            words += f"; {largest} is slower again, by {100 * (1 - rates[largest] / rates[best]):.0f} %"
            slower_again.append(f"{largest} images of {side} × {side} pixels")
        lines.append(f"{side} × {side} pixels: {words}.")
    if gains[0] > ALIKE * gains[-1]:
        lines.append("So it holds on this CPU, too: larger batches help, and larger images need them less.")
    else:
        lines.append("Small images gain no more here than large ones. Run the cell again, on free cores.")
    if slower_again:
        lines.append(f"Why batches of {listed(slower_again)} are slower again, we have not examined.")
    return "\n".join(lines)


def say_all_choices(runs: Runs) -> str:
    """All trainings as a table: seconds, MB over the link, updates, accuracy."""
    lines = [f"{'':14}{'seconds':>9}{'MB sent':>9}{'updates':>9}{'accuracy':>10}"]
    for name, run in runs.items():
        megabytes, percent = run["link_nbytes"] / 1e6, 100 * run["accuracy"]
        lines.append(f"{name:14}{run['seconds']:9.1f}{megabytes:9.1f}{len(run['losses']):9}{percent:8.1f} %")
    return "\n".join(lines)
