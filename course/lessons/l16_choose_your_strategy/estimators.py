"""What DeepSpeed's and Hugging Face's estimators say of the bytes per rank, beside the planner.

    python -m course.lessons.l16_choose_your_strategy.estimators

DeepSpeed's two functions count weights, gradients and optimizer state in mixed precision, with gradients in
32 bits, too: 2 + 18 bytes per parameter. Hugging Face's (`accelerate estimate-memory`) knows no ranks: in
32 bits it says four times the weights for a step with Adam. None of them counts activations or buffers.
"""

import json
from dataclasses import dataclass

from accelerate.commands.estimate import estimate_training_usage
from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs
from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs

from course.lessons.l16_choose_your_strategy.words import ESTIMATORS
from course_lib.theory.planner.memory import memory_of, state_of
from course_lib.theory.planner.models import Part, TransformerShape, parameter_count
from course_lib.theory.planner.plan import Plan

SHAPES = {
    "the sizes of GPT-2, 163 million": (TransformerShape(12, 768, 1024, 50_257, 12), 32),
    "a GPT, 1.8 billion": (TransformerShape(24, 2304, 2048, 51_200, 24), 32),
    "the course's, 3 million": (TransformerShape(4, 256, 128, 256, 8), 32),
}
RANKS = 4
NBYTES_32 = 4  # of a number in 32 bits


@dataclass(frozen=True, slots=True)
class Said:
    """Bytes per rank: the planner's state and peak, and what the two estimators say of the same."""

    what: str
    state: float
    peak: float
    deepspeed: float | None
    accelerate: float


def compare(shape: TransformerShape, batch: int, zero: int, *, mixed: bool) -> Said:
    """One stage of ZeRO on four ranks. DeepSpeed has no estimator for stages 0 and 1, and none in 32 bits."""
    plan = Plan(data=RANKS, zero=zero, mixed=mixed)
    layers = shape.layers(Part(1, element=2 if mixed else NBYTES_32))
    parameters = int(parameter_count(layers).value)
    largest = max(layer.parameters for layer in layers)
    deepspeed = None
    if mixed and zero == 2:
        _, deepspeed = estimate_zero2_model_states_mem_needs(parameters, RANKS, 1, cpu_offload=False)
    if mixed and zero == 3:
        _, deepspeed, _ = estimate_zero3_model_states_mem_needs(
            parameters, largest, RANKS, 1, cpu_offload=False, cpu_offload_params=False
        )
    usage = estimate_training_usage(NBYTES_32 * parameters, "bfloat16" if mixed else "float32")
    accelerate = usage["model"] + usage["gradients"] + usage["optimizer"] if mixed else usage["step"]
    return Said(
        f"ZeRO-{zero}, {16 if mixed else 32} bits",
        sum(part.value for part in state_of(layers, plan).values()),
        memory_of(shape, batch, plan).value,
        deepspeed,
        accelerate,
    )


def table() -> str:
    """All models and stages, in GB per rank."""
    lines = [f"{'GB per rank, 4 ranks':28}{'state':>9}{'peak':>9}{'DeepSpeed':>11}{'accelerate':>12}"]
    for name, (shape, batch) in SHAPES.items():
        lines.append(f"{name}, batch {batch}")
        for zero, mixed in ((0, False), (0, True), (2, True), (3, True)):
            said = compare(shape, batch, zero, mixed=mixed)
            theirs = f"{said.deepspeed / 1e9:11.3f}" if said.deepspeed is not None else f"{'-':>11}"
            ours = f"{said.state / 1e9:9.3f}{said.peak / 1e9:9.3f}"
            lines.append(f"  {said.what:26}{ours}{theirs}{said.accelerate / 1e9:12.3f}")
    return "\n".join(lines)


if __name__ == "__main__":
    print(ESTIMATORS + json.dumps(table()))
