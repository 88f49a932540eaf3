"""Mixed precision: compute in bfloat16, keep weights, gradients and sums in float32.

bfloat16 has the range of float32 with 8 of its 24 bits of precision: 256 + 1 is 256. Products of matrices
bear that, because they add up in float32; a sum of gradients over ranks, and the small steps of an optimizer,
do not.
"""

import torch
from torch import nn


class InBfloat16(nn.Module):
    """`model`, with matrix products and convolutions in bfloat16; parameters and gradients stay float32."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """What the model returns, as float32, so that the loss is computed in it."""
        with torch.autocast("cpu", dtype=torch.bfloat16):
            outputs: torch.Tensor = self.model(*inputs)
        return outputs.float()


def in_bfloat16(model: nn.Module) -> nn.Module:
    """`model`, to be trained in mixed precision: the same parameters, the same names below `model.`"""
    return InBfloat16(model)
