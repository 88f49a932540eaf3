"""Messages that were sent in a cell and that nobody received: they would be taken for later ones.

A message may be sent in one cell and received in the next: then a note is enough. When a rank raised, its
partners' messages to it are left over, and the cell will be run again: then they are thrown away.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from mpi_classroom.recording.calls import Counts, Letter, read_counts

SHOWN = 3


def counts(folder: Path, ranks: Sequence[int]) -> dict[int, Counts]:
    """What each of `ranks` has begun, sent and received since it was started."""
    return {rank: read_counts(folder, rank) for rank in ranks}


def moved(before: Mapping[int, Counts], after: Mapping[int, Counts]) -> bool:
    """Whether messages were sent or received in this cell."""
    return any(
        (c.sent, c.received) != (before[rank].sent, before[rank].received) for rank, c in after.items()
    )


def outstanding(counts: Mapping[int, Counts]) -> bool:
    """Whether more messages have been sent so far than received, as far as is known from counting."""
    return sum(count.sent - count.received for count in counts.values()) > 0


def note(letters: Sequence[Letter]) -> str:
    """One sentence on messages that are still on their way."""
    one = len(letters) == 1
    return (
        f"{_messages(letters)} {'was' if one else 'were'} sent and not received yet: {_list(letters)}. "
        f"The next receive that fits takes {'it' if one else 'the oldest'}."
    )


def thrown_away(letters: Sequence[Letter]) -> str:
    """One sentence on messages that are no more."""
    was = "was" if len(letters) == 1 else "were"
    return f"{_messages(letters)} that nobody had received {was} thrown away: {_list(letters)}."


def _messages(letters: Sequence[Letter]) -> str:
    return f"{len(letters)} message{'s' * (len(letters) > 1)}"


def _list(letters: Sequence[Letter]) -> str:
    words = [
        f"rank {letter.source} → rank {letter.dest}, tag {letter.tag}, {letter.nbytes:,} bytes"
        for letter in letters[:SHOWN]
    ]
    return "; ".join(words) + (f" and {len(letters) - SHOWN} more" if len(letters) > SHOWN else "")
