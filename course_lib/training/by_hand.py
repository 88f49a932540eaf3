"""A network of three layers, input, hidden and output, with its backward pass written out: no autograd.

    images (B, 784) ── w1, b1 ──→ relu ──→ hidden (B, H) ── w2, b2 ──→ logits (B, 10) ──→ softmax ──→ loss

Backward goes the same way in the other direction: what arrives at a layer's output gives the gradients of its
weights, and, multiplied by the weights, what arrives at the layer before (Rumelhart, Hinton & Williams 1986).
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Weights = Mapping[str, Array]


def initial_weights(inputs: int, hidden: int, classes: int, *, seed: int) -> dict[str, Array]:
    """Weights w1 (inputs, hidden), w2 (hidden, classes), drawn so that sizes are kept; biases b1, b2 of 0."""
    rng = np.random.default_rng(seed)
    return {
        "w1": rng.normal(0, np.sqrt(2 / inputs), (inputs, hidden)),
        "b1": np.zeros(hidden),
        "w2": rng.normal(0, np.sqrt(1 / hidden), (hidden, classes)),
        "b2": np.zeros(classes),
    }


def forward(weights: Weights, images: Array) -> tuple[Array, Array]:
    """What the hidden layer holds (B, H), and the probability of each class (B, classes)."""
    hidden = np.maximum(images @ weights["w1"] + weights["b1"], 0)
    logits = hidden @ weights["w2"] + weights["b2"]
    logits -= logits.max(axis=1, keepdims=True)  # changes no probability, and e^1000 would be inf
    powers = np.exp(logits)
    return hidden, powers / powers.sum(axis=1, keepdims=True)


def mean_loss(weights: Weights, images: Array, labels: NDArray[np.integer]) -> float:
    """The mean cross entropy of a batch."""
    _, probabilities = forward(weights, images)
    return float(-np.log(probabilities[np.arange(len(labels)), labels]).mean())


def backward(weights: Weights, images: Array, labels: NDArray[np.integer]) -> dict[str, Array]:
    """The gradients of the mean loss of a batch, of each of the weights."""
    hidden, probabilities = forward(weights, images)
    wanted = np.eye(probabilities.shape[1])[labels]  # one 1 per row, at the label
    at_logits = (probabilities - wanted) / len(labels)  # (B, classes)
    at_hidden = (at_logits @ weights["w2"].T) * (hidden > 0)  # (B, H): relu lets through what was positive
    return {
        "w1": images.T @ at_hidden,
        "b1": at_hidden.sum(axis=0),
        "w2": hidden.T @ at_logits,
        "b2": at_logits.sum(axis=0),
    }
