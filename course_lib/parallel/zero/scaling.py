"""Loss scaling: float16 loses gradients below 6e-8, so the loss is multiplied, and they with it.

When a gradient overflows on any rank, all ranks skip the update and halve the factor; after `patience`
updates in a row without overflow it doubles. bfloat16 has the range of float32 and needs none of this.

Source: Micikevicius and others, Mixed Precision Training, ICLR 2018, https://arxiv.org/abs/1710.03740
"""

from collections.abc import Sequence

import torch
from mpi4py import MPI


class LossScaler:
    """The factor of the loss; the same on all ranks.

    scaler.scale(loss).backward()
    if scaler.unscale(comm, gradients):
        … update …
    """

    def __init__(self, factor: float = 2.0**16, patience: int = 2000) -> None:
        self.factor, self.patience, self.good = factor, patience, 0

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss to call backward on."""
        return loss * self.factor

    @torch.no_grad()
    def unscale(self, comm: MPI.Intracomm, gradients: Sequence[torch.Tensor]) -> bool:
        """Divide `gradients` by the factor; False when any rank's are not finite: then skip the update."""
        finite = all(bool(torch.isfinite(gradient).all()) for gradient in gradients)
        if not comm.allreduce(finite, MPI.LAND):
            self.factor, self.good = self.factor / 2, 0
            return False
        for gradient in gradients:
            gradient /= self.factor
        self.good += 1
        if self.good == self.patience:
            self.factor, self.good = self.factor * 2, 0
        return True
