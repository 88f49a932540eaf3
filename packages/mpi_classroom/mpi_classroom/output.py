"""What the ranks print, shown while they print it, and who waits for what when it takes long."""

from collections.abc import Sequence
from typing import Any

from IPython.display import display

from mpi_classroom.text_only import settled

SHOWN_CHARACTERS = 200_000  # of one rank's output


class LiveOutput:
    """What the ranks print, shown while they print it: one growing output per rank and stream."""

    def __init__(self, result: Any, ranks: Sequence[int]) -> None:
        self.result, self.ranks = result, ranks
        self.handles: dict[tuple[str, int], Any] = {}
        self.shown: dict[tuple[str, int], int] = {}
        self.displayed = dict.fromkeys(ranks, 0)
        self.status_text, self.status_handle = "", None

    def update(self, final: bool = False) -> None:
        """Show what is new since the last call."""
        for stream in ("stdout", "stderr"):
            for rank, text in zip(self.ranks, self.result[stream], strict=True):
                self._show(stream, rank, text)
        for rank, outputs in zip(self.ranks, self.result["outputs"], strict=True):
            for content in outputs[self.displayed[rank] :]:
                display({"text/plain": f"[output:{rank}]"}, raw=True)
                display(content["data"], raw=True, metadata=content.get("metadata"))
            self.displayed[rank] = len(outputs)
        if final and self.status_handle is not None:
            self.status_handle.update({"text/plain": f"({self.status_text.partition(' · ')[0]})"}, raw=True)

    def _show(self, stream: str, rank: int, text: str) -> None:
        key = stream, rank
        if len(text) == self.shown.get(key, 0):
            return
        self.shown[key] = len(text)
        text = clip(settled(text)).rstrip()
        bundle = {"text/plain": f"[{stream}:{rank}] {text}"}
        if key in self.handles:
            self.handles[key].update(bundle, raw=True)
        else:
            self.handles[key] = display(bundle, raw=True, display_id=True)

    def status(self, text: str) -> None:
        """Show the time so far and who waits for what, instead of what was shown before."""
        self.status_text = text
        bundle = {"text/plain": text}
        if self.status_handle is None:
            self.status_handle = display(bundle, raw=True, display_id=True)
        else:
            self.status_handle.update(bundle, raw=True)


def clip(text: str) -> str:
    """`text`, without its middle when it is longer than a notebook can show."""
    if len(text) <= SHOWN_CHARACTERS:
        return text
    half = SHOWN_CHARACTERS // 2
    return f"{text[:half]}\n… {len(text) - 2 * half:,} characters not shown …\n{text[-half:]}"
