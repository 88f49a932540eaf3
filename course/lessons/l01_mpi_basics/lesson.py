# ---
# title: MPI basics
# goal: Send arrays from rank to rank, and find out when that can go wrong.
# able:
#   - write one program that does different things on different ranks
#   - send an array, and say what you know when `Send` returns
#   - read a hang report, and repair the program in two ways
# more:
#   - let a rank compute between the start of a message and its end
#   - sort messages by their tags
#   - say what a message proves about the order of events
# before: >-
#   {00}
# minutes: {core: 20, more: 30}
# ranks: 4
# warm-up:
#   - ask: You run `a = 1` in a cell without `%%px`. Which ranks have a variable `a`?
#     answer: None. The cell ran in the kernel, and ranks have a memory of their own.
#   - ask: Four ranks run on a machine with two cores. How many of them compute at the same moment?
#     answer: Two at most.
#   - ask: How many bytes per parameter do weight, gradient and optimizer state take with Adam?
#     answer: >-
#       16. In mixed precision: 2 for the weight, 2 for its gradient, 12 for the optimizer state.
# ---

# %%
# %%px --setup
import time

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size

# %% [markdown] tags=["slide"]
# ## 1 · One program, four ranks
#
# All ranks run the same cell. This style of programming is called **SPMD**: single program, multiple data. To
# give the ranks different tasks, the program looks at `rank`.

# %%
# %%px
if rank == 0:
    secret = 43523

# %% [markdown] tags=["subslide"]
# Rank 0 ran the assignment; the others skipped it. The next cell asks every rank for the secret. It fails on
# purpose: read which ranks the error names.

# %% tags=["raises-exception"]
# %%px
print(f"rank {rank}: the secret is {secret}")

# %% [markdown] tags=["fragment"]
# A variable set on one rank does not exist on the others. How do they get it?

# %% [markdown] tags=["slide"]
# ## 2 · Send and receive
#
# Ranks share no variables; data moves between them in **messages**. A message takes two calls, one on each
# side. The sender calls `Send` with an array and the rank of the destination. The receiver calls `Recv` with
# an array to fill and the rank of the source.

# %%
# %%px
numbers = np.zeros(3)
if rank == 0:
    numbers[:] = [4, 35, 23]
    comm.Send(numbers, dest=1)
elif rank == 1:
    comm.Recv(numbers, source=0)
print(f"rank {rank}: {numbers}")

# %% [markdown] tags=["fragment"]
# Rank 1 now has the numbers as well. Ranks 2 and 3 took no part; they still have their zeros.

# %% [markdown] tags=["slide"]
# ## 3 · When does Send return?
#
# `Send` and `Recv` are **blocking** calls. They return only when you may use the array again. After `Recv`,
# this means that the message is in the array. And after `Send`? Let us measure it. Rank 1 sleeps for half a
# second before each `Recv`. Rank 0 sends it 8 bytes and then 1 MB. How many seconds will rank 0 spend in
# `Send` for the 1 MB? (`Barrier` makes every rank wait until all have reached it.)

# %%
predict("Seconds in Send, with 1 MB?", None)


# %% [markdown] tags=["notes"]
# Let the room vote on the 1 MB before the cell runs: 0 s, 0.5 s or 1 s. Those who say 0 s think of Send as a
# mailbox; the picture corrects them better than words do. This and the deadlock are the heart of the lesson:
# 8 minutes for both.


# %% tags=["subslide"]
# %%px
def timed_message(count):
    """Send `count` numbers to a sleeping rank 1.

    Return the times at which this rank's call began and returned.
    """
    comm.Barrier()
    time.sleep(0.5 if rank == 1 else 0)
    began = time.time()
    if rank == 0:
        comm.Send(np.zeros(count), dest=1)
    elif rank == 1:
        comm.Recv(np.empty(count), source=0)
    return began, time.time()


small, large = timed_message(1), timed_message(125_000)

# %% [markdown] tags=["subslide"]
# We draw both messages, one lane per rank:

# %% tags=["nbval-ignore-output"]
from course.lessons.l01_mpi_basics.figures import Message, circular_wait, space_time

small, large = cluster["small"], cluster["large"]
# `small` has one pair per rank: (began, returned). We draw ranks 0 and 1.
space_time([Message("8 B", 0, 1, *small[:2]), Message("1 MB", 0, 1, *large[:2])])

# %% tags=["nbval-ignore-output"]
seconds = large[0][1] - large[0][0]
why = "Send returned only after Recv was called." if seconds > 0.4 else "Send did not wait for Recv."
outcome("Seconds in Send, with 1 MB?", seconds, "s", because=why)

# %% [markdown] tags=["subslide"]
# Most MPI libraries have two ways to send and choose by the size of the message:
#
# - **Eager protocol**, for small messages: send at once. If the receiver is not ready, the message is **buffered**, that
#   is, MPI keeps a copy, and `Send` returns early.
# - **Rendezvous protocol**, for large messages: announce the message, wait until the receiver calls `Recv`, then move the
#   bytes.
#
# Where the limit lies depends on the MPI library. So when `Send` returns, you know one thing only: you may
# change the array.

# %% tags=["exercise: 01.q1", "subslide"]

# %% [markdown] tags=["slide"]
# ## 4 · Once around the ring
#
# Now all ranks send at the same time: each sends an array to its right neighbour and then receives one from
# its left neighbour. We begin with 80 bytes.

# %%
# %%px --setup
right, left = (rank + 1) % size, (rank - 1) % size

# %%
# %%px
mine = np.full(10, rank)
theirs = np.empty_like(mine)
comm.Send(mine, dest=right)
comm.Recv(theirs, source=left)
print(f"rank {rank} received the array of rank {theirs[0]}")

# %% [markdown] tags=["subslide"]
# It works. Now with 1 MB: which ranks will print, all, some or none? Vote, then run the cell. (`--timeout 3`
# gives it 3 seconds.)

# %% [markdown] tags=["notes"]
# Vote before the cell runs: all, some or none. Listen for "some": who says so thinks of one rank that
# sends first. Ask which rank that is; all four run the same line. Then read one line of the report aloud,
# from left to right: the rank, its call, the rank it waits for, the line of the cell.

# %% tags=["raises-exception", "nbval-ignore-output"]
# %%px --timeout 3
mine = np.full(125_000, rank)
theirs = np.empty_like(mine)
comm.Send(mine, dest=right)
comm.Recv(theirs, source=left)
print(f"rank {rank} received the array of rank {theirs[0]}")

# %% [markdown] tags=["subslide"]
# This is a **hang report**. Each line shows a rank, the call it is in, the rank it waits for, and the line of
# the cell. (The tag is a label on the message; here it is always 0.) All ranks are in `Send`, in line 4. No
# rank reaches `Recv` in line 5, so no `Send` can return. As a picture:

# %% tags=["nbval-ignore-output"]
circular_wait({0: 1, 1: 2, 2: 3, 3: 0}, call="Send")

# %% [markdown] tags=["subslide"]
# Ranks that wait for each other in a circle are in a **deadlock**. The program was wrong with 80 bytes, too.
# It worked only because MPI buffered the messages.
#
# The cluster then restarted the ranks and ran the `--setup` cells again. The ranks lost their other
# variables; the report lists the cells that would bring them back. We go on without them.

# %% tags=["exercise: 01.q2", "subslide"]

# %% [markdown] tags=["slide"]
# ## 5 · Two ways out
#
# The circle breaks if some ranks receive first. Let the ranks with an even number send first and those with
# an odd number receive first. Then each `Send` meets a `Recv`.

# %%
# %%px
mine = np.full(125_000, rank)
theirs = np.empty_like(mine)
if rank % 2 == 0:
    comm.Send(mine, dest=right)
comm.Recv(theirs, source=left)
if rank % 2 == 1:
    comm.Send(mine, dest=right)
print(f"rank {rank} received the array of rank {theirs[0]}")

# %% tags=["exercise: 01.1", "subslide"]

# %% [markdown] tags=["notes"]
# The exercise takes 6 minutes. Who is done early tries it with Send and Recv first and reads the report of
# the check. Common mistakes: `left` and `right` exchanged, and `return value` in place of `return received`.

# %% [markdown] tags=["subslide"]
# What is a shift good for? If each rank passes on what it has just received, every array visits every rank in
# `size - 1` shifts. Each rank adds up the arrays that arrive. The next cell uses your `shift` if it is right,
# otherwise ours.

# %% tags=["nbval-ignore-output", "skip"]
continue_with("01.1")

# %%
# %%px
total, travelling = mine.copy(), mine
for _ in range(size - 1):
    travelling = shift(comm, travelling)
    total += travelling
print(f"rank {rank}: 0 + 1 + 2 + 3 = {total[0]}")

# %% [markdown] tags=["fragment"]
# Every rank has the sum of all four arrays. Ranks that train together also need such a sum in every step;
# lesson 04 shows a ring that sends less.

# %% [markdown] tags=["slide"]
# ## Key points
#
# - All ranks run the same program; `rank` decides who does what. A variable set on one rank does not exist on
#   the others.
# - A message takes a `Send` on one rank and a `Recv` on another.
# - When `Send` returns, you may change the array. The message may still be on its way.
# - If all ranks of a ring send first, large messages deadlock. Let some receive first, or use `Sendrecv`.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# In a ring, every rank receives first and then sends, with messages of 8 bytes. Does this work (a) always,
# (b) never, or (c) with some MPI libraries? Vote, talk to your neighbour for two minutes, and vote again.
#
# <details><summary>Answer</summary>Never. Every rank waits in <code>Recv</code>, and no rank has reached the line that sends. No buffer helps.</details>

# %% [markdown] tags=["notes"]
# Listen for (c), "8 bytes are buffered". A buffer helps a rank that sends, and here no rank comes to its
# Send.

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# ### 6 · Non-blocking calls
#
# A third way out of the deadlock: `Isend` and `Irecv` are **non-blocking**. They start a message and return at
# once with a **request**. The rank can compute in the meantime. Then it waits until its requests are complete.
# Until they are, the arrays belong to MPI: do not read the array that you receive, and do not change the array
# that you send. (Whether the bytes move while the rank computes depends on the MPI library. Many libraries move
# large messages only while the rank is in a call of MPI.)

# %%
# %%px
requests = [comm.Irecv(theirs, source=left), comm.Isend(mine, dest=right)]
meanwhile = sum(range(100_000))
MPI.Request.Waitall(requests)
print(f"rank {rank} received the array of rank {theirs[0]}")

# %% tags=["exercise: 01.2"]

# %% [markdown]
# ### 7 · Objects, tags, and order
#
# With a lower-case first letter, the calls carry almost any Python object, and `recv` returns it:

# %%
# %%px
if rank == 0:
    comm.send({"colours": ["red", "blue"], "sent by": rank}, dest=1)
elif rank == 1:
    print(comm.recv(source=0))

# %% [markdown]
# | | `Send`, `Recv` | `send`, `recv` |
# |---|---|---|
# | carry | arrays, whose size and type are known | almost any Python object |
# | how | MPI moves the bytes as they are: fast | Python packs the object into bytes (**pickle**) and unpacks them: slow |
# | the receiver | passes an array to fill | gets a new object |
#
# Use upper case for data and lower case for small messages about the data. Both sides must use the same.
#
# Every message also has a **tag**, a number that you choose (0 if you choose none). A receiver that names a
# tag receives only messages with that tag. One that names none accepts any tag.

# %% tags=["exercise: 01.3"]

# %% [markdown]
# A receiver can also accept messages from any rank, with any tag. A `Status` then says who sent the message,
# with which tag, and how long it is. The array may be longer than the message; if it is shorter, `Recv`
# raises `MPI_ERR_TRUNCATE`.

# %% tags=["nbval-ignore-output"]
# %%px
if rank > 0:
    comm.Send(np.full(rank, rank), dest=0, tag=10 * rank)
else:
    inbox, status = np.empty(10, dtype=int), MPI.Status()
    for _ in range(size - 1):
        comm.Recv(inbox, source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG, status=status)
        count = status.Get_count(MPI.INT64_T)
        print(f"from rank {status.source}, tag {status.tag}: {inbox[:count]}")

# %% [markdown]
# Run the cell several times: messages from different ranks can arrive in any order. (Two messages from one
# rank to another, with the same tag, are received in the order in which they were sent.)
#
# Does the page show who printed first? We pass a token from rank 3 to rank 2, then to 1, then to 0. Ranks 2, 1
# and 0 print only after they have received it, so the order in time is certain: 3, 2, 1, 0.

# %%
# %%px
token = np.zeros(1)
if rank < size - 1:
    comm.Recv(token, source=rank + 1)
print(f"rank {rank} has the token")
if rank > 0:
    comm.Send(token, dest=rank - 1)

# %% [markdown]
# The page shows the output of each rank in a block of its own. The order of the blocks is not the order in
# time: rank 3 printed first, wherever its line stands on your page. Only messages put the events of two ranks
# in order: what a rank does after `Recv` comes after everything that the other rank did before the matching
# `Send`.

# %% tags=["exercise: 01.q3"]

# %% [markdown]
# ### 8 · Threads share memory, ranks do not
#
# There is another way to do several things at once: **threads**. They live in one process and see the same
# variables. Let four threads append to a list, and then four ranks:

# %%
import threading

shared = []
threads = [threading.Thread(target=shared.append, args=(number,)) for number in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(sorted(shared))

# %%
# %%px
private = []
private.append(rank)
print(f"rank {rank}: {private}")

# %% [markdown]
# The threads filled one list. The ranks have four lists, with one number each.
#
# | | Shared memory (threads) | Message passing (ranks) |
# |---|---|---|
# | memory | one for all | one per process |
# | how data gets to others | it is already there | in messages |
# | typical mistake | two threads write at once; locks prevent it | two ranks wait for each other: deadlock |
# | in standard Python | only the thread that holds the **GIL** (global interpreter lock) runs Python code | one GIL per process, so all ranks run |
# | reach | one machine | many machines |
#
# NumPy and PyTorch release the GIL while they compute, so their threads do run side by side; lesson 05
# measures it. MPI itself is message passing, even between ranks on one machine: there the bytes travel
# through shared memory, but your variables stay private. (If you want to share them,
# `MPI.Win.Allocate_shared` is the call.)

# %% [markdown]
# ### 9 · The same in C, and other names you will meet
#
# MPI is a standard for C and Fortran; mpi4py calls the C library. This C program sends the secret of
# section 1. It is in `notebooks/code/send_recv.c`.

# %%
from course.paths import BUILD, NOTEBOOKS

source = NOTEBOOKS / "code" / "send_recv.c"
print(source.read_text())

# %% [markdown]
# `mpicc` calls your C compiler and adds the paths of MPI; `mpiexec -n 2` starts two ranks. If you have no C
# compiler, the cell says so, and you can go on: no later section needs it.

# %% tags=["nbval-ignore-output"]
from course.lessons.shared.programs import compile_c, run_program, why_no_c

if reason := why_no_c():
    print("Skipped:", reason)
else:
    program = compile_c(source, BUILD / "send_recv")
    print(run_program(2, [program]))

# %% [markdown]
# | For | in C | in mpi4py |
# |---|---|---|
# | start, end | `MPI_Init`, `MPI_Finalize` | `from mpi4py import MPI`; at exit |
# | who am I? | `MPI_Comm_rank`, `MPI_Comm_size` | `comm.rank`, `comm.size` |
# | all wait for all | `MPI_Barrier` | `comm.Barrier` |
# | one message | `MPI_Send`, `MPI_Recv` | `comm.Send`, `comm.Recv` |
# | non-blocking | `MPI_Isend`, `MPI_Irecv`, `MPI_Waitall` | `comm.Isend`, `comm.Irecv`, `MPI.Request.Waitall` |
# | all ranks at once (lessons 02 and 04) | `MPI_Bcast`, `MPI_Reduce`, `MPI_Scatter`, `MPI_Gather` | `comm.Bcast`, `comm.Reduce`, `comm.Scatter`, `comm.Gather` |
#
# **Flynn's taxonomy** (1966) sorts computers by the number of instruction streams and data streams that they
# process at a time:
#
# | | one data stream | many data streams |
# |---|---|---|
# | **one instruction stream** | SISD: one classical core | SIMD: vector units; GPUs, nearly |
# | **many instruction streams** | MISD: rare; several units check each other | MIMD: many cores, clusters, our ranks |
#
# SPMD is often added to this list, but it describes programs, not computers: one program runs on all ranks of
# a MIMD computer. The alternative is **MPMD**, multiple program, multiple data. Here are two
# programs in one MPI world, separated by `:` in the command line of `mpiexec`:

# %%
import sys

sender = "from mpi4py import MPI; MPI.COMM_WORLD.send(43523, dest=1)"
receiver = "from mpi4py import MPI; print('rank 1 received', MPI.COMM_WORLD.recv(source=0))"
print(run_program(1, [sys.executable, "-c", sender, ":", "-n", "1", sys.executable, "-c", receiver]))

# %% [markdown]
# MPI is a standard with several implementations: Open MPI (the one you use), MPICH, Intel MPI, Cray MPICH.
# And it is not the only way to move data between the processes of a training:
#
# | Library | Made for | In PyTorch |
# |---|---|---|
# | MPI | CPUs and GPUs, any program; the richest set of calls | in special builds; lesson 07 shows another way |
# | Gloo | CPUs | built in |
# | NCCL | NVIDIA GPUs | built in where there is CUDA |
# | oneCCL | Intel CPUs and GPUs | in builds for Intel, or as an extension |

# %% [markdown]
# ## On GPUs
#
# An MPI library that is built for CUDA or ROCm accepts arrays on the GPU in the same calls. Deadlocks are the
# same there.
#
# ## Pitfalls
#
# - "It works with small messages" proves nothing. In tests, write `Ssend` for `Send`: it returns only when the receiver has begun
#   to receive, at any size.
# - `comm.Send` on one side and `comm.recv` on the other: MPI matches them, but `recv` expects a pickled object. It raises an error or
#   returns nonsense.
# - An array of the wrong type is filled with wrong numbers: use the same `dtype` on both sides.
# - The values of `MPI.Wtime()` on two ranks in general cannot be compared (see `MPI_WTIME_IS_GLOBAL`), because each machine has its own
#   clock. (We compared `time.time()` of two ranks on one machine.)
#
# ## References
#
# - [mpi4py tutorial](https://mpi4py.readthedocs.io/en/stable/tutorial.html), point-to-point communication
# - [MPI standard](https://www.mpi-forum.org/docs/), chapter on point-to-point communication: when `MPI_Send` may return
# - M. J. Flynn, [Very High-Speed Computing Systems](https://doi.org/10.1109/PROC.1966.5273), 1966
# - The C program is from F. Kolly, *Data Parallelism in PyTorch* (version 0.4, 2022). Two sentences there differ from the standard: it
#   calls the tag of `MPI_Send` optional (in C it is required), and says that blocking calls stop both processes until the message has
#   arrived.
#
# ## Stretch
#
# Send a token once around the ring with `Send` and `Recv`, without a deadlock. Each rank adds its number to
# it. What should rank 0 hold in the end?
