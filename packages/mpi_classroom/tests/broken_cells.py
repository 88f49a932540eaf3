"""Cells as learners write them by mistake, and what the notebook must say to each."""

import re
from dataclasses import dataclass

BARRIER = "comm.Barrier()"
BOOM = 'raise ValueError("boom")'
RING = "comm.recv(source=(rank + 1) % size)"
RESTARTED = r"The ranks were restarted in [\d.]+ s and the setup cell run again"
TORCH = (
    "import torch, torch.distributed as dist, torch_mpi4py\n"
    "if not dist.is_initialized(): torch_mpi4py.init_process_group()"
)
NOBODY = r"Nobody has moved for \d+ s: no rank can go on"
# A rank may be between two calls when it is looked at.
MOVES = r"Likely cause: (none that is known: a rank was still moving, as in a long|.*still compute)"
FREE = r"The ranks are free again; their variables are as the cell left them\."


@dataclass(frozen=True)
class Broken:
    """A cell for four ranks that goes wrong, and patterns of what the learner must read then."""

    name: str
    source: str
    reads: tuple[str, ...]
    options: str = ""
    interrupt_after: tuple[float, ...] = ()


def broken(name, source, *reads, options="", interrupt_after=()):
    return Broken(name, source, reads, options, interrupt_after)


def row(rank, what, line=None, code=""):
    """The pattern of a rank's line in the report."""
    where = rf".* cell line {line} +{re.escape(code)}" if line else ""
    return rf"(?m)^rank {rank}  {what}{where}"


def rows(ranks, what, line=None, code=""):
    return [row(rank, what, line, code) for rank in ranks]


# -------------------------------------------------------------------- somebody raises


RAISES = [
    broken(
        "rank 0 raises before a collective",
        f"if rank == 0: {BOOM}\n{BARRIER}",
        "A rank raised an error while others wait for it",
        row(0, "raised ValueError: boom", 2, "if rank == "),
        *rows((1, 2, 3), "waiting in Barrier", 3, BARRIER),
        "Likely cause: rank 0 raised an error and left the cell",
        RESTARTED,
    ),
    broken(
        "an object that cannot be pickled",
        "comm.bcast(sys.stdout if rank == 2 else None, root=2)",
        r"rank 2 raised TypeError: cannot pickle",
        r"ranks 0, 1, 3 raised RuntimeError: rank 2 could not pickle what it was to send: TypeError: cannot",
    ),
    broken(
        "all ranks raise the same",
        "values = {}\nvalues[0]",
        r"^ranks 0, 1, 2, 3 raised KeyError: 0\n    cell line 3   values\[0\]$",
    ),
    broken(
        "the ranks raise different errors",
        "if rank % 2: {}[rank]\nelse: 1 / 0",
        r"(?m)^ranks 0, 2 raised ZeroDivisionError: division by zero\n    cell line 3",
        r"(?m)^rank 1 raised KeyError: 1\n    cell line 2",
        r"(?m)^rank 3 raised KeyError: 3$",
    ),
    broken(
        "a function raises deep inside",
        "def outer(n):\n    return inner(n)\ndef inner(n):\n    return 1 / n\nif rank == 1: outer(0)",
        r"rank 1 raised ZeroDivisionError",
        r"cell line 6   if rank == 1: outer\(0\)  → line 5: return 1 / n",
    ),
    broken(
        "an error in the syntax",
        "x = 1\ndef f(x)",
        r"^ranks 0, 1, 2, 3 raised SyntaxError: expected ':'\n    cell line 3   def f\(x\)$",
    ),
    broken("quit on all ranks", "quit()", r"^ranks 0, 1, 2, 3 raised SystemExit$"),
    broken(
        "sys.exit on one rank before a collective",
        f"if rank == 1: sys.exit(3)\n{BARRIER}",
        row(1, "raised SystemExit: 3"),
        *rows((0, 2, 3), "waiting in Barrier", 3),
        RESTARTED,
    ),
    broken("MPI.Finalize", "MPI.Finalize()", r"^ranks 0, 1, 2, 3 raised RuntimeError: MPI.Finalize ends MPI"),
    broken("a question to the learner", 'input("name? ")', r"raised StdinNotImplementedError"),
]


# -------------------------------------------------------------------- the calls do not fit

MISMATCHES = [
    broken(
        "a collective skipped by one rank",
        f"if rank != 3: {BARRIER}",
        "no rank can go on",
        *rows((0, 1, 2), "waiting in Barrier", 2, f"if rank != 3: {BARRIER}"),
        row(3, "finished$"),
        "Likely cause: Barrier is a collective: .* and rank 3 did not",
        RESTARTED,
    ),
    broken(
        "a reduction that the root skips, so that nobody waits",
        "if rank: comm.Reduce(np.full(1, 100.0), None, root=0)",
        row(0, "finished +after 0 collective calls$"),
        row(1, "finished +after 1 collective call, the last Reduce\\(op=SUM, root=0\\)$"),
        "out of step",
        RESTARTED,
    ),
    broken(
        "a broadcast in which every rank is the root, so that nobody waits",
        "x = comm.bcast(rank, root=rank)",
        "The ranks made different collective calls",
        row(0, "finished +after 1 collective call, the last bcast\\(root=0\\)$"),
        row(3, "finished +after 1 collective call, the last bcast\\(root=3\\)$"),
        "the same collective calls with the same root",
        RESTARTED,
    ),
    broken(
        "a sum on one rank and a maximum on the others",
        "comm.Barrier()\ncomm.Allreduce(np.ones(1), np.empty(1), op=MPI.SUM if rank == 2 else MPI.MAX)",
        "The ranks reduced with different operators",
        row(2, "finished +after 2 collective calls, the last Allreduce\\(op=SUM\\)$"),
        row(3, "finished +after 2 collective calls, the last Allreduce\\(op=MAX\\)$"),
        "pass the same operator, such as MPI.SUM, on every rank",
        FREE,
    ),
    broken(
        "a barrier of a part that one member skips",
        "half = comm.Split(rank // 2)\nif rank != 3: half.Barrier()",
        *rows((0, 1, 3), "finished$"),
        row(2, "waiting in Barrier of ranks 2, 3", 3),
        "Barrier of ranks 2, 3 is a collective: .* and rank 3 did not",
    ),
    broken(
        "barriers of two communicators in opposite orders",
        "twin = comm.Dup()\nfirst, second = (comm, twin) if rank % 2 else (twin, comm)\n"
        "first.Barrier()\nsecond.Barrier()",
        *rows(range(4), "waiting in Barrier", 4, "first.Barrier()"),
        "ranks 0 and 2 are in Barrier and ranks 1 and 3 are in Barrier: collectives of different comm",
        RESTARTED,
    ),
    broken(
        "synchronous sends whose tags do not fit the receives",
        "if rank < 2:\n    request = comm.irecv(source=1 - rank, tag=5)\n"
        "    comm.ssend(rank, dest=1 - rank, tag=rank)\n    request.wait()",
        row(0, "waiting in ssend to rank 1, tag 0", 4),
        "Each sends synchronously: until a receive matches",
        RESTARTED,
    ),
    broken(
        "a Sendrecv that receives from the side to which it sends",
        "got = comm.sendrecv(rank, dest=(rank + 1) % size, source=(rank + 1) % size)",
        *(
            row(r, f"waiting in sendrecv to rank {(r + 1) % 4} and from rank {(r + 1) % 4}", 2)
            for r in range(4)
        ),
        "rank 0 sends to rank 1, but rank 1 receives from rank 2",
        RESTARTED,
    ),
    broken(
        "a message larger than its buffer",
        "if rank == 0: comm.Send(np.zeros(100), dest=1)\nif rank == 1: comm.Recv(np.zeros(1), source=0)",
        r"^rank 1 raised MPI_ERR_TRUNCATE: message truncated\n    cell line 3   if rank == 1: comm.Recv",
        "More data came than the receive buffer holds",
    ),
    broken(
        "a collective with other sizes on every rank",
        "comm.Allreduce(np.ones(1 + 1000 * rank), np.ones(1 + 1000 * rank))",
        r"MPI_ERR_TRUNCATE|crashed|was ended by signal|ended itself|no rank can go on|raised an error while",
    ),
]


# -------------------------------------------------------------------- it takes for ever

ENDLESS = [
    broken(
        "an endless loop",
        "x = 1\nwhile True: x += 1",
        r"Not done after 1 s \(to allow more: %%px --timeout 5\)",
        *rows(range(4), "computing", 3, "while True"),
        "ranks 0, 1, 2 and 3 still compute: an endless loop",
        FREE,
        options="--timeout 1",
    ),
    broken(
        "an endless loop on one rank with the others in a collective",
        "if rank == 2:\n    while True: pass\ncomm.allreduce(1)",
        row(2, "computing", 3, "while True: pass"),
        *rows((0, 1, 3), "waiting in allreduce", 4),
        "ranks 0, 1 and 3 wait for the others. rank 2 still computes",
        RESTARTED,
        options="--timeout 1",
    ),
    broken(
        "an endless ping-pong",
        "ball = np.zeros(1_000_000)\nwhile rank < 2:\n    if rank == 0: comm.Send(ball, 1)\n"
        "    comm.Recv(ball, 1 - rank)\n    if rank == 1: comm.Send(ball, 0)",
        MOVES,
        options="--timeout 1",
    ),
    broken(
        "an endless loop of all-reduces on two ranks",
        "pair, ones = comm.Split(rank // 2), np.ones(1_000_000)\n"
        "while rank < 2: pair.Allreduce(ones, np.empty_like(ones))",
        MOVES,
        options="--timeout 1",
    ),
    broken(
        "a loop that no interrupt ends",
        "while True:\n    try: time.sleep(1)\n    except BaseException: pass",
        *rows(range(4), "computing", 3),
        RESTARTED,
        options="--timeout 1",
    ),
    broken(
        "a receive request that never completes",
        "request = comm.irecv(source=(rank + 1) % size)\nrequest.wait()",
        *(row(rank, f"waiting in wait for irecv from rank {(rank + 1) % 4}", 3) for rank in range(4)),
        "circle of waiting: rank 0 → rank 1 → rank 2 → rank 3 → rank 0",
        RESTARTED,
    ),
    broken(
        "a fence that one rank skips",
        "window = MPI.Win.Allocate(8, comm=comm)\nif rank: window.Fence()",
        *rows((1, 2, 3), "waiting in Win.Fence", 3),
        "Win.Fence is a collective: .* and rank 0 did not",
        RESTARTED,
    ),
    broken(
        "an interrupt while all are blocked",
        RING,
        r"Interrupted after 1 s\.",
        *rows(range(4), r"waiting in recv from rank \d", 2),
        RESTARTED,
        interrupt_after=(1.0,),
    ),
    broken(
        "more interrupts while the ranks are replaced",
        RING,
        r"Interrupted after 1 s\.",
        RESTARTED,
        interrupt_after=(1.0, 1.8, 2.5),
    ),
    broken(
        "an interrupt of a computation",
        "while True: time.sleep(0.01)",
        r"Interrupted after 1 s\.",
        *rows(range(4), "computing", 2),
        FREE,
        interrupt_after=(1.0,),
    ),
]


# -------------------------------------------------------------------- a rank dies

DEATHS = [
    broken(
        "a rank killed in the cell",
        f"if rank == 2: os.kill(os.getpid(), 9)\n{BARRIER}",
        "A rank died",
        row(2, r"was killed \(signal 9: by hand, or because memory ran out\)"),
        "Likely cause: rank 2 died",
        RESTARTED,
    ),
    broken(
        "a crash in C",
        "import ctypes\nif rank == 0: ctypes.string_at(0)",
        row(0, r"crashed \(signal 11\)"),
        "Likely cause: rank 0 died",
        RESTARTED,
    ),
    broken("all ranks killed", "os.kill(os.getpid(), 9)", r"(?m)^rank \d  was killed", RESTARTED),
]


# -------------------------------------------------------------------- requests, windows, messages left over

REQUESTS = [
    broken(
        "a receive request that one rank tests again and again in vain",
        "inbox = np.zeros(1)\nif rank == 0:\n    request = comm.Irecv(inbox, source=1, tag=5)\n"
        "    while not request.Test(): pass",
        row(0, "waiting in Test for Irecv from rank 1, tag 5", 5),
        "rank 0 is in Test for Irecv from rank 1, tag 5, but rank 1 has finished without a call that",
        RESTARTED,
    ),
    broken(
        "a probe with naps between, while the others wait",
        f"if rank == 3:\n    while not comm.iprobe(source=0): time.sleep(0.01)\n{BARRIER}",
        row(3, "waiting in iprobe from rank 0", 3),
        "Barrier is a collective: .* rank 3 is still in iprobe from rank 0",
        RESTARTED,
    ),
    broken(
        "a raise before a receive, after the send",
        f"if rank == 0: comm.send('old', dest=1, tag=6)\nif rank == 1: {BOOM}",
        r"^rank 1 raised ValueError: boom\n    cell line 3 ",
        r"1 message that nobody had received was thrown away: rank 0 → rank 1, tag 6, \d+ bytes\.",
    ),
    broken(
        "a rank that is stopped",
        "import signal\nif rank == 2: os.kill(os.getpid(), signal.SIGSTOP)\ncomm.Barrier()",
        row(2, r"is stopped \(process \d+\)"),
        *rows((0, 1, 3), "waiting in Barrier", 4),
        "rank 2 is held by a stop signal .* was not let go on in time",
        RESTARTED,
        options="--timeout 2",
    ),
]

# -------------------------------------------------------------------- rarer ways, tried on demand

RARE = [
    broken(
        "a collective in a thread",
        "import threading\nthread = threading.Thread(target=comm.Barrier)\n"
        "if rank: thread.start(); thread.join()",
        *rows((1, 2, 3), "waiting in join", 4),
        "ranks 1, 2 and 3 wait for another thread, whose MPI calls are not recorded",
        RESTARTED,
        options="--timeout 6",
    ),
    broken(
        "a collective of torch.distributed that one rank skips",
        f"{TORCH}\nif rank != 2: dist.all_reduce(torch.ones(3))",
        NOBODY,
        *rows((0, 1, 3), r"waiting in torch\.distributed\.all_reduce", 4, "if rank != 2: dist.all_reduce"),
        r"but rank 2 has finished\. Every rank of a process group must make the same collective calls",
        RESTARTED,
    ),
    broken(
        "signals that are ignored",
        "import signal\nfor s in (2, 10, 15): signal.signal(s, signal.SIG_IGN)\nif rank: comm.Barrier()",
        *rows((1, 2, 3), "waiting in Barrier"),
        "Barrier is a collective: .* and rank 0 did not",
        RESTARTED,
    ),
    broken(
        "a last expression whose repr raises",
        "class Odd:\n    def __repr__(self): return 1 / 0\nOdd()",
        r"^ranks 0, 1, 2, 3 raised ZeroDivisionError: division by zero",
    ),
    broken(
        "a very long message", "raise ValueError('x' * 10**7)", r"^ranks 0, 1, 2, 3 raised ValueError: x+…\n"
    ),
    broken(
        "the cluster's folder removed",
        "import shutil\nfolder = os.environ['MPI_CLASSROOM_CLUSTER']\n"
        "if rank == 0: shutil.rmtree(folder)\nif rank: comm.Barrier()",
        r"the cluster's folder .* was removed",
        "Likely cause: a part of the cluster was ended or removed",
        RESTARTED,
    ),
    broken(
        "mpiexec killed",
        "if rank == 0: os.kill(os.getppid(), 9)\ntime.sleep(20)",
        "the MPI job with the ranks ended with signal 9",
        "Likely cause: a part of the cluster was ended or removed",
        RESTARTED,
    ),
]

BROKEN_CELLS = [*RAISES, *MISMATCHES, *ENDLESS, *DEATHS, *REQUESTS]
