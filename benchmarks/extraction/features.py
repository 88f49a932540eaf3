"""Seventeen numbers about each sentence of an article, from which a model can learn which ones to pick.

    where     its place from the front and from the back, and how long the article is
    how long  its words, as they are and beside the article's mean
    what      TF-IDF: how near it is to the whole article, how near to the lead, how rare its words are
    how       capitals, digits, quotes, a first word that refers back, a verb of speech

TF-IDF weighs a word by its count here and by how few training articles have it (Spärck Jones, 1972), so "the"
weighs nearly nothing. Every number lies about between 0 and 1, whatever the article.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.extraction.rouge import LEAD, WORD

NAMES = (
    "first",
    "place",
    "nearness to the front",
    "nearness to the end",
    "sentences",
    "words",
    "words beside the mean",
    "at most five words",
    "centroid cosine",
    "lead cosine",
    "lead overlap",
    "rarity",
    "capitals",
    "digits",
    "quotes",
    "refers back",
    "speech",
)
NUMBER = len(NAMES)
BACK = frozenset(
    ["he", "she", "it", "they", "we", "i", "you", "this", "that", "these", "those", "but", "and"]
)
SPEECH = frozenset(["said", "says", "told", "added", "according", "asked", "tweeted"])
QUOTE = re.compile(r"[\"“”]|(?<!\w)['‘’]|['’](?!\w)")  # and no apostrophe
SHORT = 5  # words
Weights = dict[str, float]


@dataclass(frozen=True, slots=True)
class Rarity:
    """How many of `articles` training articles have each word."""

    articles: int
    having: Mapping[str, int]

    def of(self, word: str) -> float:
        """The inverse document frequency: 0 for a word of every article, near 1 for one that none has."""
        most = math.log(1 + self.articles)
        return 1 - math.log(1 + self.having.get(word, 0)) / most if most else 1.0


def count_rarity(texts: Iterable[str]) -> Rarity:
    """The rarity of words in the training articles `texts`."""
    having, articles = Counter[str](), 0
    for text in texts:
        having.update(set(words(text)))
        articles += 1
    return Rarity(articles, having)


def words(text: str) -> list[str]:
    """The words of `text`, as ROUGE sees them: lower case, without punctuation."""
    return WORD.findall(text.lower())


def sentence_features(parts: Sequence[str], rarity: Rarity) -> NDArray[np.float32]:
    """The features (sentences, 17) of an article, given as its sentences."""
    split = [words(part) for part in parts]
    weights = [tf_idf(each, rarity) for each in split]
    centroid = added(weights)
    fronts = added(weights[:LEAD])
    mean = sum(map(len, split)) / max(len(split), 1)
    rows = []
    for place, (part, own) in enumerate(zip(parts, split, strict=True)):
        # A sentence of the lead is compared with the lead's other sentences.
        lead = added(weights[:place] + weights[place + 1 : LEAD]) if place < LEAD else fronts
        behind = len(parts) - 1 - place
        rows.append(
            (
                place == 0,
                place / len(parts),
                1 / (1 + place),
                1 / (1 + behind),
                math.log(len(parts)) / 5,
                math.log(1 + len(own)) / 5,
                len(own) / (len(own) + mean) if own else 0.0,
                len(own) <= SHORT,
                cosine(weights[place], centroid),
                cosine(weights[place], lead),
                share(word in lead for word in own),
                sum(map(rarity.of, own)) / max(len(own), 1),
                share(word[0].isupper() for word in part.split()),
                share(any(letter.isdigit() for letter in word) for word in part.split()),
                min(len(QUOTE.findall(part)), 4) / 4,
                bool(own) and own[0] in BACK,
                not SPEECH.isdisjoint(own),
            )
        )
    return np.array(rows, np.float32).reshape(len(parts), NUMBER)


def tf_idf(own: Iterable[str], rarity: Rarity) -> Weights:
    """How often each word occurs, times its rarity."""
    return {word: count * rarity.of(word) for word, count in Counter(own).items()}


def added(weights: Sequence[Weights]) -> Weights:
    """The sum of sparse vectors."""
    total: Weights = {}
    for each in weights:
        for word, weight in each.items():
            total[word] = total.get(word, 0.0) + weight
    return total


def cosine(one: Weights, other: Weights) -> float:
    """The cosine of the angle between two sparse vectors; 0 when one is empty."""
    product = sum(weight * other.get(word, 0.0) for word, weight in one.items())
    return product / (length(one) * length(other)) if product else 0.0


def length(weights: Weights) -> float:
    return math.sqrt(sum(weight * weight for weight in weights.values()))


def share(facts: Iterable[bool]) -> float:
    """How many of `facts` hold, from 0 to 1; 0 when there are none."""
    found = list(facts)
    return sum(found) / len(found) if found else 0.0
