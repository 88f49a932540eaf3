"""The sentences on MPI mistakes: who did what in which line, and what would be right."""

import ast
import re
from collections.abc import Callable, Sequence
from typing import Any

from mpi_classroom.early_reads import early_read
from mpi_classroom.recording.calls import OPERATORS

Line = tuple[str, int]  # file and line
_LONG = {"f": "float", "i": "int", "u": "uint", "c": "complex", "b": "bool", "bf": "bfloat"}
_OPERATORS = ("an operator of its own", *OPERATORS[1:])
_NEW = ("empty", "zeros", "ones", "full", "empty_like", "zeros_like", "ones_like", "full_like", "bytearray")
LEAKS = 5  # of one line: it is in a loop, and not one over the four sizes of a check
Side = tuple[Any, str, Line]  # signature, name of the call, line


class Words:
    """Says what is wrong; `source` gives the words for a line, and its text; `text_of` the text of a file.

    Either text is "" if it is unknown.
    """

    def __init__(self, source: Callable[[Line], tuple[str, str]], text_of: Callable[[str], str]) -> None:
        self.source, self.text_of = source, text_of

    def where(self, line: Line, name: str = "") -> str:
        """The line and its text."""
        where, text = self.source(line)
        return f"{where}: {text}" if text else f"{where}: {name}" if name else where

    def with_ranks(self, text: str, ranks: Sequence[int]) -> str:
        """`text` with the ranks that it is said of, where it leaves room for them."""
        who = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
        return text.replace("{who}", who).replace("{has}", "has" if len(ranks) == 1 else "have")

    # ---------------------------------------------------------------- types

    def message(self, sender: int, sent: Side, receiver: int, received: Side) -> str:
        """A message whose types differ."""
        (what, name, line), (into, receive_name, receive_line) = sent, received
        head = (
            f"rank {sender} sent {signature(what)} ({self.where(line, name)}), and rank {receiver} received "
            f"{'it' if what == 'object' else 'them'} into {signature(into)} "
            f"({self.where(receive_line, receive_name)})."
        )
        return f"{head} {remedy(what, into)}"

    def collective(self, one: tuple[int, Any, str, Line], other: tuple[int, Any, str, Line]) -> str:
        """A collective whose types or counts differ."""
        (rank, what, name, line), (other_rank, into, other_name, other_line) = one, other
        base = name.lower()
        if rank == other_rank:
            return (
                f"rank {rank} gave {signature(what)} to {name} and received into {signature(into)} "
                f"({self.where(line, name)}). {remedy(what, into)}"
            )
        if "reduce" in base or "scan" in base:
            return (
                f"in {name} rank {rank} has {signature(what)} ({self.where(line, name)}) and rank "
                f"{other_rank} {signature(into)} ({self.where(other_line, other_name)}). {remedy(what, into)}"
            )
        return (
            f"in {name} rank {rank} sent {signature(what)} ({self.where(line, name)}), and rank {other_rank} "
            f"received into {signature(into)} ({self.where(other_line, other_name)}). {remedy(what, into)}"
        )

    def differ(self, said: str, rank: int, one: Sequence[Any], other_rank: int, other: Sequence[Any]) -> str:
        """Ranks that called another collective, or the same with another root or operator."""
        line, other_line = self.where(one[-1], one[0]), self.where(other[-1], other[0])
        if said == "name":
            return (
                f"rank {rank} called {one[0]} ({line}) and rank {other_rank} {other[0]} ({other_line}): all "
                "must call the same."
            )
        first, second = (one[1], other[1]) if said == "root" else (_OPERATORS[one[2]], _OPERATORS[other[2]])
        return (
            f"in {one[0]} rank {rank} has the {said} {first} ({line}), and rank {other_rank} has the {said} "
            f"{second} ({other_line}): all must have the same."
        )

    # ---------------------------------------------------------------- what a rank saw by itself

    def local(self, kind: str, *details: Any) -> tuple[str, str]:
        """`error` or `note`, and the sentence on what a rank noticed; `{who}` stands for its name."""
        *rest, times = details
        return getattr(self, "_" + kind.replace(" ", "_"))(*rest, times)

    def _short(
        self, name: str, line: Line, what: Any, nbytes: int, arrived: int, times: int
    ) -> tuple[str, str]:
        size = nbytes // max(_count(what), 1)
        return "note", (
            f"{{who}} received a message that fills {arrived // max(size, 1)} of the {_count(what)} elements "
            f"of its buffer ({self.where(line, name)}); the rest kept its values. A Status tells how many "
            "came: status.Get_count(...)."
        )

    def _temporary(self, name: str, line: Line, times: int) -> tuple[str, str]:
        where = self.where(line, name)
        if received_is_new(self.source(line)[1], name):
            return "note", ""  # nobody wants that content: only the time, or that it came
        return "error", (
            f"{{who}} received into a temporary copy, so the data is gone ({where}). Indexing with a "
            "list and "
            "astype, copy or reshape can make a copy: give the array a name, receive into it, then assign it."
        )

    def _received(self, name: str, line: Line, end: Line, times: int) -> tuple[str, str]:
        read = early_read(self.text_of(line[0]), line[1], end[1]) if line[0] == end[0] else None
        if read is None:
            return "note", ""
        return "error", (
            f"{{who}} read {read.name} in {self.where((line[0], read.line))} before the Wait of {name} "
            f"({self.where(line)}): until then it may hold the old values. Read it after the wait."
        )

    def _overlap(self, name: str, line: Line, times: int) -> tuple[str, str]:
        instead = "Sendrecv_replace" if "endrecv" in name else "MPI.IN_PLACE"
        return "error", (
            f"{{who}} used the same memory to send and to receive ({self.where(line, name)}). Use two "
            f"arrays, or {instead}."
        )

    def _in_use(self, name: str, line: Line, other: str, other_line: Line, times: int) -> tuple[str, str]:
        return "error", (
            f"{{who}} used memory in {name} ({self.where(line)}) that {other} ({self.where(other_line)}) "
            "still uses: wait for that request first, or use two arrays."
        )

    def _changed(self, name: str, line: Line, end: Line, nbytes: int, times: int) -> tuple[str, str]:
        return "error", (
            f"{{who}} changed the send buffer of {name} ({self.where(line)}) before the request was complete "
            f"({self.where(end)}), so other values may have been sent. Change it after the wait, or "
            "send a copy."
        )

    def _moved(self, name: str, line: Line, times: int) -> tuple[str, str]:
        return "error", (
            f"{{who}} resized or freed the buffer of {name} ({self.where(line)}) before the request was "
            "complete: MPI still used the old memory."
        )

    def _dropped(self, name: str, line: Line, times: int) -> tuple[str, str]:
        return "error", (
            f"{{who}} never waited for the request of {name} ({self.where(line)}) and {{has}} lost it: keep "
            "it, request = ..., and call request.Wait()."
        )

    def _never_waited(self, name: str, line: Line, times: int) -> tuple[str, str]:
        return "error", (
            f"{{who}} never waited for the request of {name} ({self.where(line)}): call request.Wait() "
            "before the program ends."
        )

    def _not_waited(self, name: str, line: Line, times: int) -> tuple[str, str]:
        return "note", (
            f"{{who}} {{has}} not waited yet for the request of {name} ({self.where(line)}). Until its Wait, "
            f"{'its buffer may hold anything' if 'recv' in name else 'its buffer must not change'}."
        )

    def _twice(self, name: str, line: Line, again: Line, times: int) -> tuple[str, str]:
        return "error", (
            f"{{who}} started the request of {name} ({self.where(line)}) once more ({self.where(again)}) "
            "before its Wait: wait for each start."
        )

    def _no_epoch(self, name: str, line: Line, times: int) -> tuple[str, str]:
        return "error", (
            f"{{who}} called {name} outside an epoch ({self.where(line, name)}): put it between two Fence, "
            "or between Lock and Unlock."
        )

    def _leak(self, name: str, line: Line, times: int) -> tuple[str, str]:
        if times < LEAKS or not self.source(line)[1]:  # a library's line is not the learner's to change
            return "note", ""
        what = "window" if name.startswith("Win") else "communicator"
        return "note", (
            f"{{who}} made {times} {what}s with {name} ({self.where(line)}) and lost them unfreed: call "
            f"Free() when a {what} is not needed any more."
        )

    def same_place(
        self, target: int, one: Sequence[Any], rank: int, other: Sequence[Any], other_rank: int
    ) -> str:
        """Two ranks at one place of a window in one epoch."""
        (name, line), (other_name, other_line) = one[2:], other[2:]
        name, other_name = name.split()[0], other_name.split()[0]
        return (
            f"rank {rank}'s {name} ({self.where(line)}) and rank {other_rank}'s {other_name} "
            f"({self.where(other_line)}) touch the same place of rank {target}'s window in one epoch: their "
            "order is not defined."
        )

    def other_order(self, rank: int, line: Line, once: Sequence[int], again: Sequence[int]) -> str:
        """Messages from any source that came in another order the second time."""
        first, second = (", ".join(map(str, order[:8])) for order in (once, again))
        return (
            f"rank {rank} received from any source ({self.where(line)}) in the order {first} the first time "
            f"and {second} the second time: a result that depends on the order differs from run to run. Name "
            "the source, or put what came in its place by status.source."
        )

    def never_received(self, sender: int, receiver: int, tag: int, name: str, line: Line) -> str:
        """A message that nobody received."""
        where = self.where(line, name)
        return (
            f"rank {sender} sent a message to rank {receiver}, tag {tag} ({where}), that was never received."
        )

    def full(self) -> str:
        """More calls than are compared."""
        return "{who} made so many MPI calls, or so many different ones, that only the first were compared."


def signature(what: Any) -> str:
    """A signature in words: `4 float64`."""
    if what == "object":
        return "a Python object"
    if what is None or isinstance(what, str):
        return "nothing"
    runs, count = what
    count = sum(count) if isinstance(count, tuple) else count
    words = [f"{n * (count if len(runs) == 1 else 1):,} {type_word(name)}" for name, n in runs[:4]]
    more = " …" if len(runs) > 4 else ""
    return f"{count:,} × ({', '.join(words)}{more})" if len(runs) > 1 else words[0] if words else "nothing"


def type_word(name: str) -> str:
    """`float64` for `f8`."""
    kind, size = name.rstrip("0123456789"), int(re.sub(r"\D", "", name) or 1)
    if name == "V1":
        return "bytes"
    return "bool" if kind == "b" else f"{_LONG.get(kind, kind)}{8 * size}"


def received_is_new(text: str, name: str) -> bool:
    """Whether line `text` makes the memory that the call `name` receives into: nobody wants what comes."""
    try:
        nodes = [*ast.walk(ast.parse(text))]
    except SyntaxError:
        return False
    at = 3 if "endrecv" in name else 0 if name in ("Recv", "Irecv", "Bcast", "Ibcast", "Recv_init") else 1
    for node in nodes:
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == name:
            given = [k.value for k in node.keywords if k.arg in ("recvbuf", "buf")] or node.args[at : at + 1]
            return any(
                isinstance(each, ast.Call)
                and getattr(each.func, "attr", getattr(each.func, "id", "")) in _NEW
                for each in given
            )
    return False


def _count(what: Any) -> int:
    if what is None or isinstance(what, str):
        return 1
    runs, count = what
    return (sum(count) if isinstance(count, tuple) else int(count)) * sum(n for _, n in runs)


def remedy(what: Any, into: Any) -> str:
    """What would be right."""
    if "object" in (what, into):
        return "Small letters send objects, capitals arrays: `send` pairs with `recv`, `Send` with `Recv`."
    one, other = ({name for name, _ in side[0]} for side in (what, into))
    if one == other:
        order = len(one) > 1 and _count(what) == _count(into)
        return f"Give both {'types their parts in the same order' if order else 'the same count'}."
    names = " and ".join(sorted({type_word(name) for name in one | other}))
    example = ""
    if {name[0] for name in one | other} == {"i", "f"}:
        example = ", e.g. np.arange(4.0) or dtype=np.float64 on both sides"
    return (
        f"MPI copies bytes and converts nothing, and the same bytes are different numbers in {names}. "
        f"Make both the same{example}."
    )
