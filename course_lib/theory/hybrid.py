"""Which rank holds what in a hybrid of data × replica × pipeline × tile, and each rank's schedule.

    position      0         1         2         3            three stages, the first in 2 tiles
    replica 0   tile 0    tile 1    stage 1   stage 2
    replica 1   stage 2   stage 1   tile 1    tile 0         the mirror image, on the same ranks (GEMS)

A stage of the pipeline has one position per tile; the data axis repeats all positions. Jain
et al. (2022), "Hy-Fi: Hybrid Five-Dimensional Parallel DNN Training on High-Performance GPU Clusters".
"""

from dataclasses import dataclass
from itertools import accumulate, pairwise

from course_lib.theory.schedules import Action, Kind, Schedule


@dataclass(frozen=True, slots=True)
class StageShape:
    """How many tiles a stage has, each on a rank: `rows` × `columns`."""

    rows: int = 1
    columns: int = 1

    @property
    def tiles(self) -> int:
        return self.rows * self.columns


@dataclass(frozen=True, slots=True)
class HybridShape:
    """How many ways along each axis; `stages` from the first to the last, `replicas` 1, or 2 for GEMS."""

    stages: tuple[StageShape, ...]
    data: int = 1
    replicas: int = 1

    @property
    def positions(self) -> int:
        """Ranks that hold a model."""
        return sum(stage.tiles for stage in self.stages)

    @property
    def ranks(self) -> int:
        return self.data * self.positions

    def first(self, stage: int) -> int:
        """The first position of a stage."""
        return sum(one.tiles for one in self.stages[:stage])

    def coordinates(self, replica: int, position: int) -> "Coordinates":
        """What `position` holds of `replica`."""
        mirrored = self.positions - 1 - position if replica else position
        ends = list(accumulate(stage.tiles for stage in self.stages))
        stage = next(index for index, end in enumerate(ends) if mirrored < end)
        return Coordinates(stage, mirrored - self.first(stage))

    def position(self, replica: int, coordinates: "Coordinates") -> int:
        """The position that holds `coordinates` of `replica`: the inverse of `coordinates`."""
        found = self.first(coordinates.stage) + coordinates.tile
        return self.positions - 1 - found if replica else found

    def check(self, ranks: int) -> None:
        """ValueError unless the axes fit each other and this many ranks."""
        if not self.stages or self.data < 1 or self.replicas not in (1, 2):
            raise ValueError(
                f"{len(self.stages)} stages, {self.data} data and {self.replicas} replicas make no grid; "
                "use at least one stage and one data rank, and 1 or 2 replicas"
            )
        if self.ranks != ranks:
            raise ValueError(
                f"{self.data} data × {self.positions} positions are {self.ranks} ranks, and there are {ranks}"
            )
        for before, after in pairwise(self.stages):
            same = (before.rows, before.columns) == (after.rows, after.columns)
            if not same and before.tiles > 1 and after.tiles > 1:
                raise ValueError(
                    f"{before.rows} × {before.columns} tiles cannot be followed by "
                    f"{after.rows} × {after.columns}; keep them, or join them in a stage of one tile"
                )


@dataclass(frozen=True, slots=True, order=True)
class Coordinates:
    """A stage, and a tile of it."""

    stage: int
    tile: int


def hybrid_schedule(shape: HybridShape, microbatches: int) -> Schedule:
    """The schedule of every position in one step.

    One replica follows the other. In its turn `microbatches` micro-batches go forward and then backward, as
    in GPipe; they are numbered through, so there are replicas × microbatches of them.
    """
    order: list[tuple[Kind, int, int]] = []  # kind, replica, micro-batch
    for replica in range(shape.replicas):
        mine = range(replica * microbatches, (replica + 1) * microbatches)
        order += [("F", replica, i) for i in mine]
        order += [("B", replica, i) for i in reversed(mine)]
    return [
        [Action(kind, shape.coordinates(replica, position).stage, i, replica) for kind, replica, i in order]
        for position in range(shape.positions)
    ]
