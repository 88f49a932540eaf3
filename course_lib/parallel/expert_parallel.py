"""Expert parallelism: every rank has some of the experts, and tokens travel to theirs and back.

    rank 0   tokens a b c   ── all-to-all ─→   expert 0: a c d   ── all-to-all ─→   a b c
    rank 1   tokens d e     ── all-to-all ─→   expert 1: b e     ── all-to-all ─→   d e

A router, the same on all ranks, sends each token to the expert that it finds likeliest, and weights the
answer by that probability: so the router has a gradient. No rank knows before how many tokens it will
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
from course_lib.theory.partition import even_range, even_ranges


class Mixture(nn.Module):
    """`experts`, of which every token asks one: the whole, in one process."""

    def __init__(self, width: int, experts: Sequence[nn.Module]) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(width, len(experts)), nn.ModuleList(experts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Tokens (N, width) to the same."""
        weight, choice = F.softmax(self.router(x), dim=-1).max(dim=-1)
        order = choice.argsort(stable=True)  # the tokens of expert 0, then those of expert 1, …
        counts = choice.bincount(minlength=len(self.experts)).tolist()
        answers = [ask(part) for ask, part in zip(self.experts, x[order].split(counts), strict=True)]
        return torch.cat(answers)[order.argsort()] * weight.unsqueeze(-1)


class ParallelMixture(nn.Module):
    """`whole`, its experts distributed over the ranks of `comm`; a rank may have none.

    Each rank brings tokens of its own, as many as it likes. The gradients of an expert are complete where it
    is; those of the router are summed over the ranks.
    """

    def __init__(self, comm: MPI.Intracomm, whole: Mixture) -> None:
        super().__init__()
        self.comm, self.count = comm, len(whole.experts)
        mine = even_range(self.count, comm.size, comm.rank)
        self.router = copy.deepcopy(whole.router)
        self.experts = copy.deepcopy(whole.experts[mine.start : mine.stop])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """This rank's tokens (N, width) to the same."""
        router = (copy_to(self.comm, parameter) for parameter in (self.router.weight, self.router.bias))
        weight, choice = F.softmax(F.linear(x, *router), dim=-1).max(dim=-1)
        order = choice.argsort(stable=True)
        asked = self.comm.allgather(choice.bincount(minlength=self.count).tolist())  # [rank][expert]
        shards = even_ranges(self.count, self.comm.size)
        send_counts = [sum(asked[self.comm.rank][e] for e in experts) for experts in shards]
        receive_counts = [sum(theirs[e] for e in shards[self.comm.rank]) for theirs in asked]
        there = all_to_all(self.comm, x[order], send_counts, receive_counts)
        answers = self.answer(there, asked, shards[self.comm.rank])
        back = all_to_all(self.comm, answers, receive_counts, send_counts)
        return back[order.argsort()] * weight.unsqueeze(-1)

    def answer(self, tokens: torch.Tensor, asked: list[list[int]], mine: range) -> torch.Tensor:
        """What this rank's experts say to the tokens that came, by rank and then by expert."""
        if not mine:
            return tokens  # there are none, but their gradient's all-to-all is everybody's
        whose = torch.tensor(
            [e for theirs in asked for e in mine for _ in range(theirs[e])], dtype=torch.long
        )
        order = whose.argsort(stable=True)
        counts = [sum(theirs[e] for theirs in asked) for e in mine]
        parts = tokens[order].split(counts)
        return torch.cat([ask(part) for ask, part in zip(self.experts, parts, strict=True)])[order.argsort()]
