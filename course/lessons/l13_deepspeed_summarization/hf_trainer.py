"""The same training handed to the `Trainer` of Hugging Face, with the same DeepSpeed configuration.

    ours       global batch → shard → summed_loss / tokens of all ranks → engine.backward → engine.step
    Trainer    reads the batch size, the optimizer and the ZeRO stage from the config, and runs the loop

It takes the world that `start_deepspeed` has made, gives each rank its share of every global batch, and
counts the tokens of all ranks itself (`num_items_in_batch`): a loss divided by them needs no more care. What
is missing here is what takes time and says nothing: logs, files, evaluation.

Lightning's `Trainer(strategy=DeepSpeedStrategy(config=config))` takes the same config without
`gradient_accumulation_steps`, which it sets itself. Its strategy accepts GPUs only, so it is not run.
"""

import copy
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from course_lib.parallel.deepspeed_config import Config
from course_lib.training.summaries.model import shifted_right, summed_cross_entropy, token_batch
from course_lib.training.summaries.quiet import be_quiet
from course_lib.training.summaries.tokens import Encoded
from mpi_classroom.launch import job_folder


def train_with_trainer(
    model: Any, encoded: Encoded, config: Config, *, steps: int, smoothing: float = 0.0
) -> list[float]:
    """Train `model` for `steps` on the articles in their order; the loss of every step, on every rank.

    To be called on all ranks of a world that `start_deepspeed` has made.
    """
    be_quiet()
    from transformers import PrinterCallback, Trainer, TrainerCallback

    losses: list[float] = []

    class Note(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **more: Any) -> None:
            if "loss" in logs:
                losses.append(logs["loss"])

    def collate(indices: Sequence[int]) -> dict[str, torch.Tensor]:
        batch = token_batch(encoded, np.array(indices))
        read = shifted_right(batch.labels)
        return {
            "input_ids": batch.articles,
            "attention_mask": batch.mask,
            "decoder_input_ids": read,
            "labels": batch.labels,
        }

    def loss_fn(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any) -> torch.Tensor:
        return summed_cross_entropy(outputs["logits"], labels, smoothing=smoothing) / num_items_in_batch

    set_accelerate_state()
    with tempfile.TemporaryDirectory(dir=job_folder()) as folder:
        trainer = Trainer(
            model=model,
            args=training_arguments(config, folder, steps),
            train_dataset=list(range(len(encoded))),
            data_collator=collate,
            compute_loss_func=loss_fn,
            callbacks=[Note()],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return losses


def training_arguments(config: Config, folder: str, steps: int) -> Any:
    """The Trainer's arguments: they repeat DeepSpeed's config, or it refuses; the rest keeps it quiet."""
    from transformers import TrainingArguments

    scheduled = config.get("scheduler", {}).get("params", {})
    return TrainingArguments(
        output_dir=folder,
        deepspeed=copy.deepcopy(config),  # it writes into it
        per_device_train_batch_size=config["train_micro_batch_size_per_gpu"],
        gradient_accumulation_steps=config["gradient_accumulation_steps"],
        learning_rate=config["optimizer"]["params"]["lr"],
        max_grad_norm=config["gradient_clipping"],
        max_steps=steps,
        warmup_steps=scheduled.get("warmup_num_steps", 0),
        accelerator_config={"use_configured_state": True},
        train_sampling_strategy="sequential",
        remove_unused_columns=False,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )


def set_accelerate_state() -> None:
    """Set DeepSpeed's world in `accelerate`, which the Trainer uses: without GPUs it sees one rank."""
    from accelerate.state import AcceleratorState, DistributedType, PartialState

    AcceleratorState._reset_state(reset_partial_state=True)
    state = PartialState(cpu=True)  # takes the process group that is there
    state.distributed_type = DistributedType.DEEPSPEED
