"""The terms that lesson 00 introduces."""

from course.lessons.shared.glossary import Term

TERMS = (
    Term("rank"),
    Term("node"),
    Term("local rank"),
    Term("world size"),
    Term("oversubscribed"),
    Term("communicator"),
)
