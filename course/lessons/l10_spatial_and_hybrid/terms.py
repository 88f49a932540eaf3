"""The terms that lesson 10 introduces."""

from course.lessons.shared.glossary import Term

TERMS = (
    Term("halo", "The rows or columns of a neighbour's tile that a convolution needs beside its own."),
    Term(
        "spatial parallelism",
        "Each rank holds one tile of every image, and exchanges halos with its neighbours.",
    ),
    Term(
        "GEMS",
        "Two replicas of a pipeline on the same ranks in opposite directions, so that one works while "
        "the other waits.",
    ),
    Term(
        "hybrid parallelism",
        "Several ways of splitting at once, for example data, pipeline and spatial parallelism on a grid"
        " of ranks.",
    ),
)
