"""The capstone: four teams, each with a model, a batch and a machine, and a twin of its problem.

    chatbot      13 billion parameters on 8 GPUs     Adam's state is too large for a copy on each GPU
    pathology    images of 67 megapixels on 4 GPUs   the activations of one image are too large for a GPU
    weather      512 maps per step on 4,096 GPUs     there are more GPUs than maps
    laptop       fine-tuning GPT-2 on one GPU        state and activations are too large, and there is one GPU

A plan is judged twice: by the planner, for the real machine, and by training its twin on four ranks
(`twins.py`). The machines are made of published rates, which no operation reaches; all plans of a team are
compared on equal terms.
"""

from dataclasses import dataclass, replace
from math import prod

from course.lessons.l16_choose_your_strategy.published import A100, PCIE_4
from course_lib.theory.hockney import Hockney
from course_lib.theory.planner.machine import Machine, machine_on_paper
from course_lib.theory.planner.models import Shape, TransformerShape
from course_lib.theory.planner.nets import ConvShape
from course_lib.theory.planner.plan import Plan, why_not
from course_lib.theory.planner.quantity import Quantity
from course_lib.theory.planner.ranking import Estimate, estimate

NEAR = 0.1  # how much slower than the fastest plan that fits a good answer may be
TWIN_RANKS = 4

WORKSTATION = machine_on_paper(
    "a workstation with 4 RTX A6000",
    "NVIDIA RTX A6000 data sheet (2020): 48 GB, 768 GB/s, 38.7 Tflop/s in 32 bits, PCI Express 4.0 x16; "
    "files: at most the rate of PCI Express",
    memory_nbytes=48e9,
    flop_per_second=38.7e12,
    memory_bytes_per_second=768e9,
    inside=Hockney(0.0, 1 / PCIE_4),
    between=Hockney(0.0, 1 / PCIE_4),
    ranks_per_node=4,
    file_bytes_per_second=PCIE_4,
)
LAPTOP_GPU = machine_on_paper(
    "a laptop with an RTX 4060",
    "NVIDIA, GeForce RTX 40 laptops (2023): 3,072 cores of 2 flop at 2.37 GHz, 8 GB on 128 bits; GDDR6 at "
    "16 Gbit/s per pin; files: Samsung 990 PRO data sheet (2022), 6,900 MB/s written, the slower direction",
    memory_nbytes=8e9,
    flop_per_second=3072 * 2 * 2.37e9,
    memory_bytes_per_second=128 * 16e9 / 8,
    inside=Hockney(0.0, 1 / PCIE_4),
    between=Hockney(0.0, 1 / PCIE_4),
    ranks_per_node=1,
    file_bytes_per_second=6.9e9,
)


@dataclass(frozen=True, slots=True)
class Twin:
    """A team's problem for four ranks: sizes that train in milliseconds, and a limit that decides as on the
    real machine."""

    shape: Shape
    batch: int
    limit_nbytes: float
    bucket_nbytes: int = 2**16  # as small beside the model as the default is beside a large one


@dataclass(frozen=True, slots=True)
class Team:
    """What a team trains, on what, and the fastest plan that fits, which a test compares with all others."""

    name: str
    shape: Shape
    batch: int
    machine: Machine
    ranks: int
    fastest: Plan
    twin: Twin

    def settled(self, plan: Plan) -> Plan:
        """The plan with the numbers that the team has chosen: of 16 or of 32 bits."""
        return replace(plan, mixed=self.fastest.mixed)

    def estimate(self, plan: Plan) -> Estimate:
        """What the planner says of the plan on the team's machine."""
        return estimate(self.shape, self.batch, self.settled(plan), self.machine)


def complaint(team: Team, plan: Plan) -> str:
    """What the planner has against the plan, in sentences with the numbers; "" when it is good."""
    if plan.ranks != team.ranks:
        taken = f"the plan takes {plan.ranks:,} GPU{'s' * (plan.ranks > 1)}, and the team has {team.ranks:,}"
        return f"{taken}: data × pipeline × tensor × tiles must be {team.ranks:,}."
    reason = why_not(team.shape, team.batch, plan)
    if reason:
        return f"the plan cannot run: {reason}."
    found, best = team.estimate(plan), team.estimate(team.fastest)
    if not found.fits:
        name, part = largest_part(found.memory)
        return (
            f"the plan needs {found.memory.text} per GPU, and there are {found.limit.text}. Most of it: "
            f"{PARTS[name]}, {part.text}. What would make this part smaller?"
        )
    if found.seconds.value > (1 + NEAR) * best.seconds.value:
        words = (
            f"the plan fits with {found.memory.text} per GPU, but takes {found.seconds.text} per step; "
            f"another plan that fits takes {best.seconds.text}."
        )
        if plan.ranks > 1:
            words += f" In your plan, each GPU sends {found.sent.text}; in the other, {best.sent.text}."
        return f"{words} What does your plan send, compute again or wait for, and need not?"
    return ""


PARTS = {
    "weights": "the weights",
    "gradients": "the gradients",
    "optimizer": "Adam's state",
    "inputs": "the inputs",
    "backward": "the activations and buffers of the backward pass",
    "update": "the buffers of the update",
}


def largest_part(memory: Quantity) -> tuple[str, Quantity]:
    """The name and the bytes of the largest part of what the fullest rank holds."""
    while "weights" not in dict(memory.parts):
        memory = max((part for _, part in memory.parts), key=lambda part: part.value)
    return max(memory.parts, key=lambda named: named[1].value)


# ---------------------------------------------------------------- the twin of a plan


def twin_of(team: Team, plan: Plan) -> Plan:
    """The plan for four ranks: the longest axes are halved until the ranks suffice.

    A micro-batch has as many samples as the plan's, as far as the twin has them. With one data rank left,
    there is no stage of ZeRO.
    """
    ways = {"data": plan.data, "pipeline": plan.pipeline, "tensor": plan.tensor}
    ways |= {"rows": plan.tiles[0], "columns": plan.tiles[1]}
    while prod(ways.values()) > TWIN_RANKS:
        longest = max(ways, key=lambda axis: ways[axis])
        ways[longest] //= 2
    data, pipeline, tensor = ways["data"], ways["pipeline"], ways["tensor"]
    samples = team.batch // (plan.data * plan.microbatches)
    return replace(
        plan,
        data=data,
        pipeline=pipeline,
        tensor=tensor,
        tiles=(ways["rows"], ways["columns"]),
        zero=plan.zero if data > 1 else 0,
        sequence=plan.sequence and tensor > 1,
        microbatches=max(1, team.twin.batch // data // samples),
        mixed=False,
        bucket_nbytes=team.twin.bucket_nbytes,
    )


# ---------------------------------------------------------------- the teams

CHATBOT = Team(
    "chatbot",
    TransformerShape(blocks=40, width=5120, length=2048, vocabulary=50_272, heads=40),  # OPT-13B, Zhang 2022
    64,
    A100,
    8,
    Plan(data=4, zero=1, tensor=2, sequence=True, microbatches=16, mixed=True),
    Twin(TransformerShape(blocks=4, width=128, length=16, vocabulary=128, heads=8), 32, 8.8e6),
)
PATHOLOGY = Team(
    "pathology",
    ConvShape(side=8192, channels=(3, 32, 32, 32, 32, 32, 32), classes=2),
    8,
    WORKSTATION,
    4,
    Plan(tiles=(2, 2), microbatches=8),
    Twin(ConvShape(side=64, channels=(3, 8, 8, 8, 8, 8, 8), classes=2), 8, 0.8e6),
)
WEATHER = Team(
    "weather",
    TransformerShape(blocks=24, width=4096, length=16_200, vocabulary=1280, heads=32),
    512,
    A100,
    4096,
    Plan(data=512, zero=1, tensor=8, sequence=True, mixed=True),
    Twin(TransformerShape(blocks=4, width=64, length=64, vocabulary=64, heads=8), 2, 4e6),
)
LAPTOP = Team(
    "laptop",
    TransformerShape(blocks=24, width=1024, length=1024, vocabulary=50_257, heads=16),  # GPT-2 medium
    32,
    LAPTOP_GPU,
    1,
    Plan(microbatches=32, offload=True),
    Twin(TransformerShape(blocks=6, width=64, length=64, vocabulary=256, heads=8), 8, 7.0e6),
)
TEAMS = (CHATBOT, PATHOLOGY, WEATHER, LAPTOP)
