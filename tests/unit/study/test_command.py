"""`course study` with real ranks on drawn digits: the sample that CI runs, stopped twice on its way."""

import csv
import re
import signal
import subprocess
import sys
import time

import psutil
import pytest
from rows import PROGRAM
from typer.testing import CliRunner

from course.lessons.l07_ddp_on_mnist.study_results import MEASUREMENTS, REPORT, load
from course.tools import cli
from mpi_classroom.leftovers import RUN
from mpi_classroom.processes import marked_processes

SAMPLE = ("study", "--quick", "--only", "timing,accuracy", "--ranks", "2")


def course(*arguments):
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


def start(folder, *arguments):
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *SAMPLE, "--results", str(folder), *arguments],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background ignores it
    )


def wait_for(condition, seconds=250):
    end = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)
    return result


def ranks_of(process):
    """The Python processes that mpiexec has started for this study."""
    try:
        found = psutil.Process(process.pid).children(recursive=True)
        return [
            one for one in found if "course.tools.study.rank" in one.cmdline() and "-n" not in one.cmdline()
        ]
    except psutil.Error:
        return []


def lines_of(folder):
    try:
        with open(folder / MEASUREMENTS, newline="") as file:
            return list(csv.reader(file))[1:]
    except FileNotFoundError:
        return []


@pytest.mark.timeout(900)  # half a minute on a quiet machine
@pytest.mark.release
def test_a_study_survives_a_killed_rank_and_an_interrupt_and_measures_nothing_twice(tmp_path):
    killed = start(tmp_path)
    wait_for(lambda: len(lines_of(tmp_path)) >= 2)
    wait_for(lambda: ranks_of(killed)[1:])[0].kill()
    output, _ = killed.communicate(timeout=250)
    assert killed.returncode == 1
    (sentence,) = [line for line in output.splitlines() if line.startswith("course: ")]
    assert re.fullmatch(
        r"course: rank \d was killed \(signal 9: .*\), during .*; "
        r"the \d+ runs measured so far are kept, and the same command goes on from there",
        sentence,
    )
    assert "Traceback" not in output
    first = lines_of(tmp_path)

    stopped = start(tmp_path)
    wait_for(lambda: ranks_of(stopped))
    stopped.send_signal(signal.SIGINT)
    output, _ = stopped.communicate(timeout=250)
    assert stopped.returncode == 130
    assert output.splitlines()[-1] == "Stopped."
    assert not [one for one, marks in marked_processes(RUN) if marks[RUN].startswith(f"{stopped.pid}:")]
    second = lines_of(tmp_path)
    assert [line for line in second if line in first] == first

    last = start(tmp_path)
    output, _ = last.communicate(timeout=400)
    assert last.returncode == 0, output
    total = int(re.search(rf"{len(second)} of (\d+) runs are here already", output)[1])
    lines = lines_of(tmp_path)
    assert [line for line in lines if line in second] == second
    rows = load(tmp_path).rows
    assert len(rows) == len({row.case for row in rows}) == total
    assert {(row.engine, row.label) for row in rows if row.part == "timing" and row.ranks == 2} == {
        ("mpi", "measured" if rows[0].cores > 1 else "oversubscribed"),
        ("ddp-gloo", "measured" if rows[0].cores > 1 else "oversubscribed"),
        ("ddp-mpi4py", "measured" if rows[0].cores > 1 else "oversubscribed"),
        ("mpi", "replayed"),
    }
    check_rows(rows)
    check_report((tmp_path / REPORT).read_text())


def check_rows(rows):
    """What has to be so on any machine."""
    for row in rows:
        parts = row.compute_seconds + row.wait_seconds + row.transfer_seconds
        assert row.epoch_seconds > 0
        assert parts <= 1.05 * row.epoch_seconds + 0.05
        if row.engine == "sequential":
            assert (row.wait_seconds, row.transfer_seconds) == (0, 0)
    same = [row for row in rows if row.part == "timing" and not row.replayed and row.threads == 1]
    losses = [row.train_loss for row in same]
    assert max(losses) - min(losses) < 1e-3  # all engines compute the same training


def check_report(text):
    """One file with figures that have alt texts, the tables, and the published figures."""
    assert len(re.findall(r'<img [^>]*alt="[^"]{60,}"', text)) == text.count("<img ") >= 4
    links = re.findall(r' (?:src|href)="([^"]*)"', text)
    assert links and all(link.startswith("data:image/svg+xml;base64,") for link in links)
    assert text.count("<table") == 3
    assert "Published" in text
    assert "replayed" in text
    assert len(text) < 3_000_000


def test_an_unknown_model_ends_in_one_sentence_that_names_the_known_ones(tmp_path):
    done = course("study", "--quick", "--models", "resnet50", "--results", tmp_path / "new")
    assert done.exit_code == 1
    assert done.stderr == "course: there is no model 'resnet50'; choose from mlp, cnn, lstm\n"
    assert not (tmp_path / "new").exists()
