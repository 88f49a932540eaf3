"""Every collective: what it demands, what it shows at the gate, how it moves its data.

Each function makes a `Call` in the calling thread. It can refuse (ValueError, TypeError): then this rank
shows a refusal at the gate, and all ranks raise. The body runs when every rank has come with a record that
agrees. What decides the path of a body is in the record or was agreed before, never the layout of one rank's
tensor.

Every wait inside a body has a deadline (`Channel.complete`), so MPI's calls are the non-blocking ones.
"""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from mpi4py import MPI

from . import tensors as limits
from .channel import Call, Channel, keep_forever
from .errors import MismatchError
from .gate import CODE, RECORD, describe, expectation, record
from .reductions import (
    AVG,
    NAMES,
    NATIVE,
    PREMUL_SUM,
    SUM,
    average,
    combine,
    kind_of,
    refuse_unknown,
    scaled,
)
from .shared import ROW_BYTES
from .tensors import DTYPE_CODE, as_message, free_all, pieces, place_for, plain, spec, write_back

Tensors = list[torch.Tensor]
Part = tuple[int, torch.Tensor]  # the other rank, and what is sent to it or received from it
PACKED_BYTES = 2**20  # coalesced tensors up to this size travel as one
GATHER_BYTES = 32 * 2**10  # up to here every rank gets everything: one exchange instead of two
TAG = 1  # on the group's own communicator, where no message of the user is


# ------------------------------------------------------------------------------------ all_reduce


def all_reduce(channel: Channel, tensors: Sequence[torch.Tensor], op: Any) -> Call:
    """Reduce the tensor over the ranks, in place, the same bits on every rank."""
    tensor = only(tensors)
    kind = kind_of(op)
    if not tensor.is_cpu or tensor.layout is not torch.strided:
        if tensor.layout is torch.sparse_coo:
            return all_reduce_sparse(channel, tensor, kind)
        check_tensors(tensor)
    native = NATIVE.get((tensor.dtype, kind))
    mine = RECORD.pack(CODE["all_reduce"], DTYPE_CODE[tensor.dtype], kind, hash(tensor.shape), 0, 0)
    words = partial(describe, "all_reduce", [tensor], NAMES[kind])
    values = plain(tensor)  # the tensor itself, unless its memory is not the row of its values
    if native and kind != PREMUL_SUM:  # as most are
        body = partial(all_reduce_native, channel, tensor, values, kind)
        local = channel.rows is not None and channel.rows.is_direct(values.nbytes)
        return Call(mine, words, body, [tensor], (values.data_ptr(), values.nbytes), local)
    refuse_unknown(tensor.dtype, kind)

    def by_parts() -> None:
        row = scaled(values, op) if kind == PREMUL_SUM else values
        reduce_in_place(channel, row, kind)
        write_back(tensor, row)

    return Call(mine, words, by_parts, [tensor])


def all_reduce_native(channel: Channel, tensor: torch.Tensor, values: torch.Tensor, kind: int) -> None:
    """Reduce a tensor of a type that MPI has; `values` is the tensor or a plain copy of it."""
    reduce_row(channel, values, *NATIVE[tensor.dtype, kind])
    if kind == AVG:
        average(values, channel.size)
    if values is not tensor:
        write_back(tensor, values)


def reduce_row(channel: Channel, values: torch.Tensor, datatype: MPI.Datatype, op: MPI.Op) -> None:
    """Reduce a plain tensor over the ranks: through the memory they share, or by MPI's own call."""
    rows = channel.find_rows()
    if rows:
        rows.all_reduce(values.data_ptr(), values.numel(), datatype, op)
        return
    for piece in pieces(values):
        channel.complete(channel.comm.Iallreduce(MPI.IN_PLACE, spec(piece, datatype), op), values)


def reduce_in_place(channel: Channel, values: torch.Tensor, kind: int) -> None:
    """Reduce a plain tensor of any type over the ranks.

    If MPI lacks the type, every rank reduces its share of the elements in float32, then all gather the
    shares.
    """
    if (values.dtype, kind) in NATIVE:
        reduce_row(channel, values, *NATIVE[values.dtype, kind])
        if kind == AVG:
            average(values, channel.size)
        return
    flat, size, ranks = values.detach().view(-1), channel.size, range(channel.size)
    if flat.nbytes * size <= GATHER_BYTES:
        rows = torch.empty((size, *flat.shape), dtype=flat.dtype)
        memory, _, unit = spec(rows)
        channel.complete(channel.comm.Iallgather(spec(flat), [memory, flat.numel(), unit]), flat, rows)
        combine(list(rows), kind, flat)
        return
    cuts = [flat.numel() * rank // size for rank in range(size + 1)]
    shares = [flat[start:end] for start, end in pairwise(cuts)]
    mine = shares[channel.rank]
    rows = torch.empty((size, mine.numel()), dtype=flat.dtype)
    exchange(channel, list(zip(ranks, shares, strict=True)), list(zip(ranks, rows, strict=True)))
    combine(list(rows), kind, mine)
    exchange(channel, [(rank, mine) for rank in ranks], list(zip(ranks, shares, strict=True)))


def all_reduce_coalesced(channel: Channel, tensors: Sequence[torch.Tensor], op: Any) -> Call:
    """Reduce each tensor over the ranks, in place; small tensors of one dtype travel as one."""
    kind = kind_of(op)
    check_tensors(*tensors)
    for tensor in tensors:
        refuse_unknown(tensor.dtype, kind)
    form = hash(tuple((tensor.shape, DTYPE_CODE[tensor.dtype]) for tensor in tensors))

    def reduce_one(tensor: torch.Tensor) -> torch.Tensor:
        row = scaled(plain(tensor), op) if kind == PREMUL_SUM else plain(tensor)
        reduce_in_place(channel, row, kind)
        return row

    def body() -> None:
        small = sum(tensor.nbytes for tensor in tensors) <= PACKED_BYTES
        if len({tensor.dtype for tensor in tensors}) == 1 and small:
            packed = reduce_one(torch.cat([tensor.detach().reshape(-1) for tensor in tensors]))
            rows = list(packed.split(counts_of(tensors)))
        else:
            rows = [reduce_one(tensor) for tensor in tensors]
        for tensor, row in zip(tensors, rows, strict=True):
            write_back(tensor, row.view(tensor.shape))

    mine = record("all_reduce", None, root_or_op=kind, shape=form)
    return Call(mine, partial(describe, "all_reduce_coalesced", tensors, NAMES[kind]), body, list(tensors))


def all_reduce_sparse(channel: Channel, tensor: torch.Tensor, kind: int) -> Call:
    """Sum sparse COO tensors, in place; ranks may have different numbers of entries."""
    check_tensors(tensor, sparse=True)
    if kind != SUM:
        raise TypeError(
            f"sparse tensors can be summed only, not ReduceOp.{NAMES[kind]}; call .to_dense() first"
        )

    def body() -> None:
        mine, ranks = tensor.detach().coalesce(), range(channel.size)
        entries = np.empty(channel.size, dtype=np.int64)
        channel.complete(channel.comm.Iallgather(np.array([mine._nnz()]), entries), entries)
        indices = [torch.empty((mine.sparse_dim(), int(count)), dtype=torch.int64) for count in entries]
        values = [torch.empty((int(count), *mine.values().shape[1:]), dtype=mine.dtype) for count in entries]
        exchange(channel, [(rank, mine.indices()) for rank in ranks], list(enumerate(indices)))
        exchange(channel, [(rank, mine.values()) for rank in ranks], list(enumerate(values)))
        total = torch.sparse_coo_tensor(torch.cat(indices, dim=1), torch.cat(values), mine.shape)
        with torch.no_grad():
            tensor.copy_(total.coalesce())  # into a detached one it would not show: entries share no memory

    form = hash((tensor.shape, tensor.sparse_dim()))
    mine = record("sparse_all_reduce", tensor.dtype, shape=form)
    return Call(mine, partial(describe, "sparse all_reduce", [tensor]), body, [tensor])


# -------------------------------------------------------------------------- reduce, reduce_scatter


def reduce(channel: Channel, tensors: Sequence[torch.Tensor], op: Any, root: int) -> Call:
    """Reduce into the tensor of `root`; the tensors of the other ranks stay as they are.

    It is an all_reduce whose result only `root` keeps, the others reduce a copy: through shared memory that
    takes a tenth of the time of MPI's Ireduce.
    """
    tensor = only(tensors)
    kind = kind_of(op)
    check_tensors(tensor)
    check_rank(channel, root)
    refuse_unknown(tensor.dtype, kind)
    values = plain(tensor)

    def body() -> None:
        row = scaled(values, op) if kind == PREMUL_SUM else values
        if row is tensor and channel.rank != root:
            row = row.clone()
        reduce_in_place(channel, row, kind)
        if channel.rank == root:
            write_back(tensor, row)

    native = (tensor.dtype, kind) in NATIVE and kind != PREMUL_SUM
    show = (values.data_ptr(), values.nbytes) if native else None
    local = native and channel.rows is not None and channel.rows.is_direct(values.nbytes)
    mine = record("reduce", tensor.dtype, root_or_op=kind + 100 * root, shape=hash(tensor.shape))
    words = partial(describe, "reduce", [tensor], f"{NAMES[kind]} to rank {root}")
    return Call(mine, words, body, [tensor], show, local)


def reduce_scatter(channel: Channel, output: torch.Tensor, inputs: Sequence[torch.Tensor], op: Any) -> Call:
    """Reduce the r-th of `inputs` over the ranks into the `output` of rank r; sizes may differ."""
    inputs = one_per_rank(channel, inputs, "the input list of reduce_scatter")
    kind = kind_of(op)
    check_tensors(output, *inputs)
    refuse_unknown(check_same_dtype([output, *inputs]), kind)
    same_count(output.numel(), inputs[channel.rank].numel(), "output for this rank's input")

    def body() -> None:
        row = torch.cat([plain(tensor).detach().view(-1) for tensor in inputs])
        reduce_scatter_row(channel, output, row, counts_of(inputs), op)

    form = hash(tuple(tensor.shape for tensor in inputs))
    mine = record("reduce_scatter", output.dtype, root_or_op=kind, shape=form)
    return Call(mine, partial(describe, "reduce_scatter", inputs, NAMES[kind]), body, [output])


def reduce_scatter_single(channel: Channel, output: torch.Tensor, tensor: torch.Tensor, op: Any) -> Call:
    """Reduce `tensor` over the ranks and scatter it in equal parts: the r-th to the `output` of rank r."""
    kind = kind_of(op)
    check_tensors(output, tensor)
    refuse_unknown(check_same_dtype([output, tensor]), kind)
    same_count(tensor.numel(), channel.size * output.numel(), f"input for {channel.size} outputs")
    counts = [output.numel()] * channel.size
    body = partial(reduce_scatter_row, channel, output, tensor, counts, op)
    mine = record("reduce_scatter_single", output.dtype, root_or_op=kind, shape=tensor.numel())
    return Call(mine, partial(describe, "reduce_scatter_single", [tensor], NAMES[kind]), body, [output])


def reduce_scatter_row(
    channel: Channel, output: torch.Tensor, tensor: torch.Tensor, counts: Sequence[int], op: Any
) -> None:
    """Reduce one tensor over the ranks; rank r gets the part of `counts[r]` elements in its `output`."""
    kind = kind_of(op)
    native = NATIVE.get((tensor.dtype, kind))
    source = plain(scaled(tensor, op) if kind == PREMUL_SUM else tensor)
    into = place_for(output)
    rows = channel.find_rows() if native else None
    if native is None or (not rows and tensor.numel() > limits.MAX_COUNT):
        parts = torch.empty((channel.size, into.numel()), dtype=into.dtype)
        outgoing = source.detach().view(-1).split(list(counts))
        exchange(channel, list(enumerate(outgoing)), list(enumerate(parts)))
        combine(list(parts), kind, into.view(-1))  # each rank adds up its own
    else:
        if rows:
            rows.reduce_scatter(into.data_ptr(), source.data_ptr(), counts, *native)
        else:
            buffers = spec(source, native[0]), spec(into, native[0])
            begun = channel.comm.Ireduce_scatter(*buffers, list(counts), native[1])
            channel.complete(begun, source, into)
        if kind == AVG:
            average(into, channel.size)
    write_back(output, into)


# ---------------------------------------------------------------------------- one row of memory


def broadcast(channel: Channel, tensors: Sequence[torch.Tensor], root: int) -> Call:
    """Copy the values of `root` to the tensor of every rank."""
    tensor = only(tensors)
    check_tensors(tensor)
    check_rank(channel, root)

    def body() -> None:
        values = plain(tensor) if channel.rank == root else place_for(tensor)
        for piece in pieces(values):
            channel.complete(channel.comm.Ibcast(spec(piece), root), values)
        write_back(tensor, values)

    mine = record("broadcast", tensor.dtype, root_or_op=root, shape=hash(tensor.shape))
    return Call(mine, partial(describe, "broadcast", [tensor], f"from rank {root}"), body, [tensor])


def all_gather_single(channel: Channel, output: torch.Tensor, tensor: torch.Tensor) -> Call:
    """Gather the tensors of all ranks in `output`, in rank order; `tensor` may be its part of `output`."""
    check_tensors(output, tensor)
    check_same_dtype([output, tensor])
    same_count(output.numel(), channel.size * tensor.numel(), f"output for {channel.size} inputs")
    mine = plain(tensor)
    short = mine.nbytes <= ROW_BYTES  # one copy in, one out; from there on MPI copies straight, once

    def body() -> None:
        row = place_for(output)
        if short and (rows := channel.find_rows()):
            rows.all_gather(row.data_ptr(), mine.data_ptr(), mine.nbytes)
        else:
            all_gather_row(channel, row, mine)
        write_back(output, row)

    shown = record("all_gather_single", tensor.dtype, shape=tensor.numel())
    words = partial(describe, "all_gather_single", [tensor])
    show = (mine.data_ptr(), mine.nbytes) if short else None
    return Call(shown, words, body, [output], show, short and channel.rows is not None)


def all_gather_row(channel: Channel, row: torch.Tensor, mine: torch.Tensor) -> None:
    """Gather the plain tensors `mine` of all ranks in the plain tensor `row`, straight, in one copy."""
    parts = row.detach().view(-1).chunk(channel.size) if row.numel() else [row] * channel.size
    own = parts[channel.rank]
    if row.numel() > limits.MAX_COUNT:
        exchange(channel, [(rank, mine) for rank in range(channel.size)], list(enumerate(parts)))
        return
    if mine.data_ptr() != own.data_ptr():
        own.copy_(mine.detach().view(-1))
    memory, _, unit = spec(row)  # in place on all ranks: MPI wants that to be the same everywhere
    channel.complete(channel.comm.Iallgather(MPI.IN_PLACE, [memory, own.numel(), unit]), row)


def all_to_all_single(
    channel: Channel,
    output: torch.Tensor,
    tensor: torch.Tensor,
    recvcounts: Sequence[int],
    sendcounts: Sequence[int],
) -> Call:
    """Send the r-th part of `tensor` to rank r. Counts are rows per rank; they are empty for equal parts."""
    check_tensors(output, tensor)
    dtype = check_same_dtype([output, tensor])
    even = not recvcounts and not sendcounts
    receives, sends = part_sizes(channel, output, recvcounts), part_sizes(channel, tensor, sendcounts)

    def body() -> None:
        largest = tensor.numel()
        if set(channel.gate.elements()) != {tensor.numel()} or not even:
            largest = agree_on_parts(channel, sends, receives)
        into, source = place_for(output), plain(tensor)
        if largest > limits.MAX_COUNT:
            outgoing = source.detach().view(-1).split(sends)
            exchange(
                channel,
                list(enumerate(outgoing)),
                list(enumerate(into.detach().view(-1).split(receives))),
            )
        else:
            out, _, unit = spec(source)
            begun = channel.comm.Ialltoallv(
                [out, (sends, starts(sends)), unit], [spec(into)[0], (receives, starts(receives)), unit]
            )
            channel.complete(begun, source, into)
        write_back(output, into)

    mine = record("all_to_all_single", dtype, elements=tensor.numel() if even else -1)
    return Call(mine, partial(describe, "all_to_all_single", [tensor], f"parts {sends}"), body, [output])


def part_sizes(channel: Channel, tensor: torch.Tensor, splits: Sequence[int]) -> list[int]:
    """Return the number of elements per rank when `tensor` is cut along its first dimension."""
    rows = tensor.shape[0] if tensor.dim() else 1
    if not splits:
        if rows % channel.size:
            raise ValueError(f"{rows} rows are not divisible by {channel.size} ranks; give the split sizes")
        return [tensor.numel() // channel.size] * channel.size
    if len(splits) != channel.size or sum(splits) != rows:
        raise ValueError(f"split sizes {list(splits)} do not cut {rows} rows for {channel.size} ranks")
    return [tensor.numel() // rows * part if rows else 0 for part in splits]


def starts(counts: Sequence[int]) -> list[int]:
    """Return the offset of each part."""
    return [sum(counts[:rank]) for rank in range(len(counts))]


# ------------------------------------------------------------------------------ lists of tensors


def all_gather(channel: Channel, outputs: Sequence[torch.Tensor], tensor: torch.Tensor) -> Call:
    """Gather the tensor of rank r in the r-th of `outputs`, on every rank; sizes may differ."""
    outputs = one_per_rank(channel, outputs, "the output list of all_gather")
    check_tensors(tensor, *outputs)
    check_same_dtype([tensor, *outputs])
    same_count(outputs[channel.rank].numel(), tensor.numel(), "output for this rank's input")
    expects = expectation(counts_of(outputs))
    mine = record("all_gather", tensor.dtype, elements=tensor.numel(), expects=expects)
    sends = [(rank, tensor) for rank in range(channel.size)]
    body = partial(exchange, channel, sends, list(enumerate(outputs)))
    words = partial(describe, "all_gather", [tensor], f"into {[tuple(t.shape) for t in outputs]}")
    return Call(mine, words, body, outputs)


def gather(channel: Channel, outputs: Sequence[torch.Tensor], tensor: torch.Tensor, root: int) -> Call:
    """Gather the tensor of rank r in the r-th of the `outputs` of `root`; sizes may differ."""
    check_rank(channel, root)
    check_tensors(tensor, *outputs)
    at_root = channel.rank == root
    if at_root:
        outputs = one_per_rank(channel, outputs, "the output list of gather")
        check_same_dtype([tensor, *outputs])
        same_count(outputs[root].numel(), tensor.numel(), "output for this rank's input")
    expects = expectation(counts_of(outputs)) if at_root else 0
    mine = record("gather", tensor.dtype, root_or_op=root, elements=tensor.numel(), expects=expects)
    receives = list(enumerate(outputs)) if at_root else []
    body = partial(exchange, channel, [(root, tensor)], receives)
    return Call(mine, partial(describe, "gather", [tensor], f"to rank {root}"), body, list(outputs))


def gather_single(channel: Channel, output: torch.Tensor, tensor: torch.Tensor, root: int) -> Call:
    """Gather the tensor of rank r in the r-th of the equal parts of the contiguous `output` of `root`."""
    if channel.rank != root:
        return gather(channel, [], tensor, root)
    same_count(output.numel(), channel.size * tensor.numel(), f"output for {channel.size} inputs")
    if not output.is_contiguous():
        raise ValueError("gather_single fills a contiguous tensor; make the output one, or use gather")
    return gather(channel, list(output.view(channel.size, -1)), tensor, root)


def scatter(channel: Channel, output: torch.Tensor, inputs: Sequence[torch.Tensor], root: int) -> Call:
    """Send the r-th of the `inputs` of `root` to the `output` of rank r; sizes may differ."""
    check_rank(channel, root)
    check_tensors(output, *inputs)
    at_root = channel.rank == root
    if at_root:
        inputs = one_per_rank(channel, inputs, "the input list of scatter")
        check_same_dtype([output, *inputs])
        same_count(output.numel(), inputs[root].numel(), "output for this rank's input")
    expects = expectation(counts_of(inputs)) if at_root else 0
    mine = record("scatter", output.dtype, root_or_op=root, elements=output.numel(), expects=expects)
    sends = list(enumerate(inputs)) if at_root else []
    body = partial(exchange, channel, sends, [(root, output)])
    return Call(mine, partial(describe, "scatter", [output], f"from rank {root}"), body, [output])


def all_to_all(channel: Channel, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> Call:
    """Send the r-th of `inputs` to rank r, which receives it in the output of this rank's number."""
    outputs = one_per_rank(channel, outputs, "the output list of all_to_all")
    inputs = one_per_rank(channel, inputs, "the input list of all_to_all")
    check_tensors(*outputs, *inputs)
    dtype = check_same_dtype([*outputs, *inputs])
    receives, sends = counts_of(outputs), counts_of(inputs)
    same_count(receives[channel.rank], sends[channel.rank], "this rank's output for its own input")

    def body() -> None:
        agree_on_parts(channel, sends, receives)
        exchange(channel, list(enumerate(inputs)), list(enumerate(outputs)))

    return Call(record("all_to_all", dtype), partial(describe, "all_to_all", inputs), body, outputs)


def barrier(_channel: Channel) -> Call:
    """Wait for all ranks; the gate does."""
    return Call(record("barrier", None), partial(describe, "barrier", []), lambda: None, [])


def exchange(channel: Channel, sends: Sequence[Part], receives: Sequence[Part]) -> None:
    """Send each tensor to its rank and receive into each tensor from its rank; a rank's own is copied.

    One message per pair of ranks, straight into its place: no packing, no copy.
    """
    comm, rank = channel.comm, channel.rank
    own = [tensor for to, tensor in sends if to == rank]
    own_into = [tensor for source, tensor in receives if source == rank]
    outgoing = [(to, plain(tensor)) for to, tensor in sends if to != rank]
    incoming = [(source, tensor) for source, tensor in receives if source != rank]
    places = [place_for(tensor) for _, tensor in incoming]
    requests: list[MPI.Request] = []
    made: list[MPI.Datatype] = []
    try:
        for (source, _), place in zip(incoming, places, strict=True):
            requests.append(comm.Irecv(as_message(place, made), source, TAG))
        for to, tensor in outgoing:
            requests.append(comm.Isend(as_message(tensor, made), to, TAG))
    except BaseException:
        keep_forever(requests, outgoing, places)
        raise
    free_all(made)
    channel.complete(requests, outgoing, places)
    for (_, tensor), place in zip(incoming, places, strict=True):
        write_back(tensor, place)
    for source_tensor, into in zip(own, own_into, strict=True):
        if into.data_ptr() != source_tensor.data_ptr():
            write_back(into, source_tensor.detach().reshape(into.shape))


def agree_on_parts(channel: Channel, sends: Sequence[int], receives: Sequence[int]) -> int:
    """Return the largest total of any rank; MismatchError on all unless recvcounts match sendcounts."""
    size = channel.size
    table, mine = (
        np.empty((size, 2, size), dtype=np.int64),
        np.array([list(sends), list(receives)], dtype=np.int64),
    )
    channel.complete(channel.comm.Iallgather(mine, table), mine, table)
    sent, received = table[:, 0], table[:, 1].T  # both: row of the sender, column of the receiver
    if (sent != received).any():
        sender, receiver = np.argwhere(sent != received)[0]
        raise MismatchError(
            f"all_to_all: rank {sender} sends {sent[sender, receiver]} elements to rank {receiver}, "
            f"which receives {received[sender, receiver]}"
        )
    return int(table.sum(axis=2).max())


# ---------------------------------------------------------------------------------------- checks


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
        raise ValueError(f"a CPU group takes one tensor per call, not {len(tensors)}; use the coalesced form")
    return tensors[0]


def one_per_rank(channel: Channel, tensors: Sequence[torch.Tensor], what: str) -> Tensors:
    if len(tensors) != channel.size:
        raise ValueError(f"{what} has {len(tensors)} tensors for {channel.size} ranks; give one per rank")
    return list(tensors)


def same_count(a: int, b: int, what: str) -> None:
    if a != b:
        raise ValueError(f"{what}: {a} elements for {b}; make them the same size")


def check_rank(channel: Channel, root: int) -> None:
    if not 0 <= root < channel.size:
        raise ValueError(f"rank {root} is not in this group of {channel.size} ranks")


def counts_of(tensors: Sequence[torch.Tensor]) -> list[int]:
    return [tensor.numel() for tensor in tensors]
