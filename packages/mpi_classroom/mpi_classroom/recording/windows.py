"""One-sided calls: whether they are inside an epoch, and which places of a window they touch.

In an epoch between two `Fence`s MPI puts no order on what different ranks do: two that write to one place
leave either value, or a mixture.
"""

import sys
from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from mpi_classroom.recording import checks, record
from mpi_classroom.recording.log import line_of, log
from mpi_classroom.recording.signatures import signature

ACCESSES = (  # name → position of the target rank
    *("Put", "Get", "Accumulate", "Rput", "Rget", "Raccumulate"),
    *("Get_accumulate", "Rget_accumulate", "Fetch_and_op", "Compare_and_swap"),
)
_RANK_AT = {"Get_accumulate": 2, "Rget_accumulate": 2, "Fetch_and_op": 2, "Compare_and_swap": 3}


class Epochs:
    """The epochs of a window that are open on this rank."""

    _checked: Any = None  # the context of the window; None: its calls are not compared
    _fenced = _all = _group = False
    _locked: frozenset[int] = frozenset()


def _fence(window: Any, args: Any, kwargs: Any) -> None:
    assertion = args[0] if args else kwargs.get("assertion", 0)
    window._fenced = not assertion & MPI.MODE_NOSUCCEED
    if window._checked is not None:
        log.add(("f", window._checked))


def _set(name: str, value: bool) -> Callable[[Any, Any, Any], None]:
    return lambda window, args, kwargs: setattr(window, name, value)


def _lock(window: Any, args: Any, kwargs: Any) -> None:
    window._locked |= {args[0] if args else kwargs["rank"]}


def _unlock(window: Any, args: Any, kwargs: Any) -> None:
    window._locked -= {args[0] if args else kwargs["rank"]}


EPOCHS: dict[str, Callable[[Any, Any, Any], None]] = {  # what each call changes, once it has returned
    "Fence": _fence,
    "Lock": _lock,
    "Unlock": _unlock,
    "Lock_all": _set("_all", True),
    "Unlock_all": _set("_all", False),
    "Start": _set("_group", True),
    "Complete": _set("_group", False),
    "Free": lambda window, args, kwargs: checks.freed(window),
}


def changing(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """`call`, which begins or ends an epoch."""
    change = EPOCHS[name]

    def changed(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = call(self, *args, **kwargs)
        change(self, args, kwargs)
        return result

    return record.as_original(call, changed)


def accessing(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """`call`, which reads or writes another rank's part of the window, with a look at the epochs."""
    rank_at = _RANK_AT.get(name, 1)

    def access(self: Any, *args: Any, **kwargs: Any) -> Any:
        rank = args[rank_at] if len(args) > rank_at else kwargs.get("target_rank")
        if self._checked is not None and rank is not None and rank != MPI.PROC_NULL:
            line = line_of(sys._getframe(1))
            if not (self._fenced or self._all or self._group or rank in self._locked):
                log.find("no epoch", name, line)
            elif self._fenced and name in ("Put", "Get", "Accumulate"):
                _note_place(self, name, line, rank, args, kwargs)
        return call(self, *args, **kwargs)

    return record.as_original(call, access)


def _note_place(window: Any, name: str, line: Any, rank: int, args: Any, kwargs: Any) -> None:
    target = args[2] if len(args) > 2 else kwargs.get("target")
    if target is not None and not _is_place(target):
        return  # a type of its own: its bytes may lie apart
    at = target if isinstance(target, int) else target[0] if target else 0
    nbytes = signature(args[0] if args else kwargs.get("origin"))[1]
    start = at * window.Get_attr(MPI.WIN_DISP_UNIT)
    operator = args[3] if len(args) > 3 else kwargs.get("op", MPI.SUM)
    kind = f"{name} {operator.py2f()}" if name == "Accumulate" else name
    owner = (window._ranks or record.learn_ranks(window))[rank]
    log.add(("w", window._checked, owner, start, start + nbytes, kind, line))


def _is_place(target: Any) -> bool:
    numbers = target if isinstance(target, list | tuple) else [target]
    return len(numbers) < 3 and all(isinstance(number, int) for number in numbers)
