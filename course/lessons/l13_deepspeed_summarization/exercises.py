"""Exercises of lesson 13, DeepSpeed summarization: a loss over tokens, what decoders read, ROUGE.

torch is imported only where a check needs it: exercises without it are checked sooner.
"""

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


def _losses(counts: Sequence[int], rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Losses and labels (1, S) of a rank: a token costs about 2 ** rank, padding a million."""
    width = max(counts) + 2
    labels = np.full((1, width), IGNORED)
    labels[0, : counts[rank]] = 7
    losses = np.full((1, width), 1e6)
    losses[0, : counts[rank]] = 2.0**rank + 0.125 * np.arange(counts[rank])
    return losses, labels


def _check_share(answer: SimpleNamespace, comm: Any, counts: Sequence[int]) -> None:
    import torch

    losses, labels = _losses(counts, comm.rank)
    counts = counts[: comm.size]
    mine, everyone = losses[labels != IGNORED].sum(), sum(counts)
    sums = [_summed(counts, rank) for rank in range(comm.size)]
    own = max(counts[comm.rank], 1)
    positions = comm.size * labels.size
    given = torch.tensor(losses, requires_grad=True)
    got = answer.loss_share(comm, given, torch.tensor(labels))
    expect(got is not None, "returned None. Does the function end with a return?")
    expect(
        isinstance(got, torch.Tensor) and got.requires_grad,
        "has lost its way back to the losses: backward needs the tensor itself, not a copy or a number.",
    )
    lookalikes = {
        "is the mean over this rank's tokens. The means of the ranks do not add up to the mean over all "
        "tokens.": mine / own,
        "is this rank's mean, divided by the number of ranks: a part of the mean of means. By what must the "
        "sum be divided?": mine / own / comm.size,
        "counts padding: a position is a token only where its label is not −100.": losses.sum() / everyone,
        "was divided by the number of all positions, padding included. How many of the labels are tokens?": (
            mine / positions
        ),
        "is the sum over this rank's tokens. By how many tokens must it be divided?": mine,
        "is the loss of all ranks. Return this rank's part only: the parts are added later.": (
            sum(sums) / everyone
        ),
        "was divided by the number of ranks as well. Dividing by the tokens of all ranks is enough.": (
            mine / everyone / comm.size
        ),
    }
    value = got.item() if got.numel() == 1 else got.detach().numpy()
    if np.ndim(value) == 0 and not np.isfinite(value):
        raise Wrong(f"got {value}: this rank has {counts[comm.rank]} tokens. By what did it divide?")
    expect_array(value, np.array(mine / everyone), lookalikes)


def _summed(counts: Sequence[int], rank: int) -> float:
    losses, labels = _losses(counts, rank)
    return float(losses[labels != IGNORED].sum())


_SHARE = '''\
def loss_share(comm, losses, labels):
    """This rank's part of the mean loss over all tokens of all ranks.

    `losses` and `labels` are tensors (articles, positions). A position with the label -100 is padding.
    """
    token = labels != -100
    count = comm.allreduce(token.sum().item())
    return losses[token].sum() / count
'''

LOSS_SHARE = Exercise(
    id="13.1",
    title="A loss over tokens",
    task="The cell computes a part of the mean of means. Change it so that the parts of all ranks add up to "
    "the mean over all tokens. Some positions are only padding; they have the label −100.",
    objectives=(2,),
    targets=("token-counts-do-not-matter",),
    stub='''\
def loss_share(comm, losses, labels):
    """This rank's part of the mean loss over all tokens of all ranks.

    `losses` and `labels` are tensors (articles, positions). A position with the label -100 is padding.
    """
    token = labels != -100
    count = token.sum().item()
    return losses[token].sum() / count / comm.size
''',
    hints=(
        "The numerator is right: each rank sums the losses of its own tokens. What is the denominator in "
        "*one* process that has all the articles?",
        "rank 0  30 tokens, sum 30 ─→ 30 / 40 ─┐\n"
        "rank 1  10 tokens, sum 30 ─→ 30 / 40 ─┴─ 1.5, the mean over 40 tokens",
        "count = comm.allreduce(…)   and then   return losses[token].sum() / …",
    ),
    solution=_SHARE,
    check=_check_share,
    cases=((3, 3, 3, 3), (6, 2, 3, 1), (2, 0, 4, 1)),
    describe=lambda counts: f"{counts[0]}, {counts[1]}, … tokens",
    sizes=(2, 3, 4, 1),
    imports="import torch",
    wrong=(
        WrongAnswer(
            changed(_SHARE, ("comm.allreduce(token.sum().item())", "max(token.sum().item(), 1)")),
            "the mean over this rank's tokens",
        ),
        WrongAnswer(
            changed(
                _SHARE,
                ("comm.allreduce(token.sum().item())", "max(token.sum().item(), 1)"),
                ("/ count", "/ count / comm.size"),
            ),
            "a part of the mean of means",
        ),
        WrongAnswer(changed(_SHARE, ("losses[token].sum()", "losses.sum()")), "counts padding"),
        WrongAnswer(changed(_SHARE, ("token.sum().item()", "labels.numel()")), "the number of all positions"),
        WrongAnswer(changed(_SHARE, ("sum() / count", "sum()")), "By how many tokens must it be divided?"),
        WrongAnswer(changed(_SHARE, ("/ count", "/ count / comm.size")), "is enough"),
        WrongAnswer(
            changed(
                _SHARE,
                (
                    "losses[token].sum() / count",
                    "losses[token].sum() * 0 + comm.allreduce(losses[token].sum().item()) / count",
                ),
            ),
            "is the loss of all ranks",
        ),
        WrongAnswer(changed(_SHARE, ("sum() / count", "sum().item() / count")), "lost its way back"),
    ),
    why="the ranks exchange how many tokens they have, and not their losses. Why does backward not need the "
    "losses of the other ranks?",
)

# -------------------------------------------------------------------- 13.2 what the decoder reads


def _check_read(answer: SimpleNamespace, comm: Any, case: int) -> None:
    rows = np.random.default_rng([case, comm.rank]).integers(2, 90, (3, 6))
    rows[0, 4:] = rows[1, 2:] = IGNORED
    given = rows.copy()
    got = answer.decoder_reads(given)
    expect(np.array_equal(given, rows), "changed the labels, which the loss still needs. Work on a copy.")
    shifted = np.concatenate([np.zeros((3, 1), int), rows[:, :-1]], axis=1)
    clean = np.where(rows == IGNORED, 0, rows)
    left = np.concatenate([rows[:, 1:], np.zeros((3, 1), int)], axis=1)
    lookalikes = {
        "has the labels themselves: each position reads the very token that it must predict.": clean,
        "still holds −100, which is no token. What do padded positions hold?": shifted,
        "is shifted to the left: each position reads a token that comes later.": np.where(
            left == IGNORED, 0, left
        ),
        "begins with the last token, rolled round. What belongs in position 0?": np.where(
            (rolled := np.roll(rows, 1, axis=1)) == IGNORED, 0, rolled
        ),
    }
    expect_array(got, np.where(shifted == IGNORED, 0, shifted), lookalikes)


_READ = '''\
def decoder_reads(labels):
    """What the decoder reads in training to predict `labels` (articles, positions); -100 is padding."""
    tokens = np.where(labels == -100, 0, labels)
    read = np.zeros_like(tokens)
    for place in range(1, tokens.shape[1]):
        read[:, place] = tokens[:, place - 1]
    return read
'''

READ = Exercise(
    id="13.2",
    title="Spot the bug: the loss is low, the summaries are worthless",
    task="This is the function that trained the model above. `labels` is a NumPy array (articles, positions) "
    "with the tokens that the decoder must predict. Return what the decoder should read. Token 0 is the "
    "start, and it also fills padded positions.",
    objectives=(5,),
    targets=("low-loss-can-write",),
    stub='''\
def decoder_reads(labels):
    """What the decoder reads in training to predict `labels` (articles, positions); -100 is padding."""
    tokens = np.where(labels == -100, 0, labels)
    return tokens
''',
    hints=(
        "The decoder reads the reference up to some token and predicts the next one. In this function, what "
        "does it read at the position where it must predict “Belkov”?",
        "must predict   Ivo     Belkov  opened  END\n"
        "reads          0       Ivo     Belkov  opened      at each position, the token before it",
        "read = np.zeros_like(…)   and then, for each place from 1 on,   read[:, place] = tokens[:, …]",
    ),
    solution=_READ,
    check=_check_read,
    cases=(1, 2),
    describe=lambda case: "three summaries",
    wrong=(
        WrongAnswer(
            changed(_READ, ("np.where(labels == -100, 0, labels)", "labels.copy()")), "still holds −100"
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
    why="the low loss was measured correctly. Which number, measured once in a while, would have shown "
    "that the model cannot write?",
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
        "is the recall alone: a copy of the whole article would be perfect.": common / m,
        "is the arithmetic mean of precision and recall. F1 is their harmonic mean, 2pr / (p + r).": (
            common / n + common / m
        )
        / 2,
        "counts a word once, however often both texts have it.": 2
        * kinds
        / (len(set(ours)) + len(set(theirs))),
        "counts a word as often as the text has it. Count it as often as *both* have it.": 2
        * often
        / (n + m),
    }
    try:
        got = answer.rouge_1(text, reference)
    except ZeroDivisionError:
        raise Wrong("divided by 0 where the texts share no word. What should the score be?") from None
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
    """The F1 of the words that `text` and `reference` share; lower-case, spaces between words."""
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
    task="Complete the function. Count a repeated word as often as *both* texts have it, and return 0.0 "
    "when they share none.",
    objectives=(1,),
    stub='''\
def rouge_1(text, reference):
    """The F1 of the words that `text` and `reference` share; lower-case, spaces between words."""
    ours, theirs = Counter(text.split()), Counter(reference.split())  # how often each word occurs
    ...
''',
    hints=(
        "How many words do the texts share? A word counts as often as both have it, so take the smaller "
        "of its two counts. Which fraction of our words is that, and which fraction of theirs?",
        "ours    the the the mill         shared: the 2, mill 1, together 3\n"
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
            "the arithmetic mean of precision and recall",
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
    why="“The mill is not open” shares nearly all words with “The mill is open”. Which number would "
    "notice the difference?",
)

EXERCISES = (LOSS_SHARE, *QUESTIONS, READ, ROUGE_1)
