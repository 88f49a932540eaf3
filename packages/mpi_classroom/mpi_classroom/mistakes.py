"""MPI mistakes that end in wrong numbers and no error: found in what all ranks noted of their calls.

Messages are matched as MPI matches them: those with one sender, receiver, tag and communicator, in the order
in which they were sent and their receives were posted. Collectives are matched by their order on their
communicator. An error is a mistake for certain; a note may be meant as it is.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mpi_classroom.mistake_words import Words
from mpi_classroom.recording.calls import SAME_CALL
from mpi_classroom.recording.log import unpacked

BYTES = "V1"
Entry = tuple[Any, ...]
Channel = tuple[Any, int, int, int]  # context, sender, receiver, tag


@dataclass(frozen=True, slots=True)
class Mistake:
    """What went wrong, in words with their lines."""

    kind: Literal["error", "note"]
    text: str

    def line(self) -> str:
        """As it is shown."""
        return f"{'Mistake' if self.kind == 'error' else 'Note'}: {self.text}"


class Comparison:
    """Compares the logs of all ranks, cell after cell; messages may be received in a later one."""

    trusted = True  # all messages on their way are known here

    def __init__(self) -> None:
        self.orders: dict[tuple[int, Any], tuple[int, ...]] = {}  # of the last logs, by rank and line
        self.forget()

    def forget(self) -> None:
        """Forget calls whose partners have not been seen, when they never will be."""
        self.sends: dict[Channel, deque[Entry]] = defaultdict(deque)
        self.receives: dict[Channel, deque[Entry]] = defaultdict(deque)
        self.collectives: dict[Any, dict[int, deque[Entry]]] = defaultdict(lambda: defaultdict(deque))
        self.places: dict[Any, dict[Entry, set[int]]] = defaultdict(lambda: defaultdict(set))
        self.fences: Counter[tuple[int, Any]] = Counter()  # of a rank on a window
        self.distrusted: set[Any] = set()
        self.unordered: set[Any] = set()  # until nothing is on its way: a receive from any source was lost
        self.held: dict[
            tuple[Any, int], list[Entry]
        ] = {}  # receives since one whose message is not known yet

    def compare(self, logs: Mapping[int, bytes], words: Words) -> list[Mistake]:
        """What is wrong in the calls of `logs`, by rank: errors first, each once."""
        self.orders = {}
        found = _Found(words)
        for rank, log in logs.items():
            if log:
                entries, calls, own, full = unpacked(log)
                self._sort(rank, entries, calls)
                for details in own:
                    if details[0] == "order":
                        self.orders[rank, details[1]] = details[2]
                    else:
                        found.add_local(rank, details)
                if full:
                    found.add("note", words.full(), rank)
        self._match_messages(found)
        self._match_collectives(found)
        self._match_places(found)
        if any(unpacked(log)[3] for log in logs.values() if log):
            self.forget()
        return found.all()

    def settle(self) -> None:
        """Nothing is on its way any more: messages can be matched again where a receive was lost."""
        for queues in (self.sends, self.receives):
            for channel in [channel for channel in queues if channel[0] in self.unordered]:
                del queues[channel]
        self.unordered.clear()

    def never_received(self, words: Words) -> list[Mistake]:
        """The messages that are still on their way, at the end of a program."""
        found = _Found(words)
        unknown = (
            self.distrusted | self.unordered | {context for (context, _), held in self.held.items() if held}
        )
        for (context, sender, receiver, tag), entries in self.sends.items():
            for entry in entries if context not in unknown else ():
                found.add("error", words.never_received(sender, receiver, tag, *entry[-2:]), sender)
        return found.all()

    def _sort(self, rank: int, entries: Sequence[Entry], calls: Iterable[int]) -> None:
        """Put the calls of a rank where they are compared."""
        places = {number: self._place(rank, entries[number]) for number in {*calls}}
        for number in calls:
            if (put := places[number]) is not None:
                put(entries[number])

    def _place(self, rank: int, entry: Entry) -> Callable[[Entry], object] | None:
        kind, *context = entry[:2]
        if kind == "s":
            return self.sends[entry[1], rank, entry[2], entry[3]].append
        if kind == "l":
            self.unordered.update(context[:1])
        if kind in "rodl":
            return lambda entry: self._receive(rank, entry)
        if kind == "c":
            return self.collectives[entry[1], entry[2]][rank].append
        if kind == "w":
            return lambda entry: self._touch(rank, entry[1], entry[2], entry[3:])
        if kind == "f":
            return lambda entry: self.fences.update([(rank, entry[1])])
        if kind == "x":  # another thread: the order of its calls is not known
            self.distrusted.update(context)
        return None

    def _receive(self, rank: int, entry: Entry) -> None:
        """Note a receive in the order of the rank's, or what has become of one from any source."""
        if entry[0] == "r" and len(entry) > 9:  # the same call has sent
            dest, tag, *types = entry[9:]
            self.sends[entry[1], rank, dest, tag].append(("s", entry[1], dest, tag, *types, *entry[7:9]))
        held = self.held.setdefault((entry[1], rank), [])
        if entry[0] in "dl":
            held[:] = [entry[-1] if each[0] == "o" and each[2] == entry[2] else each for each in held]
        else:
            held.append(entry)
        while held and held[0][0] != "o":
            first = held.pop(0)
            if first[0] == "r":
                self.receives[first[1], first[2], rank, first[3]].append(first)

    # ---------------------------------------------------------------- messages

    def _match_messages(self, found: "_Found") -> None:
        if not self.trusted:
            self.sends.clear()
            self.receives.clear()
        for channel in self.sends.keys() & self.receives.keys():
            sends, receives = self.sends[channel], self.receives[channel]
            count = min(len(sends), len(receives))
            pairs = dict.fromkeys((sends.popleft(), receives.popleft()) for _ in range(count))
            if channel[0] not in self.distrusted | self.unordered and all(
                _same_bytes(*pair) for pair in pairs
            ):
                for sent, received in pairs:
                    _compare_message(found, channel, sent, received)
        for queues in (self.sends, self.receives):
            for channel in [channel for channel, queue in queues.items() if not queue]:
                del queues[channel]

    # ---------------------------------------------------------------- collectives

    def _match_collectives(self, found: "_Found") -> None:
        for (context, mask), queues in list(self.collectives.items()):
            members = [rank for rank in range(mask.bit_length()) if mask >> rank & 1]
            if len(members) < 2 or len(members) >= 64:
                queues.clear()
            calls = [queues[rank] for rank in members]
            count = min(map(len, calls)) if calls else 0
            rounds = dict.fromkeys(tuple(queue.popleft() for queue in calls) for _ in range(count))
            if context not in self.distrusted:
                for each in rounds:
                    if not _compare_collective(found, dict(zip(members, each, strict=True))):
                        break  # out of step from here on: one report is enough
            if not any(calls):
                del self.collectives[context, mask]

    # ---------------------------------------------------------------- one-sided

    def _touch(self, rank: int, context: Any, target: int, access: Entry) -> None:
        """Note which bytes of a window a rank reads or writes in its present epoch."""
        self.places[context, self.fences[rank, context], target][access].add(rank)

    def _match_places(self, found: "_Found") -> None:
        said = set()  # lines of which one pair of ranks is enough
        for (_, _, target), accesses in self.places.items():
            flat = sorted((entry, rank) for entry, ranks in accesses.items() for rank in ranks)
            for i, (one, rank) in enumerate(flat):
                for other, other_rank in flat[i + 1 :]:
                    if other[0] >= one[1]:
                        break
                    lines = frozenset((one[2:], other[2:]))
                    if rank != other_rank and lines not in said and _conflict(one[2], other[2]):
                        said.add(lines)
                        found.add("note", found.words.same_place(target, one, rank, other, other_rank), rank)
        self.places.clear()


class _Found:
    """The mistakes so far, each with the ranks that made it."""

    def __init__(self, words: Words) -> None:
        self.words = words
        self._found: dict[tuple[str, str], list[int]] = {}

    def add(self, kind: str, text: str, *ranks: int) -> None:
        known = self._found.setdefault((kind, text), [])
        known += [rank for rank in ranks if rank not in known]

    def add_local(self, rank: int, details: tuple[Any, ...]) -> None:
        kind, text = self.words.local(*details)
        if text:
            self.add(kind, text, rank)

    def all(self) -> list[Mistake]:
        ordered = sorted(self._found.items(), key=lambda item: item[0][0])
        return [
            Mistake("error" if kind == "error" else "note", self.words.with_ranks(text, sorted(ranks)))
            for (kind, text), ranks in ordered
        ]


# -------------------------------------------------------------------- comparing signatures


def _same_bytes(sent: Entry, received: Entry) -> bool:
    """Whether as much arrived as was sent, if both are known: else the two do not belong together."""
    return sent[5] < 0 or received[6] < 0 or received[4] in ("object", "unknown") or sent[5] == received[6]


def _compare_message(found: _Found, channel: Channel, sent: Entry, received: Entry) -> None:
    _, sender, receiver, _ = channel
    (what, send_name, send_line), (into, receive_name, receive_line) = (
        (sent[4], *sent[6:8]),
        (received[4], *received[7:9]),
    )
    verdict = agree(what, into, prefix=True, nbytes=(sent[5], received[5]))
    if verdict:
        text = found.words.message(
            sender, (what, send_name, send_line), receiver, (into, receive_name, receive_line)
        )
        found.add(verdict, text, sender)


def agree(
    what: Any, into: Any, *, prefix: bool = False, nbytes: tuple[int, int] = (-1, -1)
) -> Literal["", "error", "note"]:
    """Whether data of signature `what` may be received as `into`; with `prefix` also into more memory.

    "": yes. A note: integers with and without sign are equal as long as none is negative or huge.
    """
    if "unknown" in (what, into) or None in (what, into) or "in place" in (what, into):
        return ""
    if "object" in (what, into):
        other = into if what == "object" else what
        return "" if other == "object" or _are_bytes(other) else "error"
    one, other = _total(what), _total(into)
    if one is None or other is None:
        return ""
    if any(name == BYTES for name, _ in (*one, *other)) or (prefix and not one):
        return ""
    if nbytes[0] == nbytes[1] >= 0 and any(name == "u1" for name, _ in (*one[:1], *other[:1])):
        return ""  # memory of as many bytes
    worst: Literal["", "error", "note"] = ""
    for (name, _), (other_name, _) in _side_by_side(one, other):
        if name != other_name:
            integers = {"i", "u"} if name[1:] != "1" else {"i", "u", "b"}
            if {name[0], other_name[0]} <= integers and name[1:] == other_name[1:]:
                worst = worst or "note"
            else:
                return "error"
    count, room = (sum(n for _, n in runs) for runs in (one, other))
    if count > room or (count < room and not prefix):
        return "error"
    return worst


def _are_bytes(what: Any) -> bool:
    """Whether it may be an object that the program has pickled itself."""
    return all(name in (BYTES, "u1") for name, _ in what[0])


Runs = Sequence[tuple[str, int]]


def _total(what: Any) -> Runs | None:
    """All basic types of a signature; None if they are too many. A count per rank: the sum."""
    runs, count = what
    count = sum(count) if isinstance(count, tuple) else count
    if len(runs) == 1:
        return ((runs[0][0], runs[0][1] * count),) if runs[0][1] * count else ()
    return tuple(runs) * count if len(runs) * count <= 4096 else None


def _side_by_side(one: Runs, other: Runs) -> Iterable[tuple[tuple[str, int], tuple[str, int]]]:
    """Both, cut where either changes its type, as far as both go."""
    left, right = list(one)[::-1], list(other)[::-1]
    while left and right:
        (name, count), (other_name, other_count) = left.pop(), right.pop()
        both = min(count, other_count)
        yield (name, both), (other_name, both)
        if count > both:
            left.append((name, count - both))
        if other_count > both:
            right.append((other_name, other_count - both))


# -------------------------------------------------------------------- comparing collectives


def _compare_collective(found: _Found, calls: Mapping[int, Entry]) -> bool:
    """Compare one call of all members; return whether they made the same one."""
    first_rank, first = next(iter(calls.items()))
    for rank, call in calls.items():
        for at, said in ((3, "name"), (4, "root"), (5, "operator")):
            if SAME_CALL.get(call[at], call[at]) != SAME_CALL.get(first[at], first[at]):
                found.add(
                    "error", found.words.differ(said, first_rank, first[3:], rank, call[3:]), first_rank
                )
                return said != "name"
    transfers = sorted(_transfers(first[3], first[4], calls), key=lambda each: each[0] == each[2])
    for rank, what, into_rank, into in transfers:
        verdict = agree(what, into)
        if verdict:
            text = found.words.collective(
                (rank, what, calls[rank][3], calls[rank][8]),
                (into_rank, into, calls[into_rank][3], calls[into_rank][8]),
            )
            found.add(verdict, text, rank)
            return True
    return True


def _transfers(name: str, root: int, calls: Mapping[int, Entry]) -> Iterable[tuple[int, Any, int, Any]]:
    """Who sends what to whom in a collective, and what that rank receives it into."""
    base = name.removesuffix("_init").lower().removeprefix("i")
    sends = {rank: call[6] for rank, call in calls.items()}
    into = {rank: call[7] for rank, call in calls.items()}
    ranks, size = list(calls), len(calls)
    if base == "bcast":
        yield from ((root, sends[root], rank, sends[rank]) for rank in ranks if rank != root)
    elif base in ("allreduce", "reduce", "scan", "exscan", "reduce_scatter_block", "reduce_scatter"):
        yield from _of_reduction(base, root, ranks, sends, into)
    elif base in ("gather", "gatherv", "allgather", "allgatherv"):
        for receiver in ranks if base.startswith("all") else [root]:
            for i, rank in enumerate(ranks):
                yield rank, sends[rank], receiver, _block(into[receiver], i, size)
    elif base in ("scatter", "scatterv"):
        yield from ((root, _block(sends[root], i, size), rank, into[rank]) for i, rank in enumerate(ranks))
    elif base in ("alltoall", "alltoallv"):
        for i, rank in enumerate(ranks):
            for j, receiver in enumerate(ranks):
                yield rank, _block(sends[rank], j, size), receiver, _block(into[receiver], i, size)


def _of_reduction(
    base: str, root: int, ranks: Sequence[int], sends: Mapping[int, Any], into: Mapping[int, Any]
) -> Iterable[tuple[int, Any, int, Any]]:
    """Everybody contributes the same types, and receives them."""
    given = {rank: into[rank] if sends[rank] == "in place" else sends[rank] for rank in ranks}
    yield from ((ranks[0], given[ranks[0]], rank, given[rank]) for rank in ranks[1:])
    if not base.startswith("reduce_scatter"):
        receivers = [root] if base == "reduce" else ranks
        yield from ((rank, given[rank], rank, into[rank]) for rank in receivers)


def _block(what: Any, i: int, size: int) -> Any:
    """What belongs to the i-th rank in memory for all."""
    if what is None or isinstance(what, str):
        return what
    runs, count = what
    if isinstance(count, tuple):
        return runs, count[i if len(count) > 1 else 0]
    return runs, count // size


def _conflict(one: str, other: str) -> bool:
    """Whether two accesses to one place in one epoch may disturb each other."""
    return not (one == other and one != "Put")
