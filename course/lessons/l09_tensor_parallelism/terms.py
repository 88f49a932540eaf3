"""The terms that lesson 09 introduces."""

from course.lessons.shared.glossary import Term

TERMS = (
    Term(
        "tensor parallelism",
        "Splitting large weight matrices among ranks that all work on the same batch.",
        forms=r"tensor[- ]parallel(ism)?",
    ),
    Term(
        "column-parallel",
        "A linear layer whose matrix is split by columns: each rank computes some of the outputs, "
        "completely.",
        forms=r"column[- ]parallel",
    ),
    Term(
        "row-parallel",
        "A linear layer whose matrix is split by rows: each rank computes a part of every output, and an "
        "all-reduce (or reduce-scatter) adds the parts.",
        forms=r"row[- ]parallel",
    ),
    Term(
        "Transformer",
        "A network for sequences: each of its blocks is attention followed by an MLP.",
        forms=r"Transformers?",
    ),
    Term("GeLU", "A smooth form of ReLU, often used between the two linear layers of a Transformer's block."),
    Term(
        "DTensor",
        "PyTorch's tensor that knows its layout on the ranks; its operations communicate where needed.",
    ),
    Term(
        "sequence parallelism",
        "The activations between attention and MLP (norms, additions) are split along the sequence, so that "
        "no rank keeps all of them.",
    ),
)
