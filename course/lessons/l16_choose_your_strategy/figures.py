"""The explorer of lesson 16: all plans for a job and a node, each number open to the line that computed it.

It reads the learner's own program, `memory` and `step`, and draws with HTML alone: its switch works in
JupyterLab, and on the site without a kernel.
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
STEP = {"computing": "#56B4E9", "idle": "#dddddd", "left": "#E69F00", "inside": "#D55E00"}
SAID = {"left": "messages left", "inside": "tensor messages"}
BAR = 220  # pixels of the longest
STYLE = "display:inline-block;height:1em;background:"


@dataclass(frozen=True, slots=True)
class Page:
    """HTML for a notebook, and the same numbers as text."""

    html: str
    text: str

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": self.html, "text/plain": self.text}


def explore(program: str, customers: Mapping[str, Mapping[str, float]]) -> Page:
    """Every even way to divide the GPUs in its best form, for each customer.

    The best form is the fastest that fits, or the smallest. Raises KeyError when the program has no
    `memory` or no `step`.
    """
    names, lines = runpy.run_path(program), formulas(Path(program).read_text(encoding="utf-8"))
    panels = [
        (name, best(names["memory"], names["step"], customer), customer["room"])
        for name, customer in customers.items()
    ]
    return Page(
        switch([(name, table(found, room, lines)) for name, found, room in panels]),
        "\n\n".join(as_text(*panel) for panel in panels),
    )


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
        for zero, microbatches in product(range(4 if data > 1 else 1), MICROBATCHES):
            if customer["batch"] % (data * microbatches) == 0:
                plan = {"data": data, "zero": zero, "pipeline": pipeline, "tensor": tensor}
                plan["microbatches"] = microbatches
                forms.append((name_of(plan), memory(**customer, **plan), step(**customer, **plan)))
        found += sorted(forms, key=lambda form: rank_of(form, customer["room"]))[:1]
    return sorted(found, key=lambda form: rank_of(form, customer["room"]))


def rank_of(form: Form, room: float) -> tuple[bool, float]:
    """The key to sort by: what fits first, the fastest first; the others by their memory."""
    _, memory, step = form
    fits = memory["total"] <= room
    return not fits, round(step["total"], 6) if fits else memory["total"]


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


def switch(panels: list[tuple[str, str]]) -> str:
    """All panels, each folded under its words; those of one group open one at a time."""
    return "".join(
        f'<details name="explorer"{" open" * (n == 0)}><summary><b>{escape(words)}</b></summary>{body}'
        "</details>"
        for n, (words, body) in enumerate(panels)
    )


def table(found: list[Form], room: float, lines: Mapping[str, str]) -> str:
    """A row per plan: its memory and its step, as bars and as numbers that open."""
    left = 'style="text-align:left;vertical-align:top"'
    most = (max(m["total"] for _, m, _ in found), max(s["total"] for _, _, s in found))
    head = "".join(f"<th {left}>{words}</th>" for words in ("plan", legend(MEMORY), legend(STEP)))
    body = ""
    for name, memory, step in found:
        fits = "" if memory["total"] <= room else " <b>does not fit</b>"
        cells = (
            escape(name) + fits,
            bar(memory, MEMORY, most[0]) + opened(memory, MEMORY, lines, gigabytes),
            bar(step, STEP, most[1]) + opened(step, STEP, lines, seconds),
        )
        body += "<tr>" + "".join(f"<td {left}>{cell}</td>" for cell in cells) + "</tr>"
    return f"<table><tr>{head}</tr>{body}</table>"


def legend(colours: Mapping[str, str]) -> str:
    """The parts of a bar, each beside its colour."""
    return " ".join(
        f'<span style="{STYLE}{colour};width:1em"></span> {SAID.get(part, part)}'
        for part, colour in colours.items()
    )


def bar(numbers: Numbers, colours: Mapping[str, str], most: float) -> str:
    """The parts side by side, as long as they are large."""
    spans = (
        f'<span style="{STYLE}{colour};width:{BAR * numbers[part] / most:.0f}px" title="{part}"></span>'
        for part, colour in colours.items()
    )
    return f'<div style="white-space:nowrap;line-height:1">{"".join(spans)}</div>'


def opened(
    numbers: Numbers, parts: Mapping[str, str], lines: Mapping[str, str], say: Callable[[float], str]
) -> str:
    """The total, and folded below it each part with its line of the program."""
    items = "".join(
        f"<li>{part} = {say(numbers[part])} = <code>{escape(lines.get(part, '?'))}</code></li>"
        for part in parts
    )
    return f"<details><summary>{say(numbers['total'])}</summary><ul>{items}</ul></details>"


def gigabytes(nbytes: float) -> str:
    return f"{nbytes / 1e9:.1f} GB"


def seconds(value: float) -> str:
    return f"{value:.2f} s"


# ---------------------------------------------------------------- as text


def as_text(words: str, found: list[Form], room: float) -> str:
    """A panel as lines."""
    lines = [words]
    for name, memory, step in found:
        fits = "fits" if memory["total"] <= room else "does not fit"
        lines.append(f"{name:54}{gigabytes(memory['total']):>10}{seconds(step['total']):>10}  {fits}")
    return "\n".join(lines)
