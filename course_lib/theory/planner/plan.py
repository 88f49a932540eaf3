"""A way to split a training over ranks, and all ways that the library can run on a number of ranks.

    data × pipeline × tensor × tiles = ranks        the ZeRO stage says what the data ranks shard

`data` ranks divide each batch, `pipeline` ranks the layers, `tensor` ranks the weights of each layer, and
`tiles` ranks the pixels of each image. Neighbouring ranks are those of one tensor group; then come the stages
of the pipeline, then the data ranks: tensor parallelism, which exchanges most often, has the shortest way.
"""

from dataclasses import dataclass, replace
from itertools import product
from math import prod

from course_lib.theory.memory import STAGES
from course_lib.theory.planner.models import Shape, TransformerShape
from course_lib.theory.planner.nets import ConvShape

SCHEDULES = ("GPipe", "1F1B")
AXES = ("tensor", "tiles", "pipeline", "data")  # from neighbouring ranks to distant ones


@dataclass(frozen=True, slots=True)
class Plan:
    """How a training is split; `microbatches` are those of one data rank's part of the batch.

    `recompute`: a stage of the pipeline keeps its inputs only; without stages, each block of a Transformer.
    `bucket_nbytes`: of the gradients that ZeRO-0 to ZeRO-2 sum at once. `offload`: Adam's two moments lie in
    files. `mixed`: 16-bit numbers, and a 32-bit master copy of the weights.
    """

    data: int = 1
    zero: int = 0
    pipeline: int = 1
    microbatches: int = 1
    schedule: str = "1F1B"
    recompute: bool = False
    tensor: int = 1
    sequence: bool = False
    tiles: tuple[int, int] = (1, 1)
    offload: bool = False
    mixed: bool = False
    bucket_nbytes: int = 4 * 2**20

    @property
    def ranks(self) -> int:
        """How many ranks it takes."""
        return self.data * self.pipeline * self.tensor * prod(self.tiles)

    def ways(self, axis: str) -> int:
        """How many ranks an axis has: data, pipeline, tensor or tiles."""
        return prod(self.tiles) if axis == "tiles" else int(getattr(self, axis))

    @property
    def name(self) -> str:
        """The plan in a few words: `ZeRO-1 on 2 × 1F1B pipeline of 2, 8 micro-batches, recomputed`."""
        words = []
        if self.data > 1:
            words.append(f"ZeRO-{self.zero} on {self.data}" if self.zero else f"data parallel on {self.data}")
        if self.pipeline > 1:
            words.append(f"{self.schedule} pipeline of {self.pipeline}")
        if self.tensor > 1:
            words.append(f"tensor{' and sequence' * self.sequence} parallel on {self.tensor}")
        if self.tiles != (1, 1):
            words.append(f"{self.tiles[0]} × {self.tiles[1]} tiles")
        notes = []
        if self.microbatches > 1:
            notes.append(f"{self.microbatches} micro-batches")
        notes += ["recomputed"] * self.recompute + ["Adam's state in files"] * self.offload
        return ", ".join([" × ".join(words) or "one rank", *notes])


def why_not(shape: Shape, batch: int, plan: Plan) -> str | None:
    """Why the library cannot run `plan` on this model, in one sentence; None when it can."""
    no_number = _why_no_number(plan)
    if no_number:
        return no_number
    parts = plan.data * plan.microbatches
    if plan.zero not in STAGES:
        return f"there is no ZeRO stage {plan.zero}; use 0 to 3"
    if batch % parts:
        return f"a batch of {batch} makes no {parts} equal micro-batches; use a multiple of {parts}"
    if plan.zero and plan.data == 1:
        return f"ZeRO-{plan.zero} shards over data ranks, and there is one; use 2 or more"
    if plan.pipeline > stage_layers(shape):
        return f"{stage_layers(shape)} layers make no {plan.pipeline} stages; use fewer stages"
    if plan.pipeline > 1 and plan.zero == 3 and plan.recompute:
        return "stage 3 frees weights that recomputation needs; use ZeRO-2 or no recomputation"
    if plan.recompute and plan.pipeline == 1 and (plan.zero == 3 or not isinstance(shape, TransformerShape)):
        return "only stages of a pipeline and blocks of ZeRO-0 to ZeRO-2 are recomputed; use one of them"
    if plan.tiles != (1, 1):
        return _why_no_tiles(shape, plan)
    if plan.tensor > 1:
        return _why_no_tensor(shape, plan)
    if plan.sequence:
        return "sequence parallelism is a form of tensor parallelism, and tensor is 1; use 2 ranks or more"
    return None


def _why_no_number(plan: Plan) -> str | None:
    for what in ("data", "pipeline", "microbatches", "tensor"):
        if getattr(plan, what) < 1:
            return f"{what} is {getattr(plan, what)}; use 1 or more"
    if min(plan.tiles) < 1:
        return f"tiles is {plan.tiles}; use 1 or more of rows and of columns"
    if plan.schedule not in SCHEDULES:
        return f"there is no schedule {plan.schedule!r}; use {' or '.join(SCHEDULES)}"
    return None


def _why_no_tiles(shape: Shape, plan: Plan) -> str | None:
    if not isinstance(shape, ConvShape):
        return "tiles are of images, and this model has none; use 1 × 1"
    if plan.zero or plan.pipeline > 1 or plan.tensor > 1 or plan.sequence or plan.offload:
        return "tiles are combined with plain data parallelism only; use zero 0, pipeline 1 and tensor 1"
    if max(plan.tiles) > shape.side:
        return f"{shape.side} pixels make no {max(plan.tiles)} tiles; use fewer"
    return None


def _why_no_tensor(shape: Shape, plan: Plan) -> str | None:
    if not isinstance(shape, TransformerShape):
        return "only a Transformer is cut over tensor ranks; use tensor 1"
    for what, size in (("heads", shape.heads), ("words in the vocabulary", shape.vocabulary)):
        if size % plan.tensor:
            return f"{size} {what} are no multiple of {plan.tensor} tensor ranks; use a divisor"
    if plan.sequence and shape.length % plan.tensor:
        return f"{shape.length} tokens are no multiple of {plan.tensor} tensor ranks; use a divisor"
    return None


def stage_layers(shape: Shape) -> int:
    """The layers that stages of a pipeline can be made of."""
    if isinstance(shape, TransformerShape):
        return shape.blocks
    return len(shape.channels) if isinstance(shape, ConvShape) else len(shape.widths) - 1  # type: ignore[attr-defined]


def plans(
    shape: Shape, batch: int, ranks: int, *, microbatches: tuple[int, ...] = (1, 4, 8), mixed: bool = False
) -> list[Plan]:
    """Every plan that the library can run on exactly `ranks` ranks, with these numbers of micro-batches."""
    found = []
    for data, pipeline, tensor in product(_divisors(ranks), repeat=3):
        if ranks % (data * pipeline * tensor) == 0:
            left = ranks // (data * pipeline * tensor)
            tilings = [(rows, left // rows) for rows in _divisors(left)]
            axes = [Plan(data, 0, pipeline, tensor=tensor, tiles=tiles, mixed=mixed) for tiles in tilings]
            found += [plan for one in axes for plan in _variants(one, microbatches)]
    return [plan for plan in found if why_not(shape, batch, plan) is None]


def _variants(axes: Plan, microbatches: tuple[int, ...]) -> list[Plan]:
    """The plans with these axes: every ZeRO stage, number of micro-batches, recomputed or not, …"""
    schedules = ("1F1B", "GPipe") if axes.pipeline > 1 else ("1F1B",)
    sequences = (False, True) if axes.tensor > 1 else (False,)
    options = product(STAGES, microbatches, schedules, (False, True), sequences, (False, True))
    return [
        replace(axes, zero=zero, microbatches=m, schedule=how, recompute=again, sequence=cut, offload=offload)
        for zero, m, how, again, cut, offload in options
        if not (how == "GPipe" and m == 1)
    ]


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]
