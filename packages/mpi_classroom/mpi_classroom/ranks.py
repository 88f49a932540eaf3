"""One rank of a cluster as a notebook shows it, and all of them as a table.

cluster[0]              rank 0 of 4 on pc7, process 4711, may use cores 0–3
cluster[0]["x"]         the value that x has there
"""

import html
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpi_classroom.cluster import Cluster


@dataclass(frozen=True, slots=True)
class RankFacts:
    """What one engine says of itself; `host` is its host's name for itself, `cores` are such as "0–3"."""

    rank: int
    size: int
    pid: int
    library: str
    host: str = ""
    cores: str = ""


class Rank:
    """One rank of a running cluster."""

    def __init__(self, cluster: "Cluster", facts: RankFacts) -> None:
        self._cluster, self._facts = cluster, facts

    def __getitem__(self, name: str) -> Any:
        """The value that the variable `name` has on this rank; raises ClusterError."""
        return self._cluster.values(name, [self._facts.rank])[0]

    def __setitem__(self, name: str, value: Any) -> None:
        """Set the variable `name` to `value` on this rank only."""
        self._cluster.assign(name, value, [self._facts.rank])

    def __repr__(self) -> str:
        facts = self._facts
        cores = f", may use {core_words(facts.cores)}" if facts.cores else ""
        return f"rank {facts.rank} of {facts.size} on {facts.host}, process {facts.pid}{cores}"


def core_words(cores: str) -> str:
    """`core 0` or `cores 0–3`."""
    return f"core {cores}" if cores.isdigit() else f"cores {cores}"


def rank_index(index: Any, n: int) -> int:
    """The rank that `cluster[index]` means; raises IndexError or TypeError, in one sentence."""
    if isinstance(index, slice):
        raise TypeError('one rank at a time: cluster[0]; a variable of all ranks is cluster["name"]')
    try:
        rank = operator.index(index)
    except TypeError:
        raise TypeError(
            f'cluster[…] takes a rank, as cluster[0], or the name of a variable, as cluster["x"]; '
            f"not a {type(index).__name__}"
        ) from None
    if not 0 <= rank < n:
        raise IndexError(
            f"there is no rank {rank}; the ranks are 0 to {n - 1}"
            if n > 1
            else f"there is no rank {rank}, only rank 0"
        )
    return rank


def as_table(facts: Sequence[RankFacts], title: str) -> str:
    """The ranks as a table in HTML, with headers for its columns and rows; then how to read a variable."""
    head = "".join(f'<th scope="col">{name}</th>' for name in ("rank", "host", "may use", "process"))
    rows = "".join(
        f'<tr><th scope="row">{fact.rank}</th><td>{html.escape(fact.host)}</td>'
        f"<td>{core_words(fact.cores) if fact.cores else 'unknown'}</td><td>{fact.pid}</td></tr>"
        for fact in facts
    )
    return (
        f"<table><caption>{html.escape(title)}</caption><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
        "<p>The variable <code>x</code> of all ranks: "
        '<code>cluster["x"]</code>, of rank 0: <code>cluster[0]["x"]</code>.</p>'
    )
