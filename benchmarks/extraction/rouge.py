"""How many words of a reference a text repeats, and the sentences of an article that repeat most.

    ROUGE-1, -2   words, and pairs of neighbours, that the two have in common: F1 of precision and recall
    ROUGE-L       the longest common subsequence

Lin, "ROUGE: A Package for Automatic Evaluation of Summaries" (2004); Nallapati and others, "SummaRuNNer"
(2017), for the oracle's sentences.
"""

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[.!?][\"”'])\s+|\n+")
WORD = re.compile(r"[a-z0-9]+")
LEAD, EXTRACT = 3, 3  # sentences


def published_rouge(texts: Sequence[str], references: Sequence[str]) -> NDArray[np.float64]:
    """ROUGE-1, -2 and -Lsum of each text, (N, 3) from 0 to 1, as papers report them for CNN/DailyMail.

    With Porter's stemmer, so that "opened" is "opens"; ROUGE-Lsum compares sentence by sentence, so texts
    and references have one sentence per line.
    """
    if len(texts) != len(references):
        raise ValueError(f"{len(texts)} texts cannot be scored by {len(references)} references")
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(["rouge1", "rouge2", "rougeLsum"], use_stemmer=True)
    scores = [scorer.score(right, text) for text, right in zip(texts, references, strict=True)]
    rows = [[score[kind].fmeasure for kind in scorer.rouge_types] for score in scores]
    return np.array(rows, np.float64).reshape(len(texts), 3)


def rouge_n(text: str, reference: str, n: int = 1) -> float:
    """ROUGE-n by hand: the F1 of the n-grams in common, each counted as often as both have it."""
    ours, theirs = ngrams(text, n), ngrams(reference, n)
    common = (ours & theirs).total()  # the smaller count of each
    if common == 0:
        return 0.0
    precision, recall = common / ours.total(), common / theirs.total()
    return 2 * precision * recall / (precision + recall)


def ngrams(text: str, n: int) -> Counter[tuple[str, ...]]:
    """How often each sequence of `n` words occurs; case and punctuation do not count."""
    words = WORD.findall(text.lower())
    return Counter(zip(*(words[start:] for start in range(n)), strict=False))


def sentences(text: str) -> list[str]:
    """The sentences of `text`, by their full stops."""
    return [sentence for part in SENTENCE_END.split(text) if (sentence := part.strip())]


def oracle_sentences(parts: Sequence[str], reference: str, *, limit: int = EXTRACT) -> list[int]:
    """The places of up to `limit` sentences, added greedily while ROUGE-1 + ROUGE-2 with `reference` grows.

    Of equally good sentences, the first. In ascending order; empty when none has a word of `reference`.
    """
    chosen, best = list[int](), 0.0
    while len(chosen) < min(limit, len(parts)):
        left = [place for place in range(len(parts)) if place not in chosen]
        scores = [_worth([parts[i] for i in sorted([*chosen, place])], reference) for place in left]
        if max(scores) <= best:
            break
        best = max(scores)
        chosen.append(left[scores.index(best)])
    return sorted(chosen)


def _worth(chosen: Sequence[str], reference: str) -> float:
    text = " ".join(chosen)
    return rouge_n(text, reference, 1) + rouge_n(text, reference, 2)
