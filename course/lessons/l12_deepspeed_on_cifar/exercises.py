"""Exercises of lesson 12, DeepSpeed on CIFAR: the batch keys, and a config that fits; 12.3 is beside it."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from course.lessons.l12_deepspeed_on_cifar.exercise_script import SCRIPT
from course.lessons.l12_deepspeed_on_cifar.quiz import PREDICTIONS as PREDICTIONS
from course.lessons.l12_deepspeed_on_cifar.quiz import QUESTIONS
from mpi_classroom.exercises import Exercise, WrongAnswer, changed, expect

MIB = 2**20

# -------------------------------------------------------------------- 12.1 micro-batch and global batch

GLOBAL, MICRO = "train_batch_size", "train_micro_batch_size_per_gpu"
STEPS = "gradient_accumulation_steps"


def _check_batch(answer: SimpleNamespace, comm: Any, case: tuple[int, int]) -> None:
    whole, room = case
    ranks = comm.size
    got = answer.batch_keys(whole, ranks, room)
    expect(isinstance(got, Mapping), "returned no dictionary; does the function reach its return?")
    for name in (GLOBAL, MICRO, STEPS):
        expect(name in got, f'the key "{name}" is missing.')
    batch, micro, steps = (got[name] for name in (GLOBAL, MICRO, STEPS))
    for name, value in ((GLOBAL, batch), (MICRO, micro), (STEPS, steps)):
        expect(isinstance(value, int) and value > 0, f'"{name}" is {value!r}; DeepSpeed wants an integer.')
    share = whole // ranks
    expect(batch == whole, f'"{GLOBAL}" is {batch}; one update should use {whole} samples.')
    expect(micro <= room, f"{micro} samples at a time do not fit; there is room for {room}.")
    expect(
        micro * steps != whole or ranks == 1,
        f"{micro} × {steps} = {whole} samples on each of {ranks} ranks: that makes {ranks * whole}.",
    )
    expect(
        micro * steps * ranks == whole,
        f"{micro} samples × {steps} micro-batches × {ranks} ranks = {micro * steps * ranks}, not {whole}.",
    )
    best = max(size for size in range(1, room + 1) if share % size == 0)
    expect(
        micro == best,
        f"{micro} samples at a time work, but {best} would fit, in {share // best} micro-batches.",
    )


_BATCH = '''\
def batch_keys(global_batch, ranks, room):
    """The three batch keys, for the largest micro-batch; `room` samples at a time fit on a rank."""
    share = global_batch // ranks  # samples of one rank
    micro = max(size for size in range(1, room + 1) if share % size == 0)
    return {
        "train_batch_size": global_batch,
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": share // micro,
    }
'''

BATCH = Exercise(
    id="12.1",
    title="Micro-batch and global batch",
    task="Compute the three batch keys from the global batch and from how many samples fit on a rank at a "
    "time. The stub ignores `room`. Section 3 trains with your keys.",
    objectives=(1, 2),
    targets=("micro-batch-is-global-batch",),
    stub='''\
def batch_keys(global_batch, ranks, room):
    """The three batch keys, for the largest micro-batch; `room` samples at a time fit on a rank."""
    share = global_batch // ranks  # samples of one rank
    micro = share  # may not fit: take the largest divisor of share that is at most room
    return {
        "train_batch_size": global_batch,
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": 1,
    }
''',
    hints=(
        "A rank computes its share of the global batch in several micro-batches. How large, and how many?",
        "global batch 64, 4 ranks, room for 10\n"
        "share of one rank: 16 = 8 × 2     8 is the largest divisor of 16 that is at most 10",
        "micro = max(size for size in range(1, room + 1) if share % … == 0), and share // … micro-batches",
    ),
    solution=_BATCH,
    check=_check_batch,
    cases=((48, 48), (48, 5), (96, 7), (24, 1)),
    describe=lambda case: f"{case[0]} samples, room for {case[1]}",
    wrong=(
        WrongAnswer(changed(_BATCH, ("share = global_batch // ranks", "share = global_batch")), "that makes"),
        WrongAnswer(changed(_BATCH, ("global_batch,\n", "micro,\n")), "one update should use"),
        WrongAnswer(
            changed(_BATCH, ("max(size for size in range(1, room + 1) if share % size == 0)", "share")),
            "do not fit",
        ),
        WrongAnswer(changed(_BATCH, ("share // micro", "1")), "micro-batches"),
        WrongAnswer(changed(_BATCH, ("max(size", "min(size")), "samples at a time work, but"),
        WrongAnswer(changed(_BATCH, ("share // micro", "share / micro")), "wants an integer"),
    ),
    why="DeepSpeed also divides each micro-batch's loss by the number of micro-batches. What if it did not?",
)

# -------------------------------------------------------------------- 12.2 a config that fits


def _check_fits(answer: SimpleNamespace, comm: Any, lowest: int) -> None:
    parameters = 2**20
    needs = [_state(each, parameters, comm.size) / MIB for each in range(4)]
    room = needs[lowest]  # exactly enough
    got = answer.config_that_fits(parameters, comm.size, room)
    expect(isinstance(got, Mapping), "returned no dictionary; does the function reach its return?")
    zero = got.get("zero_optimization")
    expect(isinstance(zero, Mapping) and "stage" in zero, 'there is no {"zero_optimization": {"stage": …}}.')
    stage = zero["stage"]
    expect(type(stage) is int and 0 <= stage <= 3, f"the stage is {stage!r}; it must be 0, 1, 2 or 3.")
    expect(bool(got.get("optimizer")), 'the key "optimizer" is missing.')
    expect(
        needs[stage] <= room,
        f"stage {stage} needs {needs[stage]:.1f} MiB on each of {comm.size} ranks; only {room:g} are free.",
    )
    least = min(each for each in range(4) if needs[each] <= room)
    expect(
        stage == least,
        f"stage {stage} fits, but so does stage {least}, with {needs[least]:.1f} MiB; "
        "a lower stage never sends more.",
    )


def _state(stage: int, parameters: int, ranks: int) -> float:
    """Bytes per rank: float32, AdamW, and from stage 1 on DeepSpeed's copy of the rank's slice."""
    return parameters * {0: 16.0, 1: 8 + 12 / ranks, 2: 4 + 16 / ranks, 3: 20 / ranks}[stage]


_FITS = '''\
def config_that_fits(parameters, ranks, mebibytes):
    """The configuration of the lowest stage whose state fits into `mebibytes` MiB on each rank."""
    each = {0: 16, 1: 8 + 12 / ranks, 2: 4 + 16 / ranks, 3: 20 / ranks}  # bytes per parameter
    fits = [stage for stage in each if parameters * each[stage] <= mebibytes * 2**20]
    return {
        "train_micro_batch_size_per_gpu": 8,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": fits[0]},
    }
'''

FITS = Exercise(
    id="12.2",
    title="A config that fits",
    task="Return a configuration with the lowest stage that needs at most `mebibytes` MiB on each rank. The "
    "stub always takes stage 3, and its dictionary stops at stage 1.",
    objectives=(2, 3),
    targets=("higher-stage-is-faster",),
    stub='''\
def config_that_fits(parameters, ranks, mebibytes):
    """The configuration of the lowest stage whose state fits into `mebibytes` MiB on each rank."""
    each = {0: 16, 1: 8 + 12 / ranks}  # bytes per parameter; add stages 2 and 3
    stage = 3
    return {
        "train_micro_batch_size_per_gpu": 8,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": stage},
    }
''',
    hints=(
        "Which bytes does each stage divide by the number of ranks? Then take the first stage that fits.",
        "          weight  gradient  copy and moments\n"
        "stage 1   4       4         12 / ranks\n"
        "stage 2   4       4 / ranks 12 / ranks\n"
        "stage 3   all of them / ranks",
        "fits = [stage for stage in each if parameters * each[…] <= mebibytes * …], and then fits[0]",
    ),
    solution=_FITS,
    check=_check_fits,
    cases=(0, 1, 2, 3),
    describe=lambda lowest: f"room for stage {lowest}",
    sizes=(2, 4, 3, 1),
    wrong=(
        WrongAnswer(changed(_FITS, ('"stage": fits[0]', '"stage": 3')), "stage 3 fits, but so does"),
        WrongAnswer(changed(_FITS, ('"stage": fits[0]', '"stage": 0')), "are free"),
        WrongAnswer(changed(_FITS, ("fits[0]", "fits")), "the stage is ["),
        WrongAnswer(changed(_FITS, ("8 + 12 / ranks", "12 / ranks")), "stage 1 needs"),
        WrongAnswer(changed(_FITS, ("4 + 16 / ranks", "16 / ranks")), "stage 2 needs"),
    ),
    why="activations are not in this sum, and no stage shards them. Which key makes them smaller?",
)

EXERCISES = (BATCH, *QUESTIONS, FITS, SCRIPT)
