"""The one training loop, held to the loop that every PyTorch tutorial shows."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from course_lib.training.loop import (
    Batch,
    accumulate_gradients,
    evaluate,
    fit,
    image_batch,
    image_batches,
    make_accumulating_step,
    make_step,
    microbatches,
    shuffled_batches,
    summed_cross_entropy,
)
from course_lib.training.metrics import Score
from course_lib.training.models import build

DIGITS = np.random.default_rng(0).integers(0, 256, (20, 28, 28)).astype(np.uint8)
LABELS = np.random.default_rng(1).integers(0, 10, 20).astype(np.uint8)


def tutorial_training(model: torch.nn.Module, batches: list[Batch]) -> list[float]:
    """The oracle: the mean loss of each batch, and plain SGD."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch.inputs), batch.targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("batch_size", [20, 8])
def test_the_loop_trains_as_the_tutorials_do(batch_size: int) -> None:
    batches = list(image_batches(DIGITS, LABELS, shuffled_batches(20, batch_size, seed=0)))
    ours, theirs = build("mlp", seed=0), build("mlp", seed=0)
    step = make_step(ours, summed_cross_entropy, torch.optim.SGD(ours.parameters(), lr=0.1, momentum=0.9))
    epoch = fit(step, batches)
    assert np.allclose(epoch.losses, tutorial_training(theirs, batches), rtol=1e-5)
    assert epoch.samples == 20
    assert epoch.seconds > 0
    for mine, expected in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(mine, expected, rtol=1e-5, atol=1e-6)


def test_evaluation_counts_what_numpy_counts_and_changes_nothing() -> None:
    model = build("mlp", seed=0)
    model.train()
    everything = image_batch(DIGITS, LABELS, np.arange(20), 20)
    logits = model(everything.inputs).detach().numpy().astype(np.float64)
    expected_loss = (np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(20), LABELS]).sum()
    score = evaluate(
        model, summed_cross_entropy, image_batches(DIGITS, LABELS, shuffled_batches(20, 7, seed=3))
    )
    assert score.correct == int((logits.argmax(axis=1) == LABELS).sum())
    assert score.samples == 20
    assert score.loss == pytest.approx(expected_loss, rel=1e-5)
    assert model.training


def test_scores_of_uneven_parts_add_up_but_their_accuracies_do_not_average() -> None:
    left, right = Score(correct=9, samples=10, loss=2.0), Score(correct=0, samples=2, loss=4.0)
    assert (left + right).accuracy == 0.75
    assert (left + right).mean_loss == 0.5
    assert (left.accuracy + right.accuracy) / 2 != 0.75
    assert Score() + left == left


def test_no_samples_have_no_accuracy() -> None:
    with pytest.raises(ValueError, match="0 samples have no accuracy"):
        _ = Score().accuracy
    with pytest.raises(ValueError, match="add the scores of all shards first"):
        _ = Score().mean_loss


def test_every_sample_comes_once_an_epoch_and_the_last_batch_is_what_is_left() -> None:
    batches = shuffled_batches(10, 4, seed=0)
    assert [len(batch) for batch in batches] == [4, 4, 2]
    assert sorted(np.concatenate(batches).tolist()) == list(range(10))
    with pytest.raises(ValueError, match="batch of 0 samples"):
        shuffled_batches(10, 0, seed=0)


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        return np.concatenate(shuffled_batches(50, 8, seed=seed, epoch=epoch)).tolist()

    assert order(1, 0) == order(1, 0)
    assert len({tuple(order(seed, epoch)) for seed in range(3) for epoch in range(3)}) == 9


def test_pixels_are_standardised_and_labels_are_what_cross_entropy_takes() -> None:
    batch = image_batch(DIGITS, LABELS, np.array([3, 5]), 8)
    assert batch.inputs.shape == (2, 1, 28, 28)
    assert batch.inputs[1, 0, 4, 9].item() == pytest.approx(
        (DIGITS[5, 4, 9] / 255 - 0.1307) / 0.3081, rel=1e-5
    )
    assert batch.targets.dtype == torch.int64
    assert batch.targets.tolist() == [LABELS[3], LABELS[5]]
    assert batch.global_size == 8


# ------------------------------------------------------------------ micro-batches


def double_batch(samples: int, global_size: int) -> Batch:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(samples, 1, 28, 28, generator=generator, dtype=torch.float64)
    return Batch(inputs, torch.arange(samples) % 10, global_size)


def gradients(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


@pytest.mark.parametrize(("name", "size"), [("mlp", 1), ("cnn", 4), ("lstm", 3), ("cnn", 99)])
def test_gradients_accumulated_over_microbatches_are_those_of_the_mean_loss(name: str, size: int) -> None:
    model, batch = build(name, seed=0).double(), double_batch(10, 10)
    expected = F.cross_entropy(model(batch.inputs), batch.targets)
    expected.backward()
    whole = gradients(model)
    model.zero_grad()
    loss = accumulate_gradients(model, summed_cross_entropy, batch, size)
    assert loss == pytest.approx(expected.item(), rel=1e-12)
    assert (gradients(model) - whole).abs().max() < 1e-10


def mean_of_means(model: torch.nn.Module, batch: Batch, size: int) -> torch.Tensor:
    """The known-wrong way: each micro-batch counts alike, however few samples it has."""
    parts = list(microbatches(batch, size))
    model.zero_grad()
    for part in parts:
        (F.cross_entropy(model(part.inputs), part.targets) / len(parts)).backward()
    return gradients(model)


def test_the_mean_of_means_is_right_for_even_microbatches_only() -> None:
    model, batch = build("mlp", seed=0).double(), double_batch(10, 10)
    model.zero_grad()
    accumulate_gradients(model, summed_cross_entropy, batch, 10)
    whole = gradients(model)
    assert (mean_of_means(model, batch, 5) - whole).abs().max() < 1e-10
    assert (mean_of_means(model, batch, 4) - whole).norm() > 0.05 * whole.norm()


@pytest.mark.parametrize("size", [3, 20])
def test_three_steps_in_microbatches_end_with_the_weights_of_three_whole_steps(size: int) -> None:
    batches = [double_batch(7, 7), double_batch(3, 3), double_batch(5, 5)]
    together, apart = build("cnn", seed=0).double(), build("cnn", seed=0).double()
    whole = make_step(together, summed_cross_entropy, sgd(together))
    pieces = make_accumulating_step(apart, summed_cross_entropy, sgd(apart), size)
    for batch in batches:
        assert pieces(batch) == pytest.approx(whole(batch), rel=1e-10)
    for one, other in zip(together.parameters(), apart.parameters(), strict=True):
        assert (one - other).abs().max() < 1e-10


def sgd(model: torch.nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def test_ranks_meet_once_a_step_with_all_gradients_there() -> None:
    model, batch, seen = build("mlp", seed=0).double(), double_batch(10, 10), []
    F.cross_entropy(model(batch.inputs), batch.targets).backward()
    whole = gradients(model)

    def synchronize() -> None:
        seen.append(bool((gradients(model) - whole).abs().max() < 1e-10))

    make_accumulating_step(model, summed_cross_entropy, sgd(model), 3, synchronize)(batch)
    assert seen == [True]


def test_microbatches_of_no_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="a micro-batch of 0 samples"):
        microbatches(double_batch(7, 40), 0)


def test_a_shard_without_samples_has_gradients_of_zero_all_the_same() -> None:
    model = build("mlp", seed=0).double()
    model.zero_grad()
    assert accumulate_gradients(model, summed_cross_entropy, double_batch(0, 8), 4) == 0
    assert not gradients(model).any()
