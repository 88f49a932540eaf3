"""Who reads a name of the library: imports of every form count, the module itself and other names do not."""

from course.paths import ROOT
from course.tools.readers import File, reader_of, that_name


def file(reader: str, text: str) -> File:
    return File(reader, text, frozenset(text.replace(".", " ").split()))


def test_a_file_that_names_the_module_reads_it_whatever_the_import_looks_like() -> None:
    among = [
        file("l06", "from course_lib.parallel.zero import Zero2"),
        file("l11", "from course_lib.parallel import zero as library"),
        file("l17", "# course_lib.parallel.zero :Zero2"),
        file("l09", "from course_lib.parallel import zero3"),
        file("l08", "a zero of another kind"),
        file("course_lib/parallel/zero", "course_lib.parallel.zero itself"),
    ]
    assert [each.reader for each in that_name("course_lib.parallel.zero", among)] == ["l06", "l11", "l17"]


def test_a_lesson_and_its_program_are_one_reader() -> None:
    lesson = ROOT / "course/lessons/l11_zero_from_scratch/runs.py"
    assert {reader_of(lesson), reader_of(ROOT / "notebooks/code/11_zero.py")} == {"l11"}
    assert reader_of(ROOT / "benchmarks/zero.py") == "benchmarks/zero"
