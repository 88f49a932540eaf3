"""A model on disk: weights in 16 bits (safetensors), the tokenizer, and the recipe that made them.

`data/summarizer` holds one that was stopped 100 steps before its end. It was made by

    python -m mpi_classroom.launch 2 -m course.lessons.l13_deepspeed_summarization.summary_training --save
"""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from course_lib.data.storage import DataError, shown
from course_lib.paths import DATA
from course_lib.training.summaries.model import Shape, build_t5
from course_lib.training.summaries.quiet import be_quiet
from course_lib.training.summaries.recipe import Recipe

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SHIPPED = DATA / "summarizer"
WEIGHTS, TOKENIZER, RECIPE = "model.safetensors", "tokenizer.json", "recipe.json"


def save_checkpoint(
    folder: Path, model: nn.Module, tokenizer: "Tokenizer", recipe: Recipe, step: int
) -> None:
    """Write weights (float16), tokenizer and recipe to `folder`; each file appears when it is complete."""
    from safetensors.torch import save

    weights = {name: value.detach().half().contiguous() for name, value in model.named_parameters()}
    recorded = json.dumps({"step": step, **asdict(recipe)}, indent=2) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    replace(folder / WEIGHTS, save(weights))
    replace(folder / TOKENIZER, tokenizer.to_str().encode())
    replace(folder / RECIPE, recorded.encode())


def replace(path: Path, content: bytes) -> None:
    """Put `content` at `path`, all of it or none."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def load_checkpoint(folder: Path = SHIPPED) -> tuple[Any, "Tokenizer", Recipe, int]:
    """The model in float32, its tokenizer, its recipe, its number of steps; DataError when a file is bad."""
    be_quiet()
    from safetensors.torch import load
    from tokenizers import Tokenizer

    try:
        recorded = json.loads((folder / RECIPE).read_text())
        weights = load((folder / WEIGHTS).read_bytes())
        tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
        step, shape = int(recorded.pop("step")), Shape(**recorded.pop("shape"))
        recipe = Recipe(shape=shape, **recorded)
        model = build_t5(shape, seed=recipe.seed)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if weights[name].shape != parameter.shape:  # copy_ would repeat one number for all
                    raise ValueError(f"{name} has the shape {tuple(weights[name].shape)}")
                parameter.copy_(weights[name])
    except Exception as error:  # three libraries, each with errors of its own
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:120]
        raise DataError(
            f"{shown(folder)} holds no summarizer that can be read ({reason}); restore it"
        ) from error
    return model, tokenizer, recipe, step
