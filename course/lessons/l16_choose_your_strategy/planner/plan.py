"""A way to split a training over ranks, and all ways that the library can run on a number of ranks.

    data × pipeline × tensor = ranks        the ZeRO stage says what the data ranks shard

`data` ranks divide each batch, `pipeline` ranks the layers, `tensor` ranks the weights of each layer.
Neighbouring ranks are those of one tensor group; then come the stages
of the pipeline, then the data ranks: tensor parallelism, which exchanges most often, has the shortest way.
"""

from dataclasses import dataclass, replace
from itertools import product

from course.lessons.l16_choose_your_strategy.planner.models import TransformerShape
from course_lib.theory.memory import STAGES

SCHEDULES = ("GPipe", "1F1B")
AXES = ("tensor", "pipeline", "data")  # from neighbouring ranks to distant ones


@dataclass(frozen=True, slots=True)
class Plan:
    """How a training is split; `microbatches` are those of one data rank's part of the batch.

    `recompute`: a stage of the pipeline keeps its inputs only; without stages, each block of a Transformer.
    `bucket_nbytes`: of the gradients that ZeRO-0 to ZeRO-2 sum at once. `offload`: Adam's two moments lie in
    files. `mixed`: 16-bit numbers, and a 32-bit master copy of the weights.

    Predicted, but not run by the library: `groups` of data ranks, each with all of the state, which ZeRO
    shards inside a group alone (with stage 3: HSDP); and `no_sync`, with which stages 2 and 3 keep full
    gradients and sum them once per step, not in every micro-batch.
    """

    data: int = 1
    zero: int = 0
    pipeline: int = 1
    microbatches: int = 1
    schedule: str = "1F1B"
    recompute: bool = False
    tensor: int = 1
    sequence: bool = False
    offload: bool = False
    mixed: bool = False
    bucket_nbytes: int = 4 * 2**20
    groups: int = 1
    no_sync: bool = False

    @property
    def ranks(self) -> int:
        """How many ranks it takes."""
        return self.data * self.pipeline * self.tensor

    @property
    def shards(self) -> int:
        """Over how many data ranks ZeRO shards."""
        return self.data // self.groups

    def ways(self, axis: str) -> int:
        """How many ranks an axis has: data, pipeline or tensor; "shards" are neighbours on the data axis."""
        return int(getattr(self, axis))

    @property
    def name(self) -> str:
        """The plan in a few words: `ZeRO-1 on 2 × 1F1B pipeline of 2, 8 micro-batches, recomputed`."""
        words = []
        if self.data > 1:
            groups = f"{self.groups} × " * (self.groups > 1)
            zero = f"ZeRO-{self.zero} on {groups}{self.shards}"
            words.append(zero if self.zero else f"data parallel on {self.data}")
        if self.pipeline > 1:
            words.append(f"{self.schedule} pipeline of {self.pipeline}")
        if self.tensor > 1:
            words.append(f"tensor{' and sequence' * self.sequence} parallel on {self.tensor}")
        notes = []
        if self.microbatches > 1:
            notes.append(f"{self.microbatches} micro-batches")
        notes += (
            ["no_sync"] * self.no_sync
            + ["recomputed"] * self.recompute
            + ["Adam's state in files"] * self.offload
        )
        return ", ".join([" × ".join(words) or "one rank", *notes])


def why_not(shape: TransformerShape, batch: int, plan: Plan) -> str | None:
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
    if plan.pipeline > shape.blocks:
        return f"{shape.blocks} blocks make no {plan.pipeline} stages; use fewer stages"
    if plan.data % plan.groups or (plan.groups > 1 and not plan.zero):
        return f"{plan.data} ranks in ZeRO-{plan.zero} make no {plan.groups} groups; use a divisor, with ZeRO"
    if plan.pipeline > 1 and plan.zero == 3 and plan.recompute:
        return "stage 3 frees weights that recomputation needs; use ZeRO-2 or no recomputation"
    if plan.recompute and plan.pipeline == 1 and plan.zero == 3:
        return "only stages of a pipeline and blocks of ZeRO-0 to ZeRO-2 are recomputed; use one of them"
    if plan.tensor > 1:
        return _why_no_tensor(shape, plan)
    if plan.sequence:
        return "sequence parallelism is a form of tensor parallelism, and tensor is 1; use 2 ranks or more"
    return None


def _why_no_number(plan: Plan) -> str | None:
    for what in ("data", "pipeline", "microbatches", "tensor", "groups"):
        if getattr(plan, what) < 1:
            return f"{what} is {getattr(plan, what)}; use 1 or more"
    if plan.schedule not in SCHEDULES:
        return f"there is no schedule {plan.schedule!r}; use {' or '.join(SCHEDULES)}"
    return None


def _why_no_tensor(shape: TransformerShape, plan: Plan) -> str | None:
    for what, size in (("heads", shape.heads), ("words in the vocabulary", shape.vocabulary)):
        if size % plan.tensor:
            return f"{size} {what} are no multiple of {plan.tensor} tensor ranks; use a divisor"
    if plan.sequence and shape.length % plan.tensor:
        return f"{shape.length} tokens are no multiple of {plan.tensor} tensor ranks; use a divisor"
    return None


def plans(
    shape: TransformerShape,
    batch: int,
    ranks: int,
    *,
    microbatches: tuple[int, ...] = (1, 4, 8),
    mixed: bool = False,
) -> list[Plan]:
    """Every plan that the library can run on exactly `ranks` ranks, with these numbers of micro-batches."""
    found = []
    for data, pipeline, tensor in product(_divisors(ranks), repeat=3):
        if ranks == data * pipeline * tensor:
            found += _variants(Plan(data, 0, pipeline, tensor=tensor, mixed=mixed), microbatches)
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
