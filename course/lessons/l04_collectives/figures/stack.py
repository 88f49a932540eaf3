"""The layers between a training script and the wires, and which of their parts this machine has."""

from collections.abc import Mapping
from textwrap import wrap

from matplotlib.patches import Patch, Rectangle

from mpi_classroom.figures import FONT_SIZE, INK, Look, Picture, listed, new_figure

LAYERS = {
    "application": ("your training script",),
    "framework": ("torch.distributed", "DeepSpeed", "Horovod"),
    "communication runtime": ("MPI", "Gloo", "NCCL", "oneCCL"),
    "network": ("shared memory", "TCP", "InfiniBand", "GPU to GPU"),
}
HERE: Look = {"facecolor": "#bfe3d0"}
NOT_HERE: Look = {"facecolor": "#ffffff", "hatch": "///"}
LABEL_WIDTH, GAP, HEIGHT = 0.24, 0.012, 0.8


def stack(here: Mapping[str, bool]) -> Picture:
    """The layers from top to bottom, side by side what each may consist of: filled where this machine has it.

    `here["NCCL"]` says whether it is here; what `here` does not name, this course itself runs on.
    """
    layers = {layer: {part: here.get(part, True) for part in parts} for layer, parts in LAYERS.items()}
    title = stack_title(layers["communication runtime"])
    figure, axes = new_figure(title, width=8, height=0.75 * len(layers) + 1)
    axes.set(xlim=(0, 1), ylim=(len(layers), -0.1), xticks=[], yticks=[])
    axes.grid(False)
    axes.spines[:].set_visible(False)
    for row, (layer, parts) in enumerate(layers.items()):
        axes.text(
            0,
            row + HEIGHT / 2,
            "\n".join(wrap(layer, 14)),
            va="center",
            fontsize=FONT_SIZE,
            weight="bold",
            color=INK,
        )
        width = (1 - LABEL_WIDTH) / len(parts)
        for column, (part, there) in enumerate(parts.items()):
            left = LABEL_WIDTH + column * width
            look = HERE if there else NOT_HERE
            axes.add_patch(Rectangle((left, row), width - GAP, HEIGHT, edgecolor=INK, linewidth=0.8, **look))
            middle = left + (width - GAP) / 2, row + HEIGHT / 2
            box = {"facecolor": look["facecolor"], "edgecolor": "none", "pad": 2}
            axes.text(*middle, part, ha="center", va="center", fontsize=FONT_SIZE, color=INK, bbox=box)
    keys = [Patch(label="here", edgecolor=INK, **HERE)]
    keys += [Patch(label="not here", edgecolor=INK, **NOT_HERE)]
    figure.legend(handles=keys, loc="outside lower right", ncols=2, fontsize=FONT_SIZE, frameon=False)
    return Picture(
        figure, f"Layers from top to bottom. {title}. {' '.join(map(_told, layers, layers.values()))}"
    )


def stack_title(runtimes: Mapping[str, bool]) -> str:
    """Which of the communication runtimes this machine has."""
    there = [runtime for runtime, found in runtimes.items() if found]
    return f"Of {len(runtimes)} communication runtimes, this machine has {len(there)}: {listed(there)}"


def _told(layer: str, parts: Mapping[str, bool]) -> str:
    words = [part if here else f"{part} (not here)" for part, here in parts.items()]
    return f"{layer.capitalize()}: {', '.join(words)}."
