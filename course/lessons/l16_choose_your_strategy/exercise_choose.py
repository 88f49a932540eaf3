"""Exercises 16.1, 16.4, 16.5 and 16.6: a plan for a team, judged by the planner and by training its twin.

The twin communicates: all ranks of the check have the same plan, so that all train it or none. The check
imports torch.
"""

from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

from course.lessons.l16_choose_your_strategy.capstone import TEAMS, complaint
from course_lib.theory.planner.plan import Plan
from mpi_classroom.exercises import Exercise, Wrong, WrongAnswer, expect

PLANNER, TWIN = "the planner's estimate", "the plan's twin"
IMPORTS = "from course_lib.theory.planner.plan import Plan"
BY_NAME = {team.name: team for team in TEAMS}
RULE = (
    "Find a plan that fits and takes at most 10 % longer than the fastest plan that fits. It is judged twice: by "
    "the planner, and by training its twin, a small model under a small memory limit, on four ranks."
)
COMMON = dict(cases=(PLANNER, TWIN), describe=str, sizes=(4,), imports=IMPORTS, seconds=30.0)
_trained: dict[tuple[str, Plan], str] = {}  # the second time, with pauses, nothing new can be found


def check_of(name: str) -> Callable[[SimpleNamespace, Any, str], None]:
    """The check of this team's exercise."""

    def check(answer: SimpleNamespace, comm: Any, case: str) -> None:
        plan = getattr(answer, name, None)
        expect(plan is not None, f"the cell does not define `{name}`.")
        expect(isinstance(plan, Plan), f"`{name}` is of type {type(plan).__name__}; write {name} = Plan(…).")
        assert isinstance(plan, Plan)
        fewest = min(plan.data, plan.pipeline, plan.tensor, plan.microbatches, *plan.tiles)
        expect(fewest >= 1, f"`{name}` has an axis of {fewest}; use 1 for what is not split.")
        wrong = planned(name, plan) if case == PLANNER else trained(name, plan, comm)
        if wrong:
            raise Wrong(wrong)

    return check


@cache
def planned(name: str, plan: Plan) -> str:
    """What the planner has against the plan; "" when nothing."""
    return complaint(BY_NAME[name], plan)


def trained(name: str, plan: Plan, comm: Any) -> str:
    """What is wrong with the training of the plan's twin; "" when nothing. All ranks call it."""
    from course.lessons.l16_choose_your_strategy.twins import train_twin

    if (name, plan) not in _trained:
        run = train_twin(comm, BY_NAME[name], plan, timed=1)
        _trained[name, plan] = "" if run.equal and run.fits else str(run).splitlines()[0]
    return _trained[name, plan]


def _answer(name: str, arguments: str) -> str:
    return f"{name} = Plan({arguments})\n"


def _wrong(name: str, *answers: tuple[str, str]) -> tuple[WrongAnswer, ...]:
    return tuple(WrongAnswer(_answer(name, arguments), message) for arguments, message in answers)


CHOOSE_CHATBOT = Exercise(
    id="16.1",
    title="A chatbot on 8 GPUs",
    task="A team trains 13 billion parameters (40 blocks of width 5,120, the sizes of OPT-13B) with 64 sequences "
    "of 2,048 tokens per step, in 16 bits with Adam's state in 32, on one node of 8 A100 with 80 GB each. "
    f"{RULE}",
    objectives=(2, 3),
    targets=("combine-everything",),
    stub=_answer("chatbot", "data=8, microbatches=8"),
    hints=(
        "How many bytes do weights, gradients and Adam's state need on each GPU, at 16 bytes per parameter? Then "
        "shard the largest part first, and no more than the memory asks for.",
        "208 GB of state = weights 26 + gradients 26 + Adam's 156\n"
        "ZeRO-1 on 8      26 + 26 + 156/8 = 72 GB, and 80 GB must hold the activations, too\n"
        "tensor 2         halves all three, on neighbours",
        "chatbot = Plan(data=…, tensor=2, zero=…, microbatches=8)",
    ),
    solution=_answer("chatbot", "data=4, tensor=2, zero=1, microbatches=8"),
    check=check_of("chatbot"),
    wrong=_wrong(
        "chatbot",
        ("data=8, microbatches=4", "264 GB per GPU"),
        ("data=8, zero=1, microbatches=8", "86.3 GB per GPU"),
        ("data=4, tensor=2, zero=1", "activations"),
        ("data=8, zero=3, microbatches=8", "takes 7.68 s per step"),
        ("tensor=8, microbatches=64", "takes 6.81 s per step"),
        ("data=2, zero=3, pipeline=2, tensor=2, microbatches=32", "takes 7.51 s per step"),
        ("data=4, tensor=4, zero=1, microbatches=8", "takes 16 GPUs"),
    ),
    why="the team gets GPUs with twice the memory. Which part of the plan is then no longer needed?",
    **COMMON,
)

CHOOSE_PATHOLOGY = Exercise(
    id="16.4",
    title="Pathology slides",
    task="A hospital's net has six convolutions of 32 maps at full resolution, on images of 8,192 × 8,192 "
    "pixels, 8 per step, in 32 bits, on a workstation with 4 RTX A6000 of 48 GB each. " + RULE,
    objectives=(6,),
    targets=("zero-shards-activations",),
    stub=_answer("pathology", "data=4, microbatches=2"),
    hints=(
        "The net has fewer than 50,000 parameters. What are the 70 GB then, and which axis cuts them?",
        "one map of one image: 8,192 × 8,192 × 4 bytes = 268 MB; 32 maps: 8.6 GB; six layers: 52 GB\n"
        "┌────┬────┐\n│ 0  │ 1  │\n├────┼────┤   each GPU has a quarter of every image\n│ 2  │ 3  │\n└────┴────┘",
        "pathology = Plan(tiles=(…, 2), microbatches=…)",
    ),
    solution=_answer("pathology", "tiles=(2, 2), microbatches=8"),
    check=check_of("pathology"),
    wrong=_wrong(
        "pathology",
        ("data=4, zero=3, microbatches=2", "70.3 GB per GPU"),
        ("tiles=(2, 2)", "209 GB per GPU"),
        ("data=2, tiles=(1, 2), microbatches=4", "53.6 GB per GPU"),
        ("pipeline=4, microbatches=8, recompute=True", "127 GB per GPU"),
    ),
    why="tiles of 2 × 2 and of 1 × 4 take nearly the same time here. On images of which size would they not?",
    **COMMON,
)

CHOOSE_WEATHER = Exercise(
    id="16.5",
    title="A weather net on 512 nodes",
    task="A weather net is a Transformer on the 16,200 patches of a global map: 24 blocks of width 4,096, 1,280 "
    "numbers per patch (the planner counts them as its vocabulary). A step has 512 maps, in 16 bits, on 512 "
    f"nodes of 8 A100: 4,096 GPUs. {RULE}",
    objectives=(6,),
    targets=("tensor-parallel-across-nodes",),
    stub=_answer("weather", "data=4096"),
    hints=(
        "There are 512 maps and 4,096 GPUs. How many GPUs have to share one map, and where are these?",
        "node 0      GPUs 0 … 7        NVLink, 300 GB/s each way\n"
        "   │        200 GB/s per node, for all its 8 GPUs\n"
        "node 1      GPUs 8 … 15",
        "weather = Plan(data=…, tensor=…)",
    ),
    solution=_answer("weather", "data=512, tensor=8"),
    check=check_of("weather"),
    wrong=_wrong(
        "weather",
        ("data=4096, zero=3", "a batch of 512"),
        ("data=256, tensor=16", "takes 756 ms per step"),
        ("data=128, tensor=32, zero=1", "takes 1.11 s per step"),
        ("data=512, pipeline=8", "takes 2.75 s per step"),
        ("data=512, pipeline=2, tensor=4", "takes 887 ms per step"),
    ),
    why="the team could use 4,096 maps per step instead. What would the step cost per map then, and what might "
    "the training lose?",
    **COMMON,
)

CHOOSE_LAPTOP = Exercise(
    id="16.6",
    title="Fine-tuning on one laptop",
    task="A student fine-tunes all weights of GPT-2 medium (24 blocks of width 1,024), 32 sequences of 1,024 "
    "tokens per step, in 32 bits, on a laptop whose GPU has 8 GB. `recompute=True` recomputes activations, "
    f"`offload=True` keeps Adam's state on the SSD. {RULE}",
    objectives=(6,),
    targets=("combine-everything",),
    stub=_answer("laptop", "microbatches=8"),
    hints=(
        "First make the activations small: how many sequences need to be in memory at once? Then compute what "
        "each of the two switches costs per step.",
        "recompute   the forward pass once more: grows with the 32 sequences\n"
        "offload     16 bytes per parameter to and from the SSD, once per step",
        "laptop = Plan(microbatches=…, …=True)",
    ),
    solution=_answer("laptop", "microbatches=32, offload=True"),
    check=check_of("laptop"),
    wrong=_wrong(
        "laptop",
        ("microbatches=32", "8.74 GB per GPU"),
        ("offload=True", "74.9 GB per GPU"),
        ("microbatches=32, recompute=True", "takes 7.92 s per step"),
        ("microbatches=32, recompute=True, offload=True", "takes 8.84 s per step"),
        ("data=4, zero=1", "takes 4 GPUs"),
    ),
    why="with 8 sequences per step instead of 32, the other switch would be cheaper. Why?",
    **COMMON,
)
