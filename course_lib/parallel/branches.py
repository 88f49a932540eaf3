"""Sub-graph parallelism: a layer made of branches, of which every rank has some.

           ┌─ 1×1 ─┐                 rank 0 has 1×1 and 3×3, rank 1 has 5×5
    x ─────┼─ 3×3 ─┼─── join         forward: the branches' results are joined on all ranks
           └─ 5×5 ─┘                 backward: the gradients of x are summed over the ranks

No branch waits for another, so nothing is sent but at both ends. No more ranks can help than there are
branches, and the dearest one decides. As in Inception (Szegedy et al., 2015), or the parts of a residual sum.
"""

import copy
from collections.abc import Sequence

import torch
from mpi4py import MPI
from torch import nn

from course_lib.comm.regions import copy_to, gather_from, reduce_from
from course_lib.theory.partition import balanced_ranges


class Branches(nn.Module):
    """This rank's share of `branches`, (N, C, H, W) to (N, F, H', W') each; results joined by channels.

    `costs` in any unit, one a branch, deal consecutive branches so that the dearest rank costs least; without
    them a branch costs its parameters, and one more.
    """

    def __init__(
        self, comm: MPI.Intracomm, branches: Sequence[nn.Module], costs: Sequence[float] | None = None
    ) -> None:
        super().__init__()
        if comm.size > len(branches):
            raise ValueError(
                f"{len(branches)} branches cannot be shared by {comm.size} ranks; use at most {len(branches)}"
            )
        costs = costs or [1 + sum(p.numel() for p in branch.parameters()) for branch in branches]
        if len(costs) != len(branches):
            raise ValueError(f"{len(costs)} costs were given for {len(branches)} branches; give one each")
        self.comm, mine = comm, balanced_ranges(costs, comm.size)[comm.rank]
        self.mine = nn.ModuleList(copy.deepcopy(branches[index]) for index in mine)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """All branches' results of `x`, the same on every rank: (N, sum of F, H', W')."""
        x = copy_to(self.comm, x)
        return gather_from(self.comm, torch.cat([branch(x) for branch in self.mine], dim=1), 1)


class SummedBranches(Branches):
    """The same, with the sum of the branches' results, which all have one shape."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of all branches' results, on every rank."""
        x = copy_to(self.comm, x)
        return reduce_from(self.comm, torch.stack([branch(x) for branch in self.mine]).sum(dim=0))
