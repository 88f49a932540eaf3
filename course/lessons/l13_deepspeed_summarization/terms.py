"""The terms that lesson 13 introduces."""

from course.lessons.shared.glossary import Term

TERMS = (
    Term(
        "ROUGE",
        "A score of a summary: how many words (ROUGE-1) or pairs of neighbouring words (ROUGE-2) it "
        "shares with a reference, or how long their longest common subsequence is (ROUGE-L).",
    ),
    Term("lead-3", "The baseline summary that consists of the first three sentences of the article."),
    Term("token", "What a language model reads and writes: a word, or a piece of one.", forms=""),
    Term(
        "oracle extract",
        "The sentences of an article that come nearest to its reference summary by ROUGE, chosen by somebody "
        "who knows it: all choices are tried, or sentences are added one by one while their ROUGE grows.",
    ),
    Term(
        "extractive",
        "Of a summarizer: it chooses sentences of the article instead of writing its own.",
        forms="extractive(ly)?",
    ),
    Term(
        "abstractive",
        "Of a summarizer: it writes its own sentences.",
        forms="abstractive(ly)?",
    ),
    Term(
        "paired bootstrap",
        "A way to find out how certain a difference of two systems on the same test samples is: draw samples "
        "with replacement many times, and see how much the mean difference varies.",
    ),
)
