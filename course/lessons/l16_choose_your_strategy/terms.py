"""The terms that lesson 16 introduces."""

from course.lessons.shared.glossary import Term

TERMS = (
    Term(
        "plan",
        "A way to split a training: how many ranks divide the batch, the model states, the list of layers, "
        "and every layer.",
        forms="",
    ),
    Term(
        "exposed",
        "Communication that computing does not hide. It makes the step longer.",
        forms="",
    ),
    Term(
        "planner",
        "A program that predicts memory, bytes sent and step time of plans.",
    ),
)
