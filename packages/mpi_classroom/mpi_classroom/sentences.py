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


def runs_of(numbers: Iterable[int]) -> list[list[int]]:
    """The runs of consecutive numbers."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return runs
