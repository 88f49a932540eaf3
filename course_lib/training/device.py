"""Which device a rank trains on: the CPU, or a GPU of its own."""

import torch


class NoGPU(RuntimeError):
    """A GPU was asked for, and this rank has none; the message says what to do."""


def use_device(name: str, local_rank: int = 0) -> torch.device:
    """The device `name` ("cpu" or "cuda") of this rank, made the current one.

    Each rank of a machine takes the GPU with the number `local_rank`. NoGPU when there is none.
    """
    if name == "cpu":
        return torch.device("cpu")
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not gpus:
        raise NoGPU("PyTorch finds no GPU on this machine. Leave out --device cuda to train on the CPU.")
    if local_rank >= gpus:
        raise NoGPU(
            f"This machine has too few GPUs for rank {local_rank}: each rank needs one. "
            f"Start at most {gpus} ranks here, or leave out --device cuda."
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def backend_for(device: torch.device, otherwise: str) -> str:
    """The backend that moves the tensors of `device` between ranks: NCCL for a GPU, else `otherwise`."""
    return "nccl" if device.type == "cuda" else otherwise
