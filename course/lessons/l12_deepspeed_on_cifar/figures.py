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
    say_ranks,
    say_seconds,
    three_digits,
    time_unit,
)

GROUPS = {
    "batch": "#56B4E9",
    "update": "#009E73",
    "memory": "#E69F00",
    "communication": "#CC79A7",
    "log": "#999999",
}
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
        axes.text(0.545, top, "→", ha="center", **look)
        axes.text(0.565, top, "\n".join(effect), linespacing=1.05, **look)
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
    """How the global batch is made up, where the file says it."""
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


def stage_bars(counted: Mapping[int, StageRun], timed: Mapping[int, StageRun], cores: int) -> Picture:
    """For every stage: the most bytes that a rank holds, the bytes it sends per step, and the time per step.

    Bytes are those of `counted`; times those of `timed`, which may have run on fewer ranks.
    """
    title = bars_title(counted, timed, cores)
    figure, (held, sent, time) = new_panels(title, columns=3, height=3.9)
    stages = list(counted)
    bottoms = [0.0] * len(stages)
    for part, look in PARTS.items():
        values = [getattr(run.held, part) / 1e6 for run in counted.values()]
        held.bar(stages, values, 0.7, bottoms, edgecolor=INK, label=WORDS[part], **look)
        bottoms = [bottom + value for bottom, value in zip(bottoms, values, strict=True)]
    factor, unit = time_unit(max(run.seconds for run in timed.values()))
    sends = [run.sent / 1e6 for run in counted.values()]
    sent.bar(stages, sends, 0.7, edgecolor=INK, color="#999999")
    seconds = [factor * run.seconds for run in timed.values()]
    time.bar(stages, seconds, 0.7, edgecolor=INK, **ACTIVITIES["compute"])
    labels = ("MB held per rank", "MB sent per step", f"{unit} per step")
    for axes, label in zip((held, sent, time), labels, strict=True):
        axes.set_xticks(stages, [str(stage) for stage in stages])
        axes.set_xlabel("ZeRO stage")
        axes.set_title(label, fontsize=FONT_SIZE, color=INK, loc="left")
    figure.legend(loc="outside lower left", ncols=3, fontsize=FONT_SIZE, frameon=False)
    return Picture(figure, bars_alt(counted, timed, title))


def held_per_parameter(run: StageRun) -> float:
    """The most bytes per parameter that a rank holds during backward."""
    return run.held.total / run.parameters


def times_as(runs: Mapping[int, StageRun], stage: int, of: int = 0) -> float:
    """How many times as long a step of `stage` takes as one of stage `of`."""
    return runs[stage].seconds / runs[of].seconds


def bars_title(counted: Mapping[int, StageRun], timed: Mapping[int, StageRun], cores: int) -> str:
    """What the highest stage saves, and what it costs."""
    first, last = min(counted), max(counted)
    share = counted[last].held.total / counted[first].held.total
    more = counted[last].sent / counted[first].sent if counted[first].sent else 1.0
    longer, ranks = three_digits(times_as(timed, last, first)), say_ranks(timed[last].ranks, cores)
    return (
        f"{counted[last].ranks} ranks: stage {last} holds {share:.0%} of stage {first}'s bytes, "
        f"sends {three_digits(more)} times as many;\n{ranks}: a step takes {longer} times as long"
    )


def bars_alt(counted: Mapping[int, StageRun], timed: Mapping[int, StageRun], title: str) -> str:
    """The same in words, stage by stage."""
    lines = [
        f"stage {stage}: holds {megabytes(run.held.total)}, of which weights {megabytes(run.held.weights)}, "
        f"gradients {megabytes(run.held.gradients)}, optimizer {megabytes(run.held.optimizer)}; sends "
        f"{megabytes(run.sent)} per step; a step takes {say_seconds(timed[stage].seconds)}"
        for stage, run in counted.items()
    ]
    return f"Three bar charts over the ZeRO stages. {title.replace(chr(10), ' ')}. {'; '.join(lines)}."


def megabytes(nbytes: float) -> str:
    """A size in the unit of the axes."""
    return f"{three_digits(nbytes / 1e6)} MB"


def stage_table(counted: Mapping[int, StageRun], timed: Mapping[int, StageRun]) -> str:
    """Lines of text: bytes per parameter that a rank holds and sends in each stage, and the time per step."""
    lines = ["stage   held per parameter   sent per parameter   one step"]
    for stage, run in counted.items():
        held, sent = held_per_parameter(run), run.sent / run.parameters
        seconds = say_seconds(timed[stage].seconds)
        lines.append(f"{stage:5}   {held:12.1f} bytes   {sent:12.1f} bytes   {seconds:>8}")
    return "\n".join(lines)


def explain_times(timed: Mapping[int, StageRun]) -> str:
    """Why the highest stage took as long as it did, compared with the lowest."""
    ratio = times_as(timed, max(timed), min(timed))
    if ratio > 1.1:
        return (
            "Forward and backward compute as much as in stage 0. Stage 3 sends more, and waits for many more "
            "messages."
        )
    if ratio < 0.9:
        return (
            "Do not count on it: forward and backward compute as much as in stage 0, and stage 3 sends more. "
            "Only the optimizer has less to do, because it updates a shard."
        )
    return (
        "Forward and backward compute as much as in stage 0; messages are cheap on one machine, or the "
        "machine is busy."
    )


def compare_stages(timed: Mapping[int, StageRun]) -> str:
    """How long a step of stage 2 takes in steps of stage 1, which sends as many bytes."""
    ratio = times_as(timed, 2, 1)
    how = (
        "takes as long as a step of stage 1, up to the noise of this run"
        if 0.9 < ratio < 1.1
        else f"takes {three_digits(ratio)} times as long as a step of stage 1"
    )
    return f"A step of stage 2 {how}. They send equally many bytes."


def how_well(difference: float) -> str:
    """A relative difference in words."""
    return f"to {difference:.0e}" if difference else "to the last bit"


def loss_difference(runs: Mapping[int, StageRun]) -> float:
    """The largest relative difference between the last losses of two stages."""
    last = [run.losses[-1] for run in runs.values()]
    return (max(last) - min(last)) / max(last)
