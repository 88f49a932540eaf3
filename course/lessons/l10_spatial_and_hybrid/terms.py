"""The terms that lesson 10 introduces."""

from course.lessons.shared.glossary import Term

TERMS = (
    Term("halo"),
    Term("spatial parallelism"),
    Term("GEMS"),
    Term("hybrid parallelism"),
)
