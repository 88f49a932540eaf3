"""The extractive summarizer, trained with ZeRO on any number of ranks, equals AdamW in one process."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from mpi4py import MPI
from torch import nn

from benchmarks.extraction.extractive import (
    Extractor,
    ExtractRecipe,
    build_extractor,
    extract_batch,
    pick,
    score_sentences,
    summed_loss,
)
from benchmarks.extraction.prepared import Prepared, prepare
from benchmarks.extracts import (
    extract_config,
    global_batches,
    pick_together,
    train_extractor,
)
from benchmarks.parts.deepspeed_engine import deepspeed_world
from course.tools.generated_news import make_news
from course_lib.training.loop import Batch

pytestmark = pytest.mark.deadline(120)
RECIPE = ExtractRecipe(width=8, heads=2, batch=12, epochs=2, warmup_steps=2)
NEWS = make_news(40, seed=0)  # articles of unequal lengths: ranks have unequal numbers of sentences


@pytest.fixture(scope="module")
def reading() -> Prepared:
    return prepare(NEWS, NEWS)


@pytest.fixture(scope="module")
def world() -> Iterator[MPI.Intracomm]:
    comm = MPI.COMM_WORLD.Dup()
    with deepspeed_world(comm):
        yield comm
    comm.Free()


def alone(reading: Prepared) -> tuple[list[float], Extractor]:
    """AdamW in one process, with the learning rates that the configuration asks for."""
    model = build_extractor(RECIPE, seed=3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RECIPE.learning_rate)
    losses = []
    for indices, rate in zip(
        global_batches(len(reading), RECIPE, seed=3), (0, 0, 1 / 2, 1, 3 / 4, 1 / 2), strict=True
    ):
        batch: Batch = extract_batch(reading, indices, reading.count(indices))
        optimizer.param_groups[0]["lr"] = RECIPE.learning_rate * rate
        optimizer.zero_grad()
        loss = summed_loss(model(batch.inputs), batch.targets) / batch.global_size
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), RECIPE.clip)
        optimizer.step()
        losses.append(loss.item())
    return losses, model


@pytest.mark.parametrize("stage", (2, 3))
def test_any_number_of_ranks_trains_the_same_model(
    world: MPI.Intracomm, reading: Prepared, stage: int
) -> None:
    model, losses = train_extractor(world, reading, RECIPE, seed=3, stage=stage)
    expected_losses, expected = alone(reading)
    assert losses == pytest.approx(expected_losses, rel=1e-5)
    got, wanted, start = (weights(each) for each in (model, expected, build_extractor(RECIPE, seed=3)))
    assert (got - wanted).norm() < 1e-5 * wanted.norm()
    assert (wanted - start).norm() > 1e-2 * start.norm()
    mine, theirs = (score_sentences(each.eval(), reading, range(len(reading))) for each in (model, expected))
    np.testing.assert_allclose(np.concatenate(mine), np.concatenate(theirs), atol=1e-5)


def weights(model: Extractor) -> torch.Tensor:
    """All weights but the key biases of attention.

    They add the same to all scores of a query, so softmax ignores them: their gradient is nothing but
    rounding errors, of which Adam makes steps as large as any.
    """
    kept = []
    for name, parameter in model.named_parameters():
        parts = parameter.detach().chunk(3) if name.endswith("in_proj_bias") else None
        kept += [parts[0], parts[2]] if parts else [parameter.detach().flatten()]
    return torch.cat(kept)


def test_ranks_together_pick_what_one_would(comm: MPI.Intracomm, reading: Prepared) -> None:
    model = build_extractor(RECIPE, seed=3)
    few = prepare(NEWS[:7], NEWS)  # uneven; on more ranks than 7 some have none
    expected = [pick(scores, 2) for scores in score_sentences(model.eval(), few, range(7))]
    assert pick_together(comm, model, few, 2) == expected


def test_batches_are_full_and_in_another_order_each_epoch() -> None:
    batches = global_batches(40, RECIPE, seed=0)
    assert [len(each) for each in batches] == [12] * 6
    assert not np.array_equal(np.concatenate(batches[:3]), np.concatenate(batches[3:]))
    with pytest.raises(ValueError, match="5 articles have no batch of 12"):
        global_batches(5, RECIPE, seed=0)
    with pytest.raises(ValueError, match="a batch of 12 cannot be distributed evenly over 5 ranks"):
        extract_config(RECIPE, 5, 10)
