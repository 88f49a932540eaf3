"""Seconds of the operations that models of the course are made of, by their work, forward and backward.

    table = operation_seconds()
    table["linear"]      {"work": […], "numbers": […], "forward_seconds": […], "backward_seconds": […]}

The work of a product is in flop; it also reads and writes numbers: its inputs, weights and outputs. The work
of all else is in numbers. All is timed as in training: gradients are added to those that are there, and until
an operation uses the same memory again, others have used more than the caches of a core hold. The planner
(`planner/machine.py` of lesson 16) fits lines to these.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import torch
from torch.nn import functional as F
from torch.optim import AdamW

from course_lib.training.transformer import Block

ROWS, WIDTHS = (8, 32, 128, 512, 2048), (32, 128, 512, 1024)
MOST_FLOP = 3e9  # of one product
HEADS = ((16, 32), (16, 128), (32, 64), (32, 256), (64, 128), (64, 256))  # head width and sequence length
NUMBERS = tuple(2**power for power in (8, 11, 13, 15, 17, 19, 21, 22))
CLASSES = 128
BETWEEN_NBYTES, MOST_COPIES = 2**24, 64  # of an operation's tensors, before it uses the same again
ENOUGH_SECONDS, FEWEST, MOST = 0.01, 3, 100  # how long, and how often, an operation is repeated

Inputs = tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """An operation of some work; `numbers` is what a product reads and writes, else 0."""

    kind: str
    work: float
    numbers: float
    inputs: Inputs
    run: Callable[..., torch.Tensor]


def operation_seconds(together: Callable[[], object] = lambda: None) -> dict[str, dict[str, list[float]]]:
    """Seconds of each kind of operation; `together` is called before each operation is timed.

    With a barrier as `together`, several ranks time the same operation at the same time.
    """
    tables: dict[str, dict[str, list[float]]] = {}

    def note(kind: str, work: float, numbers: float, forward: float, backward: float) -> None:
        row = {"work": work, "numbers": numbers, "forward_seconds": forward, "backward_seconds": backward}
        table = tables.setdefault(kind, {name: [] for name in row})
        for name, value in row.items():
            table[name].append(value)

    for case in cases():
        together()
        note(case.kind, case.work, case.numbers, *seconds_of(case))
    others = {"update": update_seconds, "update in files": update_in_files_seconds, "fresh": fresh_seconds}
    for kind, seconds in others.items():
        for n in NUMBERS:
            together()
            both = seconds(n)
            note(kind, n, 0, both, both)
    return tables


def cases() -> Iterator[Case]:
    """All operations, small tensors of random numbers included."""
    yield from products()
    block = Block(HEADS[0][0], 4)  # so small that its calls take all of its time
    yield Case("block", 1, 0, (random(1, 4, HEADS[0][0]),), block)
    for width, length in HEADS:
        for batch in (2, 8):
            q, k, v = (random(batch, 4, length, width) for _ in range(3))
            yield Case("attention", 4 * q.numel() * length, 4 * q.numel(), (q, k, v), attention)
    for n in NUMBERS:
        yield Case("gelu", n, 0, (random(n),), F.gelu)
        yield Case("add", n, 0, (random(n), random(n)), torch.add)
        rows, width = max(1, n // CLASSES), min(n, CLASSES)
        scale = random(width), random(width)
        yield Case(
            "norm", n, 0, (random(rows, width), *scale), lambda x, w, b: F.layer_norm(x, w.shape, w, b)
        )
        t = torch.randint(width, (rows,))
        yield Case(
            "loss", n, 0, (random(rows, width),), lambda x, t=t: F.cross_entropy(x, t, reduction="sum")
        )
        yield Case("embedding", n, 0, (random(CLASSES, width),), lambda table, t=t: F.embedding(t, table))


def products() -> Iterator[Case]:
    """Linear layers: few rows and many, narrow and wide, to four times the width and back."""
    for rows in ROWS:
        for width in WIDTHS:
            for inputs, outputs in ((width, width), (width, 4 * width), (4 * width, width)):
                flop = 2 * rows * inputs * outputs
                if flop <= MOST_FLOP:
                    numbers = rows * inputs + inputs * outputs + rows * outputs
                    tensors = random(rows, inputs), random(outputs, inputs), random(outputs)
                    yield Case("linear", flop, numbers, tensors, F.linear)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention, as `training/transformer.py` calls it."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def random(*size: int) -> torch.Tensor:
    """Random numbers that need a gradient."""
    return torch.randn(*size).requires_grad_()


def seconds_of(case: Case) -> tuple[float, float]:
    """Seconds of the forward and of the backward pass, on another copy of the case each time."""
    nbytes = sum(tensor.nbytes for tensor in case.inputs)
    copies = max(1, min(MOST_COPIES, -(-BETWEEN_NBYTES // nbytes)))
    inputs = [
        tuple(tensor.detach().clone().requires_grad_() for tensor in case.inputs) for _ in range(copies)
    ]
    outputs = [case.run(*each) for each in inputs]
    gradients = [torch.ones_like(outputs[0]) for _ in range(min(copies, 4))]
    turns = cycle(range(copies))

    def forward() -> None:
        turn = next(turns)
        outputs[turn] = case.run(*inputs[turn])

    def backward() -> None:
        turn = next(turns)
        outputs[turn].backward(gradients[turn % len(gradients)], retain_graph=True)

    for turn in range(copies):  # so that there are gradients to add to
        outputs[turn].backward(gradients[0], retain_graph=True)
    return median_seconds(forward), median_seconds(backward)


def update_seconds(numbers: int) -> float:
    """Seconds of AdamW's step on a tensor of so many numbers, and of clearing its gradients."""
    copies = max(1, min(MOST_COPIES, BETWEEN_NBYTES // (16 * numbers)))
    optimizers = []
    for _ in range(copies):
        weights = random(numbers)
        weights.grad = torch.ones(numbers)
        optimizers.append(AdamW([weights]))
    turns = cycle(optimizers)

    def step() -> None:
        optimizer = next(turns)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    for _ in optimizers:  # makes Adam's state
        step()
    return median_seconds(step)


def update_in_files_seconds(numbers: int) -> float:
    """The same with the two moments in memory-mapped files."""
    weights = random(numbers)
    weights.grad = torch.ones(numbers)
    optimizer = AdamW([weights])
    with tempfile.TemporaryDirectory() as folder:
        state = optimizer.state[weights]
        state["step"] = torch.tensor(0.0)
        for name in ("exp_avg", "exp_avg_sq"):
            state[name] = torch.from_file(str(Path(folder) / name), shared=True, size=numbers).zero_()
        return median_seconds(optimizer.step)


def fresh_seconds(numbers: int) -> float:
    """Seconds of a new tensor of zeros to which others are copied: its memory is fresh, and written twice."""
    source = torch.ones(numbers)
    return median_seconds(lambda: torch.zeros(numbers).copy_(source))


def median_seconds(work: Callable[[], object]) -> float:
    """Seconds of one `work()`, the median of a few."""
    work()
    seconds: list[float] = []
    while len(seconds) < FEWEST or (sum(seconds) < ENOUGH_SECONDS and len(seconds) < MOST):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)
