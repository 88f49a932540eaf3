"""The terms that lesson 08 introduces."""

from course.lessons.shared.glossary import Term

TERMS = (
    Term("pipeline parallelism", forms=r"pipeline[- ]parallel(ism)?"),
    Term("GPipe"),
    Term("1F1B"),
    Term("pipeline stage"),
    Term("bubble"),
)
