"""Mixed precision: compute in bfloat16, keep weights, gradients and sums in float32.

bfloat16 has the range of float32 with 8 of its 24 bits of precision: 256 + 1 is 256. Products of matrices
bear that, because they add up in float32; a sum of gradients over ranks, and the small steps of an optimizer,
do not.

On a CPU, torch computes an LSTM in bfloat16 only with AVX-512, and raises an error elsewhere. So each LSTM
of a model is tried once, and a model with one that cannot run stays in float32.
"""

import warnings

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
    """`model`, to be trained in mixed precision: the same parameters.

    Where this processor has no bfloat16 for an LSTM of the model, a warning says so and the model itself is
    returned, which computes in float32.
    """
    if all(runs_in_bfloat16(layer) for layer in model.modules() if isinstance(layer, nn.LSTM)):
        return InBfloat16(model)
    warnings.warn(
        "This processor cannot compute an LSTM in bfloat16, so the model computes in float32.", stacklevel=2
    )
    return model


def runs_in_bfloat16(lstm: nn.LSTM) -> bool:
    """Whether this processor computes `lstm` in bfloat16, tried with one input of zeros."""
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), torch.autocast("cpu", dtype=torch.bfloat16):
            lstm.forward(torch.zeros(1, 1, lstm.input_size))
    except RuntimeError:
        return False
    return True
