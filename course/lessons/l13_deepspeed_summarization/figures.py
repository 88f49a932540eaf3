"""Summaries beside their article, with each word marked; bars of scores; the loss of a training.

Words differ by colour *and* by their frame, so that no meaning hangs on colour alone.
"""

import re
import textwrap
from collections.abc import Mapping, Sequence
from itertools import product
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from course_lib.data.generated_news import Article
from course_lib.training.summaries.rouge import Rouge, facts_found, sentences
from course_lib.training.summaries.scores import Scores
from mpi_classroom.figures import (
    FONT_SIZE,
    GRID,
    INK,
    Look,
    Picture,
    empty_figure,
    listed,
    new_panels,
    wrapped,
)

COLUMNS = 74  # letters in a line
LINE, CHARACTER = 0.26, 0.1003  # inches that a line and a letter take
MARGIN = 0.25
SMOOTH = 10  # steps that the thick line averages
KINDS: dict[str, Look] = {
    "right": {"facecolor": "#9be3cc", "edgecolor": "#009E73", "linewidth": 1.6},
    "elsewhere": {"facecolor": "#fde0a6", "edgecolor": "#E69F00", "hatch": "///", "linewidth": 0.8},
    "made up": {"facecolor": "#ffffff", "edgecolor": "#D55E00", "linestyle": "--", "linewidth": 1.6},
}
MEANING = {
    "right": "a fact of the news",
    "elsewhere": "from elsewhere in the article",
    "made up": "not in the article",
}
WORD = re.compile(r"\w+")
Marks = list[tuple[int, int, str]]  # from, to, kind

# -------------------------------------------------------------------- marks


def marks_of(text: str, article: Article) -> Marks:
    """Mark each word of a summary as part of a right fact, as from elsewhere in the article, or as made up.

    Small words that every summary has get no mark, nor do sentences that are copied whole.
    """
    marks: Marks = []
    for fact in facts_found(text, article.facts):
        marks += [
            (match.start(), match.end(), "right") for match in re.finditer(rf"\b{re.escape(fact)}\b", text)
        ]
    known = set(WORD.findall(article.text))
    whole = [sentence for sentence in sentences(text) if sentence in article.text]
    for sentence in whole:  # copied as it stands: needs no frames
        marks.append((start := text.index(sentence), start + len(sentence), ""))
    for match in WORD.finditer(text):
        inside = any(start <= match.start() < end for start, end, _ in marks)
        if not inside and match[0] not in small_words(article):
            marks.append((*match.span(), "elsewhere" if match[0] in known else "made up"))
    return sorted(mark for mark in marks if mark[2])


def small_words(article: Article) -> set[str]:
    """The words of the reference summary that belong to no fact, and the article of a deed."""
    facts = {word for fact in article.facts for word in WORD.findall(fact)}
    return (set(WORD.findall(article.summary)) - facts) | {"a", "the", "in", "on"}


def sources_of(article: Article, summaries: Sequence[str]) -> Marks:
    """Mark in the article the facts, and the words that `summaries` copied from elsewhere."""
    text, marks = article.text, Marks()
    for fact in article.facts:
        marks += [
            (match.start(), match.end(), "right") for match in re.finditer(rf"\b{re.escape(fact)}\b", text)
        ]
    news = {word for fact in article.facts for word in WORD.findall(fact)}
    copied = {
        summary[start:end]
        for summary in summaries
        for start, end, kind in marks_of(summary, article)
        if kind == "elsewhere" and summary[start:end] not in news
    }
    for match in WORD.finditer(text):
        if match[0] in copied and not any(start <= match.start() < end for start, end, _ in marks):
            marks.append((*match.span(), "elsewhere"))
    return sorted(marks)


# -------------------------------------------------------------------- the article with its facts marked


def marked_article(article: Article, summaries: Mapping[str, str]) -> Picture:
    """`article` with its facts marked, and below it each of `summaries` (by name, such as "before")."""
    counts = {name: len(facts_found(text, article.facts)) for name, text in summaries.items()}
    stated = [f"{name} {count}" for name, count in counts.items()]
    title = f"Of the {len(article.facts)} facts of the news, the summary states: {', '.join(stated)}"
    blocks = [("the article", article.text, sources_of(article, list(summaries.values())))]
    blocks += [(name, text, marks_of(text, article)) for name, text in summaries.items()]
    lines = sum(len(lines_of(text)) + 1.7 for _, text, _ in blocks)
    height = MARGIN * 2 + 0.75 + LINE * lines
    figure = empty_figure(8.0, height)
    axes = paper(figure, height)
    words = {"fontsize": FONT_SIZE + 2, "color": INK, "ha": "left", "va": "center"}
    figure.suptitle(wrapped(title, 8.0), x=MARGIN / 8.0, y=1 - 0.32 / height, **words)
    top = 0.65
    for name, text, marks in blocks:
        axes.text(MARGIN, top + 0.12, name, fontsize=FONT_SIZE, color=INK, weight="bold", va="center")
        top = write_block(axes, text, marks, top + 0.3) + 0.7 * LINE
    kinds = [kind for kind in KINDS if any(kind == k for _, _, marks in blocks for _, _, k in marks)]
    patches = [Patch(label=MEANING[kind], **KINDS[kind]) for kind in kinds]
    if patches:
        figure.legend(handles=patches, loc="lower left", ncols=3, fontsize=FONT_SIZE, frameon=False)
    return Picture(figure, article_alt(title, article, summaries))


def paper(figure: Figure, height: float) -> Axes:
    """Axes in inches from the upper left corner, without a frame."""
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, 8.0)
    axes.set_ylim(height, 0)
    axes.axis("off")
    return axes


def lines_of(text: str) -> list[str]:
    """`text` in lines; every character stays where it was but for the spaces at the breaks."""
    return textwrap.wrap(text, COLUMNS, break_long_words=True, break_on_hyphens=False) or [""]


def write_block(axes: Axes, text: str, marks: Marks, top: float) -> float:
    """Write `text` from `top` downwards, with frames around its marked parts; returns where it ends."""
    place = 0
    for line in lines_of(text):
        place = text.index(line, place)
        for start, end, kind in marks:
            first, last = max(start, place), min(end, place + len(line))
            if first < last:
                left = MARGIN + CHARACTER * (first - place) - 0.02
                size = CHARACTER * (last - first) + 0.04, LINE - 0.04
                axes.add_patch(Rectangle((left, top + 0.02), *size, **KINDS[kind]))
        axes.text(
            MARGIN,
            top + LINE / 2,
            line,
            family="DejaVu Sans Mono",
            fontsize=FONT_SIZE,
            color=INK,
            va="center",
        )
        place += len(line)
        top += LINE
    return top


def article_alt(title: str, article: Article, summaries: Mapping[str, str]) -> str:
    """The same in words: each summary, and what is right and wrong in it."""
    words = []
    for name, text in summaries.items():
        right = facts_found(text, article.facts)
        wrong = [fact for fact in article.facts if fact not in right]
        words.append(
            f"{name}: “{text}” (right: {listed(right) if right else 'nothing'}; "
            f"missing: {listed(wrong) if wrong else 'nothing'})"
        )
    return f"Text with marks. {title}. The reference: “{article.summary}” {'; '.join(words)}."


# -------------------------------------------------------------------- scores


def score_bars(scores: Mapping[str, tuple[Rouge, float]]) -> Picture:
    """ROUGE-1 and the percentage of facts that are right, one pair of bars per way to summarize."""
    names = list(scores)
    one = [100 * score.one for score, _ in scores.values()]
    facts = [100 * right for _, right in scores.values()]
    title = scores_title(scores)
    figure, (axes,) = new_panels(title, width=7.5, height=0.62 * len(names) + 1.6)
    plain: Look = {"color": "#56B4E9"}
    hatched: Look = {"color": "#009E73", "hatch": "///", "edgecolor": "white"}
    for shift, values, label, look in (
        (-0.19, one, "ROUGE-1", plain),
        (0.19, facts, "facts right", hatched),
    ):
        places = [row + shift for row in range(len(names))]
        axes.barh(places, values, height=0.36, label=label, **look)
        for place, value in zip(places, values, strict=True):
            axes.text(value + 1, place, f"{value:.0f}", va="center", fontsize=FONT_SIZE, color=INK)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlim(0, 112)
    axes.set_xticks(range(0, 101, 20))
    axes.set_xlabel("percent")
    axes.grid(False, axis="y")
    axes.grid(True, axis="x", color=GRID)
    figure.legend(fontsize=FONT_SIZE, frameon=False, loc="outside lower center", ncols=2)
    words = [
        f"{name}: ROUGE-1 {a:.0f} %, facts {b:.0f} %" for name, a, b in zip(names, one, facts, strict=True)
    ]
    return Picture(figure, f"Bar chart, two bars per row. {title}. {'; '.join(words)}.")


def scores_title(scores: Mapping[str, tuple[Rouge, float]]) -> str:
    """The two rows that ROUGE-1 and facts rank in opposite orders, if there are any."""
    points = {name: (100 * score.one, 100 * right) for name, (score, right) in scores.items()}
    swapped = most_swapped(points)
    if swapped is None:
        return "Here, a higher ROUGE-1 goes with more facts right"
    one, other = swapped
    (words, facts), (fewer, more) = points[one], points[other]
    return (
        f"“{one}” has a higher ROUGE-1 than “{other}” ({words:.0f}\u00a0% and {fewer:.0f}\u00a0%), "
        f"and fewer facts right ({facts:.0f}\u00a0% and {more:.0f}\u00a0%)"
    )


def most_swapped(points: Mapping[str, tuple[float, float]]) -> tuple[str, str] | None:
    """The pair that ROUGE-1 and facts order most differently; the one with fewer facts comes first."""
    swapped = [
        (min(a[0] - b[0], b[1] - a[1]), one, other)
        for (one, a), (other, b) in product(points.items(), repeat=2)
        if a[0] > b[0] and a[1] < b[1]
    ]
    return max(swapped)[1:] if swapped else None


def explain_rouges(scores: Mapping[str, Scores]) -> str:
    """Whether ROUGE-2 and ROUGE-L notice the facts where ROUGE-1 prefers the summaries with fewer."""
    swapped = most_swapped({name: (each.rouge.one, each.facts or 0.0) for name, each in scores.items()})
    if swapped is None:
        return "ROUGE-1 and the facts rank these alike, so there is nothing to notice."
    fewer, more = (scores[name] for name in swapped)
    pairs = {"ROUGE-2": (fewer.rouge.two, more.rouge.two), "ROUGE-L": (fewer.rouge.l, more.rouge.l)}
    said, noticed = [], []
    for metric, pair in pairs.items():
        low, high = sorted(round(100 * value) for value in pair)
        if low == high:
            said.append(f"{metric} gives “{swapped[0]}” and “{swapped[1]}” {high} % each")
            continue
        right = pair[1] > pair[0]
        said.append(f"{metric} prefers “{swapped[right]}” ({high} % to {low} %)")
        noticed += [metric] if right else []
    answer = "No" if not noticed else "Yes" if len(noticed) == len(pairs) else f"Only {noticed[0]} does"
    facts = f"Facts right: “{swapped[0]}” {100 * (fewer.facts or 0):.0f} %"
    return f"{answer}. {', and '.join(said)}.\n{facts}, “{swapped[1]}” {100 * (more.facts or 0):.0f} %."


def explain_facts(rouge: Rouge, facts: float) -> str:
    """How the percentage of right facts compares with ROUGE-1."""
    words = f"ROUGE-1 is {100 * rouge.one:.0f} %"
    if facts < rouge.one - 0.1:
        return f"{words}: it also counts “in”, “on” and half of a name. A fact needs all its words."
    return f"{words}: the two go together here."


def explain_training(before: float, after: float, steps: int) -> str:
    """What the last 100 steps brought in right facts, beside the `steps` before them."""
    points = round(100 * after) - round(100 * before)
    brought = f"{points} more" if points > 0 else "none"
    return f"The first {steps} steps brought {100 * before:.0f} points, the last 100 brought {brought}."


# -------------------------------------------------------------------- losses


def loss_curve(losses: Sequence[float], *, name: str, unit: str) -> Picture:
    """The loss of every step; `name` says who trained, the loss is a mean over each `unit`."""
    ends = range(min(SMOOTH, len(losses)), len(losses) + 1)
    smooth = [fmean(losses[max(0, end - SMOOTH) : end]) for end in ends]
    title = f"{name}: the loss goes from {smooth[0]:.2f} to {smooth[-1]:.2f} in {len(losses)} steps"
    figure, (axes,) = new_panels(title, width=7.5, height=3.4)
    axes.plot(range(1, len(losses) + 1), losses, color="#56B4E9", linewidth=1, label="one step")
    axes.plot(list(ends), smooth, color=INK, linewidth=2.5, label=f"mean of the last {SMOOTH} steps")
    axes.set(xlabel="step", ylabel=f"loss per {unit}", ylim=(0, None))
    axes.legend(fontsize=FONT_SIZE, frameon=False, loc="upper right")
    return Picture(
        figure, f"Line chart of the loss per {unit} against the step. {title} (means of {SMOOTH})."
    )
