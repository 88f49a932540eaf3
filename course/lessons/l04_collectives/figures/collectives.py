"""What collectives leave on the ranks, drawn from what the ranks really held, and a ring step by step.

A grid has a row for each rank and a cell for each value that it holds. Pass what the ranks hold: a list of
labels or numbers per rank, `[["a", "b"], []]`. A label that some rank had before has the
colour of that rank; one that nobody had was combined from several, and is grey.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from mpi_classroom.figures import (
    FONT_SIZE,
    INK,
    MAX_WIDTH_INCHES,
    Look,
    Picture,
    ink_on,
    listed,
    name_ranks,
    new_panels,
    rank_colour,
)

Held = Mapping[int, Sequence[object]]  # what each rank holds, in its order: labels, or numbers
ByRank = Sequence[Sequence[Any]]
COMBINED: Look = {"facecolor": "#e8e8e8"}
COMPLETE: Look = {"facecolor": "#bfe3d0"}
EVERY_RANK_THE_SAME = "every rank holds the same"
LETTER_INCHES, PADDING_INCHES, ROW_INCHES, MARGIN_INCHES = 0.106, 0.1, 0.4, 0.72
HEADING_INCHES, WORD_INCHES = 1.4, 0.37  # "after 10 steps"; "rank", which only the first in a line needs
NUMBER_INCHES = 0.2  # the line with the numbers of the columns


# ------------------------------------------------------------------ before → after


def what_each_leaves(start: ByRank, left_by: Mapping[str, ByRank]) -> Picture:
    """What each rank held at the `start`, and what each collective left on it: `left_by["Scatter"][rank]`.

    All of them began with the same arrays. One grid each, ranks from top to bottom. An array that a
    collective left at zero is labelled "still zeros".
    """
    before, after = _without_zeros(start), {name: _without_zeros(held) for name, held in left_by.items()}
    grids = {"before": before, **{f"after {name}": held for name, held in after.items()}}
    ranks = list(before)
    cells = max([len(things) for held in grids.values() for things in held.values()] + [1])
    figure, panels = _grids(title := leaves_title(after, ranks), grids, ranks, cells)
    sources = first_holders(before)
    for axes, (heading, held) in zip(panels, grids.items(), strict=True):
        for row, rank in enumerate(ranks):
            _held(axes, row, held.get(rank, ()), sources, _none(heading))
    if any(combined(before, held) for held in after.values()):
        keys = [Patch(label="combined from several ranks", edgecolor=INK, **COMBINED)]
        figure.legend(handles=keys, loc="outside lower right", fontsize=FONT_SIZE, frameon=False)
    told = [
        f"{heading[0].upper()}{heading[1:]}: {in_words(held, _none(heading))}"
        for heading, held in grids.items()
    ]
    kind = "Grids, one before and one after each collective, a row per rank, a cell for each value it holds"
    return Picture(figure, f"{kind}. {title}. {'. '.join(told)}.")


def _without_zeros(arrays: ByRank) -> Held:
    """The values of each rank that are not 0: MPI writes into arrays that were zero before."""
    return {rank: [value for value in array if value != 0] for rank, array in enumerate(arrays)}


def _none(heading: str) -> str:
    """What a rank without values is labelled with."""
    return "nothing" if heading == "before" else "still zeros"


def _held(axes: Axes, row: int, things: Sequence[object], sources: Mapping[str, int], none: str) -> None:
    if not len(things):
        axes.text(0.1, row + 0.5, none, va="center", fontsize=FONT_SIZE, color="#666666")
    for column, label in enumerate(map(str, things)):
        look = {"facecolor": rank_colour(sources[label])} if label in sources else COMBINED
        _cell(axes, row, column, label, **look)


def first_holders(before: Held) -> dict[str, int]:
    """For each label the first rank that held it before."""
    return {str(label): rank for rank in sorted(before, reverse=True) for label in before[rank]}


def combined(before: Held, after: Held) -> set[str]:
    """The labels of after that nobody had before."""
    return {str(label) for things in after.values() for label in things} - set(first_holders(before))


def leaves_title(after: Mapping[str, Held], ranks: Sequence[int]) -> str:
    """After which collectives all ranks hold the same; where none leaves that, what each leaves."""
    names: dict[str, list[str]] = {}
    for name, held in after.items():
        names.setdefault(left(held, ranks), []).append(name)
    same = {words: those for words, those in names.items() if words.startswith(EVERY_RANK_THE_SAME)}
    told = "; ".join(f"after {listed(those)} {words}" for words, those in (same or names).items())
    return told[0].upper() + told[1:]


def left(after: Held, ranks: Sequence[int]) -> str:
    """How many values are on which ranks, and whether they are the same everywhere."""
    held = {rank: [str(label) for label in things] for rank, things in sorted(after.items()) if len(things)}
    contents = list(held.values())
    if not held:
        return "no rank holds anything"
    if len(held) == 1 < len(ranks):
        return f"rank {next(iter(held))} alone holds {_values(len(contents[0]))}"
    who = "every rank" if len(held) == len(ranks) else f"each of ranks {listed(held)}"
    if all(labels == contents[0] for labels in contents):
        return f"{who} holds the same {_values(len(contents[0])).removeprefix('1 ')}"
    low, high = min(map(len, contents)), max(map(len, contents))
    span = str(low) if low == high else f"{low} to {high}"
    return f"{who} holds {span} of {_values(len({label for labels in contents for label in labels}))}"


def _values(number: int) -> str:
    return f"{number} value{'s' * (number != 1)}"


def in_words(held: Held, none: str = "nothing") -> str:
    """What each rank holds, in words; `none` where it holds nothing."""
    return "; ".join(f"rank {rank} {listed(held[rank]) or none}" for rank in sorted(held))


# ------------------------------------------------------------------ a ring, step by step


def ring_film(films: Sequence[Sequence[Sequence[int]]]) -> Picture:
    """The chunks of every rank at the start and after each step: `films[rank][step][chunk]`, a number each.

    A chunk is complete when it is the sum over all ranks. What changed in a step has a thick border, what is
    complete is filled.
    """
    states = [dict(enumerate(held)) for held in zip(*films, strict=True)]
    done = [str(sum(chunk)) for chunk in zip(*states[0].values(), strict=True)]
    ranks, chunks = sorted(states[0]), max(len(things) for things in states[0].values())
    frames = {_state(step): state for step, state in enumerate(states)}
    figure, panels = _grids(title := film_title(states, done), frames, ranks, chunks, "chunk")
    for step, state in enumerate(states):
        for row, rank in enumerate(ranks):
            _chunks(panels[step], row, state[rank], states[max(0, step - 1)][rank], done)
    keys = [Patch(label="complete", edgecolor=INK, **COMPLETE)]
    keys += [Patch(label="changed in this step", edgecolor=INK, linewidth=3, facecolor="white")]
    figure.legend(handles=keys, loc="outside lower left", ncols=2, fontsize=FONT_SIZE, frameon=False)
    return Picture(figure, film_alt(states, title))


def _chunks(axes: Axes, row: int, things: Sequence[int], old: Sequence[int], done: Sequence[str]) -> None:
    for column, label in enumerate(map(str, things)):
        look = COMPLETE if label == done[column] else {"facecolor": "white"}
        changed = label != str(old[column])
        _cell(axes, row, column, label, linewidth=3 if changed else 0.8, zorder=2 + changed, **look)


def complete_chunks(state: Held, done: Sequence[str]) -> list[int]:
    """How many chunks are complete on each rank."""
    return [
        sum(str(label) == whole for label, whole in zip(state[rank], done, strict=True))
        for rank in sorted(state)
    ]


def film_title(states: Sequence[Held], done: Sequence[str]) -> str:
    """After how many steps every rank has a complete chunk, and after how many it has all."""
    if len(states) == 1:
        return f"{len(states[0])} rank{'s' * (len(states[0]) > 1)}, no step: this is how it starts"
    fewest = [min(complete_chunks(state, done)) for state in states]
    first = next((step for step, count in enumerate(fewest) if count), None)
    last = next((step for step, count in enumerate(fewest) if count == len(done)), None)
    if first is None:
        return f"After {len(states) - 1} steps some rank still has no complete chunk"
    begin = f"{_after(first).capitalize()} every rank has {fewest[first]} complete chunk"
    begin += "s" * (fewest[first] != 1)
    if last is None:
        return f"{begin} of {len(done)}"
    return begin if last == first else f"{begin}, after {last} all {len(done)}"


def film_alt(states: Sequence[Held], title: str) -> str:
    """The same in words: every state."""
    lines = [f"{_state(step).capitalize()}: {in_words(state)}" for step, state in enumerate(states)]
    kind = "Grids, one per step, a row per rank, a column for each chunk, from chunk 0 on the left"
    return f"{kind}. {title}. {'. '.join(lines)}."


def _state(step: int) -> str:
    return _after(step) if step else "start"


def _after(steps: int) -> str:
    return f"after {steps} step{'s' * (steps != 1)}"


# ------------------------------------------------------------------ drawing


def grid_inches(states: Sequence[Held], cells: int) -> float:
    """How wide a grid has to be for its longest label."""
    letters = max([len(str(label)) for held in states for things in held.values() for label in things] + [1])
    inches = MARGIN_INCHES + cells * (PADDING_INCHES + LETTER_INCHES * letters)
    if inches > MAX_WIDTH_INCHES:
        most = int(((MAX_WIDTH_INCHES - MARGIN_INCHES) / cells - PADDING_INCHES) / LETTER_INCHES)
        raise ValueError(
            f"{cells} cells with {letters} letters do not fit; give labels of at most {most} letters"
        )
    return inches


def _grids(
    title: str, grids: Mapping[str, Held], ranks: Sequence[int], cells: int, column: str = ""
) -> tuple[Figure, list[Axes]]:
    """A figure with an empty grid for each of `grids`, under its heading; as many in a line as fit.

    With the word `column`, the columns are numbered.
    """
    widest = max(grid_inches(list(grids.values()), cells) - WORD_INCHES, HEADING_INCHES)
    rows = -(-len(grids) // max(1, int((MAX_WIDTH_INCHES - WORD_INCHES) / widest)))
    columns = -(-len(grids) // rows)  # lines of equal length
    height = 1.1 + rows * (0.45 + NUMBER_INCHES * bool(column) + ROW_INCHES * len(ranks))
    figure, panels = new_panels(title, rows=rows, columns=columns, height=height)
    for place, heading in enumerate(grids):
        _grid(panels[place], ranks, cells, heading, "" if place % columns else "rank ")
        if column:
            _number_columns(panels[place], cells, "" if place % columns else column)
    for spare in panels[len(grids) :]:
        spare.axis("off")
    return figure, panels[: len(grids)]


def _grid(axes: Axes, ranks: Sequence[int], cells: int, title: str, word: str = "rank ") -> None:
    """An empty grid with the ranks from top to bottom."""
    axes.set_title(title, fontsize=FONT_SIZE, color=INK, loc="left")
    axes.set(xlim=(-0.05, cells + 0.05), ylim=(len(ranks) + 0.05, -0.05), xticks=[])
    name_ranks(axes, ranks, 0.5, word)
    axes.grid(False)
    axes.spines[:].set_visible(False)


def _number_columns(axes: Axes, cells: int, word: str) -> None:
    """The numbers of the columns above a grid, and left of them the word for what they number."""
    axes.xaxis.tick_top()
    axes.tick_params(axis="x", length=0, pad=3)
    axes.set_xticks([column + 0.5 for column in range(cells)], [str(column) for column in range(cells)])
    if not word:
        return
    where: Look = {"xycoords": "axes fraction", "xytext": (-8, 3), "textcoords": "offset points"}
    axes.annotate(word, (0, 1), ha="right", va="bottom", fontsize=FONT_SIZE, color=INK, **where)


def _cell(axes: Axes, row: int, column: int, label: str, **look: Any) -> None:
    settings: Look = {"edgecolor": INK, "linewidth": 0.8, **look}
    axes.add_patch(Rectangle((column, row), 1, 1, **settings))
    middle: Look = {"ha": "center", "va": "center", "fontsize": FONT_SIZE, "zorder": 5}
    axes.text(column + 0.5, row + 0.5, label, color=ink_on(str(look["facecolor"])), **middle)
