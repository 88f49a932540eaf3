"""A communicator split into named axes: every rank has a place, and a communicator for each axis.

    make_grid(comm, data=2, tensor=2)           tensor →
                                        data    0  1        rank 1 talks to rank 0 on the tensor axis
                                          ↓     2  3        and to rank 3 on the data axis

The last axis is the one whose neighbours are next to each other: it should be the one that talks most.
"""

from dataclasses import dataclass
from math import prod
from typing import cast

from mpi4py import MPI


@dataclass(frozen=True, slots=True)
class Grid:
    """This rank's communicators by axis, and its place on each."""

    axes: dict[str, MPI.Intracomm]

    def __getitem__(self, axis: str) -> MPI.Intracomm:
        if axis not in self.axes:
            raise KeyError(f"there is no axis {axis!r}; the grid has {', '.join(self.axes)}")
        return self.axes[axis]

    @property
    def place(self) -> dict[str, int]:
        """This rank's coordinate on each axis."""
        return {axis: comm.rank for axis, comm in self.axes.items()}

    def free(self) -> None:
        """Give the communicators back to MPI; all ranks call it."""
        for comm in self.axes.values():
            comm.Free()


def make_grid(comm: MPI.Intracomm, **sizes: int) -> Grid:
    """Split `comm` into axes of the given sizes, in the order they are named; their product is its size."""
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
        place, rest = divmod(rest, inner)
        others = comm.rank - place * inner  # the same for all ranks that differ on this axis alone
        axes[axis] = cast(MPI.Intracomm, comm.Split(color=others, key=place))
    return Grid(axes)
