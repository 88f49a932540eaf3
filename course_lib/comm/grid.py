"""A communicator split into named axes: every rank has a coordinate on each, and a communicator for it.

    make_grid(comm, data=2, tensor=2)           tensor →
                                        data    0  1        rank 1 talks to rank 0 on the tensor axis
                                          ↓     2  3        and to rank 3 on the data axis

Neighbours on the last axis have consecutive ranks, so it should be the one that talks most.
"""

from dataclasses import dataclass
from math import prod
from typing import cast

from mpi4py import MPI


@dataclass(frozen=True, slots=True)
class Grid:
    """This rank's communicators by axis; its rank in one is its coordinate there."""

    axes: dict[str, MPI.Intracomm]

    def __getitem__(self, axis: str) -> MPI.Intracomm:
        if axis not in self.axes:
            raise KeyError(f"there is no axis {axis!r}; the grid has {', '.join(self.axes)}")
        return self.axes[axis]

    def free(self) -> None:
        """Free the communicators; all ranks call it."""
        for comm in self.axes.values():
            comm.Free()


def make_grid(comm: MPI.Intracomm, **sizes: int) -> Grid:
    """Split `comm` into axes of the given sizes, in the order they are named.

    Raises ValueError unless the product of the sizes is the number of ranks.
    """
    if prod(sizes.values()) != comm.size or min(sizes.values(), default=1) < 1:
        shape = " × ".join(f"{size} {axis}" for axis, size in sizes.items())
        raise ValueError(
            f"{shape or 'no axes'} make {prod(sizes.values())} ranks, and there are {comm.size}; "
            "choose sizes whose product is the number of ranks"
        )
    axes: dict[str, MPI.Intracomm] = {}
    inner, rest = comm.size, comm.rank
    for axis, size in sizes.items():
        inner //= size
        coordinate, rest = divmod(rest, inner)
        first = comm.rank - coordinate * inner  # the rank at 0 of this axis, and as we are on the others
        axes[axis] = cast(MPI.Intracomm, comm.Split(color=first, key=coordinate))
    return Grid(axes)
