"""The `course` command. Heavy imports are inside the commands, so that `course --help` answers at once."""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from mpi_classroom.check import Check
    from mpi_classroom.network import Lab

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Run, check and look after the course: distributed deep learning on a real MPI cluster.",
    epilog="Name a lesson by its number or its file: 4, 04 or 04_collectives.",
)
lab_network = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Let this machine play several nodes, joined by links as slow as you like.",
)
app.add_typer(lab_network, name="lab-network")
Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="LESSON", help="For example 4, 04 or 04_collectives."),
]
INTERRUPTED = 130


@contextlib.contextmanager
def one_sentence() -> Iterator[None]:
    """Show an error that a learner can meet as one sentence on standard error, without a traceback."""
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
        from course.version import course_version

        typer.echo(f"course {course_version()}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_show_version,
            is_eager=True,
            help="Show the version and the commit, and exit.",
        ),
    ] = False,
) -> None:
    """Run, check and look after the course: distributed deep learning on a real MPI cluster."""


@app.command()
def run(
    lessons: Names = None,
    cell_seconds: Annotated[
        float, typer.Option(min=1, metavar="S", help="Stop a cell after S seconds.")
    ] = 180,
    lesson_seconds: Annotated[
        float, typer.Option(min=1, metavar="S", help="Stop a lesson after S seconds.")
    ] = 600,
    more: Annotated[
        bool, typer.Option("--more", help="Run the second part of each lesson as well, More.")
    ] = False,
    at_once: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Run N lessons at once.", show_default="2 where there is room"),
    ] = None,
) -> None:
    """Run the cores of all lessons, or of those you name, and save the results.

    Each lesson is saved in build/ as an executed notebook and as an HTML page. If a lesson fails, the others
    still run. The command succeeds only if all lessons do.
    """
    with one_sentence():
        from course import paths
        from course.tools.catalogue import resolve
        from course.tools.execute import how_many_at_once, run_lessons
        from course.tools.run_display import RunDisplay, summary
        from course.tools.runner import Deadlines

        chosen = resolve(lessons or [], paths.NOTEBOOKS)
        deadlines = Deadlines(cell=cell_seconds, lesson=lesson_seconds)
        at_once = at_once or how_many_at_once()
        display = RunDisplay(chosen, more, at_once)
        interrupted = False
        try:
            with display:
                run_lessons(chosen, display, at_once, build=paths.BUILD, deadlines=deadlines, more=more)
        except KeyboardInterrupt:
            interrupted = True
        display.end()
        results = display.results
        typer.echo("\n" + summary(results, len(chosen), display.seconds, more))
        if interrupted:
            raise typer.Exit(INTERRUPTED)
        raise typer.Exit(0 if all(result.ok for result in results) else 1)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def lab(
    context: typer.Context,
    browser: Annotated[bool, typer.Option(help="Whether to open a browser.")] = True,
    port: Annotated[
        int,
        typer.Option(
            min=1, max=65535, metavar="PORT", help="Port to use; if it is taken, the next free one."
        ),
    ] = 8888,
) -> None:
    """Open JupyterLab on my_course/, your copy of the lessons.

    New lessons are added to your copy. Nothing in it is ever overwritten. Options after `--` are passed on to
    JupyterLab.
    """
    with one_sentence():
        from course import paths
        from course.tools.copies import update_copies
        from course.tools.jupyter import lab_command, lab_environment, port_in_use

        for sentence in update_copies(paths.NOTEBOOKS, paths.MY_COURSE).sentences():
            typer.echo(sentence)
        if "JUPYTERHUB_SERVICE_URL" not in os.environ and port_in_use(port):
            typer.echo(f"Port {port} is in use. JupyterLab takes the next free port and shows its address.")
        sys.stdout.flush()
        command = lab_command(port, browser, context.args, paths.MY_COURSE)
        os.execve(command[0], command, lab_environment())


@app.command()
def reset(
    lessons: Names = None,
    all_: Annotated[bool, typer.Option("--all", help="Reset all lessons.")] = False,
) -> None:
    """Get a fresh copy of a lesson; keep your old one beside it.

    The name of your old copy gets the time: my_course/04_collectives.2026-11-20-1530.ipynb.
    """
    if bool(lessons) == all_:
        raise typer.BadParameter("name the lessons to reset, or use --all")
    with one_sentence():
        from course import paths
        from course.tools.copies import reset_copies

        for path, aside in reset_copies(lessons or [], paths.NOTEBOOKS, paths.MY_COURSE):
            kept = f"; your old copy is {aside.name}" if aside else ""
            typer.echo(f"my_course/{path.name} is fresh{kept}")
        typer.echo("If it is open in JupyterLab: File → Reload Notebook from Disk.")


@app.command()
def progress(
    lessons: Names = None,
    export: Annotated[
        str, typer.Option("--export", metavar="FILE", help="Write it to a file instead: .csv or .json.")
    ] = "",
) -> None:
    """Show which exercises you have passed.

    Your progress is saved in my_course/.progress.json on this machine. Nothing is sent. What you passed in
    an earlier edition of the lessons is kept under its old names. An export names neither you nor this
    machine; docs/progress.md says what it is evidence of.
    """
    with one_sentence():
        from pathlib import Path

        from course import paths
        from course.tools.catalogue import resolve
        from course.version import EDITION
        from mpi_classroom.progress import export_progress, read_progress, report

        notes = read_progress(paths.MY_COURSE / ".progress.json", EDITION)
        titles = {lesson.number: lesson.title for lesson in resolve(lessons or [], paths.NOTEBOOKS)}
        if export:
            rows = export_progress(notes, titles, Path(export))
            typer.echo(f"{export}: {rows} exercises, questions and predictions.")
            return
        for line in report(notes, titles):
            typer.echo(line)
        if not notes:
            typer.echo("Nothing is saved yet. Run your first exercise, and it appears here.")


@app.command()
def schedule(
    track: Annotated[
        str, typer.Argument(metavar="TRACK", help="For example: two hours, three hours, one day.")
    ] = "three hours",
    start: Annotated[str, typer.Option(metavar="TIME", help="When it begins.")] = "09:00",
    afternoon: Annotated[
        str, typer.Option(metavar="TIME", help="When afternoons begin, if not an hour after the morning.")
    ] = "",
) -> None:
    """Print the schedule of a workshop, with a clock.

    It counts on the minutes that the core of each lesson takes.
    """
    with one_sentence():
        from course.tools.schedule import find_track, lines_of

        for line in lines_of(find_track(track), start, afternoon):
            typer.echo(line)


@app.command()
def quizzes(
    file: Annotated[str, typer.Argument(metavar="FILE", help="For example quizzes.csv.")] = "quizzes.csv",
) -> None:
    """Write all questions as a table: those of the lessons, with replies, and those of both tests."""
    with one_sentence():
        from pathlib import Path

        from course import paths
        from course.tools.catalogue import resolve
        from course.tools.quizzes import write_quizzes

        typer.echo(f"{file}: {write_quizzes(Path(file), resolve([], paths.NOTEBOOKS))} questions.")


@app.command()
def fetch(
    sets: Annotated[
        list[str] | None,
        typer.Argument(metavar="SET", help="mnist, cifar10, cnn_dailymail or smollm2. [default: mnist]"),
    ] = None,
) -> None:
    """Download data sets, for example before a workshop.

    mnist takes 12 MB and cifar10 170 MB. smollm2 is a language model: 98 MB, and 540 MB where it is
    kept. cnn_dailymail cannot be downloaded; the command shows which files to put where. Without
    mnist or cifar10, lessons draw similar images. If you have the files already, set COURSE_DATA to
    their folder.
    """
    with one_sentence():
        from course.tools import smollm2
        from course_lib.data import cifar10, cnn_dailymail, mnist
        from course_lib.data.storage import DataError

        fetchers = {
            "mnist": mnist.fetch_mnist,
            "cifar10": cifar10.fetch_cifar10,
            "cnn_dailymail": lambda: cnn_dailymail.load_news().source,
            "smollm2": smollm2.fetch_smollm2,
        }
        if unknown := set(sets or []) - fetchers.keys():
            raise typer.BadParameter(
                f"there is no data set {', '.join(sorted(unknown))}; there are {', '.join(fetchers)}"
            )
        failed = False
        for name in sets or ["mnist"]:
            try:
                typer.echo(fetchers[name]())
            except DataError as error:
                failed = True
                typer.echo(f"course: {error}", err=True)
        raise typer.Exit(1 if failed else 0)


@app.command()
def bundle(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="For example a folder on a USB stick.")],
    platforms: Annotated[
        list[str] | None,
        typer.Option(
            "--platform", metavar="NAME", help="linux-x86_64, linux-aarch64 or macos-arm64; again for more."
        ),
    ] = None,
    pythons: Annotated[
        list[str] | None,
        typer.Option("--python", metavar="VERSION", help="For example 3.12; again for more."),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option("--data", metavar="SET", help="Add mnist or cifar10 from this machine; again for more."),
    ] = None,
    image: Annotated[
        str, typer.Option("--image", metavar="FILE", help="Add a container image that docker save wrote.")
    ] = "",
    torch_index: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Where to look for PyTorch's CPU build.")
    ] = "",
) -> None:
    """Write a folder that installs the course without a network.

    Give it to a room on USB sticks or a shared disk. `python3 install.py` in it installs the course, or says
    in one sentence what is wrong. Without options the folder is for machines like this one.
    """
    with one_sentence():
        from pathlib import Path

        from course.tools.bundle import make

        make.make_bundle(
            Path(folder),
            systems=platforms or (),
            pythons=pythons or (),
            data=data or (),
            image=Path(image) if image else None,
            torch_index=torch_index,
            show=typer.echo,
        )
        typer.echo(
            f"{folder}: {make.total_bytes(Path(folder)) / 1e6:.0f} MB. Install from it: python3 install.py"
        )


@app.command()
def study(
    quick: Annotated[bool, typer.Option("--quick", help="Take only two minutes, on drawn digits.")] = False,
    models: Annotated[str, typer.Option(metavar="NAMES", help="Models to train, from mlp,cnn,lstm.")] = "",
    only: Annotated[
        str, typer.Option(metavar="PARTS", help="What to measure, from timing,threads,accuracy.")
    ] = "",
    ranks: Annotated[str, typer.Option(metavar="NUMBERS", help="Numbers of ranks, for example 1,2,4.")] = "",
    seeds: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Repeat each run with N seeds.")
    ] = None,
    results: Annotated[str, typer.Option(metavar="FOLDER", help="Folder for the results.")] = "",
    report_only: Annotated[
        bool, typer.Option("--report-only", help="Rewrite the report; measure nothing.")
    ] = False,
    hosts: Annotated[
        str, typer.Option(metavar="HOSTS", help="Run the ranks on these hosts: n1,n2:2, or a hostfile.")
    ] = "",
    agent: Annotated[
        str, typer.Option(metavar="COMMAND", help="What runs a command on a host, instead of ssh.")
    ] = "",
    link: Annotated[
        str, typer.Option(metavar="TEXT", help="Your name for the hosts' network, for example '100 Mbit/s'.")
    ] = "",
) -> None:
    """Measure data parallelism on this machine, or on several hosts.

    It compares one process, our own data parallelism over MPI, and DDP over Gloo
    and over MPI: seconds per epoch, speed-up, waiting and transfer, accuracy. It saves the results (CSV) and
    a report (HTML) in build/study. If you stop it, the same command continues where it stopped.
    """
    with one_sentence():
        from functools import partial
        from pathlib import Path

        from course import paths
        from course.tools.study import command
        from course.tools.study.hosts import connect_hosts
        from course.tools.study.job import StudyError

        kind = "study" + "-hosts" * bool(hosts) + "-quick" * quick
        folder = Path(results) if results else paths.BUILD / kind
        if (agent or link) and not hosts:
            raise StudyError("--agent and --link belong to --hosts; say on which hosts the ranks run")
        if report_only:
            command.report(folder)
        else:
            names, parts, counts = command.lists(models, only, ranks)
            connect = partial(connect_hosts, hosts, agent=agent, link=link) if hosts else None
            command.measure(
                folder,
                quick=quick,
                models=names,
                parts=parts,
                ranks=counts,
                seeds=seeds or 0,
                connect=connect,
            )


@app.command()
def machine(
    file: Annotated[str, typer.Option(metavar="FILE", help="Where to write the JSON.")] = "",
) -> None:
    """Measure this machine for the planner of lesson 16: operations, messages, memory.

    It takes about half a minute. Close other programs that compute, or their share is missing in what is
    measured. The result is saved in build/machine.json.
    """
    with one_sentence():
        from pathlib import Path

        from course import paths
        from course.lessons.shared.machine import measure_machine, summary

        path = Path(file) if file else paths.BUILD / "machine.json"
        for line in summary(measure_machine(path)):
            typer.echo(line)
        typer.echo(f"Saved in {path}.")


@app.command()
def clean(
    all_: Annotated[bool, typer.Option("--all", help="Also stop what is in use: clusters and labs.")] = False,
) -> None:
    """Stop clusters whose notebook or run has ended, and labs that were killed."""
    with one_sentence():
        from mpi_classroom import leftovers

        stopped = leftovers.clean(everything=all_)
        for sentence in stopped:
            typer.echo(sentence)
        if not stopped:
            typer.echo("No process was left behind.")


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for a bug report.")] = False,
) -> None:
    """Check this machine and suggest remedies.

    A line says ok, or FIX with a remedy. The checks take about ten seconds.
    """
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
            red = sum(not check.ok for check in found)
            typer.echo(
                f"\n{red} of {len(found)} checks to fix" if red else f"\nall {len(found)} checks are ok"
            )
        raise typer.Exit(0 if all(check.ok for check in found) else 1)


@lab_network.command("up")
def network_up(
    nodes: Annotated[int, typer.Argument(metavar="N", help="How many nodes.")] = 2,
    rate: Annotated[
        str | None, typer.Option(metavar="RATE", help="Limit each link, for example 100mbit or 1gbit.")
    ] = None,
    slots: Annotated[int, typer.Option(metavar="K", help="Ranks per node.")] = 1,
) -> None:
    """Make nodes n1, n2, … and leave them until `down`."""
    with one_sentence():
        from mpi_classroom import network

        if network.standing():
            raise network.NetworkError("a lab is up already; take it down first: course lab-network down")
        network.up(nodes, rate=rate, slots=slots)
        network_status()


@lab_network.command("status")
def network_status() -> None:
    """Show the nodes and how to start a job on them."""
    with one_sentence():
        from mpi_classroom import network

        lab = network.standing()
        if lab is None:
            typer.echo("No lab is up. Make one: course lab-network up 4 --rate 100mbit")
            raise typer.Exit(1)
        for line in lab.describe():
            typer.echo(line)
        typer.echo(f"Start a job: course lab-network run mpiexec -n {lab.size} COMMAND")


@lab_network.command(
    "run", context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True}
)
def network_run(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="A command and its arguments.")],
    on: Annotated[str, typer.Option(metavar="HOST", help="head, n1, n2, …")] = "head",
) -> None:
    """Run a command in the lab: mpiexec on the head, anything on a node."""
    with one_sentence():
        from mpi_classroom.launch import running_job

        lab = _standing_lab()
        with running_job(lab.on(on, command), lab.environment()) as job:
            raise typer.Exit(job.wait())


@lab_network.command("slurm")
def network_slurm() -> None:
    """Start the batch system Slurm on the nodes; it ends with the lab."""
    with one_sentence():
        from mpi_classroom.network_slurm import start_slurm

        start_slurm(_standing_lab())
        typer.echo("Submit a job: course lab-network run sbatch FILE")
        typer.echo("Look at it:   course lab-network run squeue")


@lab_network.command("rate")
def network_rate(
    rate: Annotated[
        str, typer.Argument(metavar="RATE", help="For example 250mbit; none takes the limit away.")
    ],
) -> None:
    """Change the rate of all links, also while jobs run."""
    with one_sentence():
        _standing_lab().limit(None if rate == "none" else rate)
        network_status()


@lab_network.command("down")
def network_down() -> None:
    """End the nodes and everything that runs on them."""
    with one_sentence():
        from mpi_classroom import network

        for sentence in network.down() or ["No lab is up."]:
            typer.echo(sentence)


def _standing_lab() -> "Lab":
    from mpi_classroom import network

    lab = network.standing()
    if lab is None:
        raise network.NetworkError("no lab is up; make one: course lab-network up 4 --rate 100mbit")
    return lab


def _show(check: "Check") -> None:
    typer.secho("ok   " if check.ok else "FIX  ", fg="green" if check.ok else "red", bold=True, nl=False)
    typer.echo(f"{check.name:14} {check.detail}")
    if not check.ok:
        typer.echo(f"{'':5}{'':14} → {check.remedy}")


if __name__ == "__main__":
    app()
