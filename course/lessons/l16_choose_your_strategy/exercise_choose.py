"""Exercises 16.1, 16.4, 16.5 and 16.6: a plan for a team, judged by the planner and by training its twin.

The twin communicates: all ranks of the check have the same plan, so that all train it or none. The check
imports torch.
"""

from collections.abc import Callable, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

from course.lessons.l16_choose_your_strategy.capstone import TEAMS, complaint
from course_lib.theory.planner.plan import Plan
from mpi_classroom.exercises import Exercise, Wrong, WrongAnswer, expect

PLANNER, TWIN = "the planner's estimate", "the plan's twin"
BY_NAME = {team.name: team for team in TEAMS}
RULE = (
    "Find a plan that fits. Its predicted step may be at most 10 % longer than that of the fastest plan that "
    "fits. The planner judges your plan first. Then the plan's twin trains on up to four ranks. Try a first "
    "plan early: the reply says what is wrong with it."
)
AGAIN = "Find a plan as in 16.1."
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


def _choose(
    name: str, *, stub: str, solution: str, wrong: Sequence[tuple[str, str]], **texts: Any
) -> Exercise:
    """The exercise of a team: its stub, solution and wrong answers are the arguments of a Plan."""
    return Exercise(
        stub=f"{name} = Plan({stub})\n",
        solution=f"{name} = Plan({solution})\n",
        check=check_of(name),
        wrong=tuple(WrongAnswer(f"{name} = Plan({arguments})\n", message) for arguments, message in wrong),
        cases=(PLANNER, TWIN),
        describe=str,
        sizes=(4,),
        imports="from course_lib.theory.planner.plan import Plan",
        seconds=30.0,
        **texts,
    )


CHOOSE_CHATBOT = _choose(
    "chatbot",
    id="16.1",
    title="A chatbot on 8 GPUs",
    task="A team trains a model of 13 billion parameters (40 blocks of width 5,120, the sizes of OPT-13B) on "
    "one node of 8 A100. Each GPU has 80 GB, computes at most 312 Tflop/s and sends 300 GB/s. A step has 64 "
    "sequences of 2,048 tokens. Weights and gradients are in 16 bits. A copy of the weights and Adam's two "
    "moments are in 32 bits. Together: 2 + 2 + 12 bytes per parameter. " + RULE,
    objectives=(2, 3),
    targets=("combine-everything",),
    stub="data=8, microbatches=8",
    hints=(
        "How many bytes of weights, gradients and optimizer state would each GPU hold, at 2, 2 and 12 bytes "
        "per parameter? Shard the largest part first, and shard no more than the memory requires.",
        "13.1 billion parameters: weights 26 GB, gradients 26 GB, optimizer state 157 GB\n"
        "ZeRO-1 on 8:   26 + 26 + 157/8 = 72 GB, and on top come activations and buffers\n"
        "tensor = 2:    two neighbouring GPUs share each layer, which halves all three",
        "chatbot = Plan(data=…, tensor=2, zero=…, microbatches=8)",
    ),
    solution="data=4, tensor=2, zero=1, microbatches=8",
    wrong=(
        ("data=8, microbatches=4", "264 GB per GPU"),
        ("data=8, zero=1, microbatches=8", "86.3 GB per GPU"),
        ("data=4, tensor=2, zero=1", "187 GB per GPU"),
        ("data=8, zero=3, microbatches=8", "takes 6.92 s per step"),
        ("tensor=8, microbatches=64", "takes 6.2 s per step"),
        ("data=2, zero=3, pipeline=2, tensor=2, microbatches=32", "takes 6.66 s per step"),
        ("data=4, tensor=4, zero=1, microbatches=8", "takes 16 GPUs"),
    ),
    why="the team gets GPUs with twice the memory. Which part of your plan does it no longer need?",
)

CHOOSE_PATHOLOGY = _choose(
    "pathology",
    id="16.4",
    title="Pathology slides",
    task="A hospital's net has six convolutions with 32 output maps each, at full resolution. A step has 8 "
    "images of 8,192 × 8,192 pixels, in 32 bits. The workstation has 4 RTX A6000. Each has 48 GB and sends "
    "31.5 GB/s over PCI Express. " + AGAIN,
    objectives=(6,),
    targets=("zero-shards-activations",),
    stub="data=4, microbatches=2",
    hints=(
        "The net has fewer than 50,000 parameters. What are the 70 GB then, and which axis cuts them?",
        "one map of one image: 8,192 × 8,192 × 4 bytes = 268 MB; 32 maps: 8.6 GB; six layers: 52 GB\n"
        "┌───┬───┐\n"
        "│ 0 │ 1 │\n"
        "├───┼───┤   each GPU has a quarter of every image\n"
        "│ 2 │ 3 │\n"
        "└───┴───┘",
        "pathology = Plan(tiles=(…, 2), microbatches=…)",
    ),
    solution="tiles=(2, 2), microbatches=8",
    wrong=(
        ("data=4, zero=3, microbatches=2", "70.3 GB per GPU"),
        ("tiles=(2, 2)", "209 GB per GPU"),
        ("data=2, tiles=(1, 2), microbatches=4", "53.6 GB per GPU"),
        ("pipeline=4, microbatches=8, recompute=True", "127 GB per GPU"),
    ),
    why="tiles of 2 × 2 and of 1 × 4 take nearly the same time here. On which images would they not?",
)

CHOOSE_WEATHER = _choose(
    "weather",
    id="16.5",
    title="A weather net on 512 nodes",
    task="A weather net is a Transformer of 24 blocks and width 4,096. A map has 720 × 1,440 points with 20 "
    "variables each; patches of 8 × 8 points make it 16,200 tokens of 1,280 numbers (8 × 8 × 20). The "
    "planner counts an input and an output layer of that size in place of the vocabulary's. A step has 512 "
    "maps, in 16 bits as in 16.1. There are 512 nodes of 8 A100: 4,096 GPUs. Each GPU sends 300 GB/s inside "
    "its node; the 8 GPUs of a node together send 200 GB/s to other nodes. " + AGAIN,
    objectives=(6,),
    targets=("tensor-parallel-across-nodes",),
    stub="data=4096",
    hints=(
        "There are 512 maps and 4,096 GPUs. How many GPUs have to share a map, and where are these?",
        "node 0    GPUs 0 … 7      300 GB/s each way, from any to any\n"
        "   │      200 GB/s, for all 8 GPUs of a node together\n"
        "node 1    GPUs 8 … 15",
        "weather = Plan(data=…, tensor=…)",
    ),
    solution="data=512, tensor=8",
    wrong=(
        ("data=4096, zero=3", "a batch of 512"),
        ("data=256, tensor=16", "takes 688 ms per step"),
        ("data=128, tensor=32, zero=1", "takes 983 ms per step"),
        ("data=512, pipeline=8", "takes 2.69 s per step"),
        ("data=512, pipeline=2, tensor=4", "takes 847 ms per step"),
    ),
    why="with 4,096 maps per step, each GPU would have a map of its own. What would a map cost then, and "
    "what might the training lose?",
)

CHOOSE_LAPTOP = _choose(
    "laptop",
    id="16.6",
    title="Fine-tuning on one laptop",
    task="A student fine-tunes all weights of a model with the sizes of GPT-2 medium (24 blocks of width "
    "1,024). A step has 32 sequences of 1,024 tokens, in 32 bits. The laptop has an RTX 4060 of 8 GB and an "
    "SSD of 6.9 GB/s. `recompute=True` recomputes activations, `offload=True` keeps Adam's state on the SSD. "
    + AGAIN,
    objectives=(6,),
    targets=("combine-everything",),
    stub="microbatches=8",
    hints=(
        "First make the activations small: how many sequences must be in memory at once? Then ask what each "
        "of the two switches costs per step.",
        "recompute   every forward pass once more: its cost grows with the 32 sequences\n"
        "offload     16 bytes per parameter from and to the SSD, once per step",
        "laptop = Plan(microbatches=…, …=True)",
    ),
    solution="microbatches=32, offload=True",
    wrong=(
        ("microbatches=32", "8.74 GB per GPU"),
        ("offload=True", "74.9 GB per GPU"),
        ("microbatches=32, recompute=True", "takes 7.92 s per step"),
        ("microbatches=32, recompute=True, offload=True", "takes 8.84 s per step"),
        ("data=4, zero=1", "takes 4 GPUs"),
    ),
    why="with 8 sequences per step instead of 32, the other switch would be cheaper. Why?",
)
