"""Exercises, questions and predictions of lesson 07: a data-parallel training loop, two bugs of a sampler.

Each wrong option is a common belief. torch is imported where a check needs it, so that exercises without it
are checked sooner.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from mpi_classroom.exercises import (
    Exercise,
    Option,
    Prediction,
    Question,
    Wrong,
    WrongAnswer,
    changed,
    expect,
    show,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

# -------------------------------------------------------------------- 07.1 a loop for all ranks

SAMPLES, BATCH, EPOCHS = 24, 12, 2  # what the check trains on: every number of ranks from 1 to 4 divides both
WAIT = timedelta(seconds=120)  # that a rank waits for the others: longer than the exercise may take


@dataclass(frozen=True, slots=True)
class Trained:
    """What one rank did while it trained: the samples that it read, how many per step, its weights."""

    samples: list[int]
    sizes: list[int]
    first: list[float]  # at its first forward pass
    last: list[float]

    @property
    def epochs(self) -> list[list[int]]:
        half = len(self.samples) // EPOCHS
        return [self.samples[:half], self.samples[half:]]


def _check_train(answer: SimpleNamespace, comm: Any, case: Any) -> None:
    size, start = comm.size, _weights(_model(0))
    everyone = _train_on_all(answer, comm)
    mine = everyone[comm.rank]
    _check_shards(everyone)
    expect(
        mine.sizes[0] * size == BATCH,
        f"each rank trained on {mine.sizes[0]} samples per step, so all {size} together on "
        f"{mine.sizes[0] * size}; `batch_size` is that of all ranks together: {BATCH}.",
    )
    orders = mine.epochs
    expect(orders[0] != orders[1], f"epochs 0 and 1 have the same order: {show(orders[0])}.")
    alike = all(one.first == everyone[0].first for one in everyone)
    expect(alike, "the ranks begin with different weights; what gives all of them rank 0's weights?")
    alike = all(one.last == everyone[0].last for one in everyone)
    expect(
        alike,
        "the ranks begin with equal weights and end with different ones: nobody averages the gradients. "
        "Which model computes the loss, the wrapped one or the one inside?",
    )
    expected = _one_process(start, everyone)
    near = max(abs(one - other) for one, other in zip(mine.last, expected, strict=True)) < 1e-9
    expect(
        near,
        "the weights are not those of one process with the same batches; what else did you change? "
        "(The global batch is the same on any number of ranks, so the learning rate is, too.)",
    )


def _check_shards(everyone: Sequence[Trained]) -> None:
    """Raise Wrong unless the ranks read every sample once per epoch."""
    for rank, one in enumerate(everyone):
        read = len(one.samples) // EPOCHS
        expect(read > 0, f"rank {rank} read no sample; does your loop read the loader?")
        expect(
            read < SAMPLES or len(everyone) == 1,
            f"rank {rank} read all {SAMPLES} samples in each epoch, and so did the others: "
            "who gives each rank its shard?",
        )
    for epoch in range(EPOCHS):
        read_by_all = sorted(sample for one in everyone for sample in one.epochs[epoch])
        if read_by_all != list(range(SAMPLES)):
            missing = sorted(set(range(SAMPLES)) - set(read_by_all))
            raise Wrong(
                f"in epoch {epoch} the ranks read {len(read_by_all)} samples, and nobody read "
                f"{show(missing)}; do all ranks share one order?"
            )


def _train_on_all(answer: SimpleNamespace, comm: Any) -> list[Trained]:
    """Run the answer on every rank of `comm`, which exchange what they did."""
    from mpi4py import MPI
    from torch.utils.data import Dataset

    from course_lib.parallel.ddp import process_group

    inputs, labels = _data()
    samples: list[int] = []

    class Samples(Dataset[Any]):
        def __len__(self) -> int:
            return SAMPLES

        def __getitem__(self, index: int) -> Any:
            samples.append(int(index))
            return inputs[index], labels[index]

    model, sizes, first = _model(comm.rank), list[int](), list[float]()

    def note(module: Any, arguments: Any) -> None:
        sizes.append(len(arguments[0]))
        first.extend(_weights(model) if not first else [])

    model.register_forward_pre_hook(note)
    answer.train.__globals__.update(rank=comm.rank, size=comm.size)  # as in the lesson
    with process_group(comm, "mpi4py", timeout=WAIT):
        try:
            answer.train(model, Samples(), BATCH, EPOCHS)
        except ValueError as error:
            expect(
                "mutually exclusive with shuffle" not in str(error),
                "a DataLoader takes `sampler=` or `shuffle=True`, not both: the sampler shuffles already.",
            )
            raise
    mine = Trained(samples, sizes or [0], first, _weights(model))
    return MPI.Intracomm(comm).allgather(mine)  # a communicator that the job does not watch


def _data() -> "tuple[Tensor, Tensor]":
    import torch

    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(SAMPLES, 4, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(3, (SAMPLES,), generator=generator)


def _model(seed: int) -> "nn.Module":
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return torch.nn.Linear(4, 3, dtype=torch.float64)


def _weights(model: "nn.Module") -> list[float]:
    return [number for parameter in model.parameters() for number in parameter.detach().flatten().tolist()]


def _one_process(start: list[float], everyone: Sequence[Trained]) -> list[float]:
    """The weights of one process that trains on the ranks' batches, put together."""
    import torch

    (inputs, labels), model = _data(), _model(0)
    assert _weights(model) == start
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    part = BATCH // len(everyone)
    for begin in range(0, len(everyone[0].samples), part):
        batch = [sample for one in everyone for sample in one.samples[begin : begin + part]]
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs[batch]), labels[batch]).backward()
        optimizer.step()
    return _weights(model)


_TRAIN = '''\
def train(model, dataset, batch_size, epochs, lr=0.05):
    """Train `model` on all ranks, on `batch_size` images per step together."""
    replica = DistributedDataParallel(model)
    sampler = DistributedSampler(dataset, shuffle=True)
    loader = DataLoader(dataset, batch_size=batch_size // size, sampler=sampler)
    optimizer = torch.optim.SGD(replica.parameters(), lr=lr, momentum=0.9)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            F.cross_entropy(replica(inputs), targets).backward()
            optimizer.step()
'''

TRAIN = Exercise(
    id="07.1",
    title="A loop for all ranks",
    task="Change the four numbered places so that this loop trains one network on all ranks.",
    objectives=(1, 2),
    targets=("loader-knows-its-rank", "ddp-splits-the-batch"),
    stub='''\
def train(model, dataset, batch_size, epochs, lr=0.05):
    """Train `model` on all ranks, on `batch_size` images per step together."""
    replica = model  # 1: wrap it
    sampler = None  # 2: this rank's shard of the images
    loader = DataLoader(dataset, batch_size=batch_size, sampler=sampler)  # 3: how many on each rank?
    optimizer = torch.optim.SGD(replica.parameters(), lr=lr, momentum=0.9)
    for epoch in range(epochs):
        pass  # 4: a different order in every epoch
        for inputs, targets in loader:
            optimizer.zero_grad()
            F.cross_entropy(replica(inputs), targets).backward()
            optimizer.step()
''',
    hints=(
        "Sections 2 and 3 show a line for places 1, 2 and 4. For place 3, `size` is the number of ranks.",
        "dataset ─ sampler ─> this rank's shard ─ loader ─> batches of batch_size ÷ ranks ─ replica ─> loss\n"
        "                 ^ a different order in every epoch                         averages gradients ┘",
        "replica = Distributed…(model)  sampler = Distributed…(dataset)   batch_size // …   sampler.set_…(…)",
    ),
    solution=_TRAIN,
    check=_check_train,
    seconds=30.0,
    imports="import torch\nimport torch._dynamo  # else an optimizer's first step imports it, for seconds\n"
    "import torch.distributed as dist\nfrom torch.nn import functional as F\n"
    "from torch.nn.parallel import DistributedDataParallel\n"
    "from torch.utils.data import DataLoader, DistributedSampler\nimport course_lib.parallel.ddp",
    sizes=(2, 3, 4, 1),
    save="07_ddp.py",
    wrong=(
        WrongAnswer(
            changed(_TRAIN, ("DistributedDataParallel(model)", "model")), "begin with different weights"
        ),
        WrongAnswer(
            changed(
                _TRAIN,
                ("DistributedSampler(dataset, shuffle=True)", "None"),
                ("        sampler.set_epoch(epoch)\n", ""),
            ),
            "who gives each rank its shard",
        ),
        WrongAnswer(changed(_TRAIN, (" // size", "")), "is that of all ranks together"),
        WrongAnswer(changed(_TRAIN, ("sampler=sampler", "shuffle=True, sampler=sampler")), "not both"),
        WrongAnswer(changed(_TRAIN, ("        sampler.set_epoch(epoch)\n", "")), "have the same order"),
        WrongAnswer(
            changed(_TRAIN, ("F.cross_entropy(replica(inputs)", "F.cross_entropy(model(inputs)")),
            "nobody averages the gradients",
        ),
        WrongAnswer(changed(_TRAIN, ("lr=0.05", "lr=0.1")), "what else did you change"),
    ),
    why="the ranks never compare their weights during training. Why do they stay equal?",
)

# -------------------------------------------------------------------- 07.2 every epoch another order


def _check_epochs(answer: SimpleNamespace, comm: Any, samples: int) -> None:
    everyone = [
        answer.epochs_of(SimpleNamespace(rank=rank, size=comm.size), samples, 3) for rank in range(comm.size)
    ]
    mine = everyone[comm.rank]
    expect(isinstance(mine, Sequence) and len(mine) == 3, "returned no list of three epochs.")
    for epoch in range(3):
        read = sorted(int(index) for seen in everyone for index in seen[epoch])
        if read == list(range(samples)):
            continue
        missing = sorted(set(range(samples)) - set(read))
        twice = sorted({index for index in read if read.count(index) > 1})
        expect(
            not (missing and twice),
            f"in epoch {epoch} no rank has image {min(missing, default=0)}, and several ranks have image "
            f"{min(twice, default=0)}: do all ranks share one order?",
        )
        raise Wrong(f"in epoch {epoch} the ranks have {len(read)} of {samples} images.")
    orders = [[int(index) for index in seen] for seen in mine]
    expect(sorted(orders[0]) != orders[0] or sorted(orders[1]) != orders[1], "nothing is shuffled.")
    expect(orders[0] != orders[1], f"epochs 0 and 1 have the same order: {show(orders[0])}.")
    expect(orders[1] != orders[2], f"epochs 1 and 2 have the same order: {show(orders[1])}.")


_EPOCHS = '''\
def epochs_of(comm, samples, epochs):
    """The images that this rank trains on: a list per epoch."""
    sampler = DistributedSampler(range(samples), comm.size, comm.rank, shuffle=True, seed=0)
    seen = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        seen.append(list(sampler))
    return seen
'''

EPOCHS_OF = Exercise(
    id="07.2",
    title="Spot the bugs: what each rank sees",
    task="A colleague wants to see which images each rank trains on, epoch by epoch. The code raises no "
    "error, but it has two mistakes. Repair both.",
    objectives=(2,),
    targets=("set-epoch-is-optional", "own-seed-own-share", "mistakes-raise-errors"),
    stub='''\
def epochs_of(comm, samples, epochs):
    """The images that this rank trains on: a list per epoch."""
    sampler = DistributedSampler(range(samples), comm.size, comm.rank, shuffle=True, seed=comm.rank)
    seen = []
    for _ in range(epochs):
        seen.append(list(sampler))
    return seen
''',
    hints=(
        "Compare `epochs_of(comm, 8, 2)` on two ranks, then one rank's two epochs.",
        "seed 0:  4 0 7 3 2 …   rank 0 takes the 1st image of this order, rank 1 the 2nd\n"
        "seed 1:  5 4 2 6 7 …   the 2nd image of this order is one that rank 0 has",
        "one seed for all ranks, and in the loop: sampler.set_…(…)",
    ),
    solution=_EPOCHS,
    check=_check_epochs,
    cases=(24,),
    sizes=(2, 3, 4, 1),
    imports="import torch\nfrom torch.utils.data import DistributedSampler",
    wrong=(
        WrongAnswer(changed(_EPOCHS, ("seed=0", "seed=comm.rank")), "do all ranks share one order"),
        WrongAnswer(changed(_EPOCHS, ("        sampler.set_epoch(epoch)\n", "")), "have the same order"),
        WrongAnswer(changed(_EPOCHS, ("shuffle=True", "shuffle=False")), "nothing is shuffled"),
        WrongAnswer(changed(_EPOCHS, ("comm.size, comm.rank", "1, 0")), "in epoch 0 the ranks have"),
    ),
    why="all ranks agree on the order without a message. What would go wrong if each drew its own?",
)

# -------------------------------------------------------------------- questions

FASTER_NETWORK = Question(
    id="07.q2",
    question="On two ranks, a step takes 30 ms, and computing and communication do not overlap. Rank 0 "
    "spends 12 ms of the step in the all-reduce, rank 1 only 2 ms. You buy a network that transfers the "
    "gradients in half the time. How long is a step then?",
    options=(
        Option(
            "24 ms, because 12 ms become 6",
            reply="That would mean rank 0 transfers for 12 ms. The transfer takes only 2 ms, as rank 1 "
            "shows. For the other 10 ms, rank 0 waits for rank 1, and no network shortens this wait.",
            belief="waiting-is-transfer",
        ),
        Option(
            "29 ms, because 2 ms become 1",
            reply="Rank 1 arrives last, so its 2 ms are pure transfer, and they become 1 ms. Rank 0 still "
            "waits 10 ms for rank 1 to finish computing. The money is better spent on finding why rank 1 "
            "is late.",
            right=True,
        ),
        Option(
            "15 ms, because 30 ms become 15",
            reply="That would mean a step is all communication. Rank 1 computes for 28 of its 30 ms, and a "
            "faster network does not shorten those.",
            belief="step-is-communication",
        ),
    ),
    objectives=(5,),
)

WHICH_CONTROL = Question(
    id="07.q6",
    question="Suppose that a network with batch norm gets 76.9 % right after training on one GPU with "
    "batches of 256. On 64 GPUs with 4 images each, at the same learning rate, it gets only 74.1 %. Which "
    "run most likely reaches 76.9 % again?",
    options=(
        Option(
            "64 GPUs that average in float64",
            reply="Averaging in float64 changes only the last digits of a float32 gradient. Batch norm would "
            "still use means over 4 images.",
            belief="communication-costs-accuracy",
        ),
        Option(
            "64 GPUs at 64 times the rate",
            reply="The rate should follow the global batch, which is 256 both times. Besides, "
            "batch norm would still use means over 4 images instead of 256.",
            belief="ranks-want-a-larger-rate",
        ),
        Option(
            "64 GPUs with SyncBatchNorm",
            reply="The global batch is 256 both times, so it is not the cause. But batch norm saw 256 "
            "images on one GPU, and sees only 4 on each of 64 GPUs. With SyncBatchNorm, it sees all 256 "
            "again, and communicates in every such layer. On GPUs (it refuses CPUs), convert the model "
            "before DDP wraps it: `nn.SyncBatchNorm.convert_sync_batchnorm(model)`.",
            right=True,
        ),
    ),
    objectives=(3,),
)

OTHER_MACHINE = Question(
    id="07.q5",
    question="One process trains the CNN for one epoch in 22 s on our machine, and took 65 s in the study. "
    "Ours has only two cores. So we only calculated an epoch of our own MPI loop on eight ranks, from single "
    "operations that we timed: 5 s. The study measured 19 s, probably for its "
    "CNN. What follows?",
    options=(
        Option(
            "our program is almost four times as fast",
            reply="One process is already 65 / 22 = 3 times as fast here as there. So most of the "
            "difference is there before any rank is added.",
            belief="seconds-travel",
        ),
        Option(
            "nothing about which program is faster",
            reply="Here, seconds compare machines: even one process differs. Speed-ups (ours, calculated: "
            "22 / 5 = 4.4; theirs, probably: 65 / 19 = 3.4) depend on the machine, too. Our "
            "calculation leaves out, for example, that eight busy cores share one memory.",
            right=True,
        ),
        Option(
            "they measured wrong, as 5 s were possible",
            reply="Nobody measured 5 s, and the calculation is for our machine. It refutes no measurement "
            "on theirs.",
            belief="replays-are-measured",
        ),
    ),
    objectives=(4,),
)

EXERCISES = (TRAIN, WHICH_CONTROL, EPOCHS_OF, OTHER_MACHINE, FASTER_NETWORK)

PREDICTIONS = (
    Prediction(
        id="07.p1",
        question="Gradient on rank 2 after backward?",
        objectives=(2,),
        targets=("ddp-sums",),
    ),
)
