"""`course study --zero`: what each stage of ZeRO holds, and how long a step takes, by the number of ranks.

A Transformer is trained for some steps by AdamW, in float32, by the course's own stages 0 to 3. What is held
is counted, tensor by tensor; the peak is that of the process, so each case is a job of its own. As in the
other study, a case whose rows are in the file is done, and the same command goes on.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from course.tools.study.job import StudyError, listen
from course.tools.study.run import earlier_rows, one_rank_in, store, what_is_kept
from course.tools.study.zero_results import ZERO, ZeroCase, ZeroRow, cases_of
from mpi_classroom.launch import available_cores


def run_zero(cases: Sequence[ZeroCase], folder: Path, about: dict[str, Any]) -> Iterator[list[ZeroRow]]:
    """Measure those of `cases` that `folder` does not have; the rows of each, when they are in the file.

    StudyError, in one sentence, when it cannot go on; what was measured before is in `folder`.
    """
    with one_rank_in(folder):
        kept, _ = earlier_rows(folder, ZERO, ZeroRow, about)
        store(folder, in_order(kept), about, ZERO, ZeroRow)
        done = {row.case for row in kept}
        for case in cases:
            if case not in done:
                rows = measure_case(case, kept)
                kept += rows
                store(folder, in_order(kept), about, ZERO, ZeroRow)
                yield rows


def measure_case(case: ZeroCase, kept: Sequence[ZeroRow]) -> list[ZeroRow]:
    """A job for one case; a row for each of its ranks."""
    try:
        recorded = list(listen("course.tools.study.zero_rank", asdict(case), case.ranks))
    except StudyError as error:
        raise StudyError(f"{error}, during {case.name}; {what_is_kept(len(cases_of(kept)))}") from None
    return [ZeroRow(**asdict(case), **row, cores=available_cores()) for row in recorded[-1]["rows"]]


def in_order(rows: Sequence[ZeroRow]) -> list[ZeroRow]:
    """As the file has them, whatever was measured first."""
    return sorted(rows, key=lambda row: (row.width, row.layers, row.ranks, row.stage, row.rank))
