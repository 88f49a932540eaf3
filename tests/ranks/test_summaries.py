"""Summaries on several ranks: the loss over all tokens, DeepSpeed and the HF Trainer equal one process."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from mpi4py import MPI

from course.lessons.l13_deepspeed_summarization.hf_trainer import train_with_trainer
from course.lessons.l13_deepspeed_summarization.summaries import (
    bens_reading,
    global_batches,
    global_tokens,
    mean_share,
    summarize_together,
    token_losses,
    token_share,
    train_reading,
    train_summaries,
)
from course_lib.data.generated_news import make_news
from course_lib.parallel import deepspeed_engine as ds
from course_lib.parallel.data_parallel import shard
from course_lib.parallel.deepspeed_config import Config, stage_config
from course_lib.training.flat import flatten
from course_lib.training.summaries.decode import summarize
from course_lib.training.summaries.model import Shape, build_t5, count_tokens, summed_loss, token_batch
from course_lib.training.summaries.tokens import Encoded, encode, train_tokenizer

pytestmark = pytest.mark.deadline(120)
SHAPE = Shape(vocabulary=320, width=16, heads=2, inner=16, encoder_layers=1, decoder_layers=1)
BATCH, STEPS, SMOOTHING = 12, 4, 0.1
NEWS = make_news(BATCH * STEPS, seed=0)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer((f"{each.text} {each.summary}" for each in NEWS), SHAPE.vocabulary)


@pytest.fixture(scope="module")
def reading(tokenizer: Any) -> Encoded:
    made = encode(tokenizer, NEWS, article_tokens=60, summary_tokens=40)
    rows = np.arange(len(made))[:, None]
    kept = np.where(np.arange(made.summaries.shape[1]) < 3 + rows % BATCH, made.summaries, 0)
    return Encoded(made.articles, kept.astype(np.uint16))  # 3 to 14 tokens: the first ranks have the fewest


@pytest.fixture(scope="module")
def world() -> Iterator[MPI.Intracomm]:
    comm = MPI.COMM_WORLD.Dup()
    with ds.deepspeed_world(comm):
        yield comm
    comm.Free()


# -------------------------------------------------------------------- the loss


@pytest.mark.parametrize("batch", [BATCH, 7, 2])  # 7 is uneven; with 2, some ranks have none
def test_parts_of_the_loss_and_gradients_add_up(comm: MPI.Intracomm, reading: Encoded, batch: int) -> None:
    expected_loss, expected = whole(reading, batch)
    loss, gradient = parts(comm, reading, batch, token_share)
    assert loss == pytest.approx(expected_loss, abs=1e-12)
    assert (gradient - expected).abs().max() < 1e-10


def test_known_wrong_the_mean_of_means_is_another_loss(comm: MPI.Intracomm, reading: Encoded) -> None:
    expected_loss, expected = whole(reading, BATCH)
    loss, gradient = parts(comm, reading, BATCH, mean_share)
    alone = comm.size == 1
    assert (loss == pytest.approx(expected_loss, abs=1e-12)) is alone
    assert bool((gradient - expected).norm() < 1e-10) is alone


def whole(reading: Encoded, batch: int) -> tuple[float, torch.Tensor]:
    """One process: the mean over the tokens of the batch, by torch, and its gradient."""
    model = build_t5(SHAPE, seed=0).double()
    part = token_batch(reading, np.arange(batch))
    model(input_ids=part.articles, attention_mask=part.mask, labels=part.labels).loss.backward()
    loss = model(input_ids=part.articles, attention_mask=part.mask, labels=part.labels).loss.item()
    return loss, gradient_of(model)


def parts(comm: MPI.Intracomm, reading: Encoded, batch: int, share: Any) -> tuple[float, torch.Tensor]:
    model = build_t5(SHAPE, seed=0).double()
    part = token_batch(reading, shard(comm, np.arange(batch)))
    gradient = np.zeros(flatten(list(model.parameters())).numel())
    summed = summed_loss(model, part) if len(part.labels) else torch.zeros((), requires_grad=True).double()
    loss = share(comm, summed, part.labels)
    loss.backward()
    if len(part.labels):
        gradient[:] = gradient_of(model)
    comm.Allreduce(MPI.IN_PLACE, gradient)
    return comm.allreduce(loss.item()), torch.from_numpy(gradient)


def gradient_of(model: Any) -> torch.Tensor:
    return flatten([parameter.grad for parameter in model.parameters()])


def test_losses_per_position_add_up_to_the_summed_loss(reading: Encoded) -> None:
    model, part = build_t5(SHAPE, seed=0).double(), token_batch(reading, np.arange(7))
    with torch.no_grad():
        losses = token_losses(model, part, smoothing=SMOOTHING)
        expected = summed_loss(model, part, smoothing=SMOOTHING)
    assert losses.shape == part.labels.shape
    assert losses[part.labels != -100].sum().item() == pytest.approx(expected.item(), rel=1e-12)


def test_tokens_are_counted_over_all_ranks(comm: MPI.Intracomm, reading: Encoded) -> None:
    labels = token_batch(reading, np.arange(7)).labels
    mine = token_batch(reading, shard(comm, np.arange(7))).labels
    assert global_tokens(comm, mine) == count_tokens(labels) == sum(range(3, 10))


def test_ranks_without_any_token_do_not_divide_by_zero(comm: MPI.Intracomm) -> None:
    nothing = torch.full((1, 2), -100)
    assert token_share(comm, torch.zeros(()), nothing).item() == 0


# -------------------------------------------------------------------- training


def settings(stage: int, ranks: int) -> Config:
    rates: dict[str, Any] = {"learning_rate": 1e-3, "warmup_steps": 2, "total_steps": 10, "clip": 1.0}
    return stage_config(stage, ranks, micro_batch=BATCH // ranks, **rates)


def trained(
    comm: MPI.Intracomm, reading: Encoded, stage: int, share: Any = token_share
) -> tuple[list[float], torch.Tensor]:
    engine = ds.start_engine(build_t5(SHAPE, seed=0), settings(stage, comm.size))
    batches = global_batches(len(reading), BATCH)
    losses = train_summaries(comm, engine, reading, batches, smoothing=SMOOTHING, share=share)
    weights = ds.gathered_weights(engine)
    ds.end_engine(engine)
    return losses, weights


def alone(reading: Encoded) -> tuple[list[float], torch.Tensor]:
    """AdamW in one process, with the rates that the config asks for: the climb begins with two zeros."""
    model = build_t5(SHAPE, seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for indices, rate in zip(global_batches(len(reading), BATCH), (0, 0, 0.5, 1), strict=True):
        optimizer.param_groups[0]["lr"] = 1e-3 * rate
        batch = token_batch(reading, indices)
        optimizer.zero_grad()
        loss = summed_loss(model, batch, smoothing=SMOOTHING) / batch.tokens
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses, flatten([parameter.detach() for parameter in model.parameters()])


def differ(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got - expected).norm() / expected.norm())


@pytest.mark.parametrize("stage", (0, 2))
def test_deepspeed_equals_one_process(world: MPI.Intracomm, reading: Encoded, stage: int) -> None:
    losses, weights = trained(world, reading, stage)
    expected_losses, expected = alone(reading)
    assert losses == pytest.approx(expected_losses, rel=1e-5)
    assert differ(weights, expected) < 1e-6


def test_what_the_decoder_reads_can_be_replaced(world: MPI.Intracomm, reading: Encoded) -> None:
    """With the right reading it is the same training; reading the labels is another."""

    def shifted(labels: np.ndarray) -> np.ndarray:
        return np.concatenate([np.zeros_like(labels[:, :1]), np.maximum(labels[:, :-1], 0)], axis=1)

    batches = global_batches(len(reading), BATCH)
    losses = {}
    for read in (shifted, bens_reading):
        engine = ds.start_engine(build_t5(SHAPE, seed=0), settings(2, world.size))
        losses[read] = train_reading(world, engine, reading, batches, read)
        ds.end_engine(engine)
    engine = ds.start_engine(build_t5(SHAPE, seed=0), settings(2, world.size))
    expected = train_summaries(world, engine, reading, batches)
    ds.end_engine(engine)
    assert losses[shifted] == pytest.approx(expected, rel=1e-5)
    assert losses[bens_reading] != pytest.approx(expected, rel=1e-5)


def test_known_wrong_means_train_other_weights(world: MPI.Intracomm, reading: Encoded) -> None:
    _, weights = trained(world, reading, 2, mean_share)
    assert (differ(weights, alone(reading)[1]) < 1e-6) is (world.size == 1)


def test_the_trainer_of_hugging_face_trains_the_same(
    world: MPI.Intracomm, reading: Encoded, capfd: pytest.CaptureFixture[str]
) -> None:
    model = build_t5(SHAPE, seed=0)
    config = settings(2, world.size)
    config["scheduler"]["params"]["total_num_steps"] = STEPS  # the Trainer insists
    losses = train_with_trainer(model, reading, config, steps=STEPS, smoothing=SMOOTHING)
    told = capfd.readouterr()
    engine = ds.start_engine(build_t5(SHAPE, seed=0), config)
    batches = global_batches(len(reading), BATCH)
    expected = train_summaries(world, engine, reading, batches, smoothing=SMOOTHING)
    weights = ds.gathered_weights(engine)
    ds.end_engine(engine)
    assert losses == pytest.approx(expected, rel=1e-5)
    assert differ(flatten([parameter.detach() for parameter in model.parameters()]), weights) < 1e-6
    assert (told.out, told.err) == ("", "")


# -------------------------------------------------------------------- writing


def test_all_ranks_together_write_what_one_would(
    comm: MPI.Intracomm, tokenizer: Any, reading: Encoded
) -> None:
    model = build_t5(SHAPE, seed=0)
    few = Encoded(reading.articles[:7], reading.summaries[:7])
    together = summarize_together(comm, model, tokenizer, few, longest=4)
    assert together == summarize(model, tokenizer, few, range(7), longest=4)


def test_batches_are_whole_and_refused_when_there_is_none() -> None:
    assert [batch.tolist() for batch in global_batches(7, 3)] == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(ValueError, match="7 articles have no batch of 8"):
        global_batches(7, 8)
