"""Optimizer state in a file: the system keeps in memory what it has room for, and writes the rest to disk.

Source: Ren and others, ZeRO-Offload, USENIX ATC 2021; Rajbhandari and others, ZeRO-Infinity, SC 2021: they
move the state from the GPU to the CPU's memory and to NVMe drives.
"""

import shutil
from pathlib import Path

import torch
from torch.optim import Adam, AdamW, Optimizer

STATE = ("exp_avg", "exp_avg_sq")


def offload_state(optimizer: Optimizer, folder: Path, rank: int) -> int:
    """Keep the two moments of an Adam or AdamW in files of `folder`; the bytes of the files.

    Call it before the first step. Raises TypeError for other optimizers, ValueError after the first step and
    OSError, with the numbers, when `folder` has no room.
    """
    if not isinstance(optimizer, Adam | AdamW):
        raise TypeError(f"{type(optimizer).__name__} has other state than Adam's two moments")
    if optimizer.state:
        raise ValueError("the optimizer has stepped already: offload its state before the first step")
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    needed = sum(parameter.nbytes for parameter in parameters) * len(STATE)
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise OSError(f"{folder} has {free} bytes free, rank {rank}'s optimizer state needs {needed}")
    for index, parameter in enumerate(parameters):
        state = optimizer.state[parameter]
        state["step"] = torch.tensor(0.0)
        for name in STATE:
            state[name] = in_file(folder / f"rank{rank}-{index}-{name}.bin", parameter)
    return needed


def in_file(path: Path, like: torch.Tensor) -> torch.Tensor:
    """A tensor of zeros with the shape and dtype of `like`, in a new file."""
    path.unlink(missing_ok=True)
    flat = torch.from_file(str(path), shared=True, size=like.numel(), dtype=like.dtype)
    return flat.zero_().view(like.shape)
