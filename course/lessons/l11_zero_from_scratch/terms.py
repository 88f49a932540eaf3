"""The terms that lesson 11 introduces."""

from course.lessons.shared.glossary import Term

TERMS = (
    Term(
        "model states",
        "What training keeps for every parameter: the weight, its gradient, and the optimizer's state.",
        forms=r"model states?",
    ),
    Term(
        "ZeRO",
        "Zero Redundancy Optimizer: data parallelism in which each rank keeps only a shard of the "
        "optimizer state (stage 1), also of the gradients (2), and also of the weights (3).",
        forms=r"ZeRO(-[123])?",
    ),
    Term("owner", "In ZeRO, the rank that keeps a shard and updates its numbers.", forms=""),
    Term("FSDP", "Fully Sharded Data Parallel: PyTorch's implementation of what ZeRO calls stage 3."),
    Term(
        "HSDP",
        "Hybrid Sharded Data Parallel: FSDP inside each group of ranks, such as a node, and plain data "
        "parallelism between the groups.",
    ),
    Term(
        "offload",
        "To keep data in the CPU's memory or on a disk while the GPU does not need it.",
        forms=r"offload(ing|ed)?",
    ),
)
