"""The terms that lesson 04 introduces."""

from course.lessons.shared.glossary import Term

TERMS = (
    Term("collective"),
    Term("all-reduce"),
    Term("reduce-scatter"),
    Term("all-gather"),
    Term("all-to-all"),
    Term("broadcast"),
    Term("Bcast"),
    Term("Scatter", forms=r"Scatterv?"),
    Term("Gather", forms=r"Gatherv?"),
    Term("alpha-beta"),
    Term("latency"),
    Term("bandwidth"),
    Term("ring algorithm"),
    Term("recursive doubling"),
)
