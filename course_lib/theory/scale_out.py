"""What a data-parallel step takes on more ranks than you have: computing, then an all-reduce.

    step on n ranks │ compute │ 2(n-1)α + 2(n-1)/n βm + (n-1)/n γm │     efficiency = compute / step

This is weak scaling: every rank computes on a batch of its own, whatever n is. Assumed are that all ranks
compute equally long, that nothing overlaps, that every pair of ranks has the same α and β, and that nobody
else uses the network. Real runs violate each of these; `Claim` keeps what was published beside what the model
says, so that one sees by how much.

α, β and γ are Hockney's (`hockney.py`), the all-reduce is the ring (`cost_model.py`).
"""

from dataclasses import dataclass

from course_lib.theory.cost_model import Machine, predict_seconds, ring_allreduce_cost


@dataclass(frozen=True, slots=True)
class DataParallelStep:
    """One step on every rank: seconds of computing, bytes of gradients, and how many samples."""

    compute_seconds: float
    gradient_nbytes: float
    samples_per_rank: float

    def seconds(self, ranks: int, machine: Machine) -> float:
        """Seconds of the step on `ranks` ranks; on one rank, of computing alone."""
        if ranks == 1:
            return self.compute_seconds
        return self.compute_seconds + predict_seconds(
            ring_allreduce_cost(ranks, self.gradient_nbytes), machine
        )

    def efficiency(self, ranks: int, machine: Machine) -> float:
        """The fraction of the step in which a rank computes: 1 on one rank."""
        return self.compute_seconds / self.seconds(ranks, machine)

    def samples_per_second(self, ranks: int, machine: Machine) -> float:
        """Samples per second of all ranks together."""
        return ranks * self.samples_per_rank / self.seconds(ranks, machine)


@dataclass(frozen=True, slots=True)
class Claim:
    """A published figure, what a model says, what the model assumes, and what it leaves out."""

    what: str
    published: float
    predicted: float
    unit: str
    assumes: str
    lacks: str

    @property
    def error(self) -> float:
        """How far the prediction is above the published figure, as a fraction of it; negative when below."""
        return self.predicted / self.published - 1
