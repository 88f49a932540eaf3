"""Expert parallelism: every rank has some of the experts, and tokens travel to theirs and back.

    rank 0   tokens a b c   ── all-to-all ─→   expert 0: a c d   ── all-to-all ─→   a b c
    rank 1   tokens d e     ── all-to-all ─→   expert 1: b e     ── all-to-all ─→   d e

A router, the same on all ranks, sends each token to the expert that it finds likeliest, and weights the
answer by that probability: so the router has a gradient. No rank knows in advance how many tokens it will
receive, so the ranks exchange these counts first. Shazeer et al. (2017); Fedus, Zoph and Shazeer (2022),
"Switch Transformers".
"""

import copy
from collections.abc import Sequence

import torch
from mpi4py import MPI
from torch import nn
from torch.nn import functional as F

from course_lib.comm.regions import all_to_all, copy_to
from course_lib.theory.partition import even_ranges


class Mixture(nn.Module):
    """`experts`, one of which answers each token: the full mixture, in one process."""

    def __init__(self, width: int, experts: Sequence[nn.Module]) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(width, len(experts)), nn.ModuleList(experts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Tokens (N, width) to the same."""
        probability, choice = route(x, *self.router.parameters())
        return ask(self.experts, x, choice) * probability.unsqueeze(-1)


def route(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The probability of each token's likeliest expert, and the number of that expert; `x` is (N, width)."""
    probability, choice = F.softmax(F.linear(x, weight, bias), dim=-1).max(dim=-1)
    return probability, choice


def ask(experts: nn.ModuleList, tokens: torch.Tensor, choice: torch.Tensor) -> torch.Tensor:
    """The answer to each of `tokens` (N, width) by expert number `choice` (N)."""
    if not experts:
        return tokens  # there are none, but their gradient's all-to-all needs every rank
    order = choice.argsort(stable=True)  # the tokens of expert 0, then those of expert 1, …
    parts = tokens[order].split(choice.bincount(minlength=len(experts)).tolist())
    answers = [expert(part) for expert, part in zip(experts, parts, strict=True)]
    return torch.cat(answers)[order.argsort()]


def ask_all_ranks(
    comm: MPI.Intracomm,
    experts: nn.ModuleList,
    shards: list[range],
    tokens: torch.Tensor,
    choice: torch.Tensor,
) -> torch.Tensor:
    """The answers to this rank's tokens; rank r has the experts `shards[r]`, this rank has `experts`."""
    order = choice.argsort(stable=True)  # the tokens for rank 0, then those for rank 1, …
    sendcounts = [sum(int((choice == number).sum()) for number in shard) for shard in shards]
    recvcounts = comm.alltoall(sendcounts)
    arrived = all_to_all(comm, tokens[order], sendcounts, recvcounts)
    which = all_to_all(comm, choice[order], sendcounts, recvcounts) - shards[comm.rank].start
    answers = all_to_all(comm, ask(experts, arrived, which), recvcounts, sendcounts)
    return answers[order.argsort()]


class ParallelMixture(nn.Module):
    """`whole`, its experts distributed over the ranks (or none on some); each rank has its own tokens.

    An expert's gradients are complete on its rank; the router's are summed over the ranks.
    """

    def __init__(self, comm: MPI.Intracomm, whole: Mixture) -> None:
        super().__init__()
        self.comm, self.shards = comm, even_ranges(len(whole.experts), comm.size)
        mine, self.router = self.shards[comm.rank], copy.deepcopy(whole.router)
        self.experts = copy.deepcopy(whole.experts[mine.start : mine.stop])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """This rank's tokens (N, width) to the same."""
        probability, choice = route(x, *(copy_to(self.comm, p) for p in self.router.parameters()))
        return ask_all_ranks(self.comm, self.experts, self.shards, x, choice) * probability.unsqueeze(-1)
