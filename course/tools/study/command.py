"""`course study`: choose the cases, run those that are missing, write the report, show the main table."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from course.lessons.l07_ddp_on_mnist.study_results import REPORT, ResultsError, Study, load
from course.lessons.l07_ddp_on_mnist.study_tables import finals, grouped, timings
from course.tools.study.hosts import StudyHosts
from course.tools.study.job import Data, StudyError
from course.tools.study.machine import about_this_study
from course.tools.study.plan import DRAW, DRAWN, FULL, LOAD, QUICK, Choice, plan
from course.tools.study.report import Sheet, accuracy_table, page, timing_table
from course.tools.study.run import run_study, store_report
from course_lib.data.mnist import load_mnist
from course_lib.data.storage import DataError
from mpi_classroom.launch import available_cores

LOG_WIDTH = 250  # lines of a log are not folded


def measure(
    folder: Path,
    *,
    quick: bool,
    models: Sequence[str] = (),
    parts: Sequence[str] = (),
    ranks: Sequence[int] = (),
    seeds: int = 0,
    connect: Callable[[], StudyHosts] | None = None,
) -> Study:
    """Run what is chosen and not in `folder` yet, write the report, and show what came out; StudyError.

    The ranks run on the hosts that `connect` returns (default: on this machine). No run is replayed for them.
    """
    scale = QUICK if quick else FULL
    choice = Choice(scale, tuple(models), tuple(parts), tuple(ranks), seeds)
    try:
        plan(choice, cores=1, data=DRAWN)  # says what is wrong with the choice before anything is downloaded
    except ValueError as error:
        raise StudyError(str(error)) from None
    hosts = connect() if connect else None
    name, data = data_for(quick)
    cases = plan(choice, cores=hosts.cores if hosts else available_cores(), data=name)
    about = about_this_study(name, hosts.machine if hosts else None)
    if hosts:
        cases = [case for case in cases if not case.replayed]
        hosts.layout(max(case.ranks for case in cases))  # says now if they do not fit
    study = run_study(cases, data, folder, about, hosts.layout if hosts else None)
    report(folder, study)
    return study


def lists(models: str, parts: str, ranks: str) -> tuple[list[str], list[str], list[int]]:
    """What is given on the command line with commas between; StudyError when a number is none."""
    names, chosen, counts = (
        [one.strip() for one in text.split(",") if one.strip()] for text in (models, parts, ranks)
    )
    try:
        return names, chosen, [int(count) for count in counts]
    except ValueError:
        raise StudyError(f"--ranks {ranks} are not numbers; say for example --ranks 1,2,4") from None


def data_for(quick: bool) -> tuple[str, Data]:
    """The name of the data, and how a rank gets them; StudyError when files are damaged."""
    if quick:
        return DRAWN, (DRAW, max(QUICK.timing_images, QUICK.accuracy_images), 2_000)
    try:
        name = load_mnist().name
    except DataError as error:
        raise StudyError(str(error)) from None
    return name, (LOAD, 0, 0)


def report(folder: Path, study: Study | None = None) -> None:
    """Write the report of what is in `folder`, and show the main table; StudyError."""
    try:
        study = study or load(folder)
    except ResultsError as error:
        raise StudyError(str(error)) from None
    store_report(folder / REPORT, page(study))
    show(study)
    print(f"\nThe report is {folder / REPORT}")


def show(study: Study) -> None:
    """The tables of times and accuracies, model by model, on standard output."""
    where = where_of(study.about["machine"])
    for model, group in grouped(timings(study.rows), lambda one: one.model).items():
        show_table(timing_table(group), f"Time of an epoch{where}, {model}")
    for model, ends in grouped(finals(study.rows), lambda one: one.model).items():
        show_table(accuracy_table(ends), f"Accuracy at the end, {model}")


def show_table(sheet: Sheet, title: str) -> None:
    """A table of the report, on standard output."""
    table = Table(sheet.head[0], title=title, title_justify="left", box=box.SIMPLE)
    for name in sheet.head[1:]:
        table.add_column(name, justify="right")
    for _, entries in sheet.lines:
        table.add_row(*entries)
    Console(highlight=False, width=None if sys.stdout.isatty() else LOG_WIDTH).print(table)


def where_of(machine: dict[str, Any]) -> str:
    """On which hosts and link, if the study ran on several: ` on n1, n2 (10.77.0.0/24, 100 Mbit/s)`."""
    return f" on {machine['hosts']} ({machine['link']})" if "hosts" in machine else ""
