"""The three models of the course's MNIST lessons, the same weights wherever they are built.

    mlp    784-256-128-10                                                    235 146 parameters
    cnn    conv 1→32→64 (3×3, padding 1), a 2×2 pooling after each, fc 3136→128→10     421 642
    lstm   the image as 28 rows of 28 pixels: LSTM(28, 128), fc 128→10                  82 186

All take images of shape (B, 1, 28, 28) and return logits of shape (B, 10).
The layers are those of Jakovac & Pichler, "MPI in Distributed Training" (2025).
"""

import hashlib
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F


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


MODELS: dict[str, Callable[[], nn.Module]] = {"mlp": MLP, "cnn": CNN, "lstm": LSTM}


def build(name: str, *, seed: int) -> nn.Module:
    """The model `name`, with initial weights that depend on (`seed`, `name`) and on nothing else."""
    if name not in MODELS:
        raise ValueError(f"there is no model {name!r}; choose one of {', '.join(MODELS)}")
    with torch.random.fork_rng(devices=[]):  # torch's own generator is left as it was
        torch.manual_seed(derived_seed(seed, name))
        return MODELS[name]()


def derived_seed(seed: int, name: str) -> int:
    """A 63-bit seed for `name`, the same on every machine; other names get independent ones."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8], "big") >> 1


def parameter_count(model: nn.Module) -> int:
    """How many numbers training adjusts."""
    return sum(parameter.numel() for parameter in model.parameters())
