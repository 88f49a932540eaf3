"""Messages that were sent in a cell and that nobody received: they would be taken for later ones.

A message may be sent in one cell and received in the next: then a note is enough. When a rank raised, its
partners' messages to it are left over, and the cell will be run again: then they are discarded.
"""

from collections.abc import Mapping, Sequence

from mpi_classroom.recording.calls import Counts, Message

SHOWN = 3


def moved(before: Mapping[int, Counts], after: Mapping[int, Counts]) -> bool:
    """Whether messages were sent or received in this cell."""
    return any(
        (c.sent, c.received) != (before[rank].sent, before[rank].received) for rank, c in after.items()
    )


def outstanding(counts: Mapping[int, Counts]) -> bool:
    """Whether more messages have been sent so far than received, as far as is known from counting."""
    return sum(count.sent - count.received for count in counts.values()) > 0


def note(messages: Sequence[Message]) -> str:
    """One sentence on messages that are still on their way."""
    one = len(messages) == 1
    return (
        f"{_messages(messages)} {'was' if one else 'were'} sent and not received yet: {_list(messages)}. "
        f"The next receive that fits takes {'it' if one else 'the oldest'}."
    )


def discarded(messages: Sequence[Message]) -> str:
    """One sentence on messages that are no more."""
    was = "was" if len(messages) == 1 else "were"
    return f"{_messages(messages)} that nobody had received {was} thrown away: {_list(messages)}."


def _messages(messages: Sequence[Message]) -> str:
    return f"{len(messages)} message{'s' * (len(messages) > 1)}"


def _list(messages: Sequence[Message]) -> str:
    words = [
        f"rank {message.source} → rank {message.dest}, tag {message.tag}, {message.nbytes:,} bytes"
        for message in messages[:SHOWN]
    ]
    return "; ".join(words) + (f" and {len(messages) - SHOWN} more" if len(messages) > SHOWN else "")
