"""Seconds of the operations that models of the course are made of, by kind and size, forward and backward.

    table = operation_seconds()
    table["linear"]      [{"narrow": 64, "work": […], "forward_seconds": […], "backward_seconds": […]}, …]

A product is timed for several narrowest sides: a number that is loaded is used as often as that side is long,
so its rate depends on it. All is timed as in training: gradients are added to those that are there, and until
an operation uses the same memory again, others have used more than the caches of a core hold.
The planner (`course_lib/theory/planner/machine.py`) fits lines to these.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F
from torch.optim import AdamW

SIDES = (16, 32, 64, 128, 256, 512, 1024)
MIDDLE, WIDE = 512, 1024  # the other sides of a product
HEADS = ((16, 32), (16, 128), (32, 64), (32, 256), (64, 128), (64, 256))  # head width and sequence length
MAPS = ((1, 32), (3, 16), (3, 32), (8, 8), (16, 16), (32, 32), (64, 64))  # in and out of convolutions
NUMBERS = tuple(2**power for power in (8, 11, 13, 15, 17, 19, 21, 22))
CLASSES = 128
BETWEEN_NBYTES, MOST_COPIES = 2**24, 64  # of an operation's tensors, before it uses the same again
ENOUGH_SECONDS, FEWEST, MOST = 0.02, 3, 100  # how long, and how often, an operation is repeated

Inputs = tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """An operation of some work; `narrow` is the narrowest side of a product, else 0."""

    kind: str
    narrow: int
    work: float
    inputs: Inputs
    run: Callable[..., torch.Tensor]


def operation_seconds(together: Callable[[], object] = lambda: None) -> dict[str, list[dict[str, Any]]]:
    """Seconds of each kind, one table per narrowest side; `together` is called before each is timed.

    With a barrier as `together`, several ranks time the same operation at the same time.
    """
    tables: dict[tuple[str, int], dict[str, Any]] = {}
    for case in cases():
        together()
        forward, backward = seconds_of(case)
        empty = {"narrow": case.narrow, "work": [], "forward_seconds": [], "backward_seconds": []}
        table = tables.setdefault((case.kind, case.narrow), empty)
        table["work"].append(case.work)
        table["forward_seconds"].append(forward)
        table["backward_seconds"].append(backward)
    others = {"update": update_seconds, "update in files": update_in_files_seconds, "fresh": fresh_seconds}
    for kind, seconds in others.items():
        together()
        times = [seconds(n) for n in NUMBERS]
        tables[kind, 0] = {
            "narrow": 0,
            "work": list(NUMBERS),
            "forward_seconds": times,
            "backward_seconds": times,
        }
    found: dict[str, list[dict[str, Any]]] = {}
    for (kind, _), table in tables.items():
        found.setdefault(kind, []).append(table)
    return found


def cases() -> Iterator[Case]:
    """All operations, small tensors of random numbers included."""
    yield from products()
    for width, length in HEADS:
        for batch in (2, 8):
            q, k, v = (random(batch, 4, length, width) for _ in range(3))
            work = 4 * batch * length**2 * 4 * width
            yield Case("attention", width, work, (q, k, v), attention)
    for maps_in, maps_out in MAPS:
        for images, side in ((1, 16), (4, 32), (16, 32)):
            work = 2 * images * side**2 * maps_in * maps_out * 9
            inputs = random(images, maps_in, side, side), random(maps_out, maps_in, 3, 3), random(maps_out)
            yield Case("convolution", maps_in, work, inputs, lambda x, w, b: F.conv2d(x, w, b, padding=1))
    for n in NUMBERS:
        yield Case("gelu", 0, n, (random(n),), F.gelu)
        yield Case("relu", 0, n, (random(n),), F.relu)
        yield Case("add", 0, n, (random(n), random(n)), torch.add)
        rows, width = max(1, n // CLASSES), min(n, CLASSES)
        scale = random(width), random(width)
        yield Case(
            "norm", 0, n, (random(rows, width), *scale), lambda x, w, b: F.layer_norm(x, w.shape, w, b)
        )
        targets = torch.randint(width, (rows,))
        yield Case(
            "loss", 0, n, (random(rows, width),), lambda x, t=targets: F.cross_entropy(x, t, reduction="sum")
        )
        yield Case(
            "embedding", 0, n, (random(CLASSES, width),), lambda table, t=targets: F.embedding(t, table)
        )


def products() -> Iterator[Case]:
    """Matrix products, with several shapes for each narrowest side."""
    for n in SIDES:
        shapes = {(n, n, n), (WIDE, n, max(n, MIDDLE))}
        if n < MIDDLE:
            shapes |= {(4 * n, n, n), (n, MIDDLE, MIDDLE)}
        if n == WIDE:
            shapes |= {(2 * n, n, n)}
        for rows, inputs, outputs in sorted(shape for shape in shapes if min(shape) == n):
            tensors = random(rows, inputs), random(outputs, inputs), random(outputs)
            yield Case("linear", n, 2 * rows * inputs * outputs, tensors, F.linear)


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
    """Seconds of AdamW's step on a tensor of so many numbers."""
    weights = random(numbers)
    weights.grad = torch.ones(numbers)
    return median_seconds(AdamW([weights]).step)


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
