"""Distributing work: which part of a range belongs to which rank.

10 items over 4 ranks are 3 + 3 + 2 + 2: the parts follow each other, their lengths differ by at most one, and
the longer ones come first, exactly as in `numpy.array_split`. A rank past the end gets an empty part, and
every caller has to handle that.

    0 1 2 | 3 4 5 | 6 7 | 8 9
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise


def even_ranges(total: int, parts: int) -> list[range]:
    """The `parts` consecutive ranges that make up range(total); lengths differ by at most one."""
    if parts < 1 or total < 0:
        raise ValueError(f"cannot cut {total} items into {parts} parts; give at least 0 items and 1 part")
    length, longer = divmod(total, parts)
    starts = [index * length + min(index, longer) for index in range(parts + 1)]
    return [range(start, stop) for start, stop in pairwise(starts)]


def even_range(total: int, parts: int, index: int) -> range:
    """The part of range(total) that belongs to `index`, one of `parts`."""
    if not 0 <= index < parts:
        raise ValueError(f"there is no part {index} of {parts}; count from 0 to {parts - 1}")
    return even_ranges(total, parts)[index]


def fused_ranges(sizes: Sequence[int], limit: int) -> list[range]:
    """Cut range(len(sizes)) into consecutive ranges, as long as can be, of sizes that add up to `limit`.

    What is larger than `limit` gets a range of its own. Tensor fusion, Sergeev & Del Balso (2018).
    """
    starts: list[int] = []
    filled = 0
    for index, size in enumerate(sizes):
        if not starts or filled + size > limit:
            starts.append(index)
            filled = 0
        filled += size
    return [range(start, stop) for start, stop in pairwise([*starts, len(sizes)])]


def balanced_ranges(costs: Sequence[float], parts: int) -> list[range]:
    """Cut range(len(costs)) into `parts` non-empty ranges; the most expensive one is as cheap as possible.

    Costs are of any unit and at least 0. Found by dynamic programming, in len(costs)² · parts operations.
    """
    count = len(costs)
    if not 1 <= parts <= count or min(costs) < 0:
        raise ValueError(
            f"{count} costs, the least {min(costs, default=0)}, cannot make {parts} parts; "
            f"give costs of at least 0, and 1 to {count} parts"
        )
    total = [0.0, *accumulate(costs)]
    highest = total[:]  # of the first n items in as many parts as the rounds so far
    cuts: list[list[int]] = []
    for part in range(1, parts):
        best = [
            min(
                ((max(highest[cut], total[n] - total[cut]), cut) for cut in range(part, n)),
                default=(0.0, 0),
            )
            for n in range(count + 1)
        ]
        highest = [cost for cost, _ in best]
        cuts.append([cut for _, cut in best])
    ends = [count]
    for row in reversed(cuts):
        ends.append(row[ends[-1]])
    return [range(start, stop) for start, stop in pairwise([0, *reversed(ends)])]
