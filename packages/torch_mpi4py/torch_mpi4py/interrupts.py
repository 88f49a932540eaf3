"""Ctrl-C at a moment when it may not tear a collective apart.

Once all ranks have begun to move data, each has to finish its part: one that leaves in the middle leaves the
others waiting. So SIGINT is noted there and delivered afterwards. Python runs signal handlers in the main
thread only; other threads have nothing to defer.
"""

import _signal  # type: ignore[import-not-found]  # 10 us faster than signal, which makes enumerations
import threading
from signal import SIGINT
from types import FrameType, TracebackType
from typing import Any

NUMBER = int(SIGINT)


class Deferred:
    """`with deferred:` holds SIGINT back until the end of the block. One per channel; blocks do not nest."""

    def __init__(self) -> None:
        self.handler: Any = None  # the one to call afterwards; None while nothing is deferred
        self.pending = False  # has somebody pressed Ctrl-C since the block began?
        self.frame: FrameType | None = None
        self.main = threading.main_thread().ident

    def note(self, _number: int, frame: FrameType | None) -> None:
        self.pending, self.frame = True, frame

    def __enter__(self) -> "Deferred":
        if threading.get_ident() == self.main:
            handler = _signal.getsignal(NUMBER)
            if callable(handler):  # else the system's own: it ignores the signal or ends the process
                self.handler = handler
                _signal.signal(NUMBER, self.note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if threading.get_ident() != self.main:
            return
        handler, frame, pending = self.handler, self.frame, self.pending
        self.restore()
        if pending:
            handler(NUMBER, frame)

    def restore(self) -> None:
        """Put the handler back; twice does no harm (another signal's handler may have raised)."""
        if self.handler is not None and threading.get_ident() == self.main:
            _signal.signal(NUMBER, self.handler)
            self.handler, self.frame, self.pending = None, None, False
