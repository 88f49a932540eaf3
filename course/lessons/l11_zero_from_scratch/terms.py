"""The terms that lesson 11 introduces."""

from course.lessons.shared.glossary import Term

TERMS = (
    Term("ZeRO", forms=r"ZeRO(-[123])?"),
    Term("FSDP"),
    Term("optimizer shard"),
    Term("offload", forms=r"offload(ing|ed)?"),
)
