"""The terms that lesson 12 introduces."""

from course.lessons.shared.glossary import Term

TERMS = (
    Term("DeepSpeed", "A library on top of PyTorch that trains with ZeRO, configured by a JSON file."),
    Term("hostfile", "A file that lists the machines of a job and how many ranks each may run."),
)
