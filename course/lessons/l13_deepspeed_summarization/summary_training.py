"""Train the small summarizer with DeepSpeed, from random weights or from the shipped checkpoint.

    python -m mpi_classroom.launch 2 -m course.lessons.l13_deepspeed_summarization.summary_training

trains from scratch and prints the scores; --last runs the last steps only, --save writes data/summarizer, and
--real trains on CNN/DailyMail.

Every article is read once. The held-out articles have names and phrasings that training never showed.
"""

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from course.lessons.l13_deepspeed_summarization.summaries import (
    global_batches,
    summarize_together,
    train_summaries,
)
from course_lib.data.cnn_dailymail import load_news
from course_lib.data.generated_news import make_news
from course_lib.data.storage import DataError
from course_lib.parallel.deepspeed_config import Config, stage_config
from course_lib.parallel.deepspeed_engine import deepspeed_world, end_engine, start_engine
from course_lib.training.loop import shuffled_batches
from course_lib.training.summaries.checkpoint import SHIPPED, load_checkpoint, save_checkpoint
from course_lib.training.summaries.model import Shape, build_t5
from course_lib.training.summaries.recipe import PHASES, Recipe, encoded, make_tokenizer, phase_articles
from course_lib.training.summaries.scores import score, score_baselines
from course_lib.training.summaries.tokens import train_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

HELD_OUT = 200  # articles
REAL = Recipe(
    shape=Shape(vocabulary=4000, width=64, inner=128),
    batch=16,
    article_tokens=256,
    summary_tokens=64,
)


def phase_config(
    recipe: Recipe,
    phase: str,
    ranks: int,
    *,
    stage: int = 2,
    steps: int | None = None,
    falling: bool = True,
) -> Config:
    """DeepSpeed's config for a phase: the learning rate climbs and stays; in the last phase it falls to 0.

    With `falling=False` it stays in the last phase, too.
    """
    if recipe.batch % ranks:
        raise ValueError(f"a batch of {recipe.batch} cannot be distributed evenly over {ranks} ranks")
    last = phase == "last"
    return stage_config(
        stage,
        ranks,
        micro_batch=recipe.batch // ranks,
        learning_rate=recipe.learning_rate,
        warmup_steps=recipe.last_warmup_steps if last else recipe.warmup_steps,
        total_steps=(recipe.last_steps if steps is None else steps) if last and falling else 0,
        clip=recipe.clip,
    )


def train_phase(
    comm: MPI.Intracomm,
    model: Any,
    tokenizer: "Tokenizer",
    recipe: Recipe,
    phase: str,
    *,
    steps: int | None = None,
) -> list[float]:
    """Train `model`, in place, for a phase of `recipe` or its first `steps`; returns the loss of every step.

    To be called on all ranks of DeepSpeed's world.
    """
    steps = recipe.steps(phase) if steps is None else steps
    if steps == 0:
        return []
    articles = encoded(recipe, tokenizer, phase_articles(recipe, phase, steps))
    engine = start_engine(model, phase_config(recipe, phase, comm.size, steps=steps))
    batches = global_batches(len(articles), recipe.batch)
    losses = train_summaries(comm, engine, articles, batches, smoothing=recipe.smoothing)
    end_engine(engine)
    return losses


# -------------------------------------------------------------------- the program


def run(comm: MPI.Intracomm, recipe: Recipe, *, last_only: bool, save: Path | None) -> dict[str, Any]:
    """Train, score before and after the last phase, and return scores and seconds; on all ranks."""
    held_out = make_news(HELD_OUT, seed=recipe.seed, split="held_out")
    took, losses = {}, {}
    if last_only:
        model, tokenizer, recipe, _ = load_checkpoint()
    else:
        tokenizer = make_tokenizer(recipe)
        recipe = replace(recipe, shape=replace(recipe.shape, vocabulary=tokenizer.get_vocab_size()))
        model = build_t5(recipe.shape, seed=recipe.seed)
    articles = encoded(recipe, tokenizer, held_out)
    scores = score_baselines(held_out)
    for phase in ("last",) if last_only else PHASES:
        if phase == "last":
            if save and comm.rank == 0:
                save_checkpoint(save, model, tokenizer, recipe, recipe.excerpt_steps)
            texts = summarize_together(comm, model, tokenizer, articles, longest=recipe.summary_tokens)
            scores["before"] = score(texts, held_out)
        comm.Barrier()
        start = time.perf_counter()
        losses[phase] = train_phase(comm, model, tokenizer, recipe, phase)
        took[phase] = time.perf_counter() - start
    texts = summarize_together(comm, model, tokenizer, articles, longest=recipe.summary_tokens)
    scores["after"] = score(texts, held_out)
    return {
        "ranks": comm.size,
        "seconds": took,
        "loss at the end": {phase: sum(each[-20:]) / 20 for phase, each in losses.items()},
        "scores": {name: asdict(each) for name, each in scores.items()},
        "recipe": asdict(recipe),
    }


def run_real(comm: MPI.Intracomm, *, steps: int, test: int) -> dict[str, Any]:
    """Train from random weights on CNN/DailyMail for some steps, and score beside lead-3; on all ranks.

    Hundreds of articles and minutes of training teach it what a summary looks like, no more: expect less than
    lead-3. DataError where CNN/DailyMail cannot be had: nothing is trained on other articles.
    """
    news = load_news(train=1000, validation=0, test=test)
    if not news.real:
        raise DataError(f"--real needs CNN/DailyMail, and here is {news.name}: {news.source}")
    tokenizer = train_tokenizer((f"{each.text} {each.summary}" for each in news.train), REAL.shape.vocabulary)
    recipe = replace(REAL, shape=replace(REAL.shape, vocabulary=tokenizer.get_vocab_size()))
    model = build_t5(recipe.shape, seed=recipe.seed)
    articles, unseen = (encoded(recipe, tokenizer, each) for each in (news.train, news.test))
    order = [batch for epoch in range(steps) for batch in shuffled(len(articles), recipe.batch, epoch)][
        :steps
    ]
    comm.Barrier()
    start = time.perf_counter()
    engine = start_engine(model, phase_config(recipe, "last", comm.size, steps=steps))
    losses = train_summaries(comm, engine, articles, order, smoothing=recipe.smoothing)
    end_engine(engine)
    took = time.perf_counter() - start
    texts = summarize_together(comm, model, tokenizer, unseen, longest=recipe.summary_tokens)
    scores = score_baselines(news.test) | {f"ours, {steps} steps": score(texts, news.test)}
    return {
        "source": news.source,
        "real": news.real,
        "ranks": comm.size,
        "steps": steps,
        "seconds": took,
        "losses": [losses[0], losses[-1]],
        "scores": {name: asdict(each) for name, each in scores.items()},
        "first": {"reference": news.test[0].summary, "ours": texts[0]},
    }


def shuffled(articles: int, batch: int, epoch: int) -> list[NDArray[np.int64]]:
    """The full global batches of an epoch, the same on all ranks; at least one."""
    whole = [each for each in shuffled_batches(articles, batch, seed=0, epoch=epoch) if len(each) == batch]
    if not whole:
        raise ValueError(f"{articles} articles have no batch of {batch}; bring more")
    return whole


def main(arguments: Sequence[str] | None = None) -> None:
    """The program: rank 0 prints what came out."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--last", action="store_true", help="go on from the shipped checkpoint")
    parser.add_argument("--save", action="store_true", help="write the checkpoint before the last phase")
    parser.add_argument("--real", action="store_true", help="train on CNN/DailyMail instead")
    parser.add_argument("--steps", type=int, default=200, help="of --real")
    parser.add_argument("--test", type=int, default=100, help="test articles of --real")
    parser.add_argument("--json", type=Path, help="write what came out to this file")
    options = parser.parse_args(arguments)
    comm = MPI.COMM_WORLD.Dup()
    with deepspeed_world(comm):
        if options.real:
            reported = run_real(comm, steps=options.steps, test=options.test)
        else:
            reported = run(comm, Recipe(), last_only=options.last, save=SHIPPED if options.save else None)
    if comm.rank == 0:
        text = json.dumps(reported, indent=1)
        print(text)
        if options.json:
            options.json.write_text(text + "\n")
    comm.Free()


if __name__ == "__main__":
    main()
