"""How the small summarizer is trained, from random weights to the end, as plain data.

    excerpts   the news with a sentence beside it, later with more    short: what is copied is soon found
    last       whole articles, and the learning rate falls            the steps of the lesson

Short sequences first is a *curriculum* (Bengio and others, 2009); a constant learning rate that falls in the
last steps is a warm-up-stable-decay schedule (Hu and others, 2024), which can go on from any saved weights.
"""

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from course_lib.data.generated_news import Article, make_news
from course_lib.training.summaries.model import Shape
from course_lib.training.summaries.rouge import facts_found, sentences
from course_lib.training.summaries.tokens import Encoded, encode_cached, train_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TOKENIZER_ARTICLES = 2000
PHASES = ("excerpts", "last")


@dataclass(frozen=True, slots=True)
class Recipe:
    """Sizes, steps and rates of a training; the defaults are those of the shipped checkpoint."""

    shape: Shape = field(default_factory=lambda: Shape(vocabulary=600, width=64, inner=128))
    seed: int = 0
    batch: int = 32  # articles in a global batch
    excerpt_steps: int = 460
    last_steps: int = 100
    growth: int = 120  # steps until excerpts may have a sentence more
    learning_rate: float = 2e-3
    warmup_steps: int = 50
    last_warmup_steps: int = 10
    smoothing: float = 0.1
    clip: float = 1.0
    article_tokens: int = 192
    summary_tokens: int = 32

    def steps(self, phase: str) -> int:
        """How many steps a phase has."""
        return {"excerpts": self.excerpt_steps, "last": self.last_steps}[phase]


def make_tokenizer(recipe: Recipe) -> "Tokenizer":
    """The tokenizer of `recipe`, learnt from training articles."""
    news = make_news(TOKENIZER_ARTICLES, seed=recipe.seed)
    return train_tokenizer((f"{each.text} {each.summary}" for each in news), recipe.shape.vocabulary)


def phase_articles(recipe: Recipe, phase: str, steps: int | None = None) -> list[Article]:
    """What the first `steps` of a phase read, in order: a new article each time."""
    steps = recipe.steps(phase) if steps is None else steps
    seed = 1 + PHASES.index(phase) + len(PHASES) * recipe.seed
    news = make_news(steps * recipe.batch, seed=seed)
    if phase != "excerpts":
        return news
    rng = random.Random(seed)
    each = recipe.growth * recipe.batch
    return [excerpt(article, 1 + place // each, rng) for place, article in enumerate(news)]


def excerpt(article: Article, extra: int, rng: random.Random) -> Article:
    """The shortest run of sentences that states all facts, and up to `extra` more on either side."""
    parts = sentences(article.text)
    runs = [
        (end - start, start, end) for start in range(len(parts)) for end in range(start + 1, len(parts) + 1)
    ]
    for length, start, end in sorted(runs):
        if len(facts_found(" ".join(parts[start:end]), article.facts)) == len(article.facts):
            before = rng.randint(0, extra)
            kept = parts[max(0, start - before) : start + length + extra - before]
            return Article(" ".join(kept), article.summary, article.facts)
    raise ValueError("the article does not state its facts; it has no excerpt")


def encoded(recipe: Recipe, tokenizer: "Tokenizer", articles: list[Article]) -> Encoded:
    """`articles` as tokens, from the cache if they are there."""
    limits = {"article_tokens": recipe.article_tokens, "summary_tokens": recipe.summary_tokens}
    return encode_cached(tokenizer, articles, **limits)
