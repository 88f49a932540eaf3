"""The terms that lesson 05 introduces."""

from course.lessons.shared.glossary import Term

TERMS = (
    Term(
        "loss",
        "A number that says how wrong a network is on some samples; training makes it smaller.",
        forms="",
    ),
    Term("gradient", "For each weight, how fast the loss grows when that weight grows.", forms=""),
    Term(
        "stochastic gradient descent",
        "Training in steps: compute the gradient on a few samples and move every weight a little against "
        "it (SGD).",
    ),
    Term(
        "mini-batch",
        "The samples of one training step, often just called the batch.",
        forms=r"mini-batch(es)?",
    ),
    Term(
        "learning rate",
        "The factor by which the gradient is multiplied before it is subtracted from the weights.",
    ),
    Term("epoch", "One pass over the training samples, with one step per batch."),
    Term(
        "diverge",
        "To get worse instead of better, often until the numbers leave the range of floats.",
        forms="",
    ),
    Term(
        "linear scaling rule",
        "When the batch becomes k times as large and the epochs stay, make the learning rate k times as "
        "large; for SGD, up to a limit.",
    ),
    Term(
        "micro-batch",
        "A part of a batch whose gradient is computed by itself and added to those of the other parts.",
        forms=r"micro-batch(es)?",
    ),
    Term(
        "gradient accumulation",
        "Adding up the gradients of several micro-batches before one update of the weights.",
    ),
    Term(
        "central difference",
        "An estimate of a slope: the difference of two values, a small step above and below, over twice "
        "the step.",
    ),
    Term("gradient check", "A comparison of a computed gradient with central differences of the loss."),
    Term(
        "warm-up",
        "The first steps of training, in which the learning rate grows from small to full.",
        forms="",
    ),
)
