"""A communicator that films an array: one picture before each exchange."""

from typing import Any

import numpy as np
from mpi4py import MPI


class Filmed(MPI.Intracomm):
    """`Filmed(comm)`, told its `array` and its `film`; see `filmed`."""

    array: np.ndarray
    film: list[list[int]]

    def Sendrecv(self, *args: Any, **kwargs: Any) -> None:
        self.film.append(self.array.tolist())
        super().Sendrecv(*args, **kwargs)


def filmed(comm: MPI.Intracomm, array: np.ndarray, film: list[list[int]]) -> Filmed:
    """Return `comm` as a communicator that appends a copy of `array` to `film` before each `Sendrecv`."""
    communicator = Filmed(comm)
    communicator.array, communicator.film = array, film
    return communicator
