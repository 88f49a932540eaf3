"""The terms that lesson 17 introduces."""

from course.lessons.shared.glossary import Term

TERMS = (
    Term(
        "layer parallelism",
        "A pipeline with one micro-batch at a time: only one stage works. GEMS's baseline, *Basic*.",
    ),
    Term(
        "GEMS",
        "Two replicas of a pipeline on the same ranks in opposite directions: each uses time and memory "
        "that the other leaves free.",
    ),
    Term(
        "Hy-Fi",
        "Tiles, stages, micro-batches, two directions and data parallelism at once, for images "
        "too large for one GPU.",
    ),
)
