"""Running a study: what is not measured yet is, and kept at once.

The results are read, the cases that they have are left out, and after each case the file is replaced. So the
same command, given again, goes on where it stopped; only the run that was under way is lost.
"""

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import filelock

from course.lessons.l07_ddp_on_mnist.study_results import (
    ENGINES,
    MEASURED,
    MEASUREMENTS,
    PARTS,
    REPLAYED,
    Case,
    EpochRow,
    ResultsError,
    Study,
    load,
    save,
)
from course.tools.study.job import Data, StudyError, run_job
from course.tools.study.machine import difference
from course.tools.study.plan import START_SECONDS, estimated_seconds, job_size, jobs
from course_lib.data.storage import could_not_write
from course_lib.training.models import MNIST_MODELS
from course_lib.training.saving import atomic_save
from mpi_classroom.layout import Layout


@dataclass
class Clock:
    """How long what is left will take: the first guesses, corrected by what the cases so far took."""

    cores: int
    took: dict[str, tuple[float, float]] = field(default_factory=dict)  # by model: seconds, and those guessed

    def note(self, case: Case, seconds: float) -> None:
        """A case took `seconds`."""
        for key in (case.model, ""):
            real, guessed = self.took.get(key, (0.0, 0.0))
            self.took[key] = real + seconds, guessed + estimated_seconds(case, self.cores)

    def seconds(self, case: Case) -> float:
        """What `case` will probably take."""
        real, guessed = self.took.get(case.model) or self.took.get("") or (1.0, 1.0)
        return estimated_seconds(case, self.cores) * real / guessed

    def left(self, cases: Sequence[Case]) -> float:
        """What all of `cases` will."""
        return sum(map(self.seconds, cases)) + START_SECONDS * len(jobs(cases))


def run_study(
    cases: Sequence[Case],
    data: Data,
    folder: Path,
    about: dict[str, Any],
    layout: Callable[[int], Layout] | None = None,
) -> Study:
    """Measure those of `cases` that `folder` does not have yet; the results, those of earlier runs included.

    `layout` says where a job of so many ranks runs (default: on this machine).

    StudyError, in one sentence, when it cannot go on; what was measured before is in `folder`.
    """
    with one_rank_in(folder):
        kept, about = earlier_rows(folder, about)
        # A folder that cannot be written to says so before anything is measured.
        store(folder, sorted(kept, key=order), about)
        done = {row.case for row in kept}
        left = [case for case in cases if case not in done]
        clock = Clock(about["machine"]["cores"])
        if len(left) < len(cases):
            print(f"{len(cases) - len(left)} of {len(cases)} runs are here already; going on from there.")
        for group in jobs(left):
            where = layout(job_size(group[0])[0]) if layout else None
            for rows in run_group(group, data, folder, clock, where):
                kept += rows
                store(folder, sorted(kept, key=order), about)
                left.remove(rows[0].case)
                print(f"{len(cases) - len(left):3} of {len(cases)}  {outcome(rows)}", end="")
                print(f"; {say_left(clock.left(left))}" if left else "", flush=True)
    return load(folder)


def outcome(rows: Sequence[EpochRow]) -> str:
    """What came out of a case, in one line."""
    last = rows[-1]
    accuracy = f", test accuracy {last.test_accuracy:.2%}" if last.test_accuracy is not None else ""
    label = "" if last.label in (MEASURED, REPLAYED) else f" ({last.label})"
    return f"{last.case.name}: {last.epoch_seconds:.3g} s per epoch{label}{accuracy}"


def say_left(seconds: float) -> str:
    """How long it will still take, as one says it."""
    if seconds < 90:
        return f"about {max(5, round(seconds / 5) * 5)} s left"
    return f"about {round(seconds / 60)} min left"


def run_group(
    group: Sequence[Case],
    data: Data,
    folder: Path,
    clock: Clock,
    layout: Layout | None,
) -> Iterator[list[EpochRow]]:
    """The rows of each case of one job, as soon as it is done."""
    case, rows, began = group[0], list[EpochRow](), time.monotonic()
    try:
        for message in run_job(group, data, layout=layout):
            if "case" not in message:
                continue
            case = group[message["case"]]
            if "row" in message:
                rows.append(EpochRow(**message["row"]))
            elif "done" in message:
                clock.note(case, time.monotonic() - began)
                yield rows
                rows, began = [], time.monotonic()
            else:
                began = time.monotonic()
    except StudyError as error:
        cases = len({row.case for row in load(folder).rows})
        raise StudyError(f"{error}, during {case.name}; {what_is_kept(cases)}") from None


def what_is_kept(cases: int) -> str:
    """What somebody wants to know whose study has stopped."""
    runs = f"the {cases} run{'s' * (cases != 1)} measured so far {'are' if cases != 1 else 'is'} kept"
    return f"{runs}, and the same command goes on from there"


def earlier_rows(folder: Path, about: dict[str, Any]) -> tuple[list[EpochRow], dict[str, Any]]:
    """The rows in `folder`, and what describes them; StudyError when they are damaged or of another one."""
    if not (folder / MEASUREMENTS).exists():
        return [], about
    try:
        study = load(folder)
    except ResultsError as error:
        raise StudyError(str(error)) from None
    if study.rows and (other := difference(study.about, about)):
        raise StudyError(f"{folder} holds other results ({other}); choose another folder with --results")
    return list(study.rows), study.about | about if study.rows else about


def store(folder: Path, rows: Sequence[EpochRow], about: dict[str, Any]) -> None:
    """Replace the results; StudyError when the disk is full or the folder is closed."""
    with writing(folder / MEASUREMENTS):
        save(folder, rows, about)


def store_report(path: Path, page: str) -> None:
    """Write the report; StudyError as `store`."""
    with writing(path):
        atomic_save(path, page.encode())


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """The block writes to `path`; where it cannot, StudyError says why."""
    try:
        yield
    except OSError as error:
        raise StudyError(could_not_write(path, error)) from None


def order(row: EpochRow) -> tuple[Any, ...]:
    """The place of a row in the file: the same whatever was measured first."""
    place = (
        PARTS.index(row.part),
        row.replayed,
        list(MNIST_MODELS).index(row.model),
        ENGINES.index(row.engine),
    )
    return *place, row.ranks, row.threads, row.batch_rule, row.rate_rule, row.images, row.seed, row.epoch


@contextmanager
def one_rank_in(folder: Path) -> Iterator[None]:
    """Only one study at a time writes to a folder; and being asked to end is like an interrupt."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(folder / ".lock")
        lock.acquire(timeout=0)
    except filelock.Timeout:
        raise StudyError(f"another study is writing to {folder}; wait for it, or stop it") from None
    except OSError as error:
        raise StudyError(could_not_write(folder, error)) from None
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        lock.release()


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
