"""A rank per host, before a study on several hosts: what the machines are, how fast the link between them is.

`python -m course.tools.study.hosts_rank {}`, under mpiexec; rank 0 reports {"machine": …}, see `machine.py`.
"""

from mpi4py import MPI

from course.tools.study.machine import about_this_machine
from course.tools.study.rank import send_report
from course_lib.comm.ping_pong import measure_ping_pong
from mpi_classroom.processes import boot

MESSAGE_NBYTES, MESSAGES = 2**20, 5


def machines(comm: MPI.Intracomm) -> dict[str, object]:
    """Of all hosts together; nodes that are one machine, as those of the lab, count once."""
    found = list(dict(comm.allgather((boot(), about_this_machine()))).values())
    return {
        "processor": ", ".join(sorted({each["processor"] for each in found})),
        "cores": sum(each["cores"] for each in found),
        "memory_gb": round(sum(each["memory_gb"] for each in found), 1),
        "system": ", ".join(sorted({each["system"] for each in found})),
    }


def link_mbit_per_s(comm: MPI.Intracomm) -> float:
    """The speed of messages between the first two hosts, one at a time: a median. (collective)"""
    measured = measure_ping_pong(comm, (MESSAGE_NBYTES,), repetitions=MESSAGES)
    seconds = comm.bcast(measured and measured.one_way_seconds[0])
    return round(8e-6 * MESSAGE_NBYTES / seconds, 1)


def main() -> None:
    """Report what the hosts are."""
    comm = MPI.COMM_WORLD
    machine = machines(comm)
    if comm.size > 1:
        machine["link_mbit_per_s"] = link_mbit_per_s(comm)
    send_report(comm, machine=machine)


if __name__ == "__main__":
    main()
