"""One rank that plays a member of a larger communicator: it sends what it would, and receives noise.

So a test can count the memory of any rank of any plan in one process. What a collective returns has the right
size; numbers mean nothing.
"""

from collections.abc import Sequence
from typing import Any

import torch
from mpi4py import MPI


class Lonely:
    """Rank `rank` of `size`; a tensor from rank r has the shape `arrives[r]`."""

    def __init__(self, size: int, rank: int = 0, arrives: dict[int, Sequence[int]] | None = None) -> None:
        self.size, self.rank, self.arrives = size, rank, arrives or {}

    def nothing(self, *arguments: Any, **named: Any) -> None:
        """Leave all buffers as they are."""

    Allreduce = Sendrecv = Bcast = Allgatherv = Reduce_scatter = Recv = nothing

    def sent(self, *arguments: Any) -> MPI.Request:
        """A message that is sent at once."""
        return MPI.REQUEST_NULL

    isend = Isend = sent

    def recv(self, source: int, tag: int) -> tuple[Sequence[int], torch.dtype]:
        """The header of a tensor."""
        return self.arrives[source], torch.float32

    def allgather(self, mine: Any) -> list[Any]:
        """All ranks have what this one has; of lists, which name what is missing, none has any."""
        return [[] if isinstance(mine, list) else mine] * self.size

    def allreduce(self, mine: Any, op: Any = None) -> Any:
        """A sum over the ranks, of which the others add nothing."""
        return mine

    def Get_attr(self, name: int) -> int:
        """The largest tag."""
        return 2**20
