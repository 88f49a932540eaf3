"""A study on several hosts: where the ranks of each job run, what the hosts are, how fast their link is.

    n1:2, n2:2 ─▶ checked as for a cluster ─▶ a job with one rank per host: cores, and messages from n1 to n2
               ─▶ a layout for each number of ranks: a job of two ranks has one on n1 and one on n2

A job of one rank runs there, too, so that a speed-up compares equal machines.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from course.tools.study.job import StudyError, listen
from mpi_classroom.layout import SSH, Layout, place, read_hosts
from mpi_classroom.several_hosts import SeveralHosts


@dataclass(frozen=True, slots=True)
class StudyHosts:
    """Hosts that can run the study. `machine` says what they are, as a part of machine.json."""

    listed: Sequence[tuple[str, int | None]]  # names and slots, None: no limit
    one_each: Layout
    machine: dict[str, Any]

    @property
    def cores(self) -> int:
        """Of all hosts together; those that share a machine count once."""
        return int(self.machine["cores"])

    def layout(self, ranks: int) -> Layout:
        """Where a job of so many ranks runs; StudyError when they do not fit."""
        try:
            counts = place(ranks, self.listed)
        except ValueError as error:
            raise StudyError(str(error)) from None
        used = {name: count for (name, _), count in zip(self.listed, counts, strict=True) if count}
        return replace(self.one_each, hosts=tuple(used), counts=tuple(used.values()))


def connect_hosts(hosts: str, *, agent: str = "", link: str = "") -> StudyHosts:
    """The hosts of a list such as `n1,n2:2` or of a hostfile, checked; ClusterError, in a sentence each.

    `agent` is the command that runs a command on a host, ssh if empty; `link` is what somebody who knows the
    network calls it, such as `100 Mbit/s`.
    """
    names = hosts if Path(hosts).is_file() else [name for name in hosts.split(",") if name.strip()]
    try:
        listed = read_hosts(names)
    except ValueError as error:
        raise StudyError(str(error)) from None
    several = SeveralHosts(len(listed), names, shlex.split(agent) or SSH)
    try:
        several.connect()
        layout = several.layout
    finally:
        several.close()
    (found,) = listen("course.tools.study.hosts_rank", {}, layout.size, layout=layout)
    slots = ", ".join(name if count is None else f"{name}:{count}" for name, count in listed)
    network = f"{layout.network}, {link}" if link else layout.network
    return StudyHosts(listed, layout, found["machine"] | {"hosts": slots, "link": network})
