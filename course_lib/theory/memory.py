"""What a model occupies while it is trained, before a single activation is stored.

    weights + gradients + optimizer state = bytes per parameter × number of parameters

With Adam every parameter brings its gradient and two running means of it; in mixed precision also a 32-bit
master copy of itself. Both ways that is 16 bytes, eight times what the 16-bit weights alone would need.

Source: Rajbhandari, Rasley, Ruwase and He, ZeRO: Memory Optimizations Toward Training Trillion Parameter
Models, SC 2020, section 3.1 (2Ψ + 2Ψ + 12Ψ bytes), https://arxiv.org/abs/1910.02054
"""

from dataclasses import dataclass

GB = 10**9


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


def training_state(parameters: int, each: StateBytes = ADAM_MIXED) -> StateBytes:
    """The bytes that `parameters` parameters occupy while they are trained, `each` of them so many.

    Activations, communication buffers and fragmentation come on top. Raises ValueError when there is
    less than one parameter.
    """
    if parameters < 1:
        raise ValueError(f"a model has at least 1 parameter, not {parameters}")
    return StateBytes(parameters * each.weights, parameters * each.gradients, parameters * each.optimizer)
