"""The terms that lesson 03 introduces."""

from course.lessons.shared.glossary import Term

TERMS = (
    Term("quadrature", "Computing an area, for example as the sum of many thin strips."),
    Term(
        "midpoint rule",
        "Quadrature with rectangles, each as high as the curve at its middle.",
    ),
    Term(
        "strong scaling",
        "How the time of the same job changes with more ranks; ideally p ranks take 1/p of the time.",
    ),
    Term(
        "weak scaling",
        "How the time changes when p ranks get p times the work; ideally it stays the same.",
    ),
    Term(
        "efficiency",
        "The speed-up divided by the number of ranks; in weak scaling, one rank's time for "
        "1/p of the work, divided by the time of p ranks.",
    ),
    Term(
        "intercommunicator",
        "A communicator that connects two groups of ranks; each rank communicates with the other group.",
    ),
)
