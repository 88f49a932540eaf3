"""Many answers judged in one MPI job: `python -m mpi_classroom.launch 4 batch.py ANSWERS RESULTS`.

ANSWERS is a JSON list of [exercise id, source, seconds]; RESULTS gets, for each, the list of what was wrong,
with the smallest case that failed. The job of a learner is watched from outside; here a call that is not over
after so many seconds ends by itself, so that the next answer can be judged in the same processes.
"""

import json
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from mpi4py import MPI

from mpi_classroom.exercises import Exercise, Wrong
from mpi_classroom.judge import left_over, load_answer, names_at_hand
from mpi_classroom.lessons import find_exercise

NEVER_FREED: list[Any] = []  # buffers and requests of calls that MPI may still be busy with


class Stuck(Exception):
    """A call that is not over after `seconds`."""

    seconds = 1.0


class PatientComm(MPI.Intracomm):
    """A communicator whose blocking calls give up after a while: what learners call, and nothing else."""

    def Send(self, buf: Any, dest: int, tag: int = 0) -> None:
        _wait("Send", self.Isend(buf, dest, tag), buf)

    def Recv(self, buf: Any, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG) -> None:
        _wait("Recv", self.Irecv(buf, source, tag), buf)

    def send(self, obj: Any, dest: int, tag: int = 0) -> None:
        _wait("send", self.isend(obj, dest, tag), obj)

    def Ssend(self, buf: Any, dest: int, tag: int = 0) -> None:
        _wait("Ssend", self.Issend(buf, dest, tag), buf)

    def ssend(self, obj: Any, dest: int, tag: int = 0) -> None:
        _wait("ssend", self.issend(obj, dest, tag), obj)

    def recv(self, buf: Any = None, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG) -> Any:
        return _wait("recv", self.irecv(buf, source, tag), buf)

    def Sendrecv(
        self,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = MPI.ANY_SOURCE,
        recvtag: int = MPI.ANY_TAG,
    ) -> None:
        receiving, sending = self.Irecv(recvbuf, source, recvtag), self.Isend(sendbuf, dest, sendtag)
        _wait("Sendrecv", receiving, recvbuf)
        _wait("Sendrecv", sending, sendbuf)

    def Reduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM, root: int = 0) -> None:
        _wait("Reduce", self.Ireduce(sendbuf, recvbuf, op, root), (sendbuf, recvbuf))

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        _wait("Allreduce", self.Iallreduce(sendbuf, recvbuf, op), (sendbuf, recvbuf))

    def Bcast(self, buf: Any, root: int = 0) -> None:
        _wait("Bcast", self.Ibcast(buf, root), buf)

    def Reduce_scatter(
        self, sendbuf: Any, recvbuf: Any, recvcounts: Any = None, op: MPI.Op = MPI.SUM
    ) -> None:
        request = self.Ireduce_scatter(sendbuf, recvbuf, recvcounts, op)
        _wait("Reduce_scatter", request, (sendbuf, recvbuf, recvcounts))

    def Allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        _wait("Allgatherv", self.Iallgatherv(sendbuf, recvbuf), (sendbuf, recvbuf))


def _wait(name: str, request: MPI.Request, buffers: Any) -> Any:
    deadline = time.monotonic() + Stuck.seconds
    while time.monotonic() < deadline:
        over, message = request.test()
        if over:
            return message
        time.sleep(0.0005)  # other programs may have the core
    NEVER_FREED.append((request, buffers))
    raise Stuck(f"waiting in {name}")


def wait_all(requests: list[MPI.Request]) -> None:
    """`MPI.Request.Waitall` and `waitall`, not for ever."""
    for request in requests:
        _wait("Waitall", request, None)


PATIENT_MPI = SimpleNamespace(**{**vars(MPI), "Request": SimpleNamespace(Waitall=wait_all, waitall=wait_all)})


def judge(exercise: Exercise, source: str) -> list[str]:
    """What is wrong with an answer, on any rank, in the smallest case that fails; [] when it is right."""
    world = MPI.COMM_WORLD
    try:
        answer = load_answer(source, names_at_hand(exercise.imports) | {"MPI": PATIENT_MPI})
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]
    for size in exercise.sizes:
        for case in exercise.cases:
            small = world.Split(0 if world.rank < size else MPI.UNDEFINED, world.rank)
            anyone = _words(world, _wrong(exercise, answer, small, case) if small else "")
            anyone = anyone or _words(world, left_over(small) if small else "")
            if anyone:
                return anyone
    return []


def _words(world: MPI.Comm, mine: str) -> list[str]:
    """What all ranks say, without those that say nothing."""
    return [words for words in world.allgather(mine) if words]


def _wrong(exercise: Exercise, answer: SimpleNamespace, comm: MPI.Comm, case: Any) -> str:
    try:
        exercise.check(answer, PatientComm(comm), case)
    except Wrong as wrong:
        return str(wrong)
    except Exception as error:
        return f"raised {type(error).__name__}: {error}"
    return ""


def main() -> None:
    """Judge all answers and write what was wrong with each."""
    answers, results = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    found = []
    for id, source, Stuck.seconds in answers:
        exercise = find_exercise(id)
        assert isinstance(exercise, Exercise)
        found.append(judge(exercise, source))
    if MPI.COMM_WORLD.rank == 0:
        results.write_text(json.dumps(found))
    MPI.COMM_WORLD.Barrier()
    os._exit(0)  # MPI would wait for messages that nobody receives


if __name__ == "__main__":
    main()
