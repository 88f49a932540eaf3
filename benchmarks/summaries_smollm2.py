"""Real news, CNN/DailyMail: SmolLM2, fine-tuned by DeepSpeed on two ranks, beside extracts of the articles.

    python -m benchmarks.summaries_smollm2 train --seconds 2400    goes on from where it was stopped
    python -m benchmarks.summaries_smollm2 same                    its first steps in one process
    python -m benchmarks.summaries_smollm2 choose                  how to decode, by validation articles
    python -m benchmarks.summaries_smollm2 score                   the test articles, once, and the rows

Each command ends within `--seconds`; what it has done is kept in ~/.cache/course_lib/smollm2-run, where the
next one finds it. Articles are taken in the order of their sha256, so nobody chose them. ROUGE is F1 in
percent; `low` and `high` bound the 95 % interval of `ours` less `peer`, by a paired bootstrap over the test
articles. COURSE_DATA must name a folder with CNN/DailyMail.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.abstraction import training
from benchmarks.abstraction.articles import READ, REQUEST, TESTED, keep, kept, name_of, read_parts
from benchmarks.abstraction.training import first_alone, train_together
from benchmarks.abstraction.writing import DECODERS, SYSTEMS, write_together
from benchmarks.extraction.bootstrap import mean_interval
from benchmarks.extraction.extractive import ExtractRecipe, extract
from benchmarks.extraction.prepared import prepare, split_real_news
from benchmarks.extraction.rouge import LEAD, oracle_sentences, published_rouge, sentences
from benchmarks.harness import Row, Timing, about_this_run, on_ranks, row, save, show
from course.paths import ROOT
from course_lib.data.cnn_dailymail import Article, load_news
from course_lib.training.facts import fact_scores

if TYPE_CHECKING:
    from mpi4py import MPI

TITLE = "CNN/DailyMail: SmolLM2 before and after fine-tuning on two ranks, beside extracts"
RESULTS = ROOT / "benchmarks" / "results" / "summaries_smollm2.json"
RANKS, CHOOSING = 2, 16  # validation articles to choose the decoder with
WORDS = 35  # of summaries of equal length
METRICS = ("ROUGE-1", "ROUGE-2", "ROUGE-Lsum")
COLUMNS = (*METRICS, "names and numbers of the article")
Picks = list[list[int]]  # places of sentences in each article
Scores = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ScoreRow(Row):
    """A row with the 95 % interval of `ours` minus `peer`."""

    low: float
    high: float


def write(system: str, decoder: str, part: str, number: int, end: float) -> dict[str, str]:
    """The same on RANKS ranks; RuntimeError when the time, until `end`, was too short for all articles."""
    seconds = max(0.0, end - time.monotonic() - 60)  # a batch takes about half a minute
    task = {"system": system, "decoder": decoder, "part": part, "number": number, "seconds": seconds}
    texts = on_ranks(RANKS, write_together, timeout=seconds + 120, **task)
    if len(texts) < number:
        raise RuntimeError(
            f"{system} has written {len(texts)} of {number} summaries; call this again to go on"
        )
    return dict(texts)


def choose(end: float) -> dict[str, Any]:
    """For each system, the decoder with the best mean of the three metrics on validation articles.

    Without a rule the trained model repeats a sentence until the end, so that is not tried.
    """
    articles, means = read_parts().choosing[:CHOOSING], dict[str, dict[str, float]]()
    for system in SYSTEMS:
        means[system] = {}
        for decoder in DECODERS[1:]:
            texts = write(system, decoder, "choosing", CHOOSING, end)
            found = scores([texts[name_of(each)] for each in articles], articles)
            means[system][decoder] = round(float(found[:, :3].mean()), 2)
    best = {system: max(found, key=found.__getitem__) for system, found in means.items()}
    keep("chosen.json", {"decoders": best, "validation": means})
    return means


# ---------------------------------------------------------------- scores


def scores(texts: Sequence[str], articles: Sequence[Article], words: int | None = None) -> Scores:
    """ROUGE-1, -2, -Lsum, and names and numbers that the article has, too, in percent (N, 4)."""
    cut = ["\n".join(sentences(" ".join(text.split()[:words]))) for text in texts]
    rouge = published_rouge(cut, [article.summary for article in articles])
    right = [
        fact_scores(text, each.text, [each.summary])[0] for text, each in zip(cut, articles, strict=True)
    ]
    return 100 * np.column_stack([rouge, right])


def extracts(articles: Sequence[Article]) -> dict[str, list[str]]:
    """Lead-3, the greedy oracle and the extractive model, which is trained here, with its first seed."""
    names = [name_of(each) for each in split_real_news(load_news()).test]
    if not kept("picked.json"):
        settings = asdict(ExtractRecipe())
        keep("picked.json", on_ranks(RANKS, train_and_pick, timeout=3600, settings=settings, part="test"))
    found = dict(zip(names, kept("picked.json"), strict=True))
    picks = {
        "lead-3": lead(articles),
        "extractive": [found[name_of(each)] for each in articles],
        "oracle": oracle(articles),
    }
    return {
        name: [extract(article, places) for article, places in zip(articles, each, strict=True)]
        for name, each in picks.items()
    }


def lead(articles: Sequence[Article]) -> Picks:
    """The places of lead-3."""
    return [list(range(min(LEAD, len(sentences(article.text))))) for article in articles]


def oracle(articles: Sequence[Article]) -> Picks:
    """The places that the greedy oracle picks, which knows the references."""
    return [oracle_sentences(sentences(article.text), article.summary) for article in articles]


def train_and_pick(comm: MPI.Intracomm, settings: dict[str, Any], part: str) -> Picks:
    """Train the extractive model on all ranks of `comm`; what it picks from the articles of a `part`."""
    import torch

    from benchmarks.extracts import pick_together, train_extractor
    from benchmarks.parts.deepspeed_engine import deepspeed_world

    news, recipe = split_real_news(load_news()), ExtractRecipe(**settings)
    torch.set_num_threads(1)  # a model this small would spend most CPU seconds waiting for its threads
    with deepspeed_world(comm):
        model, _ = train_extractor(comm, prepare(news.training, news.training), recipe, seed=0)
    return pick_together(comm, model, prepare(getattr(news, part), news.training), recipe.picked)


def compare(systems: Mapping[str, Scores], base: Scores, peer: str, where: str) -> list[ScoreRow]:
    """Every system beside the `peer` that has the scores `base` (N, 4), with intervals of the differences."""
    rows = []
    for name, scored in systems.items():
        for column, own, other in zip(COLUMNS, scored.T, base.T, strict=True):
            ours, theirs = Timing(float(own.mean()), 0.0), Timing(float(other.mean()), 0.0)
            line = row(f"{where}, {column}, {name}", RANKS, ours, theirs, peer, unit="%")
            low, high = mean_interval(own - other)
            rows.append(ScoreRow(**asdict(line), low=low, high=high))
    return rows


def score(end: float) -> None:
    """Score the test articles, show the rows and save them, with the log, in RESULTS and beside it."""
    articles, chosen = read_parts().test, kept("chosen.json")
    texts = extracts(articles)
    for system in SYSTEMS:
        written = write(system, chosen["decoders"][system], "test", TESTED, end)
        texts[system] = [written[name_of(each)] for each in articles]
    whole = {name: scores(each, articles) for name, each in texts.items()}
    cut = {name: scores(each, articles, WORDS) for name, each in texts.items()}
    places = {"test": whole, f"test, first {WORDS} words": cut}
    rows = list[ScoreRow]()
    for where, found in places.items():
        rows += compare(found, found["lead-3"], "lead-3", where)
        tuned = {"fine-tuned beside zero-shot": found["fine-tuned"]}
        rows += compare(tuned, found["zero-shot"], "zero-shot", where)
    about = about_this_run()
    show(TITLE, rows, about)
    save(RESULTS, rows, about)
    RESULTS.with_suffix(".run.json").write_text(as_run(articles, texts, whole) + "\n")


def as_run(
    articles: Sequence[Article], texts: Mapping[str, Sequence[str]], found: Mapping[str, Scores]
) -> str:
    """The log, what was chosen, and each article's scores, but no text: JSON, a line for each entry."""
    log = kept("log.json")
    losses = [line for line in log if "loss" in line]
    names = ("STAGE", "BATCH", "RATE", "CLIMB", "CLIP")
    settings = {name.lower(): getattr(training, name) for name in names} | {"read": READ, "request": REQUEST}
    facts = {
        "settings": settings | {"articles": len(read_parts().training), "seeds": 1},
        "steps": len(losses),
        "articles seen": min(training.BATCH * len(losses), len(read_parts().training)),
        "seconds per step": statistics.median(line["seconds"] for line in losses),
        "words": {
            name: round(statistics.mean(len(text.split()) for text in each), 1)
            for name, each in texts.items()
        },
        "chosen": kept("chosen.json"),
        "first losses in one process": kept("same.json"),
        "losses": [line["loss"] for line in losses],
        "validation": [[line["step"], line["validation"]] for line in log if "validation" in line],
        "metrics": METRICS,
    }
    facts |= {
        f"scores, {name}": {
            name_of(each)[:12]: row.round(1).tolist()[:3] for each, row in zip(articles, rows, strict=True)
        }
        for name, rows in found.items()
    }
    return "{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in facts.items()) + "\n}"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=TITLE)
    parser.add_argument("command", choices=("train", "same", "choose", "score"))
    parser.add_argument("--seconds", type=float, default=1200, help="stop after them, to be called again")
    parser.add_argument("--steps", type=int, default=10**6, help="updates that are enough")
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    if options.command == "train":
        limits = {"seconds": options.seconds, "steps": options.steps}
        print(on_ranks(RANKS, train_together, timeout=options.seconds + 180, **limits))
    elif options.command == "same":
        keep("same.json", on_ranks(1, first_alone, timeout=options.seconds))
        losses = [line["loss"] for line in kept("log.json") if "loss" in line]
        print(losses[: training.FIRST], kept("same.json"))
    elif options.command == "choose":
        print(choose(end))
    else:
        score(end)


if __name__ == "__main__":
    main()
