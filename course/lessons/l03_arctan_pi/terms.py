"""The terms that lesson 03 introduces."""

from course.lessons.shared.glossary import Term

TERMS = (
    Term("quadrature"),
    Term("strong scaling"),
    Term("weak scaling"),
    Term("scaled speed-up"),
    Term("Gustafson's law", forms=r"Gustafson('s)?"),
)
