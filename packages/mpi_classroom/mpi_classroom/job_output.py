"""What an MPI job wrote, read by whoever started it: events, results, its last error, and how ranks died.

A rank reports in one of two ways: a line of JSON for every event in a file of its own (`read_events`), or
marked lines of JSON on standard output (`marked_lines`). How a rank died is known only from what Open MPI's
mpiexec says about it; all of its sentences that we understand are in this file.
"""

import json
import re
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mpi_classroom.snapshot import Death

Event = dict[str, Any]

# mpiexec breaks its lines, so these are searched in text whose white space is single blanks.
_ABORTED = (
    # The rank in this sentence is that of the communicator; after `Proc:` it is that of the job.
    re.compile(r"MPI_ABORT was invoked on rank .{0,200}? Proc: \[\[\d+,\d+\],(?P<rank>\d+)\]"),
    re.compile(r"due to process rank (?P<rank>\d+) .{0,200}?calling \"abort\""),
)
_SIGNALLED = (re.compile(r"rank (?P<rank>\d+) .{0,200}?exited on signal (?P<signal>\d+)"),)
_LEFT = (re.compile(r"process rank (?P<rank>\d+) .{0,200}?exiting improperly"),)
_EXITED = (re.compile(r"Process name: \[\S*?(?:@(?P<job>\d+))?,(?P<rank>\d+)\] Exit code: *(?P<code>\d+)"),)
# Open MPI aborts a rank after an error that nobody handles, such as a lost connection to a rank that died.
_FATAL = re.compile(
    r"An error occurred in (?P<call>\S+(?: closed)?) \S+ \*\*\* reported by process \[\d+,(?P<rank>\d+)\]"
)
_LOST_CONNECTION = "Socket closed"  # in the place of a call
_LOST_DAEMON = re.compile(r"Remote daemon: \[\S+\] on node (\S+)")
_ERROR = re.compile(r"^(?:\w+\.)*(\w*(?:Error|Exception|Exit|Interrupt)\b.*)$", re.MULTILINE)


CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE)


def read_deaths(output: str) -> list[Death]:
    """The ranks that died, each once, from the output of a job; mpiexec reports the first only, mostly."""
    text = " ".join(output.split())
    found: dict[tuple[int, int], Death] = {}
    followed = _followed(text)
    for match in _all(_ABORTED, text):
        if int(match["rank"]) not in followed:
            _add(found, Death(int(match["rank"]), "abort"))
    for match in _all(_SIGNALLED, text):
        number = int(match["signal"])
        _add(found, Death(int(match["rank"]), "crash" if number in CRASHES else "signal", number))
    for match in _all(_EXITED, text):
        job = int(match["job"] or 1)
        _add(found, Death(int(match["rank"]), "exit", exit_code=int(match["code"]), job=job))
    for match in _all(_LEFT, text):
        _add(found, Death(int(match["rank"]), "left"))
    return list(found.values())


def unexplained_abort(output: str) -> set[int] | None:
    """The ranks that lost a connection, if the abort of a rank that did not call Abort ended the job.

    The set may be empty or lack some, because the end of a job may cut off the output of its ranks. None if
    mpiexec says who died, and if no abort ended the job.
    """
    text = " ".join(output.split())
    called, reported = ({int(match["rank"]) for match in each.finditer(text)} for each in _ABORTED)
    failed = {int(match["rank"]) for match in _FATAL.finditer(text) if match["call"] != _LOST_CONNECTION}
    if not reported - called - failed or any(_all((*_SIGNALLED, *_EXITED, *_LEFT), text)):
        return None
    return _followed(text)


def node_without_daemon(output: str) -> str:
    """The node whose daemon mpiexec has lost, because the node died or the daemon did; "" if it lost none."""
    found = _LOST_DAEMON.search(" ".join(output.split()))
    return found[1] if found else ""


def _followed(text: str) -> set[int]:
    return {int(match["rank"]) for match in _FATAL.finditer(text) if match["call"] == _LOST_CONNECTION}


def _all(patterns: Iterable[re.Pattern[str]], text: str) -> Iterable[re.Match[str]]:
    return (match for pattern in patterns for match in pattern.finditer(text))


def _add(found: dict[tuple[int, int], Death], death: Death) -> None:
    found.setdefault((death.job, death.rank), death)


def last_error(output: str) -> str:
    """The last exception that Python named, without its module, and its message; "" if there is none."""
    errors = _ERROR.findall(output)
    return errors[-1].strip() if errors else ""


def last_line(output: str) -> str:
    """The last line that is neither empty nor a rule of dashes; "" if there is none."""
    return next((line for line in reversed(output.splitlines()) if line.strip(" -\t")), "")


def event_file(folder: Path, rank: int) -> Path:
    """Where rank `rank` of a job writes its events."""
    return folder / f"rank-{rank}.jsonl"


def read_events(folder: Path, rank: int) -> list[Event]:
    """The events that a rank has written so far; a line that it is still writing is left out."""
    path = event_file(folder, rank)
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def marked_lines(output: str, mark: str) -> list[Any]:
    """The values that a job printed as JSON in lines that begin with `mark`, in their order."""
    return [json.loads(line.removeprefix(mark)) for line in output.splitlines() if line.startswith(mark)]
