"""Names and ranks as a sentence lists them."""

from collections.abc import Iterable


def listed(words: Iterable[object]) -> str:
    """Words as a sentence lists them: a, b and c."""
    *most, last = [str(word) for word in words] or [""]
    return f"{', '.join(most)} and {last}" if most else last


def listed_ranks(ranks: Iterable[int]) -> str:
    """`rank 2`, or `ranks 0, 1 and 3`."""
    numbers = list(ranks)
    return f"rank{'s' * (len(numbers) > 1)} {listed(numbers)}"
