"""The terms that lesson 13 introduces."""

from course.lessons.shared.glossary import Term

TERMS = (
    Term(
        "ROUGE",
        "A score of a summary: the share of words, or pairs of words, that it has in common with a "
        "reference.",
    ),
    Term("lead-3", "The baseline summary that consists of the first three sentences of the article."),
)
