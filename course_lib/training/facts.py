"""How much of a reference summary a text repeats, and how many of its facts are right: two questions.

ROUGE-1     words that text and reference have in common: F1 of precision and recall (Lin 2004)
facts       names and numbers, compared as strings with those of article and reference
"""

import re
from collections import Counter
from collections.abc import Sequence


def rouge_1(text: str, reference: str) -> float:
    """The F1 of the words in common, from 0 to 1; case and punctuation do not count."""
    ours, theirs = (Counter(re.findall(r"[a-z0-9]+", each.lower())) for each in (text, reference))
    common = (ours & theirs).total()  # a repeated word counts as often as both have it
    return 2 * common / max(1, ours.total() + theirs.total())


def fact_scores(text: str, article: str, facts: Sequence[str]) -> tuple[float, float]:
    """Precision and recall of the facts in a summary, each from 0 to 1.

    Precision: how many of its names and numbers the article has, too; 1 if it states none.
    Recall: how many of `facts` it states. A word that the article has in lower case is no name.
    """
    ordinary = set(re.findall(r"\b[a-z]+\b", article))
    stated = {word for word in re.findall(r"\b(?:[A-Z]\w+|\d+)\b", text) if word.lower() not in ordinary}
    right = stated & set(re.findall(r"\w+", article))
    return len(right) / len(stated) if stated else 1.0, sum(fact in text for fact in facts) / len(facts)
