"""The terms that lesson 11 introduces."""

from course.lessons.shared.glossary import Term

TERMS = (
    Term(
        "ZeRO",
        "Zero Redundancy Optimizer: data parallelism in which each rank keeps only a shard of the "
        "optimizer state (stage 1), of the gradients (2), and of the weights (3).",
        forms=r"ZeRO(-[123])?",
    ),
    Term("FSDP", "Fully Sharded Data Parallel: PyTorch's implementation of what ZeRO calls stage 3."),
    Term("optimizer shard", "The part of the optimizer state that one rank keeps and updates."),
    Term(
        "offload",
        "Keep what the accelerator does not need at the moment in the memory of the host or on a disk.",
        forms=r"offload(ing|ed)?",
    ),
)
