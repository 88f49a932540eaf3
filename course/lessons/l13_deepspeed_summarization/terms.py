"""The terms that lesson 13 introduces."""

from course.lessons.shared.glossary import Term

TERMS = (
    Term("ROUGE"),
    Term("lead-3"),
)
