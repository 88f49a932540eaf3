"""The planner beside published runs that nobody here can repeat: each with what it assumes, and its error.

The machine is made of the vendor's figures, so a step takes at least as long as predicted: a product never
reaches the peak rate, and latencies are left out.
"""

from course.lessons.l14_scaling_out import published
from course_lib.theory.hockney import Hockney
from course_lib.theory.planner.machine import machine_on_paper
from course_lib.theory.planner.memory import state_of
from course_lib.theory.planner.models import Part, TransformerShape, parameter_count
from course_lib.theory.planner.plan import Plan
from course_lib.theory.planner.quantity import counted
from course_lib.theory.planner.ranking import estimate
from course_lib.theory.planner.seconds import exchange_seconds
from course_lib.theory.scale_out import Claim

# PCI Express 4.0 x16, bytes per second each way: 16 lanes of 16 Gbit/s, and 128 of 130 bits are data.
PCIE_4 = 16 * 16e9 * 128 / 130 / 8
A100 = machine_on_paper(
    "nodes of 8 A100",
    "NVIDIA A100 80GB data sheet (2021): 312 Tflop/s in 16 bits, 2,039 GB/s, NVLink 300 GB/s each way; "
    "8 ports of 200 Gbit/s per node; files: at most the rate of PCI Express 4.0 x16",
    memory_nbytes=80e9,
    flop_per_second=312e12,
    memory_bytes_per_second=2039e9,
    inside=Hockney(0.0, 1 / 300e9),
    between=Hockney(0.0, 1 / 200e9),
    ranks_per_node=8,
    file_bytes_per_second=PCIE_4,
)
SUMMIT = machine_on_paper(
    "Summit",
    "ORNL, Summit user guide: 6 V100 per node, 50 GB/s each way between GPUs, two ports of 12.5 GB/s per "
    "node; 5 µs per message are assumed, as in lesson 14",
    memory_nbytes=16e9,
    flop_per_second=15.7e12,
    memory_bytes_per_second=900e9,
    inside=Hockney(5e-6, 1 / 50e9),
    between=published.TWO_PORTS,
    ranks_per_node=6,
)
GPT3 = TransformerShape(blocks=96, width=12_288, length=2048, vocabulary=51_200, heads=96)
GPT3_PLAN = Plan(data=8, pipeline=16, microbatches=192, recompute=True, tensor=8, mixed=True)
GPT3_BATCH, GPT3_SECONDS = 1536, 32.0  # Megatron-LM, README, "GPT-3 Example": "around 32 seconds"
ZERO_GB = {0: 120.0, 1: 31.4, 2: 16.6, 3: 1.9}  # 7.5 billion parameters on 64 GPUs
ZERO_PARAMETERS, ZERO_RANKS = 7.5e9, 64


def claims() -> list[Claim]:
    """Every published figure, with the planner's."""
    layers = GPT3.layers(Part(1, element=2))
    scale = ZERO_PARAMETERS / parameter_count(layers).value
    found = [
        Claim(
            f"ZeRO-{stage}, 7.5 billion parameters on {ZERO_RANKS} GPUs",
            published,
            scale * sum(part.value for part in state_of(layers, zero_plan(stage)).values()) / 1e9,
            "GB of state",
            "Adam in mixed precision: 2 + 2 + 12 bytes per parameter (Rajbhandari 2020, figure 1)",
            "activations and buffers, which the paper leaves out, too",
        )
        for stage, published in ZERO_GB.items()
    ]
    gpt3 = estimate(GPT3, GPT3_BATCH, GPT3_PLAN, A100)
    frontera = [claim for claim in published.claims() if claim.what.startswith("Frontera, 2,048")]
    return [
        *found,
        summit(),
        *frontera,
        Claim(
            "GPT-3 on 1,024 A100",
            GPT3_SECONDS,
            gpt3.seconds.value,
            "s per step",
            "8 tensor × 16 pipeline × 8 data ranks, 192 micro-batches of one sequence, all recomputed; "
            "published: 'around 32 seconds', in Megatron-LM's README; the formula of Narayanan 2021, section "
            "5.1, gives 30.7 s at the paper's 140 Tflop/s per GPU",
            "the rate that products reach (the README has only the mean of a whole step, waits included: "
            "138 Tflop/s, 44 % of the peak), and all latencies",
        ),
    ]


def summit() -> Claim:
    """ResNet-50 on 1,536 GPUs: the published rate of one GPU, and the planner's all-reduce."""
    gradients = counted(published.RESNET_50, "gradients of ResNet-50", "bytes")
    plan = Plan(data=published.SUMMIT_GPUS)
    summing = exchange_seconds("all-reduce", gradients, plan, "data", SUMMIT).value
    step = published.GPU_STEP.compute_seconds + summing
    return Claim(
        "ResNet-50 on Summit, 1,536 GPUs",
        published.SUMMIT / 1e3,
        published.SUMMIT_GPUS * published.GPU_STEP.samples_per_rank / step / 1e3,
        "thousand images/s",
        "334 images/s on one GPU, 64 per batch; a ring of all GPUs, nothing overlaps",
        "GPUs that wait for the slowest one, reading images; overlap, which would make it faster",
    )


def zero_plan(stage: int) -> Plan:
    """A plan of this stage of ZeRO on all ranks."""
    return Plan(data=ZERO_RANKS, zero=stage, mixed=True)
