"""The terms that lesson 10 introduces."""

from course.lessons.shared.glossary import Term

TERMS = (
    Term(
        "spatial parallelism",
        "The ranks that share an image hold one tile of it each, and exchange halos with their neighbours.",
    ),
    Term("tile", "The part of an image that one rank owns.", forms=r"tiles?"),
    Term(
        "halo",
        "The pixels of neighbouring tiles that a rank's convolution reads.",
        forms=r"halos?",
    ),
    Term(
        "ghost",
        "A copy of a pixel that another rank owns; the ghosts around a tile are its halo.",
        forms=r"ghosts?",
    ),
    Term(
        "hybrid parallelism",
        "Several ways of splitting at once, for example data, pipeline and spatial parallelism on a grid"
        " of ranks.",
    ),
    Term(
        "sub-graph parallelism",
        "Each rank computes some of the parallel branches of a network.",
    ),
    Term(
        "fused halo",
        "One wide halo exchange for several layers, instead of one exchange per layer.",
        forms=r"fused halos?",
    ),
)
