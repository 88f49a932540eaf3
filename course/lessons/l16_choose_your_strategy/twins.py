"""A plan's twin, trained on the ranks of a notebook or of an exercise: real steps, counted bytes.

    run = train_twin(comm, CHATBOT, Plan(data=2, tensor=4, zero=1))
    run.equal, run.fits, run.seconds

The reference is one process that trains the whole twin: its losses are those of the plan, up to rounding.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from mpi4py import MPI

from course.lessons.l16_choose_your_strategy.capstone import Team, twin_of
from course.lessons.l16_choose_your_strategy.runs import losses_of, train
from course_lib.theory.planner.plan import Plan
from course_lib.theory.planner.quantity import measured

STEPS = 3  # whose losses are compared: two before those that are timed
CLOSE = 0.002  # of what the loss changes in these steps: rounding makes less of it, a wrong gradient more


@dataclass(frozen=True, slots=True)
class TwinRun:
    """What the twin of a plan needed, and the loss before each step: by the plan, and in one process."""

    plan: Plan
    nbytes: float
    limit_nbytes: float
    seconds: float
    losses: tuple[float, ...]
    expected: tuple[float, ...]

    @property
    def fits(self) -> bool:
        """Whether the fullest rank stayed below the limit."""
        return self.nbytes <= self.limit_nbytes

    @property
    def equal(self) -> bool:
        """Whether the losses are those of one process."""
        return alike(self.losses, self.expected)

    def __str__(self) -> str:
        held, limit = (measured(n, "bytes", "").text for n in (self.nbytes, self.limit_nbytes))
        equal = "equal up to rounding" if self.equal else "different"
        fits = "fits" if self.fits else "does not fit"
        return (
            f"its twin on {self.plan.ranks} rank{'s' * (self.plan.ranks > 1)}: {self.plan.name}\n"
            f"  memory   {held} on the fullest rank, limit {limit}: {fits}\n"
            f"  losses   {_three(self.losses)}; in one process {_three(self.expected)}: {equal}\n"
            f"  step     {measured(self.seconds, 's', '').text} on this machine"
        )


def _three(losses: tuple[float, ...]) -> str:
    return ", ".join(f"{loss:.4f}" for loss in losses)


def alike(losses: Sequence[float], expected: Sequence[float]) -> bool:
    """Whether two trainings have the same losses, up to what rounding makes of a few steps."""
    allowed = CLOSE * abs(expected[0] - expected[-1])
    return all(abs(one - other) <= allowed for one, other in zip(losses, expected, strict=True))


def train_twin(comm: MPI.Intracomm, team: Team, plan: Plan, *, timed: int = 3) -> TwinRun:
    """Train the twin of `plan` on the first ranks of `comm`; all ranks call it, and all have the result.

    Its seconds per step are the median of `timed` steps. Raises ValueError, on all ranks, when `comm` has
    fewer ranks than the twin takes.
    """
    twin, problem = twin_of(team, plan), team.twin
    if comm.size < twin.ranks:
        raise ValueError(f"{twin.name} takes {twin.ranks} ranks, and there are {comm.size}; start 4")
    everyone = MPI.Intracomm(comm)  # as it is: an exercise's communicator pauses between calls
    color = 0 if everyone.rank < twin.ranks else MPI.UNDEFINED
    mine = cast(MPI.Intracomm, everyone.Split(color, everyone.rank))
    found: TwinRun | None = None
    if mine != MPI.COMM_NULL:
        run = train(mine, problem.shape, problem.batch, twin, steps=timed)
        if everyone.rank == 0:
            alone = losses_of(MPI.COMM_SELF, problem.shape, problem.batch, Plan(), steps=STEPS)
            numbers = run.nbytes, problem.limit_nbytes, run.seconds
            found = TwinRun(twin, *numbers, run.losses[:STEPS], tuple(alone))
        mine.Free()
    result: TwinRun | None = everyone.bcast(found)
    assert result is not None
    return result
