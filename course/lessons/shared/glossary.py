"""The terms of the course, by the lesson that introduces them: no lesson before it uses them.

A term is a regular expression for whole words; one with a capital is a name, and written so. A word that
everyday language needs as well (core, message, stage) is not here, or only in a form that cannot be mistaken.
"""

from collections.abc import Mapping

GLOSSARY: Mapping[str, tuple[str, ...]] = {
    "00": ("ranks?", "nodes?", "local ranks?", "world size", "oversubscribed", "communicators?"),
    "01": (
        "SPMD",
        "MPMD",
        "deadlocks?",
        "hang reports?",
        "Sendrecv",
        "Isend",
        "Irecv",
        "Ssend",
        "pickled?",
        "Gloo",
        "NCCL",
    ),
    "02": ("Reduce", "standard errors?", "Monte Carlo", "Amdahl('s)?", "speed-ups?", "efficiency"),
    "03": ("quadrature", "strong scaling", "weak scaling", "scaled speed-up", "Gustafson('s)?"),
    "04": (
        "collectives?",
        "all-reduces?",
        "reduce-scatter",
        "all-gathers?",
        "all-to-all",
        "broadcasts?",
        "Bcast",
        "Scatterv?",
        "Gatherv?",
        "alpha-beta",
        "latency",
        "bandwidth",
        "ring algorithm",
        "recursive doubling",
    ),
    "05": (
        "learning rates?",
        "mini-batch(es)?",
        "micro-batch(es)?",
        "gradient accumulation",
        "gradient checks?",
        "stochastic gradient descent",
    ),
    "06": (
        "data[- ]parallel",
        "data parallelism",
        "shards?",
        "global batch(es)?",
        "replicas?",
        "buckets?",
    ),
    "07": (
        "DDP",
        "DistributedDataParallel",
        "DistributedSampler",
        "samplers?",
        "set_epoch",
        "torchrun",
        "process groups?",
    ),
    "08": ("pipeline parallelism", "pipeline[- ]parallel", "GPipe", "1F1B", "pipeline stages?", "bubbles?"),
    "09": (
        "tensor parallelism",
        "tensor[- ]parallel",
        "column[- ]parallel",
        "row[- ]parallel",
        "DTensor",
        "sequence parallelism",
    ),
    "10": ("halos?", "spatial parallelism", "GEMS", "hybrid parallelism"),
    "11": ("ZeRO(-[123])?", "FSDP", "optimizer shards?", "offload(ing|ed)?"),
    "12": ("DeepSpeed", "hostfiles?"),
    "13": ("ROUGE", "lead-3"),
    "14": ("Slurm", "Kubernetes", "AccDP", "MPS"),
    "15": ("stragglers?", "elastic training"),
    "16": ("planner",),
}
