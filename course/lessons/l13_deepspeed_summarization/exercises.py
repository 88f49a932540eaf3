"""Exercises of lesson 13, DeepSpeed and summaries: a loss over tokens, what decoders read, ROUGE."""

from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from course.lessons.l13_deepspeed_summarization.quiz import PREDICTIONS as PREDICTIONS
from course.lessons.l13_deepspeed_summarization.quiz import QUESTIONS
from mpi_classroom.exercises import Exercise, Wrong, WrongAnswer, changed, expect, expect_array, show

IGNORED = -100

# -------------------------------------------------------------------- 13.1 a loss over tokens


def _tokens(counts: Sequence[int], rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Losses and labels (1, S) of a rank: a token costs about 2 ** rank, padding a million."""
    width = max(counts) + 2
    labels = np.full((1, width), IGNORED)
    labels[0, : counts[rank]] = 7
    losses = np.full((1, width), 1e6)
    losses[0, : counts[rank]] = 2.0**rank + 0.125 * np.arange(counts[rank])
    return losses, labels


def _check_share(answer: SimpleNamespace, comm: Any, counts: Sequence[int]) -> None:
    losses, labels = _tokens(counts, comm.rank)
    counts = counts[: comm.size]
    mine, everyone = losses[labels != IGNORED].sum(), sum(counts)
    sums = [_summed(counts, rank) for rank in range(comm.size)]
    own = max(counts[comm.rank], 1)
    positions = comm.size * labels.size
    got = answer.loss_share(comm, losses.copy(), labels.copy())
    expect(got is not None, "returned None; does the function end with a return?")
    lookalikes = {
        "is the mean of this rank's tokens: means of the ranks do not add up to the mean of all.": mine / own,
        "is this rank's mean, divided by the ranks: their mean, whatever their tokens.": mine
        / own
        / comm.size,
        "counted padding: only where the label is not −100 is there a token.": losses.sum() / everyone,
        "divided by all positions, padding too; how many of the labels are tokens?": mine / positions,
        "is the sum, divided by nothing: by how many tokens of all ranks?": mine,
        "is the loss of all ranks: each returns its part, and the parts are added later.": sum(sums)
        / everyone,
        "divided by the ranks once more: the tokens of all ranks are enough.": mine / everyone / comm.size,
    }
    if np.ndim(got) == 0 and not np.isfinite(float(got)):
        raise Wrong(f"got {float(got)}: this rank has {counts[comm.rank]} tokens; by what did it divide?")
    expect_array(got, np.array(mine / everyone), lookalikes)


def _summed(counts: Sequence[int], rank: int) -> float:
    losses, labels = _tokens(counts, rank)
    return float(losses[labels != IGNORED].sum())


_SHARE = '''\
def loss_share(comm, losses, labels):
    """This rank's part of the mean loss of all tokens of all ranks.

    `losses` and `labels` have the shape (articles, positions). A label of -100 is no token.
    """
    token = labels != -100
    summed = losses[token].sum()
    count = np.array(token.sum())
    comm.Allreduce(MPI.IN_PLACE, count)
    return summed / count
'''

LOSS_SHARE = Exercise(
    id="13.1",
    title="A loss over tokens",
    task="Padding has the label −100, and is no token.",
    objectives=(2,),
    targets=("token-counts-do-not-matter",),
    stub='''\
def loss_share(comm, losses, labels):
    """This rank's part of the mean loss of all tokens of all ranks.

    `losses` and `labels` have the shape (articles, positions). A label of -100 is no token.
    """
    token = labels != -100
    summed = losses[token].sum()
    count = token.sum()
    return summed / count / comm.size
''',
    hints=(
        "As it stands, it is the mean of the ranks' means. The numerator is right. What is the denominator "
        "of *one* process that has all articles?",
        "rank 0  30 tokens, sum 30 ─→ 30 / 40 ─┐\n"
        "rank 1  10 tokens, sum 30 ─→ 30 / 40 ─┴─ 1.5, the mean of 40 tokens",
        "count = np.array(…)   then   comm.Allreduce(MPI.IN_PLACE, …)   then   return summed / …",
    ),
    solution=_SHARE,
    check=_check_share,
    cases=((3, 3, 3, 3), (6, 2, 3, 1), (2, 0, 4, 1)),
    describe=lambda counts: f"{counts[0]}, {counts[1]}, … tokens",
    sizes=(2, 3, 4, 1),
    wrong=(
        WrongAnswer(
            changed(_SHARE, ("    comm.Allreduce(MPI.IN_PLACE, count)\n", "")),
            "the mean of this rank's tokens",
        ),
        WrongAnswer(
            changed(
                _SHARE,
                ("    comm.Allreduce(MPI.IN_PLACE, count)\n", ""),
                ("summed / count", "summed / max(count, 1) / comm.size"),
            ),
            "whatever their tokens",
        ),
        WrongAnswer(changed(_SHARE, ("losses[token].sum()", "losses.sum()")), "counted padding"),
        WrongAnswer(
            changed(_SHARE, ("np.array(token.sum())", "np.array(labels.size)")), "divided by all positions"
        ),
        WrongAnswer(changed(_SHARE, ("summed / count", "summed")), "divided by nothing"),
        WrongAnswer(
            changed(_SHARE, ("summed / count", "summed / count / comm.size")),
            "divided by the ranks once more",
        ),
        WrongAnswer(
            changed(
                _SHARE,
                ("summed = losses[token].sum()", "summed = np.array(losses[token].sum())"),
                ("count)\n    return", "count)\n    comm.Allreduce(MPI.IN_PLACE, summed)\n    return"),
            ),
            "is the loss of all ranks",
        ),
    ),
    why="the count is summed over the ranks before backward, and the loss is not. Why does backward not "
    "need the losses of the others?",
)

# -------------------------------------------------------------------- 13.2 what the decoder reads


def _check_read(answer: SimpleNamespace, comm: Any, case: int) -> None:
    rows = np.random.default_rng([case, comm.rank]).integers(2, 90, (3, 6))
    rows[0, 4:] = rows[1, 2:] = IGNORED
    given = rows.copy()
    got = answer.decoder_reads(given)
    expect(np.array_equal(given, rows), "changed the labels; they are still needed for the loss.")
    shifted = np.concatenate([np.zeros((3, 1), int), rows[:, :-1]], axis=1)
    clean = np.where(rows == IGNORED, 0, rows)
    left = np.concatenate([rows[:, 1:], np.zeros((3, 1), int)], axis=1)
    lookalikes = {
        "has the labels themselves: position t reads the very token that it is to predict.": clean,
        "still has −100, which is no token; what do padded positions hold?": shifted,
        "is shifted to the left: position t reads a token that comes later.": np.where(
            left == IGNORED, 0, left
        ),
        "begins with the last token: rolled round, position 0 knows the end.": np.where(
            (rolled := np.roll(rows, 1, axis=1)) == IGNORED, 0, rolled
        ),
    }
    expect_array(got, np.where(shifted == IGNORED, 0, shifted), lookalikes)


_READ = '''\
def decoder_reads(labels):
    """What the decoder reads, to predict `labels` (articles, positions); -100 is padding."""
    tokens = np.where(labels == -100, 0, labels)
    read = np.zeros_like(tokens)
    for place in range(1, tokens.shape[1]):
        read[:, place] = tokens[:, place - 1]
    return read
'''

READ = Exercise(
    id="13.2",
    title="Spot the bug: a loss too good to be true",
    task="",
    objectives=(3,),
    targets=("low-loss-can-write",),
    stub='''\
def decoder_reads(labels):
    """What the decoder reads, to predict `labels` (articles, positions); -100 is padding."""
    tokens = np.where(labels == -100, 0, labels)
    return tokens
''',
    hints=(
        "In training the decoder is given the right beginning and predicts the next token. What does it see "
        "here, at the position where it is to predict “Belkov”?",
        "to predict   Ivo     Belkov  opened  END\n"
        "reads        0       Ivo     Belkov  opened      each position, the token before",
        "read = np.zeros_like(…)   then, for each place from 1 on,   read[:, place] = tokens[:, …]",
    ),
    solution=_READ,
    check=_check_read,
    cases=(1, 2),
    describe=lambda case: "three summaries",
    wrong=(
        WrongAnswer(
            changed(_READ, ("np.where(labels == -100, 0, labels)", "labels.copy()")), "still has −100"
        ),
        WrongAnswer(
            changed(_READ, ("place] = tokens[:, place - 1]", "place - 1] = tokens[:, place]")), "to the left"
        ),
        WrongAnswer(
            changed(_READ, ("np.zeros_like(tokens)", "np.roll(tokens, 1, axis=1)")),
            "begins with the last token",
        ),
        WrongAnswer(
            changed(
                _READ,
                ("np.where(labels == -100, 0, labels)", "labels\n    tokens[labels == -100] = 0"),
            ),
            "changed the labels",
        ),
    ),
    why="with the bug, training reports a loss near 0. What would the model write, when nobody gives it the "
    "answer?",
)

# -------------------------------------------------------------------- 13.3 ROUGE-1 by hand

PAIRS = (
    ("the mill is open", "the mill is open"),
    ("ivo opened a mill", "ivo darsen opened a mill on friday"),
    ("the the the mill", "the mill on a hill by the sea"),
    ("nothing in common", "a mill"),
)


def _check_rouge(answer: SimpleNamespace, comm: Any, case: int) -> None:
    text, reference = PAIRS[case]
    ours, theirs = Counter(text.lower().split()), Counter(reference.lower().split())
    common, n, m = sum((ours & theirs).values()), sum(ours.values()), sum(theirs.values())
    f1 = 2 * common / (n + m)
    kinds = len(set(ours) & set(theirs))
    often = sum(ours[word] for word in theirs)
    lookalikes = {
        "is the precision alone: a text of one right word would be perfect.": common / n,
        "is the recall alone: the whole article would be perfect.": common / m,
        "is the mean of precision and recall; F1 is their harmonic mean, 2pr / (p + r).": (
            common / n + common / m
        )
        / 2,
        "counts a word once, however often both have it.": 2 * kinds / (len(set(ours)) + len(set(theirs))),
        "counts a word as often as the text has it; count it as often as *both* have it.": 2
        * often
        / (n + m),
    }
    try:
        got = answer.rouge_1(text, reference)
    except ZeroDivisionError:
        raise Wrong("divided by 0 where no word is in common; what should the score be?") from None
    expect(isinstance(got, int | float | np.number), f"returned {show_kind(got)}, expected a number.")
    if np.isclose(float(got), f1):
        return
    for words, value in lookalikes.items():
        expect(not np.isclose(float(got), value), words)
    raise Wrong(f"got {show(got)}, expected {show(f1)}, for “{text}” against “{reference}”.")


def show_kind(value: Any) -> str:
    """What a returned value is, for a message."""
    return "nothing" if value is None else type(value).__name__


_ROUGE = '''\
def rouge_1(text, reference):
    """The F1 of the words that `text` and `reference` have in common; lower-case, words between spaces."""
    ours, theirs = Counter(text.split()), Counter(reference.split())
    common = sum(min(ours[word], theirs[word]) for word in ours)
    if common == 0:
        return 0.0
    precision, recall = common / sum(ours.values()), common / sum(theirs.values())
    return 2 * precision * recall / (precision + recall)
'''

ROUGE_1 = Exercise(
    id="13.3",
    title="ROUGE-1 by hand",
    task="",
    objectives=(1,),
    stub='''\
def rouge_1(text, reference):
    """The F1 of the words that `text` and `reference` have in common; lower-case, words between spaces."""
    ours, theirs = Counter(text.split()), Counter(reference.split())  # word → how often
''',
    hints=(
        "How many words are in common, each counted as often as both have it? Which part of our words is "
        "that, and which part of theirs?",
        "ours    the the the mill         common: the 2, mill 1 = 3\n"
        "theirs  the mill on the hill     precision 3 / 4, recall 3 / 5, F1 2/3",
        "common = sum(min(ours[word], …) for word in ours)   …   return 2 * precision * recall / (…)",
    ),
    solution=_ROUGE,
    check=_check_rouge,
    cases=(0, 1, 2, 3),
    describe=lambda case: f"“{PAIRS[case][0]}”",
    imports="from collections import Counter",
    wrong=(
        WrongAnswer(
            changed(_ROUGE, ("2 * precision * recall / (precision + recall)", "precision")), "precision alone"
        ),
        WrongAnswer(
            changed(_ROUGE, ("2 * precision * recall / (precision + recall)", "recall")), "recall alone"
        ),
        WrongAnswer(
            changed(_ROUGE, ("2 * precision * recall / (precision + recall)", "(precision + recall) / 2")),
            "the mean of precision and recall",
        ),
        WrongAnswer(
            changed(
                _ROUGE,
                (
                    "Counter(text.split()), Counter(reference.split())",
                    "Counter(set(text.split())), Counter(set(reference.split()))",
                ),
            ),
            "counts a word once",
        ),
        WrongAnswer(
            changed(
                _ROUGE, ("min(ours[word], theirs[word]) for word in ours", "ours[word] for word in theirs")
            ),
            "as often as the text has it",
        ),
        WrongAnswer(changed(_ROUGE, ("    if common == 0:\n        return 0.0\n", "")), "divided by 0"),
    ),
    why="a summary that says the opposite has nearly all words in common. Which number would notice?",
)

EXERCISES = (LOSS_SHARE, *QUESTIONS, READ, ROUGE_1)
