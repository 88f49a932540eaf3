"""The models of the course, the same weights wherever they are built.

Three for MNIST, images (B, 1, 28, 28), from Jakovac & Pichler, "MPI in Distributed Training" (2025):

    mlp       784-256-128-10                                                    235 146 parameters
    cnn       conv 1→32→64 (3×3, padding 1), a 2×2 pooling after each, fc 3136→128→10     421 642
    lstm      the image as 28 rows of 28 pixels: LSTM(28, 128), fc 128→10                  82 186

Two for CIFAR-10, images (B, 3, 32, 32):

    cifar     conv 3→6→16 (5×5), a 2×2 pooling after each, fc 400→120→84→10                62 006
    convnet   conv 3→24→48→96 (3×3), a 2×2 pooling after each, conv 96→96, fc 96→10       136 930

`cifar` is the net of PyTorch's CIFAR-10 tutorial and of DeepSpeed's example. `convnet` has batch-norm and
learns far more per second of a CPU core.

All return logits of shape (B, 10). The Transformer has a module of its own.
"""

import hashlib
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn
from torch.nn import functional as F

Model = TypeVar("Model", bound=nn.Module)


class MLP(nn.Module):
    """Three fully connected layers, 784-256-128-10."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(784, 256), nn.Linear(256, 128), nn.Linear(128, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits (B, 10) of images (B, 1, 28, 28)."""
        hidden = F.relu(self.fc1(images.flatten(1)))  # (B, 256)
        hidden = F.relu(self.fc2(hidden))  # (B, 128)
        return self.fc3(hidden)


class CNN(nn.Module):
    """Two convolutions, each followed by a pooling that halves the image, and two fully connected layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3, padding=1), nn.Conv2d(32, 64, 3, padding=1)
        self.fc1, self.fc2 = nn.Linear(64 * 7 * 7, 128), nn.Linear(128, 10)
        # The layout that convolutions on a CPU are fastest in; shapes and values stay as they are.
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits (B, 10) of images (B, 1, 28, 28)."""
        # relu after pooling equals pooling after relu (both keep order), on a quarter of the pixels.
        maps = F.relu(F.max_pool2d(self.conv1(images), 2))  # (B, 32, 14, 14)
        maps = F.relu(F.max_pool2d(self.conv2(maps), 2))  # (B, 64, 7, 7)
        return self.fc2(F.relu(self.fc1(maps.flatten(1))))


class LSTM(nn.Module):
    """Reads the image row by row and classifies from the last hidden state."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.fc = nn.LSTM(28, 128, batch_first=True), nn.Linear(128, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits (B, 10) of images (B, 1, 28, 28)."""
        _, (hidden, _) = self.lstm(images.squeeze(1))  # rows as time steps: (1, B, 128)
        return self.fc(hidden[-1])


class CifarNet(nn.Module):
    """The small net of PyTorch's CIFAR-10 tutorial, which DeepSpeed's example trains too."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(16 * 5 * 5, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits (B, 10) of images (B, 3, 32, 32)."""
        maps = F.max_pool2d(F.relu(self.conv1(images)), 2)  # (B, 6, 14, 14)
        maps = F.max_pool2d(F.relu(self.conv2(maps)), 2)  # (B, 16, 5, 5)
        hidden = F.relu(self.fc1(maps.flatten(1)))  # (B, 120)
        return self.fc3(F.relu(self.fc2(hidden)))


class ConvBlock(nn.Module):
    """A 3×3 convolution, a 2×2 pooling that halves the image unless `pool` is False, batch-norm and ReLU."""

    def __init__(self, maps_in: int, maps_out: int, *, pool: bool = True) -> None:
        super().__init__()
        self.conv, self.norm = (
            nn.Conv2d(maps_in, maps_out, 3, padding=1, bias=False),
            nn.BatchNorm2d(maps_out),
        )
        self.pool = pool

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        """Maps (B, maps_in, H, W) to (B, maps_out, H/2, W/2), or to (B, maps_out, H, W) without pooling."""
        maps = self.conv(maps)
        return F.relu(self.norm(F.max_pool2d(maps, 2) if self.pool else maps))  # a norm of a quarter as many


class ConvNet(nn.Module):
    """Three blocks that halve the image, a residual block, and one linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(ConvBlock(3, 24), ConvBlock(24, 48), ConvBlock(48, 96))
        self.residual, self.fc = ConvBlock(96, 96, pool=False), nn.Linear(96, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits (B, 10) of images (B, 3, H, W); H and W are multiples of 8."""
        # The layout that convolutions on a CPU are fastest in; all further maps inherit it.
        maps = self.blocks(images.contiguous(memory_format=torch.channels_last))  # (B, 96, H/8, W/8)
        maps = maps + self.residual(maps)
        return self.fc(maps.amax(dim=(2, 3)))


MNIST_MODELS: dict[str, Callable[[], nn.Module]] = {"mlp": MLP, "cnn": CNN, "lstm": LSTM}
MODELS = MNIST_MODELS | {"cifar": CifarNet, "convnet": ConvNet}


def build(name: str, *, seed: int) -> nn.Module:
    """The model `name`, with initial weights that depend on (`seed`, `name`) and on nothing else."""
    if name not in MODELS:
        raise ValueError(f"there is no model {name!r}; choose one of {', '.join(MODELS)}")
    return seeded(MODELS[name], seed=seed, name=name)


def seeded(make: Callable[[], Model], *, seed: int, name: str) -> Model:
    """What `make()` builds when torch's generator starts from (`seed`, `name`); it is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derived_seed(seed, name))
        return make()


def derived_seed(seed: int, name: str) -> int:
    """A 63-bit seed for `name`, the same on every machine; other names get independent ones."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8], "big") >> 1


def parameter_count(model: nn.Module) -> int:
    """How many numbers training adjusts."""
    return sum(parameter.numel() for parameter in model.parameters())
