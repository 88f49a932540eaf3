"""Exercises, questions and predictions of lesson 13, DeepSpeed summarization."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from mpi_classroom.exercises import (
    Exercise,
    Option,
    Prediction,
    Question,
    WrongAnswer,
    changed,
    expect,
    expect_array,
)

# -------------------------------------------------------------------- 13.4 what a micro-batch weighs

Counts = Sequence[Sequence[int]]


def _check_factors(answer: SimpleNamespace, comm: Any, counts: Counts) -> None:
    """`counts[r]` are the tokens of rank r's micro-batches."""
    mine = list(counts[comm.rank])
    got = answer.factors(comm, list(mine))
    expect(got is not None, "returned None. Does the function end with a return?")
    got = list(got)
    expect(
        len(got) == len(mine),
        f"returned {len(got)} numbers for {len(mine)} micro-batches. Each needs one.",
    )
    everyone = sum(map(sum, counts[: comm.size]))
    pieces = sum(map(len, counts[: comm.size]))
    lookalikes = {
        "weighs all micro-batches alike: a token of a short one counts for more.": [1 / pieces] * len(mine),
        "divides by this rank's tokens. Then the factors of each rank add up to 1, and those of all ranks to "
        "the number of ranks.": [count / sum(mine) for count in mine],
        "divides by the number of ranks as well. What do the factors of all ranks add up to?": [
            count / everyone / comm.size for count in mine
        ],
        "divides by the number of this rank's micro-batches as well. What do all factors add up to?": [
            count / everyone / len(mine) for count in mine
        ],
        "counts this rank's tokens and divides by the number of ranks: right only where all ranks have "
        "equally many.": [count / sum(mine) / comm.size for count in mine],
        "returns the counts. Then all factors add up to the number of all tokens, not to 1.": mine,
        "turned the fraction over: a micro-batch with more tokens should weigh more, not less.": [
            everyone / count for count in mine
        ],
        "divides 1 by the number of ranks, but some ranks have several micro-batches. What do all factors "
        "add up to?": [1 / comm.size] * len(mine),
        "divides 1 by all tokens. The loss of a micro-batch is a mean already; how many tokens does it stand "
        "for?": [1 / everyone] * len(mine),
        "gives each micro-batch the tokens of all of this rank's micro-batches. How many has each?": [
            sum(mine) / everyone
        ]
        * len(mine),
    }
    expect_array(got, np.array([count / everyone for count in mine]), lookalikes)


_FACTORS = '''\
def factors(comm, counts):
    """Return one factor for each of this rank's micro-batches; `counts` are their numbers of tokens.

    Each mean loss times its factor, summed over all ranks, gives the mean over all tokens.
    """
    total = comm.allreduce(sum(counts))
    return [count / total for count in counts]
'''
_STUB = changed(
    _FACTORS, ("sum(counts)", "len(counts)"), ("count / total for count in", "1 / total for _ in")
)
_MEAN = "comm.allreduce(sum(counts))"

FACTORS = Exercise(
    id="13.4",
    title="Spot the bug",
    task="Every *token* should weigh the same. The docstring is right, but the code is not: correct it.",
    objectives=(1,),
    targets=("token-counts-do-not-matter", "backward-adds-means"),
    stub=_STUB,
    hints=(
        "A mean loss times its number of tokens is a sum of losses. One process with the whole batch adds "
        "all these sums. By what does it divide?",
        "rank 0   30 tokens, mean 1 ─→ 30/40 · 1 ─┐\n"
        "rank 1   10 tokens, mean 3 ─→ 10/40 · 3 ─┴─ 1.5, the mean of 40",
        "total = comm.allreduce(…)   and then   count / total   for each count",
    ),
    solution=_FACTORS,
    check=_check_factors,
    cases=(
        ((30, 5, 5), (10,), (5, 1), (15,)),
        ((3, 9, 2), (20, 1, 4), (6, 6, 7), (1, 1, 12)),
        ((8, 5), (3,), (2, 4, 6), (11,)),
    ),
    describe=lambda counts: f"{', '.join(map(str, counts[0]))} tokens on rank 0",
    sizes=(2, 3, 4, 1),
    save="13_summarize.py",
    wrong=(
        WrongAnswer(_STUB, "weighs all micro-batches alike"),
        WrongAnswer(changed(_STUB, ("comm.allreduce(len(counts))", "comm.size")), "by the number of ranks"),
        WrongAnswer(changed(_FACTORS, (_MEAN, "sum(counts)")), "divides by this rank's tokens"),
        WrongAnswer(changed(_FACTORS, ("count / total", "count / total / comm.size")), "as well"),
        WrongAnswer(
            changed(_FACTORS, ("count / total", "count / total / len(counts)")), "micro-batches as well"
        ),
        WrongAnswer(changed(_FACTORS, (_MEAN, "sum(counts) * comm.size")), "equally many"),
        WrongAnswer(changed(_FACTORS, ("count / total", "count")), "returns the counts"),
        WrongAnswer(changed(_FACTORS, ("count / total", "1 / total")), "divides 1 by all tokens"),
        WrongAnswer(changed(_FACTORS, ("count / total", "total / count")), "turned the fraction over"),
        WrongAnswer(
            changed(_FACTORS, ("    return [count / total for count in counts]\n", "")), "returned None"
        ),
        WrongAnswer(
            changed(_FACTORS, ("[count / total for count in counts]", "[sum(counts) / total, 0, 0, 0]")),
            "Each needs one",
        ),
        WrongAnswer(changed(_FACTORS, ("count / total", "sum(counts) / total")), "How many has each"),
    ),
    why="the ranks exchange their numbers of tokens, but no losses. Why does backward not need the losses of "
    "the other ranks?",
)

# -------------------------------------------------------------------- questions

NEW_LOADER = Question(
    id="13.q4",
    question="A translation model trains with a new data loader. Its loss ends at 0.2 instead of 1.9, also "
    "on held-out sentences from this loader. What do you do first?",
    options=(
        Option(
            "stop earlier, as it has learned the data by heart",
            reply="Learning by heart would not help with new sentences. The held-out loss is as low as the "
            "training loss, so what the model has learned helps with new sentences, too.",
            belief="low-loss-can-write",
        ),
        Option(
            "let it translate three sentences, and read them",
            reply="A loader that shows the model what it must predict can make both losses fall, while the "
            "translations are nonsense. Three sentences suffice to see that.",
            right=True,
        ),
        Option(
            "keep the loader, since the held-out loss confirms the gain",
            reply="Both losses say only that the model predicts the labels of this loader. And 0.2 can be "
            "compared with 1.9 only if both models read and predict the same tokens.",
            belief="low-loss-can-write",
        ),
    ),
    objectives=(2,),
)

ROUGE_AND_FACTS = Question(
    id="13.q5",
    question="Model A has a ROUGE-1 of 62 % and a precision of 80 %. Model B has a ROUGE-1 of 55 % and a "
    "precision of 99 %. A summary has about four names and numbers. Whose summaries often state something "
    "that the article does not?",
    options=(
        Option(
            "those of B",
            reply="Only 1 % of B's names and numbers are not in the article: with four per summary, that is "
            "about one summary in 25. The lower ROUGE says that B shares fewer words, not that more of its "
            "names are unsupported.",
            belief="rouge-up-facts-right",
        ),
        Option(
            "those of neither",
            reply="A ROUGE of 62 % leaves room for unsupported names: they may be among the words that are "
            "not shared. With four per summary, 20 % unsupported ones are nearly one per summary.",
            belief="rouge-is-accuracy",
        ),
        Option(
            "those of A",
            reply="With four names and numbers per summary, 20 % unsupported ones are 0.8 per summary. ROUGE "
            "does not show them, because such a name costs it only a word or two.",
            right=True,
        ),
    ),
    objectives=(3,),
)

EXERCISES = (FACTORS, NEW_LOADER, ROUGE_AND_FACTS)

PREDICTIONS = (
    Prediction(
        id="13.p5",
        question="How many of the reference's 21 words does your sentence share?",
        objectives=(2,),
        targets=("rouge-up-facts-right",),
    ),
    Prediction(
        id="13.p4",
        question="Precision of references with one wrong name, in percent?",
        objectives=(3,),
        targets=("rouge-up-facts-right",),
    ),
)
