"""The terms that lesson 09 introduces."""

from course.lessons.shared.glossary import Term

TERMS = (
    Term("tensor parallelism", forms=r"tensor[- ]parallel(ism)?"),
    Term("column-parallel", forms=r"column[- ]parallel"),
    Term("row-parallel", forms=r"row[- ]parallel"),
    Term("DTensor"),
    Term("sequence parallelism"),
)
