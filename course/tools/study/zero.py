"""`course study --zero`: what each stage of ZeRO holds, and how long a step takes, by the number of ranks.

A Transformer is trained for some steps by AdamW, in float32, by the course's own stages 0 to 3. What is held
is counted, tensor by tensor; the peak is that of the process, so each case is a job of its own. As in the
other study, a case whose rows are in the file is done, and the same command goes on.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from course.lessons.l07_ddp_on_mnist.study_results import ResultsError, save
from course.tools.study.job import StudyError, listen
from course.tools.study.machine import difference
from course.tools.study.run import one_rank_in
from course.tools.study.zero_results import ZERO, ZeroCase, ZeroRow, cases_of, load_zero
from course_lib.data.storage import could_not_write
from mpi_classroom.launch import available_cores


def run_zero(cases: Sequence[ZeroCase], folder: Path, about: dict[str, Any]) -> Iterator[list[ZeroRow]]:
    """Measure those of `cases` that `folder` does not have; the rows of each, when they are in the file.

    StudyError, in one sentence, when it cannot go on; what was measured before is in `folder`.
    """
    with one_rank_in(folder):
        kept = earlier(folder, about)
        store(folder, kept, about)
        done = {row.case for row in kept}
        for case in cases:
            if case not in done:
                rows = measure_case(case, kept)
                kept += rows
                store(folder, kept, about)
                yield rows


def measure_case(case: ZeroCase, kept: Sequence[ZeroRow]) -> list[ZeroRow]:
    """A job for one case; a row for each of its ranks."""
    try:
        recorded = list(listen("course.tools.study.zero_rank", asdict(case), case.ranks))
    except StudyError as error:
        count = len(cases_of(kept))
        runs = f"the {count} run{'s' * (count != 1)} measured so far {'are' if count != 1 else 'is'} kept"
        raise StudyError(
            f"{error}, during {case.name}; {runs}, and the same command goes on from there"
        ) from None
    return [ZeroRow(**asdict(case), **row, cores=available_cores()) for row in recorded[-1]["rows"]]


def earlier(folder: Path, about: dict[str, Any]) -> list[ZeroRow]:
    """The rows that are in `folder`; StudyError when they are damaged or of another machine."""
    if not (folder / ZERO).exists():
        return []
    try:
        rows, old = load_zero(folder)
    except ResultsError as error:
        raise StudyError(str(error)) from None
    if rows and (other := difference(old, about)):
        raise StudyError(f"{folder} holds other results ({other}); choose another folder with --results")
    return list(rows)


def store(folder: Path, rows: Sequence[ZeroRow], about: dict[str, Any]) -> None:
    """Replace the results; StudyError when the disk is full or the folder is closed."""
    ordered = sorted(rows, key=lambda row: (row.width, row.layers, row.ranks, row.stage, row.rank))
    try:
        save(folder, ordered, about, name=ZERO, kind=ZeroRow)
    except OSError as error:
        raise StudyError(could_not_write(folder / ZERO, error)) from None
