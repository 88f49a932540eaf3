"""The sum of sparse tensors: every rank gets the entries of all, and adds them."""

import torch
from mpi4py import MPI

from .movement import exchange


def all_reduce_sparse(comm: MPI.Intracomm, tensor: torch.Tensor) -> None:
    """Sum a sparse COO tensor over `comm`, in place; ranks may have different numbers of entries."""
    mine = tensor.detach().coalesce()
    entries = comm.allgather(mine._nnz())
    indices = [torch.empty((mine.sparse_dim(), count), dtype=torch.int64) for count in entries]
    values = [torch.empty((count, *mine.values().shape[1:]), dtype=mine.dtype) for count in entries]
    ranks = range(comm.size)
    exchange(comm, [(rank, mine.indices()) for rank in ranks], list(zip(ranks, indices, strict=True)))
    exchange(comm, [(rank, mine.values()) for rank in ranks], list(zip(ranks, values, strict=True)))
    total = torch.sparse_coo_tensor(torch.cat(indices, dim=1), torch.cat(values), mine.shape)
    with torch.no_grad():
        tensor.copy_(total.coalesce())  # into a detached one it would not show: entries are no shared memory
