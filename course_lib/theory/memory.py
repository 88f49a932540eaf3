"""What a model occupies while it is trained: weights, gradients, optimizer state, buffers and activations.

    weights + gradients + optimizer state = bytes per parameter × number of parameters

With Adam every parameter brings its gradient and two running means of it; in mixed precision also a 32-bit
master copy of itself. Both ways that is 16 bytes, eight times what the 16-bit weights alone would need.
ZeRO distributes these bytes over the ranks, stage by stage; for Ψ parameters on N ranks:

    stage    float32 and Adam    mixed precision    moves
    0        16Ψ                 16Ψ                2Ψ     data parallelism: everything on every rank
    1        8Ψ + 8Ψ/N           4Ψ + 12Ψ/N         2Ψ     the optimizer state is sharded
    2        4Ψ + 12Ψ/N          2Ψ + 14Ψ/N         2Ψ     the gradients, too
    3        16Ψ/N               16Ψ/N              3Ψ     the weights, too

Activations are not sharded: every rank computes with its own part of the batch.

Source: Rajbhandari, Rasley, Ruwase and He, ZeRO: Memory Optimizations Toward Training Trillion Parameter
Models, SC 2020, sections 3.1, 5 and 7 (2Ψ + 2Ψ + 12Ψ bytes), https://arxiv.org/abs/1910.02054
"""

from dataclasses import dataclass

STAGES = (0, 1, 2, 3)


@dataclass(frozen=True, slots=True)
class StateBytes:
    """Bytes of weights, gradients and optimizer state: of one parameter, or of a whole model."""

    weights: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        """All three together."""
        return self.weights + self.gradients + self.optimizer


ADAM_MIXED = StateBytes(weights=2, gradients=2, optimizer=4 + 4 + 4)  # 32-bit master copy, two moments
ADAM_FP32 = StateBytes(weights=4, gradients=4, optimizer=4 + 4)  # two moments
SHARDED_FROM = StateBytes(weights=3, gradients=2, optimizer=1)  # the first stage that shards each of them
