"""Checkpoints of training that is sharded over ranks: any number of ranks goes on from them.

    save_training(comm, folder, model, optimizer, step=12, progress={"epoch": 0, "batch": 12})
    resumed = load_training(comm, folder, model, optimizer)      # None when there is nothing to resume

This file says what a rank saves, its pieces of weights and optimizer state, and how a rank puts together what
it needs from the pieces of whatever ranks saved them: these travel through the folder, which all ranks see.
`checkpoint_folder.py` keeps the files: fsync, sha256 in a manifest, then rename, so a checkpoint that has its
name survives a kill at any instant. All ranks call these functions together and raise together.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mpi4py import MPI
from torch import nn
from torch.optim import Optimizer

from course_lib.parallel.checkpoint_folder import (
    CheckpointError,
    Found,
    file_of,
    find,
    read_tensors,
    save,
    together,
    write_tensors,
)
from course_lib.parallel.zero_shards import Bucket, ReplicatedBucket, ShardedOptimizer
from course_lib.theory.partition import even_range

WEIGHTS = "weights"
AnyOptimizer = Optimizer | ShardedOptimizer
Pieces = list[tuple[str, int, torch.Tensor]]  # parameter, where in it, flat, values begin; values (n,)


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
    """Save a new checkpoint of the training, of which every rank writes its part; returns its path.

    Call it between two steps, when gradients are clear. `optimizer` is a stage of our ZeRO, or PyTorch's own,
    which then is the same on all ranks; `comm` is the communicator that `optimizer` shards over. Use a folder
    per communicator: with tensor parallelism, each data-parallel group has its own parameters. `progress`:
    the position in the data, as JSON; rank 0's is saved. Of the checkpoints in `folder` the last `keep` stay;
    one that is plainly damaged does not count.

    Saved are weights, buffers, the optimizer's state and settings, and the state of the global generators of
    Python, NumPy and torch. A scheduler or a generator of your own is not: put its numbers into `progress`.

    Raises CheckpointError on all ranks, with the checkpoints that were there untouched, when the disk is
    full, a rank fails, another training saves into `folder`, or the optimizer's settings are other than
    Python's numbers and strings, and tensors. Only a LateRankError leaves open how far the save has come.
    """

    def write(path: Path) -> None:
        file = path / file_of(comm.rank)
        write_tensors(file, state_of_rank(comm, model, optimizer))
        try:
            read_tensors(file)  # no load would accept other settings, such as a learning rate that is NumPy's
        except CheckpointError as error:
            words = "use tensors and Python's numbers and strings in the optimizer's settings: lr=float(lr)"
            raise CheckpointError(f"{error}; {words}") from None

    return save(comm, folder, write, step=step, progress=progress, keep=keep)


def load_training(
    comm: MPI.Intracomm, folder: Path, model: nn.Module, optimizer: AnyOptimizer
) -> Found | None:
    """Restore `model`, `optimizer` and random numbers from a checkpoint; None when there is none at all.

    It is the one that `latest` names; when that is damaged, the newest whole one. `model` and `optimizer` are
    built as for a new training, on this number of ranks; `comm` is the communicator that `optimizer` shards
    over. On as many ranks as saved it, a training whose losses depend only on what is saved goes on with the
    same losses to the bit. On others, rank r restores buffers and random-number state of rank r mod the old
    world size: ranks that shared a stream still share it, and on more ranks some share one that did not, for
    example their dropout masks.

    Raises CheckpointError on all ranks, and changes nothing, when there are only damaged checkpoints, the
    model or optimizer does not fit, or a training that saves into `folder` removes the checkpoint meanwhile:
    loading takes no lock. A LateRankError or offloaded state's disk may leave some restored.
    """
    found = find(comm, folder)
    if found is None:
        return None
    # together() allgathers the errors: all ranks get past it, or all raise.
    checked: list[Restored] = []  # not returned by `read`: together() would send it to all ranks
    together(comm, "the other ranks' weights", lambda: checked.append(read(comm, found, model, optimizer)))
    # What follows has been checked on all ranks. It can still fail where offloaded state is on a disk.
    together(comm, "the other ranks' restart", lambda: restore(checked[0], model, inner_optimizer(optimizer)))
    if isinstance(optimizer, ShardedOptimizer):
        for bucket in optimizer.buckets:
            bucket.round_master()  # masters were restored; 16-bit weights follow from them
        optimizer.gather_weights()  # without a timeout, as in every training step
    return found


# ------------------------------------------------------------------ which elements a rank owns
#
# flat buffer   [ a a a a a a | b b b | c c c ]       parameters a, b, c, one after the other
# rank 1 of 3           [ . . | . . ]                 its shard: a[4:6], b[0:2]
#
# Our ZeRO keeps parameters in buckets. A bucket's weights.flat is all its parameters end to end; views[i] is
# parameter i in it, and keeps its shape when the memory is freed; master is the 1-D shard that the optimizer
# updates, for 16-bit weights a float32 copy.
#
# A file holds pieces: the name of a parameter, the index of the first element, and values. If 4 ranks go on,
# rank 1 needs a[3:6]: a[3:4] is in old rank 0's piece a[0:4], a[4:6] in old rank 1's.


@dataclass(frozen=True, slots=True)
class Part:
    """`count` elements of a parameter that a tensor holds; both are flat.

    parameter[in_parameter : in_parameter + count]  =  tensor[in_tensor : in_tensor + count]
    """

    name: str
    in_parameter: int
    count: int
    in_tensor: int


@dataclass(frozen=True, slots=True)
class Owned:
    """A tensor that an optimizer updates, and the parts of parameters in it; `replicated`: on all ranks."""

    tensor: torch.Tensor
    parts: tuple[Part, ...]
    replicated: bool


def owned_by(model: nn.Module, optimizer: AnyOptimizer) -> list[Owned]:
    """What this rank has of the parameters: its shards of what is sharded, all of what is not.

    Names are those of `named_parameters`: tied parameters have one. TypeError when the optimizer updates
    tensors that are no parameters, whose state would be lost.
    """
    names = {parameter: name for name, parameter in model.named_parameters()}
    buckets = zero_buckets(optimizer)
    in_buckets = {parameter for bucket in buckets for parameter in bucket.parameters}
    foreign = f"{type(optimizer).__name__} updates tensors that are no parameters of the model"
    if in_buckets - names.keys():
        raise TypeError(foreign)
    owned = [owned_of(bucket, names) for bucket in buckets] + [
        Owned(parameter, (Part(name, 0, parameter.numel(), 0),), replicated=True)
        for parameter, name in names.items()
        if parameter not in in_buckets
    ]
    tensors = {id(each.tensor) for each in owned}
    groups = inner_optimizer(optimizer).param_groups
    if any(id(each) not in tensors for group in groups for each in group["params"]):
        raise TypeError(foreign)
    return owned


def owned_of(bucket: Bucket, names: Mapping[nn.Parameter, str]) -> Owned:
    """The parts of parameters in the shard of a flat buffer that this rank owns."""
    replicated = isinstance(bucket, ReplicatedBucket)  # stage 0: every rank owns the full buffer
    # The views keep their shapes also while stage 3 has freed the weights.
    total = sum(view.numel() for view in bucket.weights.views)
    shard = range(total) if replicated else even_range(total, bucket.comm.size, bucket.comm.rank)
    parts, first = [], 0
    for parameter, view in zip(bucket.parameters, bucket.weights.views, strict=True):
        start, stop = max(shard.start, first), min(shard.stop, first + view.numel())
        if start < stop or (start == stop and not view.numel()):  # a parameter may have no elements
            parts.append(Part(names[parameter], start - first, stop - start, start - shard.start))
        first += view.numel()
    return Owned(bucket.master, tuple(parts), replicated)


def zero_buckets(optimizer: AnyOptimizer) -> Sequence[Bucket]:
    """The flat buffers of our ZeRO; none of PyTorch's optimizers."""
    return optimizer.buckets if isinstance(optimizer, ShardedOptimizer) else []


def inner_optimizer(optimizer: AnyOptimizer) -> Optimizer:
    """PyTorch's optimizer: the one inside our ZeRO, or `optimizer` itself."""
    return optimizer.optimizer if isinstance(optimizer, ShardedOptimizer) else optimizer


def shapes_of(model: nn.Module, optimizer: AnyOptimizer) -> dict[str, tuple[int, ...]]:
    """The full shape of every parameter, also of those that stage 3 has freed."""
    shapes = {parameter: tuple(parameter.shape) for parameter in model.parameters()}
    for bucket in zero_buckets(optimizer):
        views = zip(bucket.parameters, bucket.weights.views, strict=True)
        shapes |= {parameter: tuple(view.shape) for parameter, view in views}
    return {name: shapes[parameter] for name, parameter in model.named_parameters()}


# ------------------------------------------------------------------ what a rank saves


def state_of_rank(comm: MPI.Intracomm, model: nn.Module, optimizer: AnyOptimizer) -> dict[str, Any]:
    """What this rank writes of the training.

    `shapes`: of all parameters, in full, so that another model is refused on load. `tensors`: kind ('weights'
    or a key of the optimizer's state, such as 'exp_avg') → pieces. `numbers`: kind → parameter → value that
    is not per element, such as 'step'.
    """
    tensors: dict[str, Pieces] = {}
    numbers: dict[str, dict[str, Any]] = {}
    inner = inner_optimizer(optimizer)
    for owned in owned_by(model, optimizer):
        for kind, value in {WEIGHTS: owned.tensor, **inner.state.get(owned.tensor, {})}.items():
            # `step` is 0-dim, as a parameter may be: it is never a value per element.
            if kind != "step" and torch.is_tensor(value) and value.shape == owned.tensor.shape:
                tensors.setdefault(kind, []).extend(pieces_of(comm, owned, value))
            else:
                numbers.setdefault(kind, {}).update({part.name: value for part in owned.parts})
    return {
        "shapes": shapes_of(model, optimizer),
        "tensors": tensors,
        "numbers": numbers,
        "settings": settings_of(inner),
        # Every rank saves its own: ranks that see different samples have different running statistics.
        "buffers": {name: buffer.clone() for name, buffer in model.named_buffers()},
        "random": random_state(),
    }


def pieces_of(comm: MPI.Intracomm, owned: Owned, values: torch.Tensor) -> Pieces:
    """What this rank writes of `values`, shaped as `owned.tensor`; of what is replicated, its share."""
    flat = values.detach().reshape(-1)
    share = even_range(len(flat), comm.size, comm.rank) if owned.replicated else range(len(flat))
    pieces = []
    for part in owned.parts:
        first, stop = max(part.in_tensor, share.start), min(part.in_tensor + part.count, share.stop)
        if not part.count:  # an empty piece: a parameter without elements is there, too
            pieces.append((part.name, 0, flat[:0].clone()))
        elif first < stop:
            share_values = flat[first:stop].clone()  # torch.save writes all the memory behind a view
            pieces.append((part.name, part.in_parameter + first - part.in_tensor, share_values))
    return pieces


def settings_of(optimizer: Optimizer) -> list[dict[str, Any]]:
    """The settings of each group of parameters, such as the learning rate."""
    return [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]


def random_state() -> dict[str, Any]:
    """The state of Python's, NumPy's and torch's global generators, as plain numbers and tensors."""
    name, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    return {
        "python": random.getstate(),
        "numpy": [name, [int(key) for key in keys], position, has_gauss, gauss],
        "torch": torch.get_rng_state(),
    }


# ------------------------------------------------------------------ restoring: read and check all, then copy


@dataclass(frozen=True, slots=True)
class Restored:
    """What this rank will have, read and checked; nothing has been changed."""

    weights: list[tuple[torch.Tensor, torch.Tensor]]  # to overwrite, by what
    state: dict[torch.Tensor, dict[str, Any]]  # the optimizer's
    settings: list[dict[str, Any]]
    buffers: dict[str, torch.Tensor]
    random: dict[str, Any]


def read(comm: MPI.Intracomm, found: Found, model: nn.Module, optimizer: AnyOptimizer) -> Restored:
    """This rank's part of the checkpoint, from the files of all ranks that saved it.

    The files are memory-mapped: only the parts that are used are read. Raises CheckpointError when a file is
    damaged, or does not fit `model` or `optimizer`.
    """
    paths = [found.path / file_of(rank) for rank in range(found.ranks)]
    files = [read_rank_file(path) for path in paths]
    own = files[comm.rank % found.ranks]
    shapes, inner = shapes_of(model, optimizer), inner_optimizer(optimizer)
    for file in files:
        check_shapes("parameter", shapes, file["shapes"])
    check_settings(inner, own["settings"])
    buffers = dict(model.named_buffers())
    check_shapes("buffer", shapes_and_types(buffers), shapes_and_types(own["buffers"]))
    check_random_state(own["random"])
    tensor_kinds = sorted({kind for file in files for kind in file["tensors"]})
    tensors = {kind: covered(kind, files, shapes) for kind in tensor_kinds}
    weights = tensors.pop(WEIGHTS, {})
    for name in shapes.keys() - weights.keys():
        raise CheckpointError(f"{found.path} has no weights of {name}")
    owned = owned_by(model, optimizer)
    check_dtypes(owned, weights)
    number_kinds = sorted({kind for file in files for kind in file["numbers"]})
    numbers = {kind: agreed(kind, files) for kind in number_kinds}
    updated = {parameter for group in inner.param_groups for parameter in group["params"]}
    return Restored(
        weights=[(each.tensor, assemble(each, weights)) for each in owned],
        state={each.tensor: state_of(each, tensors, numbers) for each in owned if each.tensor in updated},
        settings=own["settings"],
        # Copied to the type and shape that the model has: what cannot be copied is found now.
        buffers={name: buffer.clone().copy_(own["buffers"][name]) for name, buffer in buffers.items()},
        random=own["random"],
    )


def read_rank_file(path: Path) -> dict[str, Any]:
    """What a rank saved; CheckpointError unless it has the entries of `state_of_rank`.

    No check of what is in the entries: whatever `read` cannot use raises there, before anything is changed.
    """
    content = read_tensors(path)
    entries = {"shapes", "tensors", "numbers", "settings", "buffers", "random"}
    if not isinstance(content, dict) or content.keys() != entries:
        raise CheckpointError(f"{path} does not have the form of a rank's part of a checkpoint")
    return content


def covered(
    kind: str, files: Sequence[Mapping[str, Any]], shapes: Mapping[str, Sequence[int]]
) -> dict[str, Pieces]:
    """All pieces of one kind, by parameter. Raises CheckpointError unless each element is there once."""
    by_name: dict[str, Pieces] = {}
    for name, start, values in (piece for file in files for piece in file["tensors"].get(kind, [])):
        by_name.setdefault(name, []).append((name, start, values))
    for name, pieces in by_name.items():
        if name not in shapes:
            raise CheckpointError(f"the checkpoint has {kind} of {name}, which is no parameter of it")
        if len({values.dtype for *_, values in pieces}) > 1:
            raise CheckpointError(f"{kind} of {name} are of several dtypes in the checkpoint")
        pieces.sort(key=lambda piece: piece[1])
        total = int(np.prod(shapes[name], dtype=np.int64))
        # The first piece starts at 0, each other one where the one before stops, and the last stops at total.
        starts = [*(start for _, start, _ in pieces), total]
        stops = [0, *(start + len(values) for _, start, values in pieces)]
        for start, stop in zip(starts, stops, strict=True):
            if start != stop:
                first, end = sorted((start, stop))
                problem = "are missing" if start > stop else "are there twice, or too many"
                raise CheckpointError(
                    f"{kind} of {name}: elements {first} to {end - 1} of {total} {problem} in the checkpoint"
                )
    return by_name


def assemble(owned: Owned, pieces: Mapping[str, Pieces]) -> torch.Tensor:
    """The values of `owned`, shaped as its tensor, in the dtype they were saved in.

    `pieces` cover every parameter of `owned`.
    """
    saved = [values for part in owned.parts for *_, values in pieces[part.name]]
    flat = torch.empty(owned.tensor.numel(), dtype=saved[0].dtype if saved else owned.tensor.dtype)
    for part in owned.parts:
        for _, start, values in pieces[part.name]:
            first = max(start, part.in_parameter)
            stop = min(start + len(values), part.in_parameter + part.count)
            if first < stop:
                where = part.in_tensor + first - part.in_parameter
                flat[where : where + stop - first] = values[first - start : stop - start]
    return flat.view(owned.tensor.shape)


def agreed(kind: str, files: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The numbers of one kind, by parameter. Raises CheckpointError when two ranks saved different ones."""
    by_name: dict[str, Any] = {}
    for name, value in (each for file in files for each in file["numbers"].get(kind, {}).items()):
        if not same(by_name.setdefault(name, value), value):
            raise CheckpointError(f"the ranks saved different values of {kind} of {name}")
    return by_name


def same(a: object, b: object) -> bool:
    """Whether two numbers or tensors are equal."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    return type(a) is type(b) and a == b


def state_of(
    owned: Owned, tensors: Mapping[str, Mapping[str, Pieces]], numbers: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """The optimizer's state of one tensor; empty if none was saved. Both mappings: kind → parameter → values.

    Raises CheckpointError when only some of the tensor's parameters have it, or it differs between them.
    """
    names = [part.name for part in owned.parts]
    # A kind may be in both: NAdam's `mu_product` of a 0-dim parameter has the parameter's shape.
    state: dict[str, Any] = {
        kind: assemble(owned, by_name) for kind, by_name in tensors.items() if all_have(kind, names, by_name)
    }
    for kind, by_name in numbers.items():
        if not all_have(kind, names, by_name):
            continue
        # A rank whose shard is empty has no name to look up. It counts the same steps as the others, so it
        # takes the value of any parameter.
        first, *others = [by_name[name] for name in names] or list(by_name.values())[:1]
        if not all(same(first, value) for value in others):
            raise CheckpointError(f"{kind} differs between {', '.join(names)}, updated together")
        state[kind] = first.clone() if torch.is_tensor(first) else first
    return state


def all_have(kind: str, names: Sequence[str], by_name: Mapping[str, Any]) -> bool:
    """Whether all parameters have this kind of state, or none; CheckpointError when only some have it."""
    known = [name for name in names if name in by_name]
    if known and known != names:
        raise CheckpointError(
            f"the checkpoint has {kind} of {known[0]} and none of {min(set(names) - set(known))},"
            " which this optimizer updates together"
        )
    return known == names


def check_shapes(what: str, mine: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """CheckpointError unless the checkpoint has the same shapes: none is made to fit by broadcasting."""
    for name in [*mine, *saved]:
        here, there = (str(tuple(each[name])) if name in each else "none" for each in (mine, saved))
        if here != there:
            raise CheckpointError(
                f"{what} {name} is {here} in the model and {there} in the checkpoint; build that model"
            )


def check_dtypes(owned: Iterable[Owned], weights: Mapping[str, Pieces]) -> None:
    """CheckpointError unless weights were saved in the dtype in which they are updated here."""
    for each in owned:
        for name in (part.name for part in each.parts):
            saved = weights[name][0][2].dtype
            if saved != each.tensor.dtype:
                raise CheckpointError(
                    f"weights of {name} are {each.tensor.dtype} here and {saved} in the checkpoint; build"
                    " that model, and an optimizer that updates it in that dtype"
                )


def shapes_and_types(tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[Any, ...]]:
    """What has to be equal for one tensor to be copied to another as it is."""
    return {name: (*tensor.shape, str(tensor.dtype)) for name, tensor in tensors.items()}


def check_settings(optimizer: Optimizer, settings: Sequence[Mapping[str, Any]]) -> None:
    """CheckpointError unless the optimizer has as many groups with settings of the same names."""
    mine, theirs = ([sorted(group) for group in each] for each in (settings_of(optimizer), settings))
    if mine != theirs:
        raise CheckpointError(
            f"{type(optimizer).__name__} is not the optimizer that was saved: it has the settings {mine}, the"
            f" checkpoint {theirs}; build the same"
        )


def check_random_state(state: Mapping[str, Any]) -> None:
    """CheckpointError unless all three generators accept the state; no global one is touched."""
    try:
        set_random_state(state, random.Random(), np.random.RandomState(), torch.Generator())
    except Exception as error:  # each generator raises what it likes
        raise CheckpointError(f"the checkpoint's random-number state cannot be restored: {error}") from None


def set_random_state(state: Mapping[str, Any], python: Any, numpy: Any, generator: torch.Generator) -> None:
    """Let these three generators continue from `state`."""
    python.setstate(state["python"])
    numpy.set_state(state["numpy"])
    generator.set_state(state["torch"].clone())  # not a view of the file


@torch.no_grad()
def restore(checked: Restored, model: nn.Module, optimizer: Optimizer) -> None:
    """Copy what was read and checked."""
    for tensor, values in checked.weights:
        tensor.copy_(values)
    for parameter, kept in checked.state.items():
        optimizer.state[parameter] = in_place_of(optimizer.state[parameter], kept)
    for group, settings in zip(optimizer.param_groups, checked.settings, strict=True):
        group.update(settings)
    for name, buffer in model.named_buffers():
        buffer.copy_(checked.buffers[name])
    restore_random_state(checked.random)


def in_place_of(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """`new`, its tensors copied into those of `old` that fit: an offloaded one stays in its file."""
    fits = {name for name, value in new.items() if torch.is_tensor(old.get(name)) and torch.is_tensor(value)}
    fits = {name for name in fits if old[name].shape == new[name].shape}
    return {name: old[name].copy_(value) if name in fits else value for name, value in new.items()}


def restore_random_state(state: Mapping[str, Any]) -> None:
    """Let the three global generators continue from `state`."""
    set_random_state(state, random, np.random, torch.default_generator)
