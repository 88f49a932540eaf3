"""Who has which part: items in a row, coloured and numbered by the rank that has them."""

from collections import Counter
from collections.abc import Sequence

from matplotlib.patches import Rectangle

from mpi_classroom.figures import FONT_SIZE, Look, Picture, ink_on, listed, new_panels, rank_colour

FEW = 6  # ranks that a title names one by one
IN_A_ROW = 24
MOST = 480  # items; more would not fit on a screen


def owner_map(owners: Sequence[int], *, what: str = "term", first: int = 0) -> Picture:
    """One cell per item with the number of the rank that has it; `owners[i]` has item `first + i`.

    At most 480 items: pass the beginning of a longer list.
    """
    if not 0 < len(owners) <= MOST:
        raise ValueError(f"{len(owners)} items cannot be drawn; pass 1 to {MOST}, the first ones will do")
    columns = row_length(owners)
    rows = -(-len(owners) // columns)
    title = owner_title(owners, what)
    figure, (axes,) = new_panels(title, height=1.0 + 0.38 * rows)
    for index, rank in enumerate(owners):
        row, column = divmod(index, columns)
        colour = rank_colour(rank)
        axes.add_patch(Rectangle((column, row), 1, 1, facecolor=colour, edgecolor="white"))
        middle: Look = {"ha": "center", "va": "center", "fontsize": FONT_SIZE, "color": ink_on(colour)}
        axes.text(column + 0.5, row + 0.5, str(rank), **middle)
    axes.set(xlim=(0, columns), ylim=(rows, 0), xticks=[])
    starts = range(0, len(owners), columns)
    if rows == 1:  # the one row begins with the first item, and is not that item
        axes.set_xticks(
            [column + 0.5 for column in range(columns)], [str(first + column) for column in range(columns)]
        )
        axes.set_yticks([0.5], [what])
    else:
        axes.set_yticks([row + 0.5 for row in range(rows)], [f"{what} {first + start}" for start in starts])
    axes.set_xlabel("the number in a cell is the rank that has it")
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    return Picture(figure, owner_alt(owners, what, title))


def row_length(owners: Sequence[int]) -> int:
    """Cells per row: a multiple of the ranks, so that strides give columns of one colour."""
    ranks = len(set(owners))
    return min(len(owners), ranks * (IN_A_ROW // ranks) or IN_A_ROW)


def owner_title(owners: Sequence[int], what: str) -> str:
    """How the items are distributed: in strides, in blocks, or neither."""
    counts = Counter(owners)
    size = len(counts)
    low, high = min(counts.values()), max(counts.values())
    each = f"{low} each" if low == high else f"{low} {'or' if high == low + 1 else 'to'} {high} each"
    if size == 1:
        return f"Rank {owners[0]} has all {len(owners)} {what}s"
    if all(rank == index % size for index, rank in enumerate(owners)):
        return f"Every rank has every {_th(size)} {what}: {size} ranks, {each}"
    if list(owners) == sorted(owners):
        if low < high and size <= FEW:
            return f"{len(owners)} {what}s on {size} ranks: {_blocks(counts)}"
        return f"Every rank has one block of {what}s: {size} ranks, {each}"
    return f"{size} ranks have {each} of {len(owners)} {what}s, neither in strides nor in blocks"


def _blocks(counts: Counter[int]) -> str:
    """How many each rank has, the ranks with equally many together: `rank 0 has 2, ranks 1 and 2 have 1`."""
    parts = []
    for count in sorted(set(counts.values()), reverse=True):
        ranks = [str(rank) for rank in sorted(counts) if counts[rank] == count]
        who = f"rank {ranks[0]} has" if len(ranks) == 1 else f"ranks {listed(ranks)} have"
        parts.append(f"{who} {count}")
    return ", ".join(parts)


def _th(number: int) -> str:
    return {1: "", 2: "second", 3: "third"}.get(number, f"{number}th")


def owner_alt(owners: Sequence[int], what: str, title: str) -> str:
    """The same in words: the beginning of the row, and how many each rank has."""
    counts = Counter(owners)
    shown = owners[: 2 * len(counts)]
    beginning = ", ".join(map(str, shown)) + " and so on" * (len(shown) < len(owners))
    each = listed(f"rank {rank} has {counts[rank]}" for rank in sorted(counts))
    kind = f"{len(owners)} cells, one per {what}, with the numbers of their ranks"
    return f"{kind}: {beginning}. {title}. In all, {each}."
