"""Exercises of lesson 07, DDP on MNIST: make a training loop data-parallel, find two bugs of a sampler.

torch is imported where a check needs it, so that exercises without it are checked sooner.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from course.lessons.l07_ddp_on_mnist.quiz import PREDICTIONS as PREDICTIONS
from course.lessons.l07_ddp_on_mnist.quiz import QUESTIONS
from mpi_classroom.exercises import Exercise, Wrong, WrongAnswer, changed, expect, show

if TYPE_CHECKING:
    from torch import Tensor, nn

# -------------------------------------------------------------------- 07.1 a loop for all ranks

SAMPLES, BATCH, EPOCHS = 24, 12, 2  # what the check trains on: every number of ranks from 1 to 4 divides both
WAIT = timedelta(seconds=120)  # that a rank waits for the others: longer than the exercise may take


@dataclass(frozen=True, slots=True)
class Trained:
    """What one rank did while it trained: the samples that it read, how many per step, its weights."""

    losses: int  # how many it returned
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
    expect(alike, "the ranks begin with different weights; what gives all of them those of rank 0?")
    alike = all(one.last == everyone[0].last for one in everyone)
    expect(
        alike,
        "the ranks begin with equal weights and end with different ones: nobody averages the gradients. "
        "Which model computes the loss, the wrapped one or the one inside?",
    )
    expected = _one_process(start, everyone)
    expect(mine.losses == len(mine.sizes), f"returned {mine.losses} losses for {len(mine.sizes)} steps.")
    near = max(abs(one - other) for one, other in zip(mine.last, expected, strict=True)) < 1e-9
    expect(near, "the weights are not those of one process with the same batches; what else did you change?")


def _check_shards(everyone: Sequence[Trained]) -> None:
    """Raise Wrong unless the ranks read every sample once per epoch."""
    for rank, one in enumerate(everyone):
        read = len(one.samples) // EPOCHS
        expect(read > 0, f"rank {rank} read no sample; does it go through the loader?")
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
        losses = answer.train(model, Samples(), BATCH, EPOCHS)
    count = len(losses) if isinstance(losses, list) else 0
    mine = Trained(count, samples, sizes or [0], first, _weights(model))
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
def train(model, images, batch_size, epochs):
    """Train `model` on all ranks, on `batch_size` images per step together; return its losses."""
    replica = DistributedDataParallel(model)
    sampler = DistributedSampler(images, shuffle=True)
    loader = DataLoader(images, batch_size=batch_size // dist.get_world_size(), sampler=sampler)
    optimizer = torch.optim.SGD(replica.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = cross_entropy(replica(inputs), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses
'''

TRAIN = Exercise(
    id="07.1",
    title="A loop for all ranks",
    task="This is the loop of one process, and it runs. Change it in the four places, and all ranks train "
    "one network together (`size` is the number of ranks).",
    objectives=(1, 2),
    targets=("loader-knows-its-rank",),
    stub='''\
def train(model, images, batch_size, epochs):
    """Train `model` on all ranks, on `batch_size` images per step together; return its losses."""
    replica = model  # 1: wrap it
    sampler = None  # 2: this rank's shard of the images
    loader = DataLoader(images, batch_size=batch_size, sampler=sampler)  # 3: how many on each rank?
    optimizer = torch.optim.SGD(replica.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for epoch in range(epochs):
        pass  # 4: a different order in every epoch
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = cross_entropy(replica(inputs), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses
''',
    hints=(
        "Sections 2 and 3 have a line for each place. For the third, dist.get_world_size() is the number of "
        "ranks.",
        "images ─ sampler ─> this rank's shard ─ loader ─> batches of batch_size ÷ ranks ─ replica ─> loss\n"
        "                ^ a different order in every epoch                         averages gradients ┘",
        "replica = Distributed…(model)   sampler = Distributed…(images)   batch_size // …   sampler.set_…(…)",
    ),
    solution=_TRAIN,
    check=_check_train,
    seconds=30.0,
    imports="import torch\nimport torch.distributed as dist\nfrom torch.nn.functional import cross_entropy\n"
    "from torch.nn.parallel import DistributedDataParallel\n"
    "from torch.utils.data import DataLoader, DistributedSampler\nimport course_lib.parallel.ddp",
    sizes=(2, 3, 4, 1),
    wrong=(
        WrongAnswer(
            changed(_TRAIN, ("DistributedDataParallel(model)", "model")), "begin with different weights"
        ),
        WrongAnswer(
            changed(
                _TRAIN,
                ("DistributedSampler(images, shuffle=True)", "None"),
                ("        sampler.set_epoch(epoch)\n", ""),
            ),
            "who gives each rank its shard",
        ),
        WrongAnswer(changed(_TRAIN, (" // dist.get_world_size()", "")), "is that of all ranks together"),
        WrongAnswer(changed(_TRAIN, ("        sampler.set_epoch(epoch)\n", "")), "have the same order"),
        WrongAnswer(
            changed(_TRAIN, ("cross_entropy(replica(inputs)", "cross_entropy(model(inputs)")),
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
    task="A colleague lists the images that each rank trains on, epoch by epoch. The code raises no error "
    "and has two mistakes.",
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
        "Run it and compare: two ranks in one epoch, then one rank in two epochs.",
        "seed 0:  4 1 7 5 3 …   rank 0 takes the 1st image of this order, rank 1 the 2nd\n"
        "seed 1:  5 6 1 2 0 …   in another order, the 2nd image may be one that rank 0 has",
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

EXERCISES = (TRAIN, *QUESTIONS, EPOCHS_OF)
