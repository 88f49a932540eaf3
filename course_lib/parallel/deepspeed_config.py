"""DeepSpeed's JSON file, written for a stage.

    config = stage_config(2, ranks=4, micro_batch=8, accumulation=2)
    config["train_batch_size"]          64 = 8 images × 2 micro-batches × 4 ranks

https://www.deepspeed.ai/docs/config-json/
"""

from typing import Any

Config = dict[str, Any]


def stage_config(
    stage: int,
    ranks: int,
    *,
    micro_batch: int = 8,
    accumulation: int = 1,
    learning_rate: float = 1e-3,
    warmup_steps: int = 0,
    total_steps: int = 0,
    clip: float = 0.0,
    bucket: int = 500_000,
) -> Config:
    """The contents of a DeepSpeed file that trains on `ranks` CPUs in the ZeRO `stage`, compiling nothing.

    The learning rate climbs for `warmup_steps` updates, if any, and falls to 0 by `total_steps`, if any. A
    `clip` of 0 leaves the gradient as it is. `bucket` counts parameters. The optimizer is PyTorch's
    AdamW, which needs no compiler. Raises ValueError for a stage or a batch that is none.
    """
    if stage not in (0, 1, 2, 3):
        raise ValueError(f"there is no stage {stage}; choose 0, 1, 2 or 3")
    if min(micro_batch, accumulation, ranks) < 1:
        raise ValueError(
            f"{micro_batch} × {accumulation} samples on {ranks} ranks are no batch; use at least 1 of each"
        )
    config: Config = {
        "train_batch_size": micro_batch * accumulation * ranks,
        "train_micro_batch_size_per_gpu": micro_batch,
        "gradient_accumulation_steps": accumulation,
        "optimizer": {"type": "AdamW", "params": {"lr": learning_rate, "torch_adam": True}},
        "gradient_clipping": clip,
        "zero_optimization": zero_settings(stage, bucket),
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 10**9,
    }
    if warmup_steps or total_steps:
        config["scheduler"] = scheduler_settings(learning_rate, warmup_steps, total_steps)
    return config


def scheduler_settings(learning_rate: float, warmup_steps: int, total_steps: int) -> Config:
    """The part "scheduler": the rate climbs, and falls to 0 by `total_steps`, if any."""
    climb: Config = {"warmup_max_lr": learning_rate, "warmup_type": "linear"}
    climb["warmup_num_steps"] = max(1, warmup_steps)  # it refuses 0
    fall = {"total_num_steps": total_steps} if total_steps else {}
    return {"type": "WarmupDecayLR" if fall else "WarmupLR", "params": climb | fall}


def zero_settings(stage: int, bucket: int) -> Config:
    """The part "zero_optimization": DeepSpeed's defaults are for large GPUs, these save memory."""
    settings: Config = {"stage": stage}
    if stage:
        settings["reduce_bucket_size"] = bucket
    if stage in (1, 2):
        settings["use_multi_rank_bucket_allreduce"] = False
    if stage == 3:
        names = ("param_persistence_threshold", "max_live_parameters", "max_reuse_distance")
        settings |= {f"stage3_{name}": 0 for name in (*names, "prefetch_bucket_size")}
    return settings


def stage_of(config: Config) -> int:
    """The ZeRO stage that `config` asks for."""
    return int(config.get("zero_optimization", {}).get("stage", 0))
