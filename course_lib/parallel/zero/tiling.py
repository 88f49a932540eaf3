"""Memory-centric tiling: a linear layer that is too large to be whole, as tiles that are whole one at a time.

    y = [ W₀ ]  x      each tile a layer of its own for stage 3: gather W₀, run, free; gather W₁, …
        [ W₁ ]

Source: Rajbhandari and others, ZeRO-Infinity, SC 2021, section 5.1.3.
"""

import torch
from torch import nn

from course_lib.theory.partition import even_ranges


class TiledLinear(nn.Module):
    """A linear layer (…, features_in) → (…, features_out) in `tiles` parts of its outputs; equal to `linear`.

    Pass `layers=[*tiled.tiles]` to `Zero3`. Raises ValueError for more tiles than outputs.
    """

    def __init__(self, linear: nn.Linear, tiles: int) -> None:
        super().__init__()
        if not 1 <= tiles <= linear.out_features:
            raise ValueError(
                f"{linear.out_features} outputs make 1 to {linear.out_features} tiles, not {tiles}"
            )
        self.tiles = nn.ModuleList(tile_of(linear, part) for part in even_ranges(linear.out_features, tiles))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([tile(x) for tile in self.tiles], dim=-1)


@torch.no_grad()
def tile_of(linear: nn.Linear, outputs: range) -> nn.Linear:
    """A linear layer with some of the outputs of `linear`."""
    part = slice(outputs.start, outputs.stop)
    tile = nn.Linear(linear.in_features, len(outputs), linear.bias is not None, dtype=linear.weight.dtype)
    tile.weight.copy_(linear.weight[part])
    if linear.bias is not None:
        tile.bias.copy_(linear.bias[part])
    return tile
