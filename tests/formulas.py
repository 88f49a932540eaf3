"""Closed formulas that tests hold the library to: memory of ZeRO, length of schedules.

Rajbhandari and others, ZeRO (2020), sections 3 to 7; Narayanan and others, Megatron-LM (2021).
"""

from collections.abc import Sequence
from itertools import accumulate

from course.lessons.l16_choose_your_strategy.planner.quantity import Quantity
from course_lib.theory.memory import ADAM_FP32, SHARDED_FROM, STAGES, StateBytes
from course_lib.theory.partition import even_range, even_ranges, fused_ranges

# ---------------------------------------------------------------- memory


def held_state(
    lengths: Sequence[int],
    stage: int,
    ranks: int,
    rank: int,
    each: StateBytes = ADAM_FP32,
    *,
    frozen: int = 0,
) -> StateBytes:
    """The bytes that `rank` keeps of parameters in flat buffers; `lengths`: the elements of each buffer.

    Each buffer is cut into one shard per rank, as even as can be: a bucket of stages 1 and 2, a layer's
    weights in stage 3. Of `frozen` parameters, every rank has all weights, and nothing else. A tied
    weight counts once.
    """
    _check(stage, ranks)
    whole, mine = sum(lengths), shard_length(lengths, ranks, rank)
    return StateBytes(
        each.weights * ((mine if stage >= SHARDED_FROM.weights else whole) + frozen),
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


def moved_bytes(parameters: int, stage: int, ranks: int, each: StateBytes = ADAM_FP32) -> int:
    """Bytes that all ranks together receive in a step of one backward pass, all parameters trained.

    A reduce-scatter of the gradients, and an all-gather: in stage 0 of the sums, in stages 1 and 2 of the
    new weights, in stage 3 of the weights before forward and once more before backward.
    """
    _check(stage, ranks)
    gathered = {0: each.gradients, 1: each.weights, 2: each.weights, 3: 2 * each.weights}[stage]
    return (ranks - 1) * parameters * (each.gradients + gathered)


def _check(stage: int, ranks: int) -> None:
    if stage not in STAGES or ranks < 1:
        raise ValueError(f"there is no stage {stage} on {ranks} ranks; stages are 0 to 3, ranks at least 1")


def touched(sizes: Sequence[int], ranks: int) -> int:
    """How many gradients a rank keeps at most in stage 2: those of all parameters that its slice touches.

    `sizes` are those of the parameters, in their order. One that lies in two slices is kept whole by both.
    """
    share = -(-sum(sizes) // ranks)
    ends = list(accumulate(sizes))
    places = [(end - size, end) for size, end in zip(sizes, ends, strict=True)]
    return max(
        sum(end - start for start, end in places if start < (rank + 1) * share and end > rank * share)
        for rank in range(ranks)
    )


# ---------------------------------------------------------------- schedules


def bubble_fraction(stages: int, microbatches: int, *, chunks: int = 1) -> float:
    """The idle share of GPipe and 1F1B, (p-1)/(m+p-1); interleaved with v chunks, (p-1)/(v·m+p-1).

    It assumes stages that take equally long, and messages that take no time.
    """
    return (stages - 1) / (chunks * microbatches + stages - 1)


def leaves(quantity: Quantity) -> list[Quantity]:
    """All quantities without parts that `quantity` is made of: given, measured or cited, each once."""
    found: dict[Quantity, None] = {}
    seen: set[Quantity] = set()
    waiting = [quantity]
    while waiting:
        one = waiting.pop()
        if one not in seen:
            seen.add(one)
            waiting += [part for _, part in one.parts]
            if not one.parts:
                found[one] = None
    return list(found)
