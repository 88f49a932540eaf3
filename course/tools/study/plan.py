"""Which runs make up a study: a list of cases, in the order in which they are run.

    timing      all engines on each model, one thread per rank: how long is an epoch, where does its time go?
    threads     ranks × threads: what happens when there are more of them than cores?
    accuracy    five epochs with a fixed global batch; with a fixed local one; and with a rate that grows

Timing and threads want a machine that does nothing else. Accuracy does not depend on how fast a rank is.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from course.lessons.l07_ddp_on_mnist.study_results import (
    ACCURACY,
    DDP_GLOO,
    DDP_MPI4PY,
    FIXED,
    GLOBAL,
    LOCAL,
    OWN_MPI,
    PARTS,
    SCALED,
    SEQUENTIAL,
    THREADS,
    TIMING,
    Case,
)
from course.tools.study.rates import BATCH, RATES
from course_lib.training.models import MNIST_MODELS

DISTRIBUTED = (OWN_MPI, DDP_GLOO, DDP_MPI4PY)
REPLAYED_RANKS = (2, 4, 8)  # 2 to see how far a replay is from the measurement
MNIST, DRAWN = "MNIST", "drawn digits"
LOAD, DRAW = "load", "draw"  # how a rank gets its data: as lessons do; or drawn at once, a few of them
MNIST_IMAGES = 60_000
COST = {"mlp": 0.00003, "cnn": 0.0003, "lstm": 0.0001}  # seconds per image on one core: a first guess
START_SECONDS = 5.0  # of a job, until its ranks can compute
MARK = "course study: "  # begins each line that rank 0 reports


@dataclass(frozen=True, slots=True)
class Scale:
    """How large a study is: images and epochs of each part, how many seeds, on how many ranks."""

    timing_images: int
    timing_epochs: int
    thread_images: int
    accuracy_images: int
    accuracy_epochs: int
    seeds: int
    models: tuple[str, ...]
    accuracy_models: tuple[str, ...]
    most_ranks: int  # at least, however few cores there are
    local_ranks: tuple[int, ...]  # with a fixed local batch
    scaled_ranks: tuple[int, ...]  # and a rate that grows as well


MODELS = tuple(MNIST_MODELS)
FULL = Scale(MNIST_IMAGES, 2, 12_800, MNIST_IMAGES, 5, 3, MODELS, MODELS, 4, (2, 4, 8), (2, 4))
QUICK = Scale(6_400, 1, 1_280, 12_800, 3, 1, ("mlp", "cnn"), ("mlp",), 2, (4,), (4,))


@dataclass(frozen=True, slots=True)
class Choice:
    """What somebody asked for; an empty selection is all of it, `seeds` 0 the scale's."""

    scale: Scale = FULL
    models: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    seeds: int = 0


def check_names(kind: str, names: Sequence[str], known: Sequence[str]) -> None:
    """ValueError, with the names that there are, unless all of `names` are among them."""
    for name in names:
        if name not in known:
            raise ValueError(f"there is no {kind} {name!r}; choose from {', '.join(known)}")


def plan(choice: Choice, *, cores: int, data: str) -> list[Case]:
    """The cases of `choice` on a machine with so many cores; ValueError for unknown names and numbers."""
    check_names("model", choice.models, MODELS)
    check_names("part", choice.parts, PARTS)
    if any(not 1 <= ranks <= 64 for ranks in choice.ranks) or choice.seeds < 0:
        raise ValueError(
            f"ranks {choice.ranks} and {choice.seeds} seeds; give 1 to 64 ranks, and a seed or more"
        )
    makers = {TIMING: timing_cases, THREADS: thread_cases, ACCURACY: accuracy_cases}
    return [case for part in choice.parts or PARTS for case in makers[part](choice, cores, data)]


def make_case(part: str, model: str, engine: str, ranks: int, seed: int, data: str, **rest: object) -> Case:
    """A case by the recipe of its model; `rest`: what differs from one thread and a fixed global batch."""
    case = Case(
        part=part,
        model=model,
        engine=engine,
        ranks=ranks,
        threads=1,
        batch_rule=GLOBAL,
        rate_rule=FIXED,
        batch_size=BATCH,
        learning_rate=RATES[model],
        images=MNIST_IMAGES,
        epochs=5,
        seed=seed,
        data=data,
        replayed=False,
    )
    case = replace(case, **rest)  # type: ignore[arg-type]
    size = case.batch_size * (ranks if case.batch_rule == LOCAL else 1)
    rate = case.learning_rate * (ranks if case.rate_rule == SCALED else 1)
    return replace(case, batch_size=size, learning_rate=float(f"{rate:.6g}"))  # as a file of results holds it


def timing_cases(choice: Choice, cores: int, data: str) -> list[Case]:
    """Every engine on one thread per rank, the sequential one on each number of threads; then the replays."""
    scale, models = choice.scale, choice.models or choice.scale.models
    size = {"images": scale.timing_images, "epochs": scale.timing_epochs}
    seeds = range(choice.seeds or scale.seeds)
    threads = powers_of_two(cores)
    ranks = choice.ranks or powers_of_two(max(cores, scale.most_ranks))
    cases = [
        make_case(TIMING, model, SEQUENTIAL, 1, seed, data, threads=count, **size)
        for count in threads
        for seed in seeds
        for model in models
    ]
    cases += [
        make_case(TIMING, model, engine, count, seed, data, **size)
        for count in ranks
        if count > 1
        for seed in seeds
        for model in models
        for engine in DISTRIBUTED
    ]
    replays = choice.ranks or REPLAYED_RANKS
    return cases + [
        make_case(TIMING, model, OWN_MPI, count, 0, data, images=scale.timing_images, epochs=1, replayed=True)
        for model in models
        for count in replays
        if count > 1 and cores > 1
    ]


def thread_cases(choice: Choice, cores: int, data: str) -> list[Case]:
    """One model on all ranks × threads, from one of each to twice the cores."""
    models = choice.models or choice.scale.models
    model = "cnn" if "cnn" in models else models[0]
    most = powers_of_two(max(cores, choice.scale.most_ranks))
    return [
        make_case(
            THREADS,
            model,
            OWN_MPI if ranks > 1 else SEQUENTIAL,
            ranks,
            0,
            data,
            threads=threads,
            images=choice.scale.thread_images,
            epochs=1,
        )
        for ranks in choice.ranks or most
        for threads in most
    ]


def accuracy_cases(choice: Choice, cores: int, data: str) -> list[Case]:
    """The three rules of batch and rate, by ranks and seeds; on one rank they are the same."""
    scale = choice.scale
    models = choice.models or scale.accuracy_models
    settings = [(ranks, GLOBAL, FIXED) for ranks in choice.ranks or (1, 2, 4)]
    local = {FIXED: choice.ranks or scale.local_ranks, SCALED: choice.ranks or scale.scaled_ranks}
    settings += [(ranks, LOCAL, rate) for rate, counts in local.items() for ranks in counts if ranks > 1]
    return [
        make_case(
            ACCURACY,
            model,
            OWN_MPI if ranks > 1 else SEQUENTIAL,
            ranks,
            seed,
            data,
            batch_rule=batch,
            rate_rule=rate,
            images=scale.accuracy_images,
            epochs=scale.accuracy_epochs,
        )
        for ranks, batch, rate in sorted(settings, key=lambda setting: setting[0])
        for model in models
        for seed in range(choice.seeds or scale.seeds)
    ]


def powers_of_two(most: int) -> tuple[int, ...]:
    """1, 2, 4 … up to `most`, which is the last."""
    return tuple(sorted({*(2**k for k in range(most.bit_length()) if 2**k <= most), most}))


# ---------------------------------------------------------------- how cases are run, and how long they take


def job_size(case: Case) -> tuple[int, int, bool]:
    """Ranks and threads of the job that runs it, and whether it is a replay: those measure on two ranks."""
    return (2, 1, True) if case.replayed else (case.ranks, case.threads, False)


def jobs(cases: Iterable[Case]) -> list[list[Case]]:
    """The cases in groups that one job can run, one after the other."""
    return [list(group) for _, group in groupby(cases, key=job_size)]


def estimated_seconds(case: Case, cores: int) -> float:
    """A first guess; what matters is how long cases are beside each other."""
    if case.replayed:
        return 2.0
    return 0.5 + case.epochs * case.images * COST[case.model] / min(cores, case.ranks * case.threads)
