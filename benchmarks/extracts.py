"""Train the extractive summarizer with DeepSpeed on all ranks, and score real news with it.

    every rank   takes its shard of each global batch; the loss is a mean over the sentences of all ranks
    each step    multiplies this rank's part of the loss by the number of ranks
    DeepSpeed    averages the gradients, shards them and the optimizer state (ZeRO-2), updates the weights
    at the end   every rank has the same model; each scores its shard of the articles

All ranks of DeepSpeed's world call these functions together.
"""

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray
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
from benchmarks.extraction.prepared import Prepared
from benchmarks.parts.deepspeed_engine import (
    Config,
    deepspeed_step,
    end_engine,
    gathered_weights,
    stage_config,
    start_engine,
)
from course_lib.parallel.data_parallel import shard
from course_lib.training.loop import fit, shuffled_batches


def extract_config(recipe: ExtractRecipe, ranks: int, steps: int, *, stage: int = 2) -> Config:
    """DeepSpeed's configuration: the learning rate climbs, then falls to 0 in the last of `steps`."""
    if recipe.batch % ranks:
        raise ValueError(f"a batch of {recipe.batch} cannot be distributed evenly over {ranks} ranks")
    return stage_config(
        stage,
        ranks,
        micro_batch=recipe.batch // ranks,
        learning_rate=recipe.learning_rate,
        warmup_steps=min(recipe.warmup_steps, steps // 2),
        total_steps=steps,
        clip=recipe.clip,
    )


def global_batches(articles: int, recipe: ExtractRecipe, *, seed: int) -> list[NDArray[np.int64]]:
    """Indices of the articles of every global batch of the training, the same on all ranks.

    In each epoch the last, short batch is left out; ValueError when there is no full one.
    """
    if articles < recipe.batch:
        raise ValueError(f"{articles} articles have no batch of {recipe.batch}; use at least as many")
    return [
        batch
        for epoch in range(recipe.epochs)
        for batch in shuffled_batches(articles, recipe.batch, seed=seed, epoch=epoch)
        if len(batch) == recipe.batch
    ]


def train_extractor(
    comm: MPI.Intracomm, prepared: Prepared, recipe: ExtractRecipe, *, seed: int, stage: int = 2
) -> tuple[Extractor, list[float]]:
    """Train with ZeRO `stage` on all ranks; the model with its final weights, and the loss of every step.

    `seed` stands for the initial weights and for the order of the articles. The results are those of one
    process, but for rounding.
    """
    batches = global_batches(len(prepared), recipe, seed=seed)
    model = build_extractor(recipe, seed=seed)
    engine = start_engine(model, extract_config(recipe, comm.size, len(batches), stage=stage))
    mine = (extract_batch(prepared, shard(comm, each), prepared.count(each)) for each in batches)
    parts = fit(deepspeed_step(engine, summed_loss), mine).losses
    trained = build_extractor(recipe, seed=seed)
    nn.utils.vector_to_parameters(gathered_weights(engine), trained.parameters())
    end_engine(engine)
    return trained, comm.allreduce(np.array(parts)).tolist()


def pick_together(comm: MPI.Intracomm, model: Extractor, prepared: Prepared, picked: int) -> list[list[int]]:
    """The places of the sentences picked from every article, on all ranks; each rank scores its shard."""
    mine = score_sentences(model.eval(), prepared, shard(comm, np.arange(len(prepared))))
    gathered = comm.allgather([pick(scores, picked) for scores in mine])
    return [places for part in gathered for places in part]
