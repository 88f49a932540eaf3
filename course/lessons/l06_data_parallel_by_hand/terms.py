"""The terms that lesson 06 introduces."""

from course.lessons.shared.glossary import Term

TERMS = (
    Term("data parallelism", forms=r"data[- ]parallel(ism)?"),
    Term("shard"),
    Term("global batch", forms=r"global batch(es)?"),
    Term("replica"),
    Term("bucket"),
)
