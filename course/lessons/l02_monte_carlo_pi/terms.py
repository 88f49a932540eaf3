"""The terms that lesson 02 introduces."""

from course.lessons.shared.glossary import Term

TERMS = (
    Term("Reduce"),
    Term("standard error"),
    Term("Monte Carlo"),
    Term("Amdahl's law", forms=r"Amdahl('s)?"),
    Term("speed-up"),
    Term("efficiency"),
)
