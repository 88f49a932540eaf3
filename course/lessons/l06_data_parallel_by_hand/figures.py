"""The picture of lesson 06: the first digits of every rank's shard."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mpi_classroom.figures import FONT_SIZE, Picture, new_figure


def draw_shards(shards: Sequence[NDArray[np.floating]]) -> Picture:
    """Draw the first ten images of each rank's shard (n, 64) as one row of digits."""
    figure, axes = new_figure("", width=7.0, height=0.8 * len(shards))
    rows = [np.hstack([np.pad(image, 1) for image in shard[:10].reshape(-1, 8, 8)]) for shard in shards]
    axes.imshow(np.vstack(rows), cmap="gray_r", aspect="equal")
    side = rows[0].shape[0]
    axes.set_yticks(
        [side * (rank + 0.5) for rank in range(len(rows))], [f"rank {r}" for r in range(len(rows))]
    )
    axes.tick_params(length=0, labelsize=FONT_SIZE)
    axes.set_xticks([])
    axes.grid(visible=False)
    for rank in range(1, len(rows)):
        axes.axhline(side * rank - 0.5, color="gray", linewidth=0.5)
    words = f"A row of handwritten digits for each of {len(shards)} ranks: the first of its shard."
    return Picture(figure, words)
