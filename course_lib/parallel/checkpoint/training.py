"""All that training needs to go on as if it had not stopped.

    weights, optimizer state     in pieces, each on one rank: for any number of ranks
    settings of the optimizer    the learning rate as it is now, …
    buffers, random numbers      of each rank: Python's, NumPy's and torch's generator
    progress                     where in the data: {"epoch": 3, "batch": 17}, or what the caller likes

To be called between two steps, when gradients are clear. On as many ranks the losses are the same to the
bit. On others rank r gets the dice of rank r mod their former number: what all threw alike, they still do.
"""

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mpi4py import MPI
from torch import nn
from torch.optim import Optimizer

from course_lib.parallel.checkpoint.disk import CheckpointError, read_tensors, together, write_tensors
from course_lib.parallel.checkpoint.folder import Found, find, save
from course_lib.parallel.checkpoint.pieces import (
    AnyOptimizer,
    Held,
    Pieces,
    Stored,
    check_shapes,
    held_by,
    plain,
    rows_of,
    stored,
)
from course_lib.parallel.zero import Zero1, Zero2

WEIGHTS = "weights"


def save_training(
    comm: MPI.Intracomm,
    folder: Path,
    model: nn.Module,
    optimizer: AnyOptimizer,
    *,
    step: int,
    progress: Mapping[str, Any] | None = None,
    keep: int = 2,
) -> Path:
    """A new checkpoint of the training, of which every rank writes its part; where it is.

    `optimizer` is one of our ZeRO's stages, or PyTorch's own, which all ranks have alike. Of the
    checkpoints in `folder` the last `keep` stay. Raises CheckpointError on all ranks, and leaves what was
    there, when the disk is full or a rank fails.
    """
    content = {"shapes": shapes_of(model, optimizer), **state_of_rank(comm, model, optimizer)}
    needed = comm.allreduce(nbytes(content))

    def write(path: Path) -> None:
        write_tensors(path / file_of(comm.rank), content)

    return save(comm, folder, write, step=step, progress=progress, needed=needed, keep=keep)


def load_training(
    comm: MPI.Intracomm, folder: Path, model: nn.Module, optimizer: AnyOptimizer
) -> Found | None:
    """Bring `model`, `optimizer` and the dice to the newest whole checkpoint; None when there is none.

    They are built as for a new training, on this number of ranks. Raises CheckpointError on all ranks when
    there are only damaged checkpoints, or the model is another.
    """
    found = find(comm, folder)
    if found is None:
        return None
    together(comm, "the other ranks' weights", lambda: restore(comm, found, model, optimizer))
    share_weights(optimizer)
    return found


def file_of(rank: int) -> str:
    return f"rank{rank}.pt"


# -------------------------------------------------------------------------------------- what is saved


def state_of_rank(comm: MPI.Intracomm, model: nn.Module, optimizer: AnyOptimizer) -> dict[str, Any]:
    """What this rank writes."""
    tensors: dict[str, Stored] = {}
    numbers: dict[str, dict[str, Any]] = {}
    inner = plain(optimizer)
    for held in held_by(model, optimizer):
        kinds = {WEIGHTS: held.tensor, **inner.state.get(held.tensor, {})}
        for kind, value in kinds.items():
            if per_element(value, held):
                tensors.setdefault(kind, []).extend(stored(held, value, comm.rank, comm.size))
            else:
                numbers.setdefault(kind, {}).update({piece.name: value for piece in held.pieces})
    return {
        "tensors": tensors,
        "numbers": numbers,
        "settings": [{k: v for k, v in group.items() if k != "params"} for group in inner.param_groups],
        "buffers": {name: buffer.clone() for name, buffer in model.named_buffers()},
        "random": random_state(),
    }


def per_element(value: object, held: Held) -> bool:
    """Whether there is one number for each element; not so the count of steps."""
    return torch.is_tensor(value) and value.shape == held.tensor.shape


def shapes_of(model: nn.Module, optimizer: AnyOptimizer) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter, also of those that stage 3 has freed."""
    shapes = {parameter: tuple(parameter.shape) for parameter in model.parameters()}
    for row in rows_of(optimizer):
        shapes |= {p: tuple(part.shape) for p, part in zip(row.parameters, row.parts, strict=True)}
    return {name: shapes[parameter] for name, parameter in model.named_parameters()}


def nbytes(content: Any) -> int:
    """The bytes of all tensors in `content`, nested as you like."""
    if torch.is_tensor(content):
        return content.nbytes
    if isinstance(content, dict):
        return sum(map(nbytes, content.values()))
    return sum(map(nbytes, content)) if isinstance(content, list | tuple) else 0


# -------------------------------------------------------------------------------------- what is read


def restore(comm: MPI.Intracomm, found: Found, model: nn.Module, optimizer: AnyOptimizer) -> None:
    """This rank's part of the checkpoint, from the files of all ranks that wrote it."""
    files = [read_tensors(found.path / file_of(rank)) for rank in range(found.ranks)]
    check_shapes(shapes_of(model, optimizer), files[0]["shapes"])
    inner = plain(optimizer)
    check_settings(inner, files[0]["settings"])
    kinds = {kind: Pieces(file["tensors"].get(kind, []) for file in files) for kind in kinds_in(files)}
    numbers: dict[str, dict[str, Any]] = {}
    for file in files:
        for kind, values in file["numbers"].items():
            numbers.setdefault(kind, {}).update(values)
    updated = {parameter for group in inner.param_groups for parameter in group["params"]}
    for held in held_by(model, optimizer):
        kinds[WEIGHTS].fill(held, held.tensor)
        if held.tensor in updated:
            inner.state[held.tensor] = state_of_held(held, kinds, numbers)
    for group, settings in zip(inner.param_groups, files[0]["settings"], strict=True):
        group.update(settings)
    own = files[comm.rank % found.ranks]
    for name, buffer in model.named_buffers():
        buffer.copy_(own["buffers"][name])
    set_random_state(own["random"])


def kinds_in(files: list[dict[str, Any]]) -> list[str]:
    return sorted({kind for file in files for kind in file["tensors"]})


def state_of_held(
    held: Held, kinds: Mapping[str, Pieces], numbers: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """The optimizer's state of one tensor; empty when it had none."""
    names = [piece.name for piece in held.pieces]
    state: dict[str, Any] = {}
    for kind, pieces in kinds.items():
        if kind != WEIGHTS and all(name in pieces.of for name in names):
            dtype = pieces.dtype(names) or held.tensor.dtype
            state[kind] = torch.empty_like(held.tensor, dtype=dtype, requires_grad=False)
            pieces.fill(held, state[kind])
    for kind, values in numbers.items():
        known = [values[name] for name in names if name in values]
        if known or not names:  # an empty slice steps with the others
            value = known[0] if known else next(iter(values.values()))
            state[kind] = value.clone() if torch.is_tensor(value) else value
    return state


def check_settings(optimizer: Optimizer, settings: list[dict[str, Any]]) -> None:
    """CheckpointError unless the optimizer has as many groups with settings of the same names."""
    mine, theirs = (
        [set(group) - {"params"} for group in each] for each in (optimizer.param_groups, settings)
    )
    if mine != theirs:
        other = sorted(set().union(*mine) ^ set().union(*theirs))
        raise CheckpointError(
            f"{type(optimizer).__name__} is not the optimizer that was saved: {len(mine)} and {len(theirs)}"
            f" groups of parameters, only one of the two with {', '.join(other) or 'all of its settings'};"
            " build the same"
        )


def share_weights(optimizer: AnyOptimizer) -> None:
    """Bring the weights in line with the slices of them, with those of all ranks where weights are whole."""
    if isinstance(optimizer, Zero1 | Zero2):
        for bucket in optimizer.buckets:
            bucket.update()
        return
    for row in rows_of(optimizer):
        if row.mine.dtype != row.master.dtype:
            row.mine.copy_(row.master.detach())


# -------------------------------------------------------------------------------------- dice


def random_state() -> dict[str, Any]:
    """The state of Python's, NumPy's and torch's global generators, of plain numbers and tensors."""
    name, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    return {
        "python": random.getstate(),
        "numpy": [name, [int(key) for key in keys], position, has_gauss, gauss],
        "torch": torch.get_rng_state(),
    }


def set_random_state(state: Mapping[str, Any]) -> None:
    """Let the three generators go on from `state`."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), *rest))
    torch.set_rng_state(state["torch"].clone())  # not a view of the file
