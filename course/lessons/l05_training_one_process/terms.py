"""The terms that lesson 05 introduces."""

from course.lessons.shared.glossary import Term

TERMS = (
    Term("learning rate"),
    Term("mini-batch", forms=r"mini-batch(es)?"),
    Term("micro-batch", forms=r"micro-batch(es)?"),
    Term("gradient accumulation"),
    Term("gradient check"),
    Term("stochastic gradient descent"),
)
