"""ZeRO from scratch: data parallelism in which no two ranks keep the same bytes.

    stage   every rank keeps all          and its slice of            it moves, for Ψ parameters
    0       weights, gradients, state                                 2Ψ   all-reduce of the gradients
    1       weights, gradients            state                       2Ψ   reduce-scatter, all-gather
    2       weights                       gradients, state            2Ψ   the same, during backward
    3                                     weights, gradients, state   3Ψ   weights once more for backward

    slices.py   who owns which part of a flat bucket; its reduce-scatter and all-gather
    stage1.py   stage 1: the optimizer is sharded         stage2.py   stage 2: so are the gradients
    stage3.py   stage 3: so are the weights               scaling.py  fp16: the loss is scaled
    offload.py  optimizer state in a file                 tiling.py   a linear layer that is gathered in tiles
    stage0.py   stage 0, to compare with                  measured.py what is held, and what is moved

Computation is not split: every rank runs the whole model on its own part of the batch.

Source: Rajbhandari, Rasley, Ruwase and He, ZeRO: Memory Optimizations Toward Training Trillion Parameter
Models, SC 2020, https://arxiv.org/abs/1910.02054
"""

from course_lib.parallel.zero.offload import offload_state
from course_lib.parallel.zero.scaling import LossScaler
from course_lib.parallel.zero.slices import clip_gradients, held_bytes
from course_lib.parallel.zero.stage1 import Zero1
from course_lib.parallel.zero.stage2 import Zero2
from course_lib.parallel.zero.stage3 import Zero3
from course_lib.parallel.zero.tiling import TiledLinear

__all__ = [
    "LossScaler", "TiledLinear", "Zero1", "Zero2", "Zero3", "clip_gradients", "held_bytes", "offload_state",
]  # fmt: skip
