"""DeepSpeed's JSON keys with what they do, and its stages side by side."""

import textwrap
from collections.abc import Mapping, Sequence

from matplotlib.patches import Rectangle

from course.lessons.shared.figures.zero import PARTS, WORDS
from course_lib.parallel.deepspeed_config import Key, StageRun
from mpi_classroom.figures import (
    ACTIVITIES,
    FONT_SIZE,
    INK,
    Look,
    Picture,
    new_figure,
    new_panels,
    say_bytes,
    say_ranks,
    say_seconds,
    three_digits,
    time_unit,
)

GROUPS = {"batch": "#56B4E9", "update": "#009E73", "memory": "#E69F00", "messages": "#CC79A7"}
LETTERS = 40  # of an effect, in a line
LINE, GAP = 0.21, 0.09  # inches

# ------------------------------------------------------------------ the JSON file


def json_effects(keys: Sequence[Key]) -> Picture:
    """Every key with its value, an arrow, and what it does, below what it is about and in its colour."""
    rows = [(key, textwrap.wrap(key.effect, LETTERS)) for group in GROUPS for key in of_group(keys, group)]
    groups = [group for group in GROUPS if of_group(keys, group)]
    lines = sum(len(effect) for _, effect in rows) + len(groups)
    title = effects_title(keys)
    height = LINE * lines + GAP * len(rows)
    figure, axes = new_figure(title, width=8, height=height + 0.55)
    top = 0.0
    look: Look = {"va": "top", "fontsize": FONT_SIZE, "color": INK}
    for index, (key, effect) in enumerate(rows):
        if index == 0 or rows[index - 1][0].group != key.group:
            axes.text(0.0, top, key.group, weight="bold", **look)
            top += LINE
        tall = LINE * len(effect)
        axes.add_patch(Rectangle((0, top), 0.008, tall + GAP / 2, facecolor=GROUPS[key.group]))
        name = f"{short_name(key.path)}: {as_json(key.value)}"
        axes.text(0.018, top, name, family="monospace", **look)
        axes.text(0.535, top, "→", ha="center", **look)
        axes.text(0.555, top, "\n".join(effect), linespacing=1.05, **look)
        top += tall + GAP
    axes.set(xlim=(0, 1), ylim=(top, 0), xticks=[], yticks=[])
    axes.grid(False)
    axes.spines[:].set_visible(False)
    return Picture(figure, effects_alt(keys, title))


def of_group(keys: Sequence[Key], group: str) -> list[Key]:
    """Those of the `keys` that are about the same thing."""
    return [key for key in keys if key.group == group]


def short_name(path: str) -> str:
    """The last name of a path, with the one above where the last says too little."""
    names = path.split(".")
    return ".".join(names[-2:]) if names[-1] in ("type", "enabled") else names[-1]


def as_json(value: object) -> str:
    """A value as the file has it."""
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)


def effects_title(keys: Sequence[Key]) -> str:
    """How the global batch comes about, where the file says it."""
    of = {key.path: key.value for key in keys}
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    if not set(names) <= of.keys():
        return f"{len(keys)} keys of the JSON file, and what each does"
    whole, micro, steps = (of[name] for name in names)
    several = "micro-batches" if steps > 1 else "micro-batch"
    return f"{micro} samples × {steps} {several} × {whole // (micro * steps)} ranks = {whole} per update"


def effects_alt(keys: Sequence[Key], title: str) -> str:
    """The same in words, key by key."""
    lines = [f"{key.path} {as_json(key.value)} ({key.group}): {key.effect}" for key in keys]
    return f"Table of JSON keys and their effects. {title}. {'; '.join(lines)}."


# ------------------------------------------------------------------ the stages


def stage_bars(runs: Mapping[int, StageRun], cores: int) -> Picture:
    """For every stage: bytes that a rank keeps, bytes that it sends in a step, and the time of a step."""
    title = bars_title(runs, cores)
    figure, (kept, sent, time) = new_panels(title, columns=3, height=3.9)
    places = list(runs)
    bottoms = dict.fromkeys(runs, 0.0)
    for part, look in PARTS.items():
        values = {stage: getattr(run.held, part) / 1024 for stage, run in runs.items()}
        base = [bottoms[stage] for stage in places]
        kept.bar(places, list(values.values()), 0.7, base, edgecolor=INK, label=WORDS[part], **look)
        bottoms = {stage: bottoms[stage] + values[stage] for stage in places}
    factor, unit = time_unit(max(run.seconds for run in runs.values()))
    transfer = ACTIVITIES["transfer"]
    sent.bar(places, [run.sent / 1024 for run in runs.values()], 0.7, edgecolor=INK, **transfer)
    time.bar(
        places,
        [factor * run.seconds for run in runs.values()],
        0.7,
        edgecolor=INK,
        **ACTIVITIES["compute"],
    )
    labels = ("KiB that a rank keeps", "KiB that it sends in a step", f"{unit} of a step")
    for axes, label in zip((kept, sent, time), labels, strict=True):
        axes.set_xticks(places, [str(stage) for stage in places])
        axes.set_xlabel("ZeRO stage")
        axes.set_title(label, fontsize=FONT_SIZE, color=INK, loc="left")
    figure.legend(loc="outside lower left", ncols=3, fontsize=FONT_SIZE, frameon=False)
    return Picture(figure, bars_alt(runs, title))


def times_as(runs: Mapping[int, StageRun], stage: int, of: int = 0) -> float:
    """How many times as long a step of `stage` takes as one of stage `of`."""
    return runs[stage].seconds / runs[of].seconds


def bars_title(runs: Mapping[int, StageRun], cores: int) -> str:
    """What the highest stage saves, and what it costs."""
    first, last = min(runs), max(runs)
    share = runs[last].held.total / runs[first].held.total
    ranks = say_ranks(runs[last].ranks, cores)
    costs = f"a step takes {three_digits(times_as(runs, last, first))} times as long"
    return f"{ranks}: stage {last} keeps {share:.0%} of the bytes of stage {first}; {costs}"


def bars_alt(runs: Mapping[int, StageRun], title: str) -> str:
    """The same in words, stage by stage."""
    lines = [
        f"stage {stage}: keeps {say_bytes(run.held.total)}, of which weights {say_bytes(run.held.weights)}, "
        f"gradients {say_bytes(run.held.gradients)}, optimizer {say_bytes(run.held.optimizer)}; sends "
        f"{say_bytes(run.sent)} in a step; a step takes {say_seconds(run.seconds)}"
        for stage, run in runs.items()
    ]
    return f"Three bar charts over the ZeRO stages. {title}. {'; '.join(lines)}."


def stage_table(runs: Mapping[int, StageRun]) -> str:
    """Lines of text: each stage, what it keeps and sends, its time, its last loss and its accuracy."""
    lines = ["stage  keeps      sends      a step    last loss  right"]
    for stage, run in runs.items():
        kept, sent, seconds = say_bytes(run.held.total), say_bytes(run.sent), say_seconds(run.seconds)
        lines.append(
            f"{stage:5}  {kept:9}  {sent:9}  {seconds:8}  {run.losses[-1]:9.3f}  {run.accuracy:5.1%}"
        )
    return "\n".join(lines)


def explain_stages(runs: Mapping[int, StageRun]) -> str:
    """What was seen, in sentences: whether a higher stage was faster, and what it bought."""
    first, last = min(runs), max(runs)
    ratio = times_as(runs, last, first)
    saved = runs[first].held.total - runs[last].held.total
    more = runs[last].sent / runs[first].sent if runs[first].sent else 1.0
    if ratio > 1.1:
        verdict = f"Stage {last} was the slower one: {three_digits(ratio)} times the time of stage {first}."
    elif ratio < 0.9:
        verdict = (
            f"Stage {last} was faster here. Do not count on it: it computes as much, and sends more. "
            "Its optimizer updates a slice only, which can win when steps are long and messages cheap."
        )
    else:
        verdict = f"Stages {first} and {last} took about the same time here."
    return (
        f"{verdict}\nIt sends {three_digits(more)} times as many bytes, in many more messages, and every "
        f"rank computes as before.\nWhat it buys is memory: {say_bytes(saved)} less on each rank. "
        f"The losses agree {how_well(loss_difference(runs))}."
    )


def how_well(difference: float) -> str:
    """A relative difference in words."""
    return f"to {difference:.0e}" if difference else "to the last bit"


def loss_difference(runs: Mapping[int, StageRun]) -> float:
    """The largest relative difference between the last losses of two stages."""
    last = [run.losses[-1] for run in runs.values()]
    return (max(last) - min(last)) / max(last)
