"""What this rank's calls said in the present cell: one number per call, and a table of what the numbers mean.

A call in a loop says the same again and again, so the table stays small, and a million calls cost 4 MB, which
shrink to a few thousand bytes before they leave the rank. `mistakes` compares the logs of all ranks.
"""

import pickle
import sysconfig
import zlib
from array import array
from pathlib import Path
from types import FrameType
from typing import Any

LONGEST = 2_000_000  # calls
WIDEST = 100_000  # calls that differ in what they said

Line = tuple[str, int]  # file and line
_LIBRARIES = (
    *(sysconfig.get_path(name) + "/" for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    *(f"{Path(__file__).parent.parent}/", "<frozen"),
)
_own: set[str] = set()  # files whose lines are the user's
_others: set[str] = set()


class Log:
    """The log of one rank; `found` has the mistakes that it noticed by itself, and how often."""

    __slots__ = ("calls", "found", "full", "generation", "kept", "order", "table")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Begin anew."""
        self.table: dict[Any, int] = {}
        self.calls = array("I")
        self.found: dict[tuple[Any, ...], int] = {}
        self.generation: object = object()  # of the places in `calls`
        self.full = False
        self.order: dict[Line, list[int]] = {}  # who was received from, where that was any source

    def add(self, entry: Any) -> int:
        """Note a call; return its place."""
        calls, number = self.calls, self.table.get(entry)
        if number is None:
            number = self._widen(entry)
        place = len(calls)
        calls.append(number)
        if place >= LONGEST:
            self.stop()
            return 0
        return place

    def again(self, number: int) -> None:
        """Note the call with this number in the table once more."""
        self.calls.append(number)
        if len(self.calls) >= LONGEST:
            self.stop()

    def _widen(self, entry: Any) -> int:
        if len(self.table) >= WIDEST:
            self.stop()
        return self.table.setdefault(entry, len(self.table))

    def put(self, place: int, entry: Any) -> None:
        """Note what is known now of the call at `place`."""
        if place < len(self.calls):
            self.calls[place] = self._widen(entry)

    def stop(self) -> None:
        """What comes after is not compared; what was noted is."""
        if not self.full:
            self.full, self.kept = True, (self.table, self.calls)
        self.table, self.calls, self.generation = {}, array("I"), object()

    def find(self, kind: str, *details: Any) -> None:
        """Note a mistake."""
        self.found[kind, *details] = self.found.get((kind, *details), 0) + 1


log = Log()


def packed(entries: list[Any], calls: "array[int]", found: list[Any], full: bool) -> bytes:
    """A log that leaves its rank."""
    return zlib.compress(pickle.dumps((entries, calls.tobytes(), found, full)), 1)


def unpacked(data: bytes) -> tuple[list[Any], "array[int]", list[Any], bool]:
    """What `packed` was given."""
    entries, calls, found, full = pickle.loads(zlib.decompress(data))
    numbers = array("I")
    numbers.frombytes(calls)
    return entries, numbers, found, full


def line_of(frame: FrameType) -> Line:
    """The user's line that has led to `frame`: the innermost one that no library has."""
    at: FrameType | None = frame
    while at is not None:
        file = at.f_code.co_filename
        if is_own(file):
            return file, at.f_lineno
        at = at.f_back
    return frame.f_code.co_filename, frame.f_lineno


def is_own(file: str) -> bool:
    """Whether the lines of `file` are the user's."""
    if file not in _own and file not in _others:
        (_others if file.startswith(_LIBRARIES) else _own).add(file)
    return file in _own
