"""The terms that lesson 16 introduces."""

from course.lessons.shared.glossary import Term

TERMS = (
    Term(
        "planner",
        "A program that predicts memory, bytes sent and step time of plans, and ranks those that fit.",
    ),
    Term(
        "plan",
        "A way to split a training: how many ranks divide the batch, the list of layers, and every layer.",
        forms="",
    ),
    Term(
        "Pareto front",
        "Of plans with two costs, such as memory and time, those for which no other plan is better in one "
        "and at least as good in the other.",
    ),
    Term(
        "machine on paper",
        "A machine whose rates come from data sheets: plans for it are predicted and not measured.",
        forms=r"machines? on paper",
    ),
    Term(
        "scaled-down twin",
        "A small training under a small memory limit, chosen so that state or activations that are too large "
        "in a large training are too large in the small one, too.",
    ),
)
