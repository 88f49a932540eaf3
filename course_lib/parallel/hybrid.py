"""Five ways at once: data × replica × pipeline × tile × tensor, on one grid of ranks.

    8 ranks = 2 data × 4 positions of a model whose first stage has 2 tiles and whose second has 2 shards

    position      0         1         2          3
    replica 0   tile 0    tile 1    shard 0    shard 1      stage 0 | stage 1
    replica 1   shard 1   shard 0   tile 1     tile 0       … the other way round, on the same ranks (GEMS)

Every stage of the pipeline has some tiles times some tensor shards, each on a rank of its own. With two
replicas, position q also holds what position q mirrored holds of the first one. Between stages, tiles go to
the same tile, are joined, or are split. Gradients are summed over the tiles of a stage, over the replicas,
and over the data axis: sums, as the loss is divided once, by the global batch. Jain et al. (2022), "Hy-Fi:
Hybrid Five-Dimensional Parallel DNN Training on High-Performance GPU Clusters".
"""

from collections.abc import Callable, Sequence
from typing import cast

import torch
from mpi4py import MPI
from torch import nn

from course_lib.comm.grid import make_grid
from course_lib.comm.halo import as_bytes
from course_lib.parallel.gems import sum_replicas
from course_lib.parallel.hybrid_stages import StageGroup, build_stage
from course_lib.parallel.pipeline import split_batch
from course_lib.parallel.spatial_parallel import all_sum, make_tiles, sum_over_tiles, tile_of
from course_lib.theory.hybrid_places import HybridShape, Kind, Place, StageShape, actions
from course_lib.theory.partition import even_ranges
from course_lib.training.loop import Batch, SummedLoss

Build = Callable[[StageGroup, nn.Module], nn.Module]


# ---------------------------------------------------------------- the model on its ranks


class Hybrid:
    """A model, given as whole stages, on the ranks of `comm`; `build` makes of a stage what one rank has.

    A stage of several tiles takes its tile (N, C, h, w), and gives one or, as the last, what all its ranks
    computed alike.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        shape: HybridShape,
        stages: Sequence[nn.Module],
        build: Build = build_stage,
    ) -> None:
        shape.check(comm.size)
        if len(stages) != len(shape.stages):
            raise ValueError(
                f"{len(stages)} stages were given for a shape of {len(shape.stages)}; give as many"
            )
        self.shape, self.build = shape, build
        grid = make_grid(comm, data=shape.data, model=shape.positions)
        self.data, self.model = grid["data"], grid["model"]
        self.places = {replica: shape.place(replica, self.model.rank) for replica in range(shape.replicas)}
        self.groups = {replica: self.group_of(replica) for replica in self.places}
        self.modules = {replica: build(group, stages[group.stage]) for replica, group in self.groups.items()}

    def group_of(self, replica: int) -> StageGroup:
        """The communicators of this rank's stage in `replica`."""
        place = self.places[replica]
        stage = self.shape.stages[place.stage]
        ranks = self.model.Split(place.stage, place.tile * stage.tensor + place.tensor)
        grid = make_grid(cast(MPI.Intracomm, ranks), tile=stage.tiles, tensor=stage.tensor)
        return StageGroup(place.stage, make_tiles(grid["tile"], stage.rows, stage.columns), grid["tensor"])

    def parameters(self) -> list[nn.Parameter]:
        """All that this rank has to update."""
        return [parameter for module in self.modules.values() for parameter in module.parameters()]

    def step(self, batch: Batch, loss_fn: SummedLoss, *, microbatches: int = 1, rounds: int = 1) -> float:
        """Gradients of `batch`, the whole global one, in the parameters; the loss, on every rank.

        The batch is dealt to the data axis, and there cut into `rounds` × replicas × `microbatches` parts.
        """
        mine = even_ranges(len(batch.targets), self.data.size)[self.data.rank]
        parts = rounds * self.shape.replicas * microbatches
        fewest = len(batch.targets) // self.data.size
        if fewest < parts:
            raise ValueError(f"{fewest} samples of a data rank cannot make {parts} micro-batches; use fewer")
        part = slice(mine.start, mine.stop)
        pieces = split_batch(Batch(batch.inputs[part], batch.targets[part], batch.global_size), parts)
        walk = Walk(self, pieces, loss_fn)
        for kind, replica, index in actions(self.shape, rounds, microbatches):
            walk.forward(replica, index) if kind == "F" else walk.backward(replica, index)
        MPI.Request.Waitall(walk.requests)
        self.sum_gradients()
        return self.data.allreduce(self.model.allreduce(walk.loss))

    def sum_gradients(self) -> None:
        """Over the tiles of a stage, over the replicas, over the data axis; all ranks in the same order."""
        for replica, module in sorted(self.modules.items()):
            sum_over_tiles(self.groups[replica].tiles, [module])
        if self.shape.replicas == 2:
            last, position = self.model.size - 1, self.model.rank
            sum_replicas(self.model, {(0, position): self.modules[0], (1, last - position): self.modules[1]})
        for parameter in self.parameters():
            if parameter.grad is not None:
                parameter.grad = all_sum(self.data, parameter.grad.contiguous())


# ---------------------------------------------------------------- a step of one rank


class Walk:
    """A rank on its way through a step: activations that wait for their gradient, and messages under way."""

    def __init__(self, hybrid: Hybrid, batches: Sequence[Batch], loss_fn: SummedLoss) -> None:
        self.hybrid, self.shape, self.batches, self.loss_fn = hybrid, hybrid.shape, batches, loss_fn
        self.alive: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}
        self.requests: list[MPI.Request] = []
        self.kept: list[torch.Tensor] = []  # MPI's until the step has ended
        self.loss = 0.0

    def forward(self, replica: int, index: int) -> None:
        """Receive, compute, and send on; the last stage has a part of the loss, which counts once."""
        place, batch = self.hybrid.places[replica], self.batches[index]
        group = self.hybrid.groups[replica]
        if place.stage == 0:
            inputs = batch.inputs
            entered = tile_of(group.tiles, inputs) if group.tiles.comm.size > 1 else inputs
        else:
            entered = self.receive(replica, "F", index, place.stage - 1).requires_grad_()
        left = self.hybrid.modules[replica](entered)
        if place.stage == len(self.shape.stages) - 1:
            left = self.loss_fn(left, batch.targets) / batch.global_size
            self.loss += left.item() if place.tile == place.tensor == 0 else 0.0
        else:
            self.send(replica, "F", index, place.stage + 1, left.detach())
        self.alive[replica, index] = entered, left

    def backward(self, replica: int, index: int) -> None:
        """Receive the gradient of what went out, and send that of what came in."""
        place = self.hybrid.places[replica]
        entered, left = self.alive.pop((replica, index))
        last = place.stage == len(self.shape.stages) - 1
        gradient = None if last else self.receive(replica, "B", index, place.stage + 1)
        if left.requires_grad:
            torch.autograd.backward(left, gradient)
        if place.stage > 0:
            assert entered.grad is not None
            self.send(replica, "B", index, place.stage - 1, entered.grad)

    def send(self, replica: int, kind: Kind, index: int, stage: int, tensor: torch.Tensor) -> None:
        """Start to send `tensor` to the ranks of `stage` that need it of this one."""
        place, other = self.hybrid.places[replica], self.shape.stages[stage]
        mine = self.shape.stages[place.stage]
        for tile in tiles_beside(mine, place.tile, other):
            part = tensor
            if other.tiles > 1 and mine.tiles == 1:  # to be split
                row, column = divmod(tile, other.columns)
                part = block_of(tensor, other, row, column)
            for shard in range(other.tensor):
                if shard % mine.tensor == place.tensor:
                    self.post(replica, kind, index, Place(stage, tile, shard), part.contiguous())

    def post(self, replica: int, kind: Kind, index: int, to: Place, part: torch.Tensor) -> None:
        """One message: what shape it has, and its numbers."""
        comm, peer = self.hybrid.model, self.shape.position(replica, to)
        tag = self.tag(replica, kind, index)
        self.requests += [
            comm.isend((part.shape, part.dtype), peer, tag),
            comm.Isend(as_bytes(part), peer, tag),
        ]
        self.kept.append(part)

    def receive(self, replica: int, kind: Kind, index: int, stage: int) -> torch.Tensor:
        """What came from the ranks of `stage`, put together if it was in tiles."""
        place, other = self.hybrid.places[replica], self.shape.stages[stage]
        mine = self.shape.stages[place.stage]
        comm, tag, parts = self.hybrid.model, self.tag(replica, kind, index), []
        for tile in tiles_beside(mine, place.tile, other):
            peer = self.shape.position(replica, Place(stage, tile, place.tensor % other.tensor))
            shape, dtype = comm.recv(source=peer, tag=tag)
            parts.append(torch.empty(shape, dtype=dtype))
            comm.Recv(as_bytes(parts[-1]), peer, tag)
        if len(parts) == 1:
            return parts[0]
        rows = [parts[start : start + other.columns] for start in range(0, len(parts), other.columns)]
        return torch.cat([torch.cat(row, dim=-1) for row in rows], dim=-2)

    def tag(self, replica: int, kind: Kind, index: int) -> int:
        """One for each message between two ranks: of which micro-batch, in which direction."""
        return 2 * (2 * index + replica) + (kind == "B")


def tiles_beside(mine: StageShape, tile: int, other: StageShape) -> list[int]:
    """The tiles of a neighbouring stage that share pixels with `tile` of mine."""
    if mine.tiles > 1 and other.tiles > 1:
        return [tile]  # the same ones
    return list(range(other.tiles))


def block_of(tensor: torch.Tensor, shape: StageShape, row: int, column: int) -> torch.Tensor:
    """The tile at (row, column) of `tensor` (…, H, W)."""
    rows = even_ranges(tensor.shape[-2], shape.rows)[row]
    columns = even_ranges(tensor.shape[-1], shape.columns)[column]
    return tensor[..., rows.start : rows.stop, columns.start : columns.stop]
