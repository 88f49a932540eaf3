"""The planner against this machine: 24 configurations, drawn and committed before any was predicted.

Each configuration is a Transformer, a batch, 2 or 4 ranks (on two cores: one rank per core, and two), and
six plans. Every plan is predicted, then measured: the most bytes of tensors on a rank, and the seconds of a
step. A memory limit that `fitting` of the plans respect is emulated; the planner takes the fastest that fits.

    python -m benchmarks.planner_validation                 all; measures the machine first if nobody did
    python -m benchmarks.planner_validation --json FILE     the same, and keep the result
    python -m benchmarks.planner_validation --draw          write the configurations, once

The library's plain forms hide nothing, so the planner predicts them with overlap 0.
"""

import argparse
import json
import random
import statistics
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mpi4py import MPI

from benchmarks.harness import CannotMeasure, about_this_run, on_ranks
from course.lessons.l16_choose_your_strategy.planner.machine import Machine
from course.lessons.l16_choose_your_strategy.planner.measured import machine_from_json
from course.lessons.l16_choose_your_strategy.planner.memory import memory_of
from course.lessons.l16_choose_your_strategy.planner.models import TransformerShape
from course.lessons.l16_choose_your_strategy.planner.plan import Plan, plans
from course.lessons.l16_choose_your_strategy.planner.seconds import seconds_of
from course.lessons.shared.machine import MachineError, measure_machine
from course.paths import BUILD, ROOT

SEED, COUNT, PLANS = 39, 24, 6
RANKS = (2, 4)  # on a machine of two cores: one rank per core, and two
DRAWN = ROOT / "benchmarks" / "results" / "planner_configurations.json"
MEASURED = BUILD / "machine.json"
NEAR = 0.1  # how much slower than the fastest a right choice may be
WITHIN = 0.15  # the aim for every memory


@dataclass(frozen=True, slots=True)
class Configuration:
    """A model and a batch on some ranks, plans to choose from, and how many of them the limit lets fit."""

    shape: TransformerShape
    batch: int
    ranks: int
    plans: tuple[Plan, ...]
    fitting: int


# ---------------------------------------------------------------- drawing


def draw(seed: int = SEED) -> list[Configuration]:
    """The configurations: numbers of ranks in turn, everything else at random."""
    rng = random.Random(seed)
    found = []
    for index in range(COUNT):
        shape, batch = transformer(rng)
        ranks = RANKS[index % 2]
        chosen = some_plans(rng, shape, batch, ranks)
        found.append(Configuration(shape, batch, ranks, chosen, rng.randint(1, len(chosen))))
    return found


def transformer(rng: random.Random) -> tuple[TransformerShape, int]:
    """A Transformer and its batch."""
    sizes = {
        "blocks": (2, 4, 6),
        "width": (64, 128, 256),
        "length": (32, 64, 128),
        "vocabulary": (64, 256, 1024),
    }
    return TransformerShape(heads=4, **{name: rng.choice(of) for name, of in sizes.items()}), rng.choice(
        (8, 16, 32)
    )


def some_plans(rng: random.Random, shape: TransformerShape, batch: int, ranks: int) -> tuple[Plan, ...]:
    """Up to six plans, of different axes as far as there are."""
    groups: dict[Any, list[Plan]] = {}
    for plan in plans(shape, batch, ranks, microbatches=(1, 4)):
        axes = plan.data, plan.zero, plan.pipeline, plan.tensor
        groups.setdefault(axes, []).append(plan)
    ways = list(groups.values())
    rng.shuffle(ways)
    chosen = [rng.choice(way) for way in ways[:PLANS]]
    others = [plan for way in ways for plan in way if plan not in chosen]
    rng.shuffle(others)
    return tuple(chosen + others[: PLANS - len(chosen)])


# ---------------------------------------------------------------- the committed file


def as_json(configurations: list[Configuration]) -> str:
    """The text of the file."""
    entries = [
        {
            "model": "transformer",
            "sizes": asdict(one.shape),
            "batch": one.batch,
            "ranks": one.ranks,
            "fitting": one.fitting,
            "plans": [settings(plan) for plan in one.plans],
        }
        for one in configurations
    ]
    return json.dumps({"seed": SEED, "configurations": entries}, indent=1) + "\n"


def settings(plan: Plan) -> dict[str, Any]:
    """What a plan has other than by default."""
    default = asdict(Plan())
    return {name: value for name, value in asdict(plan).items() if value != default[name]}


def committed(path: Path = DRAWN) -> list[Configuration]:
    """The configurations of the file."""
    entries = json.loads(path.read_text())["configurations"]
    return [
        Configuration(
            TransformerShape(**entry["sizes"]),
            entry["batch"],
            entry["ranks"],
            tuple(Plan(**one) for one in entry["plans"]),
            entry["fitting"],
        )
        for entry in entries
    ]


# ---------------------------------------------------------------- predicting and measuring


@dataclass(frozen=True, slots=True)
class Outcome:
    """One plan of a configuration: predicted and measured bytes and seconds."""

    plan: str
    predicted_nbytes: float
    measured_nbytes: float
    predicted_seconds: float
    measured_seconds: float


def choose(found: list[Outcome], fitting: int) -> tuple[Outcome | None, Outcome, bool]:
    """The planner's choice under the emulated limit, the fastest plan that fits, and whether it is right.

    The limit lies half way between the `fitting` smallest measured peaks and the next. Right is a choice that
    fits and takes at most 10 % longer than the fastest.
    """
    peaks = sorted(each.measured_nbytes for each in found)
    limit = 1.1 * peaks[-1] if fitting == len(peaks) else (peaks[fitting - 1] + peaks[fitting]) / 2
    fits = [each for each in found if each.measured_nbytes <= limit]
    fastest = min(fits, key=lambda each: each.measured_seconds)
    allowed = [each for each in found if each.predicted_nbytes <= limit]
    if not allowed:
        return None, fastest, False
    chosen = min(allowed, key=lambda each: each.predicted_seconds)
    near = chosen.measured_seconds <= (1 + NEAR) * fastest.measured_seconds
    return chosen, fastest, near and chosen.measured_nbytes <= limit


def outcomes(one: Configuration, machine: Machine, measured: list[dict[str, float]]) -> list[Outcome]:
    """Predictions beside measurements, plan by plan."""
    pairs = []
    for plan, found in zip(one.plans, measured, strict=True):
        nbytes = machine.allocated(memory_of(one.shape, one.batch, plan)).value
        seconds = seconds_of(one.shape, one.batch, plan, machine).value
        pairs.append(Outcome(plan.name, nbytes, found["nbytes"], seconds, found["seconds"]))
    return pairs


def verdicts(pairs: list[tuple[Configuration, list[Outcome]]]) -> dict[str, Any]:
    """The three claims: memory, seconds and choice, each with what missed it."""
    found = [(one, each) for one, outcomes in pairs for each in outcomes]
    memory = [abs(each.predicted_nbytes / each.measured_nbytes - 1) for _, each in found]
    seconds = [abs(each.predicted_seconds / each.measured_seconds - 1) for _, each in found]
    return {
        "plans": len(found),
        "memory_worst": max(memory),
        "memory_within_15_percent": sum(error <= WITHIN for error in memory),
        "seconds_median_error": statistics.median(seconds),
        "took_longer": sum(each.predicted_seconds < each.measured_seconds for _, each in found),
        "right_choices": sum(choose(outcomes, one.fitting)[2] for one, outcomes in pairs),
        "configurations": len(pairs),
    }


def by_ranks(pairs: list[tuple[Configuration, list[Outcome]]]) -> dict[str, Any]:
    """The verdicts on all configurations, and on those of each number of ranks."""
    of = {f"{ranks} ranks": [pair for pair in pairs if pair[0].ranks == ranks] for ranks in RANKS}
    return {"all": verdicts(pairs)} | {name: verdicts(mine) for name, mine in of.items() if mine}


def measure_on_ranks(comm: MPI.Intracomm, path: str, index: int, rounds: int) -> list[dict[str, float]]:
    """Most bytes and median seconds of every plan of a configuration, of the rank with most."""
    import torch

    from course.lessons.l16_choose_your_strategy.planned import grid_of, peak_nbytes, prepare
    from course_lib.measure import timed

    torch.set_num_threads(1)
    one, found = committed(Path(path))[index], []
    with tempfile.TemporaryDirectory() as folder:
        for number, plan in enumerate(one.plans):
            training = prepare(grid_of(comm, plan), one.shape, one.batch, plan, Path(folder) / str(number))
            nbytes = comm.allreduce(peak_nbytes(training), MPI.MAX)
            seconds = timed(comm, training.step, rounds)
            found.append({"nbytes": nbytes, "seconds": seconds})
    return found


def measure(quick: bool) -> dict[str, Any]:
    """Predict and measure all configurations; print the table, with the misses."""
    machine = this_machine()
    drawn = committed()[: 6 if quick else None]
    pairs = []
    for index, one in enumerate(drawn):
        measured = on_ranks(
            one.ranks, measure_on_ranks, path=str(DRAWN), index=index, rounds=5 if quick else 11, timeout=600
        )
        found = outcomes(one, machine, measured)
        pairs.append((one, found))
        show(one, found)
    claims = by_ranks(pairs)
    print(json.dumps(claims, indent=1))
    entries = [
        {"configuration": number, "ranks": one.ranks, "fitting": one.fitting, **asdict(each)}
        for number, (one, found) in enumerate(pairs)
        for each in found
    ]
    return {"claims": claims, "plans": entries}


def show(one: Configuration, found: list[Outcome]) -> None:
    """The table of a configuration."""
    chosen, fastest, right = choose(found, one.fitting)
    print(f"\n{one.shape}, batch {one.batch}, ranks: {one.ranks}")
    for each in found:
        memory, seconds = (
            each.predicted_nbytes / each.measured_nbytes - 1,
            each.predicted_seconds / each.measured_seconds - 1,
        )
        marks = ("→" if each is chosen else " ") + ("*" if each is fastest else " ")
        print(
            f"{marks} {each.measured_nbytes / 1e6:8.2f} MB {memory:+7.1%} "
            f"{1e3 * each.measured_seconds:8.1f} ms {seconds:+7.1%}  {each.plan}"
        )
    print(f"   → chosen, * the fastest that fits: {'right' if right else 'wrong'}")


def this_machine() -> Machine:
    """This machine, measured now if it has not been. Raises CannotMeasure when that fails."""
    if not MEASURED.exists():
        try:
            measure_machine(MEASURED)
        except MachineError as reason:
            raise CannotMeasure(str(reason)) from None
    return machine_from_json(MEASURED.read_text())


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="The planner against this machine")
    parser.add_argument("--draw", action="store_true", help="write the configurations")
    parser.add_argument("--quick", action="store_true", help="six configurations, fewer repetitions")
    parser.add_argument("--json", metavar="FILE", help="write the result there")
    arguments = parser.parse_args()
    if arguments.draw:
        DRAWN.write_text(as_json(draw()))
        return
    try:
        result = measure(arguments.quick)
    except CannotMeasure as reason:
        print(f"Nothing was measured: {reason}")
        return
    if arguments.json:
        path = Path(arguments.json)
        path.write_text(json.dumps(result, indent=1) + "\n")
        about = about_this_run() | {"measured": json.loads(MEASURED.read_text())}
        path.with_suffix(".machine.json").write_text(json.dumps(about) + "\n")


if __name__ == "__main__":
    main()
