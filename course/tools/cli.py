"""The `course` command. Heavy imports are inside the commands, so that `course --help` answers at once."""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from course.doctor import Check

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Distributed deep learning in notebooks, on a real MPI cluster on your machine.",
    epilog="A lesson is named by its number or its file: 4, 04 or 04_collectives.",
)
Names = Annotated[list[str] | None, typer.Argument(metavar="LESSON...", help="04, 4 or 04_collectives.")]
INTERRUPTED = 130


@contextlib.contextmanager
def one_sentence() -> Iterator[None]:
    """What can go wrong on a learner's machine ends in one sentence on standard error, not in a traceback."""
    from mpi_classroom.errors import CourseError

    try:
        yield
    except (CourseError, OSError) as error:
        typer.echo(f"course: {error}", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        typer.echo("Stopped.", err=True)
        raise typer.Exit(INTERRUPTED) from None


def _show_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"course {version('course-lib')}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """Distributed deep learning in notebooks, on a real MPI cluster on your machine."""


@app.command()
def run(
    lessons: Names = None,
    cell_seconds: Annotated[
        float, typer.Option(min=1, metavar="S", help="Deadline of a cell, in seconds.")
    ] = 180,
    lesson_seconds: Annotated[float, typer.Option(min=1, metavar="S", help="Deadline of a lesson.")] = 600,
) -> None:
    """Run lessons unattended, all or some, into build/.

    The executed notebooks and a page of each are written to build/. A lesson that fails does not stop the
    others; the command succeeds only when all lessons do.
    """
    with one_sentence():
        from course import paths
        from course.tools.catalogue import resolve
        from course.tools.execute import Deadlines, run_lesson
        from course.tools.run_display import RunDisplay, summary

        chosen = resolve(lessons or [], paths.NOTEBOOKS)
        deadlines = Deadlines(cell=cell_seconds, lesson=lesson_seconds)
        display, results = RunDisplay(), []
        interrupted = False
        try:
            for lesson in chosen:
                with display.lesson(lesson):
                    results.append(
                        run_lesson(lesson, build=paths.BUILD, deadlines=deadlines, report=display.cell)
                    )
                display.done(results[-1])
        except KeyboardInterrupt:
            interrupted = True
        display.table(results)
        typer.echo("\n" + summary(results, len(chosen)))
        if interrupted:
            raise typer.Exit(INTERRUPTED)
        raise typer.Exit(0 if all(result.ok for result in results) else 1)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def lab(
    context: typer.Context,
    browser: Annotated[bool, typer.Option(help="Open the browser.")] = True,
    port: Annotated[
        int,
        typer.Option(min=1, max=65535, metavar="PORT", help="The next free one is taken when it is in use."),
    ] = 8888,
) -> None:
    """Open JupyterLab on my_course/, your own copy.

    Lessons that are new are added to it; nothing in it is ever overwritten. What follows `--` goes to
    JupyterLab as it is.
    """
    with one_sentence():
        from course import paths
        from course.tools.copies import update_copies
        from course.tools.jupyter import lab_command, lab_environment, port_in_use

        for sentence in update_copies(paths.NOTEBOOKS, paths.MY_COURSE).sentences():
            typer.echo(sentence)
        if port_in_use(port):
            typer.echo(f"Port {port} is in use; JupyterLab takes the next free one and shows its address.")
        sys.stdout.flush()
        command = lab_command(port, browser, context.args, paths.MY_COURSE)
        os.execve(command[0], command, lab_environment())


@app.command()
def reset(
    lessons: Names = None,
    all_: Annotated[bool, typer.Option("--all", help="All lessons.")] = False,
) -> None:
    """Start a lesson afresh; your old copy is kept beside it.

    The old one gets the time in its name: my_course/04_collectives.2026-11-20-1530.ipynb.
    """
    if bool(lessons) == all_:
        raise typer.BadParameter("name the lessons to reset, or say --all")
    with one_sentence():
        from course import paths
        from course.tools.copies import reset_copies

        for path, aside in reset_copies(lessons or [], paths.NOTEBOOKS, paths.MY_COURSE):
            kept = f"; your old one is {aside.name}" if aside else ""
            typer.echo(f"my_course/{path.name} is fresh{kept}")
        typer.echo("If JupyterLab has it open: File → Reload Notebook from Disk.")


@app.command()
def progress(lessons: Names = None) -> None:
    """Show which exercises you have passed.

    It is noted in my_course/.progress.json, on this machine only; nothing is sent.
    """
    with one_sentence():
        from course import paths
        from course.tools.catalogue import resolve
        from mpi_classroom.progress import read_progress, report

        notes = read_progress(paths.MY_COURSE / ".progress.json")
        titles = {lesson.number: lesson.title for lesson in resolve(lessons or [], paths.NOTEBOOKS)}
        for line in report(notes, titles):
            typer.echo(line)
        if not notes:
            typer.echo("Nothing is noted yet: it begins with the first exercise that you run.")


@app.command()
def fetch(
    sets: Annotated[
        list[str] | None,
        typer.Argument(metavar="SET...", help="mnist, cifar10 or cnn_dailymail. [default: mnist]"),
    ] = None,
) -> None:
    """Download data sets ahead of a workshop.

    mnist has 12 MB, cifar10 170 MB; of cnn_dailymail it says which files to put where. Without them lessons
    make data in their stead.
    COURSE_DATA names a folder that has them already.
    """
    with one_sentence():
        from course_lib.data import cifar10, cnn_dailymail, mnist
        from course_lib.data.storage import DataError

        fetchers = {
            "mnist": mnist.fetch_mnist,
            "cifar10": cifar10.fetch_cifar10,
            "cnn_dailymail": cnn_dailymail.fetch_news,
        }
        if unknown := set(sets or []) - fetchers.keys():
            raise typer.BadParameter(f"{', '.join(sorted(unknown))}: name some of {', '.join(fetchers)}")
        failed = False
        for name in sets or ["mnist"]:
            try:
                typer.echo(fetchers[name]())
            except DataError as error:
                failed = True
                typer.echo(f"course: {error}", err=True)
        raise typer.Exit(1 if failed else 0)


@app.command()
def study(
    quick: Annotated[bool, typer.Option("--quick", help="For the room: two minutes, drawn digits.")] = False,
    models: Annotated[str, typer.Option(metavar="NAMES", help="Some of mlp,cnn,lstm.")] = "",
    only: Annotated[str, typer.Option(metavar="PARTS", help="Some of timing,threads,accuracy.")] = "",
    ranks: Annotated[str, typer.Option(metavar="NUMBERS", help="For example 1,2,4.")] = "",
    seeds: Annotated[int | None, typer.Option(min=1, metavar="N", help="Each run is made N times.")] = None,
    results: Annotated[str, typer.Option(metavar="FOLDER", help="Where the results are kept.")] = "",
    report_only: Annotated[
        bool, typer.Option("--report-only", help="Measure nothing; write the report anew.")
    ] = False,
    zero: Annotated[bool, typer.Option("--zero", help="The stages of ZeRO: bytes and seconds.")] = False,
) -> None:
    """Measure data parallelism on this machine, in the way of the published study.

    One process, the course's own MPI, DDP over Gloo and over MPI: seconds of an epoch, speed-up, waiting
    apart from transfer, accuracy. Results (CSV) and a report (HTML) are in build/study. When it is stopped,
    the same command goes on where it was.
    """
    with one_sentence():
        from pathlib import Path

        from course import paths
        from course.tools.study import command
        from course.tools.study.job import StudyError

        kind = "study" + "-zero" * zero + "-quick" * quick
        folder = Path(results) if results else paths.BUILD / kind
        if zero and (models or only or seeds):
            raise StudyError("--zero has no --models, --only, --seeds; it has --ranks, --quick, --results")
        if zero and report_only:
            command.report_zero(folder)
        elif zero:
            command.measure_zero(folder, quick=quick, ranks=command.lists("", "", ranks)[2])
        elif report_only:
            command.report(folder)
        else:
            names, parts, counts = command.lists(models, only, ranks)
            command.measure(folder, quick=quick, models=names, parts=parts, ranks=counts, seeds=seeds or 0)


@app.command()
def clean(
    all_: Annotated[
        bool, typer.Option("--all", help="Also the clusters of notebooks that are in use.")
    ] = False,
) -> None:
    """Stop clusters that were left behind."""
    with one_sentence():
        from mpi_classroom import leftovers

        stopped = leftovers.clean(everything=all_)
        for sentence in stopped:
            typer.echo(sentence)
        if not stopped:
            typer.echo("Nothing was left behind.")


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="For a bug report.")] = False,
) -> None:
    """Check this machine: green, or red with a remedy; about ten seconds."""
    with one_sentence():
        from course import doctor as checks

        if as_json:
            import json

            found = list(checks.examine())
            typer.echo(json.dumps(checks.report(found), indent=2))
        else:
            found = []
            for check in checks.examine():
                found.append(check)
                _show(check)
        raise typer.Exit(0 if all(check.ok for check in found) else 1)


def _show(check: "Check") -> None:
    typer.secho("ok   " if check.ok else "FIX  ", fg="green" if check.ok else "red", bold=True, nl=False)
    typer.echo(f"{check.name:14} {check.detail}")
    if not check.ok:
        typer.echo(f"{'':5}{'':14} → {check.remedy}")


if __name__ == "__main__":
    app()
