"""The terms that lesson 12 introduces."""

from course.lessons.shared.glossary import Term

TERMS = (
    Term("DeepSpeed", "A library on top of PyTorch that trains with ZeRO, configured by a JSON file."),
    Term(
        "engine",
        "DeepSpeed's object that holds model and optimizer, and communicates for them.",
        forms="",
    ),
    Term(
        "JSON",
        "A text format for nested keys and values; Python reads it as dictionaries and lists.",
        forms="",
    ),
    Term("hostfile", "A file that lists the machines of a job and how many ranks each may run."),
    Term(
        "universal checkpoint",
        "A DeepSpeed checkpoint with one folder per parameter, which any number of ranks can load.",
        forms="universal checkpoints?",
    ),
)
