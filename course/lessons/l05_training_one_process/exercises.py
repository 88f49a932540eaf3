"""Exercises, questions and predictions of lesson 05: a batch in pieces, what cannot be cut, a larger batch.

torch is imported only where a check needs it: exercises without it are checked sooner.
"""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpi_classroom.exercises import Exercise, Option, Prediction, Question, WrongAnswer, changed, expect

STALE = 1000.0  # a gradient left over from an earlier step
Numbers = NDArray[np.float64]

# -------------------------------------------------------------------- 05.1 a batch in pieces


def _check_accumulate(answer: SimpleNamespace, comm: Any, lengths: Sequence[int]) -> None:
    """Pieces of `lengths[0]` images, the last maybe shorter; the oracle is torch's mean over the batch."""
    import torch
    from torch.nn import functional as F

    torch.manual_seed(comm.rank)
    layers = torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)
    model, total = torch.nn.Sequential(*layers).double(), sum(lengths)
    parameters = list(model.parameters())
    inputs, targets = torch.randn(total, 3, dtype=torch.float64), torch.arange(total) % 2
    parts = zip(inputs.split(list(lengths)), targets.split(list(lengths)), strict=True)
    sums = [
        _flat(torch.autograd.grad(F.cross_entropy(model(x), y, reduction="sum"), parameters))
        for x, y in parts
    ]
    before = _flat(parameters)
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, STALE)
    at_once: list[int] = []
    model.register_forward_hook(lambda _, inputs, outputs: at_once.append(len(outputs)))
    answer.accumulate(model, inputs, targets, lengths[0])
    expect(
        np.array_equal(_flat(parameters), before),
        "changed the weights. Leave the update to the optimizer: only gradients are asked for.",
    )
    expect(
        all(parameter.grad is not None for parameter in parameters),
        "there is no gradient afterwards. Was backward called?",
    )
    expect(
        max(at_once, default=0) <= lengths[0],
        f"ran {max(at_once)} images at once, but only {lengths[0]} fit into memory. Is each piece used?",
    )
    _compare(_flat([parameter.grad for parameter in parameters]), sums, lengths)


def _flat(tensors: Sequence[Any]) -> Numbers:
    return np.concatenate([tensor.detach().numpy().ravel() for tensor in tensors])


def _compare(got: Numbers, sums: Sequence[Numbers], lengths: Sequence[int]) -> None:
    """`got` against the sum of the pieces' summed gradients over the batch, and against known mistakes."""
    if np.allclose(got, sum(sums) / sum(lengths), rtol=1e-9, atol=1e-12):
        return
    expect(
        abs(got).max() < STALE / 2, "the gradients of an earlier step are still included. What clears them?"
    )
    for words, value in _lookalikes(sums, lengths).items():
        expect(not np.allclose(got, value, rtol=1e-9, atol=1e-12), words)
    expect(
        False, f"got gradients of length {np.linalg.norm(got):.4g}, expected {_length(sums, lengths):.4g}."
    )


def _length(sums: Sequence[Numbers], lengths: Sequence[int]) -> float:
    return float(np.linalg.norm(sum(sums) / sum(lengths)))


def _lookalikes(sums: Sequence[Numbers], lengths: Sequence[int]) -> Mapping[str, Any]:
    """The gradients that known mistakes give, with the reply to each."""
    means, total = [one / length for one, length in zip(sums, lengths, strict=True)], sum(lengths)
    pieces = len(lengths)
    return {
        "got the mean of the means: a piece with one image weighs as much as one with many.": sum(means)
        / pieces,
        f"got the sum of {pieces} means. What share of the batch does each piece have?": sum(means),
        f"got gradients {total} times too large. By what is the loss of a batch divided?": sum(sums),
        f"divided the sum by {pieces} pieces. How many images does the mean run over?": sum(sums) / pieces,
        "divided twice: `cross_entropy` has already divided by the images of the piece.": sum(means) / total,
        "divided by the piece twice: `cross_entropy` has done so once. What about the batch?": sum(
            mean / length for mean, length in zip(means, lengths, strict=True)
        ),
        "weighed the last piece like a full one. How many images does it have?": sum(means)
        * lengths[0]
        / total,
        f"divided by 128, but this batch has {total} images.": sum(sums) / 128,
        "got the last piece only. What does `zero_grad` do, and how often is it called?": sums[-1] / total,
        "got the first piece only.": sums[0] / total,
    }


_ACCUMULATE = '''\
def accumulate(model, inputs, targets, piece):
    """Leave the gradient of the batch's mean loss in .grad, from at most `piece` images at once."""
    model.zero_grad()
    pieces = inputs.split(piece)
    for x, y in zip(pieces, targets.split(piece), strict=True):
        loss = F.cross_entropy(model(x), y, reduction="sum") / len(inputs)
        loss.backward()  # adds to the gradients that are there
'''
_LOSS = 'F.cross_entropy(model(x), y, reduction="sum") / len(inputs)'


def _with(loss: str) -> str:
    """The solution with another loss."""
    return changed(_ACCUMULATE, (_LOSS, loss))


ACCUMULATE = Exercise(
    id="05.1",
    title="Spot the bug",
    task="Leave the gradient of the whole batch's mean loss in `.grad`, for pieces of *any* sizes.",
    objectives=(1,),
    targets=("mean-of-means",),
    stub=_with("F.cross_entropy(model(x), y) / len(pieces)"),
    hints=(
        "The loop and backward are right. `cross_entropy` averages over the images of *its* piece. "
        "Can it also add?",
        "mean of five losses = (a + b + c + d + e) / 5\n"
        "first piece adds    (a + b + c) / 5\n"
        "second piece adds   (d + e) / 5",
        'loss = F.cross_entropy(model(x), y, reduction="…") / …',
    ),
    solution=_ACCUMULATE,
    check=_check_accumulate,
    cases=((3, 3), (3, 1), (100, 28)),
    describe=lambda lengths: f"pieces of {' + '.join(map(str, lengths))} images",
    imports="import torch\nfrom torch.nn import functional as F",
    save="05_train.py",
    wrong=(
        WrongAnswer(_with("F.cross_entropy(model(x), y) / len(pieces) * 1.0"), "got the mean of the means"),
        WrongAnswer(_with("F.cross_entropy(model(x), y)"), "got the sum of 2 means"),
        WrongAnswer(_with('F.cross_entropy(model(x), y, reduction="sum")'), "6 times too large"),
        WrongAnswer(_with('F.cross_entropy(model(x), y, reduction="sum") / len(pieces)'), "by 2 pieces"),
        WrongAnswer(_with("F.cross_entropy(model(x), y) / len(inputs)"), "divided twice"),
        WrongAnswer(_with("F.cross_entropy(model(x), y) / len(x)"), "divided by the piece twice"),
        WrongAnswer(_with('F.cross_entropy(model(x), y, reduction="sum") / 128'), "divided by 128"),
        WrongAnswer(_with("F.cross_entropy(model(x), y) * piece / len(inputs)"), "like a full one"),
        WrongAnswer(
            changed(
                _ACCUMULATE, ("in zip(pieces, targets.split(piece), strict=True)", "in [(inputs, targets)]")
            ),
            "ran 6 images at once",
        ),
        WrongAnswer(
            changed(
                _ACCUMULATE,
                ("    model.zero_grad()\n", ""),
                ("strict=True):\n", "strict=True):\n        model.zero_grad()\n"),
            ),
            "got the last piece only",
        ),
        WrongAnswer(
            changed(_ACCUMULATE, ("    model.zero_grad()\n", "")),
            "gradients of an earlier step are still included",
        ),
    ),
    why="while all pieces have the same size, the old line is right too. When does it go wrong "
    "without anybody noticing?",
)

# -------------------------------------------------------------------- questions

WHOLE_BATCH_ONLY = Question(
    id="05.q4",
    question="The repaired `accumulate` cuts batches of 512 images into four pieces. With which of these "
    "does the cutting change what the network learns?",
    options=(
        Option(
            "a loss that compares each image with all others of its batch",
            reply="In a piece, each image meets only 127 others instead of 511, which makes it a different "
            "loss, and no division repairs that. Such *contrastive* losses need the outputs of all pieces "
            "before any loss can be computed.",
            right=True,
        ),
        Option(
            "gradient clipping, a limit on the norm of the batch's gradient",
            reply="Clipping comes after the last piece, when the gradients of all pieces have been added. So "
            "it sees the whole batch's gradient, as it would without cuts. Only if you clipped each "
            "*piece's* gradient would the training change.",
            belief="every-norm-looks-around",
        ),
        Option(
            "an optimizer that remembers the gradients of earlier steps",
            reply="The optimizer takes one step per batch, not one per piece, and it sees the gradient of "
            "the whole batch. So it remembers the same gradients as it would without cuts.",
            belief="a-piece-is-a-step",
        ),
    ),
    objectives=(3,),
)

NOT_A_NUMBER = Question(
    id="05.q5",
    question="On one GPU, a network trained well in float32, with batches of 256 and a rate of 0.1. Now 32 "
    "GPUs train it, with 256 images each, and average their gradients. The rate grows from 0.1 to 3.2 in "
    "the first 10 steps. The loss is nan after 40 steps. What do you try first?",
    options=(
        Option(
            "a rate of 0.1 again, as gradients of 8,192 images are exact",
            reply="8,192 images are still a sample, so their gradient is not exact, and even an exact "
            "gradient holds only at the present weights. An epoch now has 32 times fewer steps. At the old "
            "rate, these get less far, as in section 3.",
            belief="exact-gradient-better-training",
        ),
        Option(
            "a rate that grows from 0.1 to 3.2 over some epochs, as 10 steps may be too short a warm-up",
            reply="The scaling rule holds while the gradients hardly change over the 32 old steps. After 10 "
            "steps, they may still change a lot: for our digits, 10 steps failed with most seeds. Goyal and "
            "others (see References) took five epochs. If that fails, too, try a smaller rate or batch.",
            right=True,
        ),
        Option(
            "a loss in float64, as nan comes from too few bits",
            reply="The numbers grew until they left the range of floats. float64 has a larger range, so they "
            "would leave it a little later. Section 3 computed in float64 from the start, and at 0.8 its "
            "training failed all the same.",
            belief="divergence-is-rounding",
        ),
    ),
    objectives=(2,),
)

FALLING_LOSS = Question(
    id="05.q3",
    question="You wrote a backward pass by hand. In training, the loss falls from 2.3 to 0.4. How do "
    "you check the gradients?",
    options=(
        Option(
            "not at all, since wrong ones would not lower the loss",
            reply="Wrong gradients often do lower the loss, because a small step in any direction within 90 "
            "degrees of the right one leads downhill. Gradients of half the right length lower it, and so "
            "do gradients that leave out a whole layer.",
            belief="falling-loss-right-gradient",
        ),
        Option(
            "by central differences, computed in float64",
            reply="The falling loss proves little, since wrong gradients can lower it, too. In float64, "
            "right gradients mostly agree with central differences to five digits or more, so even a small "
            "mistake shows.",
            right=True,
        ),
        Option(
            "by central differences, computed in float32",
            reply="With this lesson's step of 0.00001, two almost equal losses have too few digits in "
            "float32: in the cell above, the slope is wrong by about a fifth. So a wrong gradient could "
            "pass. A larger step saves more digits, but not the eight that agree in float64.",
            belief="float32-checks-gradients",
        ),
    ),
    objectives=(4,),
)

EXERCISES = (ACCUMULATE, WHOLE_BATCH_ONLY, FALLING_LOSS, NOT_A_NUMBER)

PREDICTIONS = (
    Prediction(
        id="05.p7",
        question="How many of 297 are right with 256 images at rate 0.8?",
        objectives=(2,),
        targets=("longer-steps-get-further",),
    ),
    Prediction(
        id="05.p4",
        question="Seconds per epoch with a thousand threads?",
        objectives=(5,),
        targets=("n-threads-n-times",),
    ),
    Prediction(
        id="05.p6",
        question="Bytes per pixel that backward needs?",
        objectives=(6,),
        targets=("weights-are-all",),
    ),
)
