"""The terms that lesson 12 introduces."""

from course.lessons.shared.glossary import Term

TERMS = (
    Term("DeepSpeed"),
    Term("hostfile"),
)
