"""The terms that lesson 09 introduces."""

from course.lessons.shared.glossary import Term

TERMS = (
    Term(
        "tensor parallelism",
        "The weights of one layer are cut, and each rank computes a part of that layer's result.",
        forms=r"tensor[- ]parallel(ism)?",
    ),
    Term(
        "column-parallel",
        "A linear layer whose weight is cut so that each rank computes complete outputs for some of the "
        "columns.",
        forms=r"column[- ]parallel",
    ),
    Term(
        "row-parallel",
        "A linear layer whose weight is cut so that each rank computes a part of every sum; an all-"
        "reduce adds the parts.",
        forms=r"row[- ]parallel",
    ),
    Term(
        "DTensor",
        "PyTorch's tensor that is distributed over a mesh of ranks and inserts the communication itself.",
    ),
    Term(
        "sequence parallelism",
        "The activations between tensor-parallel layers are cut along the sequence, so that no rank "
        "keeps all of them.",
    ),
)
