"""The explorer of lesson 16: all plans for a job and a node, each number open to the line that computed it.

It reads the learner's own program, `memory` and `step`. Its fields are radio buttons, and CSS alone shows the
panel of what is checked: no JavaScript, so they work in JupyterLab and on the site without a kernel. Of an
output that it does not trust, JupyterLab drops the style; then only the first panel is shown.
"""

import ast
import runpy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape
from itertools import product
from pathlib import Path
from typing import Any

Numbers = Mapping[str, Any]
MICROBATCHES = (1, 2, 4, 8, 16, 32, 64)
MEMORY = {"weights": "#0072B2", "gradients": "#56B4E9", "optimizer": "#009E73", "activations": "#E69F00"}
STEP = {"computing": "#56B4E9", "idle": "#dddddd", "exposed": "#E69F00", "tensor_messages": "#D55E00"}
SAID = {"exposed": "exposed data messages", "tensor_messages": "tensor messages"}
ZERO = (0, 1, 3)  # the stages of which the program knows what they send
BAR = 220  # pixels of the longest
READING = "Fastest first. Rows that cannot fit come last."
FIELDS: Mapping[str, Mapping[str, Numbers]] = {
    "sequence length": {f"{seq:,} tokens": {"seq": seq} for seq in (2048, 16384)},
    "batch": {f"{batch} sequence{'s' * (batch > 1)}": {"batch": batch} for batch in (64, 8, 1)},
    "link": {f"{link / 1e9:.0f} GB/s": {"link": link} for link in (235e9, 10e9)},
    "GPU": {
        f"{capacity / 1e9:g} GB, {rate / 1e12:.0f} Tflop/s": {"capacity": capacity, "rate": rate}
        for capacity, rate in ((72e9, 218e12), (28.8e9, 115e12))
    },
}


@dataclass(frozen=True, slots=True)
class Page:
    """HTML for a notebook, and the same numbers as text."""

    html: str
    text: str

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": self.html, "text/plain": self.text}


def explore(program: str, job: Numbers) -> Page:
    """Every even way to divide the GPUs in its best form, for each choice of the fields.

    The best form is the fastest that fits, or the smallest. `job` says what no field does, and its GPUs.
    Raises KeyError when the program has no `memory` or no `step`.
    """
    names, lines = runpy.run_path(program), formulas(Path(program).read_text(encoding="utf-8"))
    panels = {
        choice: (best(names["memory"], names["step"], asked), asked["capacity"])
        for choice, asked in choices(job).items()
    }
    tables = {choice: table(found, capacity, lines) for choice, (found, capacity) in panels.items()}
    first = next(iter(panels))
    return Page(fields(tables), as_text(words_of(first), *panels[first]))


Choice = tuple[int, ...]  # of each field, the number of its value


def choices(job: Numbers) -> dict[Choice, dict[str, Any]]:
    """What is asked for by every choice of the fields; what they do not say is the job's."""
    found = {}
    for choice in product(*(range(len(values)) for values in FIELDS.values())):
        asked = dict(job)
        for number, values in zip(choice, FIELDS.values(), strict=True):
            asked |= list(values.values())[number]
        found[choice] = asked
    return found


def words_of(choice: Choice) -> str:
    """The checked values of all fields."""
    return ", ".join(list(values)[n] for n, values in zip(choice, FIELDS.values(), strict=True))


Form = tuple[str, Numbers, Numbers]  # the plan in words, the numbers of its memory, and of its step


def best(memory: Callable[..., Numbers], step: Callable[..., Numbers], customer: Numbers) -> list[Form]:
    """For all ways to divide the GPUs the best stage of ZeRO and number of micro-batches.

    First those that fit, the fastest first.
    """
    ways = [1, 2, 4, 8]
    found = []
    for data, pipeline, tensor in product(ways, ways, ways):
        if data * pipeline * tensor != customer["gpus"]:
            continue
        forms = []
        for zero, microbatches in product(ZERO if data > 1 else (0,), MICROBATCHES):
            if customer["batch"] % (data * microbatches) == 0:
                plan = {"data": data, "zero": zero, "pipeline": pipeline, "tensor": tensor}
                plan["microbatches"] = microbatches
                forms.append((name_of(plan), memory(**customer, **plan), step(**customer, **plan)))
        found += sorted(forms, key=lambda form: rank_of(form, customer["capacity"]))[:1]
    return sorted(found, key=lambda form: rank_of(form, customer["capacity"]))


def rank_of(form: Form, capacity: float) -> tuple[bool, float, float]:
    """The key to sort by: what fits, the fastest first, of equally fast ones the smallest; then the rest."""
    _, memory, step = form
    fits = memory["total"] <= capacity
    return not fits, round(step["total"], 6) if fits else 0.0, memory["total"]


def name_of(plan: Mapping[str, int]) -> str:
    """The plan in a few words."""
    words = [f"{axis} {plan[axis]}" for axis in ("pipeline", "tensor") if plan[axis] > 1]
    if plan["data"] > 1:
        words.insert(0, f"ZeRO-{plan['zero']} on {plan['data']}" if plan["zero"] else f"data {plan['data']}")
    many = "s" * (plan["microbatches"] > 1)
    return f"{' × '.join(words)}, {plan['microbatches']} micro-batch{'e' * bool(many)}{many}"


def formulas(source: str) -> dict[str, str]:
    """The right side of every line `name = …` inside a function of a program, by name."""
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    lines = (node for one in functions for node in one.body if isinstance(node, ast.Assign))
    return {ast.unparse(line.targets[0]): ast.unparse(line.value) for line in lines}


# ---------------------------------------------------------------- as HTML


HIDDEN = ' style="display:none"'  # until CSS shows it; JupyterLab drops `hidden`
CSS = """
.xp fieldset {display:inline-block;margin:0 1em .5em 0;padding:.2em .6em;border:1px solid #777}
.xp section {overflow-x:auto}
.xp label {margin-right:.8em} .xp table {border-collapse:collapse}
.xp.xp th,.xp.xp td {text-align:left;vertical-align:top;padding:.2em .6em} .xp td:first-child {min-width:12em}
.xp i {display:inline-block;height:1em;vertical-align:middle} .xp div {line-height:1}
.xp div,.xp span {white-space:nowrap}
"""


def fields(tables: Mapping[Choice, str]) -> str:
    """The radio buttons, a panel for every choice, and the style that shows the checked one."""
    sets = ""
    for field, (words, values) in enumerate(FIELDS.items()):
        buttons = "".join(
            f'<label><input type="radio" name="xp{field}" id="xp{field}{n}"{" checked" * (n == 0)}> '
            f"{escape(value)}</label>"
            for n, value in enumerate(values)
        )
        sets += f"<fieldset><legend>{escape(words)}</legend>{buttons}</fieldset>"
    panels = shown = ""
    for number, (choice, body) in enumerate(tables.items()):
        checked = "".join(f":has(#xp{field}{n}:checked)" for field, n in enumerate(choice))
        shown += f".xp{checked} .xp-{number}{{display:block!important}}\n"
        panels += f'<section class="xp-{number}"{HIDDEN * (number > 0)}>{body}</section>'
    colours = "".join(f".xp .{part}{{background:{colour}}}\n" for part, colour in (MEMORY | STEP).items())
    hidden = "@supports selector(:has(a)) {.xp section{display:none}}\n"
    return f'<style>{CSS}{colours}{hidden}{shown}</style><div class="xp">{sets}<p>{READING}</p>{panels}</div>'


def table(found: list[Form], capacity: float, lines: Mapping[str, str]) -> str:
    """A row per plan: its memory and its step, as bars and as numbers that open."""
    most = (max(m["total"] for _, m, _ in found), max(s["total"] for _, _, s in found))
    head = "".join(f"<th>{words}</th>" for words in ("plan", legend(MEMORY), legend(STEP)))
    body = ""
    for name, memory, step in found:
        fits = "" if memory["total"] <= capacity else " <b>does not fit</b>"
        cells = (
            escape(name) + fits,
            bar(memory, MEMORY, most[0]) + opened(memory, MEMORY, lines, gigabytes),
            bar(step, STEP, most[1]) + opened(step, STEP, lines, seconds),
        )
        body += "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
    return f"<table><tr>{head}</tr>{body}</table>"


def legend(parts: Mapping[str, str]) -> str:
    """The parts of a bar, each beside its colour."""
    return " ".join(
        f'<span><i class="{part}" style="width:1em"></i> {SAID.get(part, part)}</span>' for part in parts
    )


def bar(numbers: Numbers, parts: Mapping[str, str], most: float) -> str:
    """The parts side by side, as long as they are large."""
    widths = {part: round(BAR * numbers[part] / most) for part in parts}
    spans = (f'<i class="{part}" style="width:{width}px"></i>' for part, width in widths.items() if width)
    return f"<div>{''.join(spans)}</div>"


def opened(
    numbers: Numbers, parts: Mapping[str, str], lines: Mapping[str, str], say: Callable[[float], str]
) -> str:
    """The total, and folded below it each part with its line of the program."""
    items = "".join(
        f"<li>{part} = {say(numbers[part])} = <code>{escape(lines.get(part, '?'))}</code></li>"
        for part in parts
        if numbers[part]
    )
    return f"<details><summary>{say(numbers['total'])}</summary><ul>{items}</ul></details>"


def gigabytes(nbytes: float) -> str:
    return f"{nbytes / 1e9:.1f} GB"


def seconds(value: float) -> str:
    return f"{value:.2f} s"


# ---------------------------------------------------------------- as text


def as_text(words: str, found: list[Form], capacity: float) -> str:
    """A panel as lines."""
    lines = [words]
    for name, memory, step in found:
        fits = "fits" if memory["total"] <= capacity else "does not fit"
        lines.append(f"{name:54}{gigabytes(memory['total']):>10}{seconds(step['total']):>10}  {fits}")
    return "\n".join(lines)
