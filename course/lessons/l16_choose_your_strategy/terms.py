"""The terms that lesson 16 introduces."""

from course.lessons.shared.glossary import Term

TERMS = (
    Term(
        "planner",
        "A program that predicts memory, bytes sent and step time of plans, and ranks those that fit.",
    ),
    Term(
        "plan",
        "One way to split a training over ranks: how many ranks share the batch, the layers, and each layer.",
        forms="",
    ),
    Term(
        "machine on paper",
        "A machine of published rates, for predictions: no one has measured it here.",
        forms=r"machines? on paper",
    ),
    Term(
        "scaled-down twin",
        "A small training on a few ranks in which the same constraint decides as in a large one.",
    ),
)
