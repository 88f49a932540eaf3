"""The terms that lesson 08 introduces."""

from course.lessons.shared.glossary import Term

TERMS = (
    Term(
        "pipeline parallelism",
        "Each rank holds some consecutive layers, a stage; outputs travel forward from stage to "
        "stage, gradients travel back.",
        forms=r"pipeline[- ]parallel(ism)?",
    ),
    Term(
        "pipeline stage",
        "Consecutive layers that one rank holds; with interleaving, a rank holds several stages.",
    ),
    Term(
        "emulated",
        "Measured with ranks that sleep for as long as they would compute; their messages are real.",
        forms="",
    ),
    Term("schedule", "The list of what each rank of a pipeline does, in order.", forms=""),
    Term("GPipe", "The pipeline schedule in which all micro-batches go forward first, then all go backward."),
    Term(
        "1F1B",
        "The pipeline schedule that fills the pipeline, then alternates one forward and one backward. "
        "Without interleaving, a stage keeps the activations of at most as many micro-batches "
        "as there are stages.",
    ),
    Term(
        "bubble",
        "The time within a step in which a rank of a pipeline has nothing to do: before its first pass, "
        "between passes, and after its last one.",
    ),
    Term(
        "interleaving",
        "Giving each rank several short stages, called chunks, so that the bubble is smaller.",
        forms="",
    ),
    Term(
        "recomputation",
        "Keeping only a stage's or layer's input, and computing activations again when backward needs them.",
        forms="",
    ),
)
