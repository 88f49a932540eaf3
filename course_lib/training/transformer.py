"""A small Transformer that predicts the next token, plain enough to be cut in every way the course knows.

    tokens (B, T) → embedding + position → blocks → norm → head → logits (B, T, vocabulary)

    block     x + attention(norm(x)),  then  x + mlp(norm(x))             Vaswani et al. (2017), norms first

Query, key and value are three layers, so that tensor parallelism can give whole heads to ranks; the blocks
are a list, so that pipeline stages can take some each.
"""

import math

import torch
from torch import nn
from torch.nn import functional as F

from course_lib.training.models import seeded


class Attention(nn.Module):
    """Causal self-attention with `heads` heads of width / heads numbers each."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(
                f"a width of {width} cannot be shared by {heads} heads; use a multiple of {heads}"
            )
        self.head_width = width // heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.project = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, T, width) to the same; a position sees itself and what came before."""
        query, key, value = (self.split(layer(x)) for layer in (self.query, self.key, self.value))
        mixed = self.mix(query, key, value)  # (B, heads, T, head_width)
        return self.project(mixed.transpose(1, 2).flatten(2))

    def mix(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """The attention itself: (B, heads, T, head_width) each, to the same."""
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)

    def split(self, x: torch.Tensor) -> torch.Tensor:
        """(B, T, heads · head_width) to (B, heads, T, head_width); as many heads as there are in `x`."""
        return x.unflatten(2, (-1, self.head_width)).transpose(1, 2)


class FeedForward(nn.Module):
    """Two layers, four times as wide in between."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(…, width) to the same, position by position."""
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    """Attention, then a feed-forward net, each added to what came in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.norm2, self.mlp = nn.LayerNorm(width), FeedForward(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, T, width) to the same."""
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Embedding(nn.Module):
    """What a token is, plus where it stands."""

    def __init__(self, vocabulary: int, length: int, width: int) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(length, width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tokens (B, T) to (B, T, width); T is at most `length`."""
        return self.token(tokens) + self.position.weight[: tokens.shape[1]]


class Transformer(nn.Module):
    """The whole model; about 12 · `layers` · `width`² parameters and two tables of the vocabulary."""

    def __init__(self, *, vocabulary: int, length: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.embedding = Embedding(vocabulary, length, width)
        blocks = [Block(width, heads) for _ in range(layers)]
        self.blocks = nn.ModuleList(blocks)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.apply(_initialise)
        for block in blocks:  # so that the sum over all blocks keeps its size, as in GPT-2
            for last in (block.attention.project, block.mlp.down):
                nn.init.normal_(last.weight, std=0.02 / math.sqrt(2 * layers))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits (B, T, vocabulary) of tokens (B, T)."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    def stack(self) -> nn.Sequential:
        """The same layers, the very same parameters, one after the other: for pipeline stages."""
        return nn.Sequential(self.embedding, *self.blocks, self.norm, self.head)


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


def build_transformer(
    *, vocabulary: int = 256, length: int = 128, width: int = 64, heads: int = 4, layers: int = 2, seed: int
) -> Transformer:
    """A Transformer whose initial weights depend on its sizes and `seed`, and on nothing else."""
    return seeded(
        lambda: Transformer(vocabulary=vocabulary, length=length, width=width, heads=heads, layers=layers),
        seed=seed,
        name="transformer",
    )
