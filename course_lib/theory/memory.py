"""What a model occupies while it is trained: weights, gradients, optimizer state, buffers and activations.

    weights + gradients + optimizer state = bytes per parameter × number of parameters

With Adam every parameter brings its gradient and two running means of it; in mixed precision also a 32-bit
master copy of itself. Both ways that is 16 bytes, eight times what the 16-bit weights alone would need.
ZeRO distributes these bytes over the ranks, stage by stage; for Ψ parameters on N ranks:

    stage    float32 and Adam    mixed precision    moves
    0        16Ψ                 16Ψ                2Ψ     data parallelism: everything on every rank
    1        8Ψ + 8Ψ/N           4Ψ + 12Ψ/N         2Ψ     the optimizer state is sharded
    2        4Ψ + 12Ψ/N          2Ψ + 14Ψ/N         2Ψ     the gradients, too
    3        16Ψ/N               16Ψ/N              3Ψ     the weights, too

Activations are not sharded: every rank computes with its own part of the batch.

Source: Rajbhandari, Rasley, Ruwase and He, ZeRO: Memory Optimizations Toward Training Trillion Parameter
Models, SC 2020, sections 3.1, 5 and 7 (2Ψ + 2Ψ + 12Ψ bytes), https://arxiv.org/abs/1910.02054
"""

from collections.abc import Sequence
from dataclasses import dataclass

from course_lib.theory.partition import even_range, even_ranges, fused_ranges

GB = 10**9
STAGES = (0, 1, 2, 3)


@dataclass(frozen=True, slots=True)
class StateBytes:
    """Bytes of weights, gradients and optimizer state: of one parameter, or of a whole model."""

    weights: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        """All three together."""
        return self.weights + self.gradients + self.optimizer


ADAM_MIXED = StateBytes(weights=2, gradients=2, optimizer=4 + 4 + 4)  # 32-bit master copy, two moments
ADAM_FP32 = StateBytes(weights=4, gradients=4, optimizer=4 + 4)  # two moments
MOMENTUM_MIXED = StateBytes(weights=2, gradients=2, optimizer=4 + 4)  # master copy, SGD's momentum
MOMENTUM_FP32 = StateBytes(weights=4, gradients=4, optimizer=4)
SGD_MIXED = StateBytes(weights=2, gradients=2, optimizer=4)  # master copy
SGD_FP32 = StateBytes(weights=4, gradients=4, optimizer=0)
SHARDED_FROM = StateBytes(weights=3, gradients=2, optimizer=1)  # the first stage that shards each of them


def training_state(parameters: int, each: StateBytes = ADAM_MIXED) -> StateBytes:
    """The bytes that `parameters` parameters occupy while they are trained, `each` of them so many.

    Activations, communication buffers and fragmentation come on top. Raises ValueError when there is
    less than one parameter.
    """
    if parameters < 1:
        raise ValueError(f"a model has at least 1 parameter, not {parameters}")
    return StateBytes(parameters * each.weights, parameters * each.gradients, parameters * each.optimizer)


# ------------------------------------------------------------------ ZeRO: what a rank holds between two steps


def bytes_a_parameter(stage: int, ranks: int, each: StateBytes = ADAM_MIXED) -> float:
    """The paper's formula: bytes that one of `ranks` ranks holds for each parameter of the model."""
    _check(stage, ranks)
    pairs = (
        (each.weights, SHARDED_FROM.weights),
        (each.gradients, SHARDED_FROM.gradients),
        (each.optimizer, SHARDED_FROM.optimizer),
    )
    return sum(nbytes / ranks if stage >= first else nbytes for nbytes, first in pairs)


def held_state(
    lengths: Sequence[int],
    stage: int,
    ranks: int,
    rank: int,
    each: StateBytes = ADAM_FP32,
    *,
    frozen: Sequence[int] = (),
) -> StateBytes:
    """The bytes that `rank` keeps of parameters in flat buffers; `lengths`: the elements of each buffer.

    Each buffer is cut into one shard per rank, as even as can be: a bucket of stages 1 and 2, a layer's
    weights in stage 3. `frozen` buffers are not trained: they have weights only. A tied weight counts once.
    """
    _check(stage, ranks)
    whole, mine = sum(lengths), shard_length(lengths, ranks, rank)
    still = shard_length(frozen, ranks, rank) if stage >= SHARDED_FROM.weights else sum(frozen)
    return StateBytes(
        each.weights * ((mine if stage >= SHARDED_FROM.weights else whole) + still),
        each.gradients * (mine if stage >= SHARDED_FROM.gradients else whole),
        each.optimizer * (mine if stage >= SHARDED_FROM.optimizer else whole),
    )


def shard_length(lengths: Sequence[int], ranks: int, rank: int) -> int:
    """The elements of this rank's shards of all buffers."""
    return sum(len(even_range(length, ranks, rank)) for length in lengths)


def bucket_lengths(sizes: Sequence[int], bucket_bytes: int, weight_bytes: int = 4) -> list[int]:
    """The lengths of the buckets of stages 1 and 2: parameters of these `sizes`, last first, fused."""
    last_first = list(sizes)[::-1]
    fused = fused_ranges([weight_bytes * size for size in last_first], bucket_bytes)
    return [sum(last_first[part.start : part.stop]) for part in fused]


# ------------------------------------------------------------------ what comes and goes within a step


def gathered_weights(
    layers: Sequence[int], each: StateBytes, *, rest: int = 0, prefetch: bool = False
) -> int:
    """The most bytes of full weights that stage 3 has at a time.

    Of the `layers`, in their order, one is gathered, or with `prefetch` two that follow each other; and the
    `rest` of the parameters, which belong to no layer, all the while.
    """
    at_once = 2 if prefetch else 1
    largest = max((sum(layers[i : i + at_once]) for i in range(len(layers))), default=0)
    return each.weights * (rest + largest)


def step_buffers(
    lengths: Sequence[int],
    stage: int,
    ranks: int,
    each: StateBytes = ADAM_FP32,
    *,
    rest: int = 0,
    prefetch: bool = False,
) -> int:
    """At most so many bytes come and go within a step, besides activations and what is held throughout.

    The shard that a reduce-scatter receives, and sums of 16-bit numbers in 32; in stage 2 a bucket of
    gradients, as backward leaves them and in a flat buffer; in stage 3 a layer's weights and gradients.
    Masters' gradients where there are masters. An estimate from above: not all of them are there at once.
    """
    _check(stage, ranks)
    longest = max([*lengths, rest])
    piece = len(even_ranges(longest, ranks)[0])
    mixed = each.weights < 4
    received = piece * (each.gradients + 4 * mixed)
    slices = sum(len(even_ranges(length, ranks)[0]) for length in [*lengths, rest])
    masters = 4 * mixed * (slices if stage else sum(lengths) + rest)
    if stage < 2:
        return received + masters
    if stage == 2:
        return received + masters + 2 * each.gradients * longest
    whole = gathered_weights(lengths, each, rest=rest, prefetch=prefetch)
    return received + masters + whole + each.gradients * (rest + max(lengths, default=0))


# ------------------------------------------------------------------ what is sent


def volume(stage: int) -> int:
    """How many times the model a rank sends in a step, times (N - 1)/N: 2, 2, 2 and 3."""
    _check(stage, 1)
    return 3 if stage == 3 else 2


def moved_bytes(parameters: int, stage: int, ranks: int, each: StateBytes = ADAM_FP32) -> int:
    """Bytes that all ranks together receive in a step of one backward pass, all parameters trained.

    A reduce-scatter of the gradients, and an all-gather: in stage 0 of the sums, in stages 1 and 2 of the
    new weights, in stage 3 of the weights before forward and once more before backward.
    """
    _check(stage, ranks)
    gathered = {0: each.gradients, 1: each.weights, 2: each.weights, 3: 2 * each.weights}[stage]
    return (ranks - 1) * parameters * (each.gradients + gathered)


# ------------------------------------------------------------------ activations


def transformer_activations(
    *, batch: int, length: int, width: int, heads: int, layers: int, element: int = 4
) -> int:
    """Bytes that the forward pass of `training.transformer` keeps for backward, until its logits.

    A block keeps 16 numbers for each of batch · length · width: what enters two norms (2), query, key and
    value (4, with what they are made from), what attention mixed (1), and the two layers with GeLU between
    (9); and for each token a mean and a deviation of each norm, and a sum of exponentials for each head.
    After Korthikanti and others, Reducing Activation Recomputation in Large Transformer Models, 2022,
    section 4, whose 34 bytes (16-bit, with dropout) are 17 numbers; https://arxiv.org/abs/2205.05198
    """
    tokens = batch * length
    block = 16 * width + 4 + heads
    last = 2 * width + 2  # what enters the last norm, and the last layer
    return tokens * (element * (layers * block + last) + 8)  # token numbers have 8 bytes


def _check(stage: int, ranks: int) -> None:
    if stage not in STAGES or ranks < 1:
        raise ValueError(f"there is no stage {stage} on {ranks} ranks; stages are 0 to 3, ranks at least 1")
