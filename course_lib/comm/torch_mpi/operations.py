"""What each collective needs: its record for the gate, its words for errors, its body.

A plan is made in the calling thread and can refuse: then this rank shows a refusal at the gate, and all
ranks raise. The body runs when every rank has come with the same plan.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from . import movement, reducing
from .channel import Body, Channel
from .checks import CODE, DTYPE_CODE, RECORD, describe, expectation, record
from .reductions import NAMES, PREMUL_SUM, SUM, kind_of, refuse_unknown
from .sparse import all_reduce_sparse

Tensors = list[torch.Tensor]
PACKED_BYTES = 2**20  # coalesced tensors up to this size travel as one


class Plan(NamedTuple):
    record: bytes
    story: Callable[[], str]
    body: Body
    tensors: Tensors  # the result
    before: Body | None = None  # what this rank does before it comes to the gate


def check_tensors(*tensors: torch.Tensor, sparse: bool = False) -> None:
    """Raise TypeError for what this backend cannot move."""
    for tensor in tensors:
        if not tensor.is_cpu:
            raise TypeError(f"the mpi4py backend moves CPU tensors, not {tensor.device}; call .cpu() first")
        if tensor.layout is not torch.strided and not sparse:
            raise TypeError(
                f"this collective moves dense tensors, not {tensor.layout}; call .to_dense() first"
            )


def check_same_dtype(tensors: Sequence[torch.Tensor]) -> torch.dtype:
    dtypes = {tensor.dtype for tensor in tensors}
    if len(dtypes) != 1:
        raise TypeError(f"all tensors of one collective have one dtype; got {sorted(map(str, dtypes))}")
    return tensors[0].dtype


def only(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    if len(tensors) != 1:
        raise ValueError(f"a CPU group takes one tensor a call, not {len(tensors)}; use the coalesced form")
    return tensors[0]


def one_per_rank(channel: Channel, tensors: Sequence[torch.Tensor], what: str) -> Tensors:
    if len(tensors) != channel.size:
        raise ValueError(f"{what} has {len(tensors)} tensors for {channel.size} ranks; give one a rank")
    return list(tensors)


def same_count(a: int, b: int, what: str) -> None:
    if a != b:
        raise ValueError(f"{what}: {a} elements for {b}; make them the same size")


def check_rank(channel: Channel, root: int) -> None:
    if not 0 <= root < channel.size:
        raise ValueError(f"rank {root} is not in this group of {channel.size} ranks")


# --------------------------------------------------------------------------------- that compute


def all_reduce(channel: Channel, tensors: Sequence[torch.Tensor], op: Any) -> Plan:
    tensor = only(tensors)
    kind = kind_of(op)
    if not tensor.is_cpu or tensor.layout is not torch.strided:
        if tensor.layout is torch.sparse_coo:
            return sparse_all_reduce(channel, tensor, kind)
        check_tensors(tensor)
    mine = RECORD.pack(CODE["all_reduce"], DTYPE_CODE[tensor.dtype], kind, hash(tensor.shape), 0, 0)
    story = partial(describe, "all_reduce", [tensor], NAMES[kind])
    if reducing.is_native_row(tensor, kind) and kind != PREMUL_SUM:  # as most are
        body = partial(reducing.all_reduce_row, channel, tensor, kind)
        return Plan(mine, story, body, [tensor], partial(reducing.show, channel, tensor))
    refuse_unknown(tensor.dtype, kind)
    return Plan(mine, story, partial(reducing.all_reduce, channel, tensor, op, kind), [tensor])


def sparse_all_reduce(channel: Channel, tensor: torch.Tensor, kind: int) -> Plan:
    check_tensors(tensor, sparse=True)
    if kind != SUM:
        raise TypeError(
            f"sparse tensors can be summed only, not ReduceOp.{NAMES[kind]}; call .to_dense() first"
        )
    form = hash((tensor.shape, tensor.sparse_dim()))
    mine = record("sparse_all_reduce", tensor.dtype, shape=form)
    body = partial(all_reduce_sparse, channel.comm, tensor)
    return Plan(mine, partial(describe, "sparse all_reduce", [tensor]), body, [tensor])


def all_reduce_coalesced(channel: Channel, tensors: Sequence[torch.Tensor], op: Any) -> Plan:
    kind = kind_of(op)
    check_tensors(*tensors)
    for tensor in tensors:
        refuse_unknown(tensor.dtype, kind)
    form = hash(tuple((tensor.shape, DTYPE_CODE[tensor.dtype]) for tensor in tensors))

    def body() -> None:
        small = sum(tensor.nbytes for tensor in tensors) <= PACKED_BYTES
        if len({tensor.dtype for tensor in tensors}) == 1 and small:
            with torch.no_grad():
                packed = torch.cat([tensor.reshape(-1) for tensor in tensors])
                reducing.all_reduce(channel, packed, op, kind)
                for tensor, part in zip(tensors, packed.split(reducing.counts_of(tensors)), strict=True):
                    tensor.copy_(part.view(tensor.shape))
            return
        for tensor in tensors:
            reducing.all_reduce(channel, tensor, op, kind)

    mine = record("all_reduce", None, detail=kind, shape=form)
    return Plan(mine, partial(describe, "all_reduce_coalesced", tensors, NAMES[kind]), body, list(tensors))


def reduce(channel: Channel, tensors: Sequence[torch.Tensor], op: Any, root: int) -> Plan:
    tensor = only(tensors)
    kind = kind_of(op)
    check_tensors(tensor)
    check_rank(channel, root)
    refuse_unknown(tensor.dtype, kind)
    mine = record("reduce", tensor.dtype, detail=kind + 100 * root, shape=hash(tensor.shape))
    body = partial(reducing.reduce, channel.comm, tensor, op, root)
    return Plan(mine, partial(describe, "reduce", [tensor], f"{NAMES[kind]} to rank {root}"), body, [tensor])


def reduce_scatter(channel: Channel, output: torch.Tensor, inputs: Sequence[torch.Tensor], op: Any) -> Plan:
    inputs = one_per_rank(channel, inputs, "the input list of reduce_scatter")
    kind = kind_of(op)
    check_tensors(output, *inputs)
    refuse_unknown(check_same_dtype([output, *inputs]), kind)
    same_count(output.numel(), inputs[channel.rank].numel(), "output for this rank's input")
    form = hash(tuple(tensor.shape for tensor in inputs))
    mine = record("reduce_scatter", output.dtype, detail=kind, shape=form)
    body = partial(reducing.reduce_scatter, channel, output, inputs, op)
    return Plan(mine, partial(describe, "reduce_scatter", inputs, NAMES[kind]), body, [output])


def reduce_scatter_single(channel: Channel, output: torch.Tensor, tensor: torch.Tensor, op: Any) -> Plan:
    kind = kind_of(op)
    check_tensors(output, tensor)
    refuse_unknown(check_same_dtype([output, tensor]), kind)
    same_count(tensor.numel(), channel.size * output.numel(), f"input for {channel.size} outputs")
    mine = record("reduce_scatter_single", output.dtype, detail=kind, shape=tensor.numel())
    counts = [output.numel()] * channel.size
    body = partial(reducing.reduce_scatter_row, channel, output, tensor, counts, op)
    return Plan(mine, partial(describe, "reduce_scatter_single", [tensor], NAMES[kind]), body, [output])


# ------------------------------------------------------------------------------------ that move


def broadcast(channel: Channel, tensors: Sequence[torch.Tensor], root: int) -> Plan:
    tensor = only(tensors)
    check_tensors(tensor)
    check_rank(channel, root)
    mine = record("broadcast", tensor.dtype, detail=root, shape=hash(tensor.shape))
    body = partial(movement.broadcast, channel.comm, tensor, root)
    return Plan(mine, partial(describe, "broadcast", [tensor], f"from rank {root}"), body, [tensor])


def all_gather(channel: Channel, outputs: Sequence[torch.Tensor], tensor: torch.Tensor) -> Plan:
    outputs = one_per_rank(channel, outputs, "the output list of all_gather")
    check_tensors(tensor, *outputs)
    check_same_dtype([tensor, *outputs])
    same_count(outputs[channel.rank].numel(), tensor.numel(), "output for this rank's input")
    expects = expectation(reducing.counts_of(outputs))
    mine = record("all_gather", tensor.dtype, elements=tensor.numel(), expects=expects)
    sends = [(rank, tensor) for rank in range(channel.size)]
    body = partial(movement.exchange, channel.comm, sends, list(enumerate(outputs)))
    story = partial(describe, "all_gather", [tensor], f"into {[tuple(t.shape) for t in outputs]}")
    return Plan(mine, story, body, outputs)


def all_gather_single(channel: Channel, output: torch.Tensor, tensor: torch.Tensor) -> Plan:
    check_tensors(output, tensor)
    check_same_dtype([output, tensor])
    same_count(output.numel(), channel.size * tensor.numel(), f"output for {channel.size} inputs")
    mine = record("all_gather_single", tensor.dtype, shape=tensor.numel())
    body = partial(movement.all_gather_row, channel.comm, output, tensor)
    return Plan(mine, partial(describe, "all_gather_single", [tensor]), body, [output])


def gather(channel: Channel, outputs: Sequence[torch.Tensor], tensor: torch.Tensor, root: int) -> Plan:
    check_rank(channel, root)
    check_tensors(tensor, *outputs)
    at_root = channel.rank == root
    if at_root:
        outputs = one_per_rank(channel, outputs, "the output list of gather")
        check_same_dtype([tensor, *outputs])
        same_count(outputs[root].numel(), tensor.numel(), "output for this rank's input")
    expects = expectation(reducing.counts_of(outputs)) if at_root else 0
    mine = record("gather", tensor.dtype, detail=root, elements=tensor.numel(), expects=expects)
    receives = list(enumerate(outputs)) if at_root else []
    body = partial(movement.exchange, channel.comm, [(root, tensor)], receives)
    return Plan(mine, partial(describe, "gather", [tensor], f"to rank {root}"), body, list(outputs))


def scatter(channel: Channel, output: torch.Tensor, inputs: Sequence[torch.Tensor], root: int) -> Plan:
    check_rank(channel, root)
    check_tensors(output, *inputs)
    at_root = channel.rank == root
    if at_root:
        inputs = one_per_rank(channel, inputs, "the input list of scatter")
        check_same_dtype([output, *inputs])
        same_count(output.numel(), inputs[root].numel(), "output for this rank's input")
    expects = expectation(reducing.counts_of(inputs)) if at_root else 0
    mine = record("scatter", output.dtype, detail=root, elements=output.numel(), expects=expects)
    sends = list(enumerate(inputs)) if at_root else []
    body = partial(movement.exchange, channel.comm, sends, [(root, output)])
    return Plan(mine, partial(describe, "scatter", [output], f"from rank {root}"), body, [output])


def all_to_all(channel: Channel, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> Plan:
    outputs = one_per_rank(channel, outputs, "the output list of all_to_all")
    inputs = one_per_rank(channel, inputs, "the input list of all_to_all")
    check_tensors(*outputs, *inputs)
    dtype = check_same_dtype([*outputs, *inputs])
    takes, gives = reducing.counts_of(outputs), reducing.counts_of(inputs)
    same_count(takes[channel.rank], gives[channel.rank], "this rank's output for its own input")

    def body() -> None:
        movement.agree_on_parts(channel.comm, gives, takes)
        movement.exchange(channel.comm, list(enumerate(inputs)), list(enumerate(outputs)))

    return Plan(record("all_to_all", dtype), partial(describe, "all_to_all", inputs), body, outputs)


def all_to_all_single(
    channel: Channel, output: torch.Tensor, tensor: torch.Tensor, takes: Sequence[int], gives: Sequence[int]
) -> Plan:
    """`takes` and `gives`: how many rows go from and to each rank; empty for the same number each."""
    check_tensors(output, tensor)
    dtype = check_same_dtype([output, tensor])
    even = not takes and not gives
    takes, gives = part_sizes(channel, output, takes), part_sizes(channel, tensor, gives)

    def body() -> None:
        largest = tensor.numel()
        if set(channel.gate.elements()) != {tensor.numel()} or not even:
            largest = movement.agree_on_parts(channel.comm, gives, takes)
        movement.all_to_all_row(channel.comm, output, tensor, takes, gives, largest)

    mine = record("all_to_all_single", dtype, elements=tensor.numel() if even else -1)
    return Plan(mine, partial(describe, "all_to_all_single", [tensor], f"parts {gives}"), body, [output])


def part_sizes(channel: Channel, tensor: torch.Tensor, splits: Sequence[int]) -> list[int]:
    """The elements of each rank's part of `tensor`, which is cut along its first dimension."""
    rows = tensor.shape[0] if tensor.dim() else 1
    if not splits:
        if rows % channel.size:
            raise ValueError(f"{rows} rows are not divisible by {channel.size} ranks; give the split sizes")
        return [tensor.numel() // channel.size] * channel.size
    if len(splits) != channel.size or sum(splits) != rows:
        raise ValueError(f"split sizes {list(splits)} do not cut {rows} rows for {channel.size} ranks")
    return [tensor.numel() // rows * part if rows else 0 for part in splits]


def barrier(_channel: Channel) -> Plan:
    return Plan(record("barrier", None), partial(describe, "barrier", []), lambda: None, [])
