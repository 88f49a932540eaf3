"""The most memory that the tensors of one training step use, measured for batches and images of any size."""

import torch

from course.lessons.l05_training_one_process.mixed_precision import in_bfloat16
from course_lib.training.loop import Batch, accumulate_gradients, summed_cross_entropy
from course_lib.training.memory_use import LiveBytes
from course_lib.training.models import build


def step_bytes(
    batch_size: int, *, edge: int = 32, microbatch_size: int | None = None, bfloat16: bool = False
) -> int:
    """The peak bytes of a ResNet's forward and backward pass on images of `edge` x `edge` pixels.

    Counted are weights, gradients, images and activations, not what an operation needs inside. The
    batch is computed in micro-batches of `microbatch_size`, or at once. `edge` is a multiple of 4.
    """
    network = build("resnet", seed=0)
    model = in_bfloat16(network) if bfloat16 else network
    batch = Batch(torch.zeros(batch_size, 3, edge, edge), torch.arange(batch_size) % 10, batch_size)
    with LiveBytes([*network.parameters(), batch.inputs]) as memory:
        accumulate_gradients(model, summed_cross_entropy, batch, microbatch_size or batch_size)
    return memory.peak
