"""What of the insides of transformers and accelerate lesson 13 stands on, by name, and what has moved."""

from mpi_classroom.internals import found, takes

NAMES = [
    "accelerate.state:DistributedType.DEEPSPEED",
    "transformers.trainer_callback:PrinterCallback",
]
ARGUMENTS = {
    "accelerate.state:AcceleratorState._reset_state": ["reset_partial_state"],
    "accelerate.state:PartialState.__init__": ["cpu"],
    "transformers:Trainer.__init__": ["train_dataset"],
    "transformers:TrainingArguments.__init__": [
        "deepspeed", "accelerator_config", "train_sampling_strategy", "dataloader_pin_memory",
    ],
}  # fmt: skip


def moved() -> list[str]:
    """One line for each name that is not where the lesson expects it; empty when all are."""
    gone = [name for name in NAMES if not found(name)]
    changed = [(name, wanted) for name, wanted in ARGUMENTS.items() if not takes(name, wanted)]
    return gone + [f"{name}({', '.join(wanted)})" for name, wanted in changed]
