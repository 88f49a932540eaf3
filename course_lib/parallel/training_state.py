"""What else has to be equal on all ranks before training goes on: the optimizer's state.

One rank reads the checkpoint, and broadcasts the weights. The momentum, the variances and the step counts of
the optimizer are easily forgotten: then the ranks take different steps from equal weights, and nothing fails.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from mpi4py import MPI
from torch.optim import Optimizer


@dataclass(frozen=True, slots=True)
class Announced:
    """A tensor that is still to come."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def broadcast_optimizer(comm: MPI.Intracomm, optimizer: Optimizer) -> None:
    """Give every rank's `optimizer` the state and the settings of rank 0's.

    Raises ValueError on all ranks unless all optimizers have groups of as many parameters.
    """
    groups = [len(group["params"]) for group in optimizer.param_groups]
    everyone = comm.allgather(groups)
    if any(theirs != everyone[0] for theirs in everyone):
        raise ValueError(
            f"optimizers with groups of {everyone} parameters, by rank; make the same on all ranks"
        )
    state = optimizer.state_dict()
    described = {"param_groups": state["param_groups"], "state": announce(state["state"])}
    described = comm.bcast(described, root=0)  # small: no tensor is in it
    received = {
        parameter: {
            key: broadcast_entry(comm, value, state["state"], (parameter, key)) for key, value in mine.items()
        }
        for parameter, mine in described["state"].items()
    }
    optimizer.load_state_dict({"param_groups": described["param_groups"], "state": received})


def announce(state: Mapping[int, Mapping[str, Any]]) -> dict[int, dict[str, Any]]:
    """The state of every parameter, with descriptions in place of tensors."""
    return {
        parameter: {
            key: Announced(tuple(value.shape), value.dtype) if isinstance(value, torch.Tensor) else value
            for key, value in entries.items()
        }
        for parameter, entries in state.items()
    }


def broadcast_entry(
    comm: MPI.Intracomm, described: Any, state: Mapping[int, Mapping[str, Any]], where: tuple[int, str]
) -> Any:
    """One entry of the state, from rank 0: a number as it was described, a tensor in a message of its own."""
    if not isinstance(described, Announced):
        return described
    parameter, key = where
    row = torch.empty(described.shape, dtype=described.dtype).reshape(-1)
    if comm.rank == 0:
        row.copy_(state[parameter][key].detach().reshape(-1))
    comm.Bcast(row.numpy(), root=0)
    return row.view(described.shape)
