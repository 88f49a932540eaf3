"""What the ranks of an exercise's job wrote, read while they run: a line of JSON for every event.

`ready`, then for every step (a case on some number of ranks) `began` and one of `right`, `wrong` or `raised`,
at last `done`. `returned` means that the function did, and that the rank waits for the others.
"""

import base64
from pathlib import Path

from mpi_classroom.job_output import Event, read_events

OUTCOMES = ("right", "wrong", "raised")


class RankLog:
    """The events of all ranks, by rank; step 0 is the learner's cell itself, cases count from 1."""

    def __init__(self, folder: Path, ranks: int) -> None:
        self.folder = folder
        self.events: dict[int, list[Event]] = {rank: [] for rank in range(ranks)}

    def read(self) -> None:
        """Read again what the ranks have written until now."""
        for rank in self.events:
            self.events[rank] = read_events(self.folder, rank)

    @property
    def everything(self) -> list[Event]:
        """The events of all ranks."""
        return [event for events in self.events.values() for event in events]

    @property
    def ready(self) -> bool:
        """Whether all ranks have started."""
        return all(self.events.values())

    @property
    def loaded(self) -> bool:
        """Whether the cell itself ran to its end on all ranks."""
        return any(event["event"] == "began" for event in self.everything)

    @property
    def done(self) -> bool:
        """Whether all ranks have run all cases."""
        return self.ready and all(events[-1]["event"] == "done" for events in self.events.values())

    @property
    def last_step(self) -> int:
        """The step that the fastest rank has reached."""
        return max((event["step"] for event in self.everything), default=0)

    @property
    def first_failure(self) -> int | None:
        """The first step that failed on some rank."""
        failed = [event["step"] for event in self.everything if event["event"] in ("wrong", "raised")]
        return min(failed, default=None)

    def began(self, step: int) -> Event:
        """How a step began: `size`, `case`, `pause`."""
        found = [event for event in self.everything if event["event"] == "began" and event["step"] == step]
        return found[0] if found else {"size": len(self.events), "case": 0, "pause": False}

    def size(self, step: int) -> int:
        """On how many ranks a step runs."""
        return int(self.began(step)["size"])

    def outcomes(self, step: int) -> dict[int, Event | None]:
        """The outcome of a step on every rank that takes part; None where there is none yet."""
        return {rank: self._event(step, rank, *OUTCOMES) for rank in range(self.size(step))}

    def returned(self, step: int, rank: int) -> bool:
        """Whether the learner's function returned on this rank, in whatever way."""
        return self._event(step, rank, "returned", *OUTCOMES) is not None

    def calls(self, step: int) -> dict[int, bytes]:
        """What the ranks noted of their MPI calls in a step (see `recording.log`)."""
        found = {rank: self._event(step, rank, "calls") for rank in self.events}
        return {rank: base64.b64decode(event["log"]) for rank, event in found.items() if event}

    def pid(self, rank: int) -> int:
        """The process of this rank; 0 while it is not known."""
        return int(next((event["pid"] for event in self.events[rank] if "pid" in event), 0))

    def _event(self, step: int, rank: int, *names: str) -> Event | None:
        found = [e for e in self.events[rank] if e["step"] == step and e["event"] in names]
        return found[0] if found else None
