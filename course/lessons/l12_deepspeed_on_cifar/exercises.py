"""Exercises and questions of lesson 12, DeepSpeed on CIFAR; 12.3 is in a file of its own."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from course.lessons.l12_deepspeed_on_cifar.exercise_script import SCRIPT
from mpi_classroom.exercises import Exercise, Option, Prediction, Question, WrongAnswer, changed, expect

# -------------------------------------------------------------------- 12.1 micro-batch and global batch

MICRO, STEPS = "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"


def _check_batch(answer: SimpleNamespace, comm: Any, case: tuple[int, int]) -> None:
    whole, room = case
    ranks = comm.size
    got = answer.batch_keys(whole, ranks, room)
    expect(isinstance(got, Mapping), "returned no dictionary; does the function reach its return?")
    for name in (MICRO, STEPS):
        expect(name in got, f'the key "{name}" is missing.')
    micro, steps = got[MICRO], got[STEPS]
    for name, value in ((MICRO, micro), (STEPS, steps)):
        expect(isinstance(value, int) and value > 0, f'"{name}" is {value!r}; DeepSpeed wants an integer.')
    expect(micro <= room, f"{micro} images at a time do not fit; there is room for {room}.")
    expect(
        micro * steps * ranks == whole,
        f"{micro} images × {steps} micro-batches × {ranks} ranks = {micro * steps * ranks}, not {whole}.",
    )
    share = whole // ranks
    best = max(size for size in range(1, room + 1) if share % size == 0)
    expect(
        micro == best,
        f"{micro} images at a time work, but {best} would fit, in {share // best} micro-batches.",
    )


_BATCH = '''\
def batch_keys(global_batch, ranks, room):
    """The batch keys for updates of `global_batch` images; a rank has room for `room` images at a time."""
    share = global_batch // ranks  # images of one rank
    assert global_batch % ranks == 0, "no equal shares"
    micro = max(size for size in range(1, room + 1) if share % size == 0)
    return {"train_micro_batch_size_per_gpu": micro, "gradient_accumulation_steps": share // micro}
'''

BATCH = Exercise(
    id="12.1",
    title="Micro-batch and global batch",
    task="Repair `micro` and `steps`: equal micro-batches on all ranks make up exactly one global batch. "
    "Make them as large as `room` allows.",
    objectives=(1, 2),
    targets=("micro-batch-is-global-batch",),
    stub='''\
def batch_keys(global_batch, ranks, room):
    """The batch keys for updates of `global_batch` images; a rank has room for `room` images at a time."""
    assert global_batch % ranks == 0, "no equal shares"
    micro = min(room, global_batch)
    steps = global_batch // micro
    return {"train_micro_batch_size_per_gpu": micro, "gradient_accumulation_steps": steps}
''',
    hints=(
        "How many images of an update does one rank get? Which micro-batches make up this share, with "
        "no image left over?",
        "global batch 64, 4 ranks, room for 10\n"
        "share of one rank: 16 = 8 × 2     8 is the largest divisor of 16 that is at most 10",
        "share = global_batch // …\nmicro = max(size for size in range(1, room + 1) if share % … == 0)",
    ),
    solution=_BATCH,
    check=_check_batch,
    cases=((48, 48), (48, 5), (96, 7), (24, 1)),
    describe=lambda case: f"{case[0]} images, room for {case[1]}",
    sizes=(4, 2, 3, 1),
    save="12_train.py",
    wrong=(
        WrongAnswer(changed(_BATCH, ("global_batch // ranks", "global_batch")), "ranks ="),
        WrongAnswer(
            changed(_BATCH, ("max(size for size in range(1, room + 1) if share % size == 0)", "share")),
            "do not fit",
        ),
        WrongAnswer(
            changed(
                _BATCH,
                ("max(size for size in range(1, room + 1) if share % size == 0)", "min(room, share)"),
            ),
            "ranks =",
        ),
        WrongAnswer(changed(_BATCH, ("share // micro", "1")), "micro-batches"),
        WrongAnswer(changed(_BATCH, ("max(size", "min(size")), "images at a time work, but"),
        WrongAnswer(changed(_BATCH, ("share // micro", "share / micro")), "wants an integer"),
    ),
    why="DeepSpeed also divides each micro-batch's loss by the number of micro-batches. Without "
    "clipping, would AdamW notice if it did not?",
)

# -------------------------------------------------------------------- questions

SEVEN_BILLION = Question(
    id="12.q4",
    question="A model of 7 billion parameters trains with DeepSpeed's defaults. Each update uses 16 texts "
    "per GPU. In stage 1, a GPU has room for 4 texts at a time, in stage 3 for all 16. Which of the two "
    "stages sends less per update?",
    options=(
        Option(
            "stage 1: 3 numbers per parameter, against 12 in stage 3",
            reply="With four micro-batches, stage 3 would send 12. But it has room for 16 texts at a "
            "time. How many micro-batches does it need?",
            belief="micro-batch-is-global-batch",
        ),
        Option(
            "stage 3: 2 numbers per parameter, one for the gradients and one for the weights",
            reply="That is a quarter of what our network sent with four micro-batches. Its 4.7 million "
            "weights stayed gathered from forward to backward. A layer's weights stay if fewer than a "
            "billion others are used in between (`stage3_max_reuse_distance`). Of 7 billion, how many stay, "
            "and what happens to the others?",
            belief="stage-3-is-free",
        ),
        Option(
            "stage 3: it sends once, and stage 1 after each of its four micro-batches",
            reply="Then stage 1 would send 4 · 2 + 1 = 9, as stage 2 does. But in stage 1, each rank keeps "
            "all gradients and adds them up. When does it first have to send any?",
            belief="higher-stage-is-faster",
        ),
        Option(
            "neither: both send about 3 numbers per parameter",
            reply="Stage 1 all-reduces gradients once per update (2) and gathers the new weights (1), "
            "however many micro-batches there are. Stage 3 sends almost 3 per micro-batch: of 7 billion "
            "weights, it frees most after forward, and gathers them again for backward. Here it has one "
            "micro-batch.",
            right=True,
        ),
    ),
    objectives=(3,),
)

AN_UPDATE = Question(
    id="12.q5",
    question="A file sets micro-batches of 8 images and 4 accumulation steps. It was tuned on 4 ranks. A "
    "colleague uses it on 16. What has changed?",
    options=(
        Option(
            "only the time: an update is computed from the same images",
            reply="Then each rank would compute a quarter as many images as before. But the file still gives "
            "each rank 8 × 4 per update, and there are four times as many ranks.",
            belief="micro-batch-is-global-batch",
        ),
        Option(
            "the training: an update is computed from four times as many images",
            reply="An update has 8 × 4 × 16 = 512 images instead of 128, and the learning rate was tuned "
            "for 128. Set `train_batch_size` as well: then DeepSpeed stops when the keys do not agree.",
            right=True,
        ),
        Option(
            "the memory: a rank computes four times as many images at a time",
            reply="That would need larger micro-batches. The file sets them to 8 images, on any number of "
            "ranks.",
            belief="micro-batch-is-global-batch",
        ),
    ),
    objectives=(2,),
)

WHO_SAVES = Question(
    id="12.q3",
    question="Four ranks save a checkpoint in stage 2. Somebody copies only the files that rank 0 wrote. "
    "What is missing in the copy?",
    options=(
        Option(
            "nothing, because rank 0 writes it all",
            reply="Then the folder would hold two files. It also holds one from each of ranks 1 to 3: "
            "each rank has only its own shard of the optimizer state.",
            belief="only-rank-0-saves",
        ),
        Option(
            "three quarters of the network's weights",
            reply="That would be so in stage 3, which shards the weights. In stage 2 every rank holds all "
            "of them, and rank 0 has written them. Which model states does stage 2 shard?",
            belief="every-stage-an-nth",
        ),
        Option(
            "three quarters of the optimizer state",
            reply="The weights that forward uses are complete, so the model can be used. But Adam's "
            "averages and the 32-bit copies of ranks 1 to 3 are missing. So nobody can resume "
            "the training as it was.",
            right=True,
        ),
    ),
    objectives=(4,),
)

EXERCISES = (BATCH, SEVEN_BILLION, AN_UPDATE, WHO_SAVES, SCRIPT)

PREDICTIONS = (
    Prediction(
        id="12.p4",
        question="How many numbers per parameter does stage 2 send?",
        objectives=(3,),
        targets=("higher-stage-is-faster",),
    ),
)
