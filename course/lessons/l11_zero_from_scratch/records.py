"""What the runs of lesson 11 return. Needs neither MPI nor torch: the kernel reads it, too."""

from dataclasses import dataclass

from course_lib.theory.memory import StateBytes


@dataclass(frozen=True, slots=True)
class Training:
    """What a training needed: the loss of each step, over all ranks; bytes held; bytes received per step."""

    losses: list[float]
    held: StateBytes
    received: int


@dataclass(frozen=True, slots=True)
class Look:
    """What was live on one rank in one step, in bytes.

    `live`: all tensors, after each operation; `held`: weights, gradients and optimizer state between steps;
    `activations`: what forward keeps for backward, weights left out.
    """

    live: list[int]
    held: int
    activations: int

    @property
    def peak(self) -> int:
        """The most that was live."""
        return max(self.live)
