"""The terms that lesson 01 introduces."""

from course.lessons.shared.glossary import Term

TERMS = (
    Term("SPMD"),
    Term("MPMD"),
    Term("deadlock"),
    Term("hang report"),
    Term("Sendrecv"),
    Term("Isend"),
    Term("Irecv"),
    Term("Ssend"),
    Term("pickle", forms=r"pickled?"),
    Term("Gloo"),
    Term("NCCL"),
)
