# ---
# title: MPI basics
# goal: Send arrays from rank to rank, and find out when a program can hang.
# able:
#   - send an array from one rank to another, and receive what was sent
#   - say what you know when `Send` returns
#   - write an exchange that ends with any size and on any number of ranks
# more:
#   - let a rank compute while its message travels
#   - say which message a receive takes, and what that tells about time
# before: >-
#   {00}
# minutes: {core: 20, more: 24}
# ranks: 4
# warm-up:
#   - ask: You run `a = 1` in a cell without `%%px`. Which ranks have a variable `a`?
#     answer: None. The cell ran in the kernel, and ranks have a memory of their own.
#   - ask: How many Python processes does `mpiexec -n 3 python train.py` start?
#     answer: Three. All run the same program, and each has its own rank.
#   - ask: How many bytes per parameter do weight, gradient and optimizer state take with Adam?
#     answer: >-
#       16. In mixed precision: 2 for the weight, 2 for its gradient, 12 for the optimizer state.
# ---

# %% [markdown] tags=["slide"]
# ## 1 · One message
#
# All ranks run one program (**SPMD**: single program, multiple data); `rank` decides who does what. A **message** takes two calls: `Send`
# on one rank, and on another `Recv` with an array to fill. (`--save` also fills a program; `--setup` reruns
# after a restart.)

# %%
# %%px --setup --save 01_ring.py
"""A ring of ranks: with how many bytes Send waits for its receiver, and how long a shift takes."""

import time
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size

# %% [markdown] tags=["subslide"]
# Rank 0 sends four numbers to rank 1. **Vote:** rank 1 prints (a) 0, 1, 2, 3, (b) nothing: MPI refuses, (c) other numbers.

# %% tags=["raises-exception"]
# %%px
if rank == 0:
    comm.Send(np.arange(4), dest=1)
elif rank == 1:
    numbers = np.empty(4)
    comm.Recv(numbers, source=0)
    print(numbers)

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# Other numbers. `np.arange(4)` holds integers, `np.empty(4)` floats, and MPI converts nothing: 4.9e-324 has the bits of 1. The error is the
# classroom's; elsewhere the program goes on. **Repair it**, and run again.
#
# </details>
#
# Lower-case `send`, `recv`, `bcast`, `allreduce` take any Python object and **pickle** it (pack it into bytes): handy for one number, slow for
# arrays. `bcast` gives rank 0's object to all, `allreduce` the sum, or what `op` names (lesson 04).

# %% [markdown] tags=["slide"]
# ## 2 · Once around the ring
#
# The ranks form a ring, 0 → 1 → 2 → 3 → 0. Each sends ten numbers of 8 bytes to its right. (`--timeout 3` ends a cell after 3 s.)

# %%
# %%px --timeout 3
theirs = np.empty(10, int)
comm.Send(np.full(10, rank), dest=(rank + 1) % size)
comm.Recv(theirs, source=(rank - 1) % size)
print(f"rank {rank} received the array of rank {theirs[0]}")

# %% [markdown] tags=["subslide"]
# The same with 125,000 numbers of 8 bytes, 1 MB. **Vote:** which ranks print, (a) all, (b) some, (c) none?

# %% tags=["raises-exception", "nbval-ignore-output"]
# %%px --timeout 3
theirs = np.empty(125_000, int)
comm.Send(np.full(125_000, rank), dest=(rank + 1) % size)
comm.Recv(theirs, source=(rank - 1) % size)
print(f"rank {rank} received the array of rank {theirs[0]}")

# %% [markdown] tags=["notes"]
# Who votes for "some" thinks of one rank that sends first. Ask which rank that is: all four run the same line. Then read one line of
# the report aloud: the rank, its call, the rank it waits for, the line of the cell.

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# None. By the **hang report**, all are in `Send`, in line 3; nobody comes to `Recv`. Ranks that wait in a circle are in a **deadlock**. The
# classroom restarted them; no cell needs a rerun.
#
# But with 80 bytes, the same lines worked.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 3 · At which byte?
#
# Somewhere between 80 bytes and 1 MB.

# %%
predict("Largest message with which the ring ends, in bytes?", None)

# %% [markdown]
# We search by halving. `Isend` starts a `Send` and returns at once; `Test` says whether that `Send` would have returned by now. Nobody receives
# for 0.1 s: a `Send` not done by then would hang the ring.


# %%
# %%px --setup --save 01_ring.py
def ring_ends(comm, nbytes):
    """Whether all Sends around the ring return before anybody calls Recv."""
    mine, theirs = np.zeros(nbytes, np.uint8), np.empty(nbytes, np.uint8)
    sending = comm.Isend(mine, dest=(comm.rank + 1) % comm.size)
    end = time.time() + 0.1
    while not (done := sending.Test()) and time.time() < end:
        pass  # many an MPI moves messages only while it is called
    all_done = comm.allreduce(done, op=MPI.LAND)  # a logical and
    comm.Recv(theirs, source=(comm.rank - 1) % comm.size)
    sending.Wait()
    return all_done


def halving(comm, ends=80, hangs=1_000_000):
    """Yield a number of bytes with which the ring ends, and one with which it hangs, ever closer."""
    while hangs - ends > 1:
        middle = (ends + hangs) // 2
        ends, hangs = (middle, hangs) if ring_ends(comm, middle) else (ends, middle)
        yield ends, hangs


# %%
# %%px
for limit, hangs in halving(comm):
    if rank == 0:
        print(f"ends with {limit:,} B, hangs with {hangs:,} B")

# %%
outcome("Largest message with which the ring ends, in bytes?", cluster["limit"][0], word="it is")

# %% [markdown] tags=["subslide"]
# Now one `Send` of 80 bytes, then one of `limit + 1`, each after a `Barrier` (it returns when all have called it). Rank 1 is
# 0.3 s late. **Predict:** how long is rank 0 in each `Send`?


# %%
# %%px
def call(name, function, *arguments):
    """Call the function, and note when it began and when it returned."""
    began = time.time()
    function(*arguments)
    calls.append((name, began, time.time()))


calls = []
for nbytes in (80, limit + 1):
    call("Barrier", comm.Barrier)
    if rank == 0:
        call(f"Send {nbytes:,} B", comm.Send, np.zeros(nbytes, np.uint8), 1)
    elif rank == 1:
        call("asleep", time.sleep, 0.3)
        call(f"Recv {nbytes:,} B", comm.Recv, np.empty(nbytes, np.uint8), 0)

# %% tags=["nbval-ignore-output"]
from course.lessons.l01_mpi_basics.figures import timeline

timeline(cluster["calls"][:2])

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# With 80 bytes, `Send` returned while rank 1 slept. By the **eager protocol**, MPI sends a small message at once, and **buffers** it until `Recv`
# comes. By the **rendezvous protocol**, it announces a large one, and `Send` waits for `Recv`. (Open MPI here: 4,096 bytes less an 80-byte
# header.)
#
# The standard promises no buffer. When `Send` returns, you may change the array: that is all you know. A program that needs buffers to
# end is called **unsafe**. Our ring is, with 80 bytes, too.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 4 · Two repairs
#
# Let odd ranks receive first. 1 MB goes around all four; then `Split` makes two rings, ranks 0 to 2 and rank 3 alone, each numbered from 0.
# **Vote:** which ring hangs? (a) four, (b) three, (c) one, (d) none


# %% tags=["raises-exception", "nbval-ignore-output"]
# %%px --timeout 3
def shift(comm, value):
    """Send the array `value` to the right neighbour; return the array of the left neighbour."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    received = np.empty_like(value)
    if comm.rank % 2 == 0:
        comm.Send(value, dest=right)
    comm.Recv(received, source=left)
    if comm.rank % 2 == 1:
        comm.Send(value, dest=right)
    return received


for team in (comm, comm.Split(rank == 3)):
    print(f"ring of {team.size}: from rank {shift(team, np.full(125_000, rank))[0]}")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# (c): rank 3, number 0 of its ring, sends first, to itself. Of the three, 1 frees 0, which frees 2, which frees 1. So test on one rank, too.
#
# </details>

# %% tags=["exercise: 01.1", "subslide"]

# %% [markdown] tags=["notes"]
# Six minutes. Common mistakes: `left` and `right` exchanged, and `return value`. Who is done early tries `Send`, then `Recv`, and reads the report.

# %% [markdown] tags=["slide"]
# ## 5 · How long does it take?
#
# A fair timing, for all later lessons: all ranks start together, the slowest counts, and of ten runs the median.

# %% tags=["source: course_lib.measure:timed"]
# %%px --save 01_ring.py

# %% [markdown] tags=["subslide"]
# 1 MB is 12,500 times 80 bytes. **Predict:** how many times as long does a shift take?


# %% tags=["nbval-ignore-output"]
# %%px --save 01_ring.py
if __name__ == "__main__":
    few, many = np.ones(10), np.ones(125_000)
    small, large = timed(comm, lambda: shift(comm, few)), timed(comm, lambda: shift(comm, many))
    limit = max(ends for ends, hangs in halving(comm))
    if rank == 0:
        print(f"{size} ranks: limit {limit} B; 80 B {1e6 * small:.0f} µs, 1 MB {large / small:.0f} × that")

# %% tags=["nbval-ignore-output"]
# !mpiexec -n 3 python code/01_ring.py

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# Far less than 12,500: with 80 bytes, nearly all is a fixed cost per message (lesson 04).
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# | | what changes |
# |---|---|
# | limit | one per kind of link: Open MPI's TCP has 65,456 bytes |
# | hang | nobody ends it before the job's time limit. In tests write `Ssend`: it waits for `Recv` at any size |
# | GPUs | NCCL's `ncclSend` is queued, and its stream may wait at any size; put both calls between `ncclGroupStart` and `ncclGroupEnd` (PyTorch: `batch_isend_irecv`) |

# %% tags=["exercise: 01.q4", "subslide"]

# %% [markdown] tags=["slide"]
# ## Key points
#
# - When `Send` returns, you may change the array. You know nothing about the receiver.
# - A ring in which all send first is unsafe. `Sendrecv` is safe.
# - Both sides must agree on the type.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# A ring of `Send`, then `Recv`, ran for a year on one machine, with 3 kB, and today on a cluster, with 60 kB. (a) Keep it. (b) Raise
# the cluster's limit. (c) Repair it.
#
# <details><summary>What to listen for</summary>(c). Both runs were below their limits and tested nothing. (b) lasts until messages grow. <code>Ssend</code>
# would have shown it.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# ### What can a rank do while its message travels?
#
# On `link` below, every message takes 0.2 s (*delayed on purpose*; `course_lib/effects.py` is one page). Each rank also has 0.2 s of work,
# here a sleep. `Isend` and `Irecv` are **non-blocking**: each starts a message and returns a **request**. `Wait` returns when that is
# complete. **Predict** the seconds of both ways.


# %%
# %%px
from course_lib.effects import slow_messages

link = slow_messages(comm, 0.2)
mine, theirs = np.full(10, rank), np.empty(10, int)
right, left = (rank + 1) % size, (rank - 1) % size


def message_then_work():
    link.Sendrecv(mine, dest=right, recvbuf=theirs, source=left)
    time.sleep(0.2)


def both_at_once():
    requests = [link.Irecv(theirs, source=left), link.Isend(mine, dest=right)]
    time.sleep(0.2)
    for request in requests:
        request.Wait()


for way in (message_then_work, both_at_once):
    seconds = timed(comm, way, repeat=3)
    if rank == 0:
        print(f"{way.__name__}: {seconds:.1f} s")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# One after the other takes the sum, both at once the longer of the two. Until `Wait`, the arrays belong to MPI: do not read the one that
# you receive, and do not change the one that you send. (Our link is a timer. With a real one, many MPI libraries move large messages only
# while the rank is in a call of MPI.)
#
# </details>

# %% tags=["exercise: 01.2"]

# %% tags=["exercise: 01.q5"]

# %% [markdown]
# ### Which message comes first?
#
# `MPI.ANY_SOURCE` takes a message of any rank, and a `Status` says whose it was. Option `--twice` runs the cell twice, the second time with
# random pauses. **Predict:** in which order do the messages of ranks 1, 2 and 3 come?

# %% tags=["nbval-ignore-output"]
# %%px --twice
if rank > 0:
    comm.Send(np.full(rank, rank), dest=0, tag=10 * rank)
else:
    inbox, status = np.empty(10, int), MPI.Status()
    for _ in range(size - 1):
        comm.Recv(inbox, source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG, status=status)
        count = status.Get_count(MPI.INT64_T)
        print(f"from rank {status.source}, tag {status.tag}: {inbox[:count]}")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# In any order: if both were the same, run it again. Floats added up as they come can differ in the last digits from run to
# run: (a + b) + c is rounded otherwise than a + (b + c).
#
# </details>
#
# Two messages of one rank to another are received in the order in which they were sent, if the same `Recv` could take both. A **tag** is a
# number on a message; a receiver that names one takes only messages with that tag.

# %% tags=["exercise: 01.3"]

# %% [markdown]
# Does the page show who printed first? A token goes from rank 3 to 2, to 1, to 0. Each prints when it has it.

# %%
# %%px
token = np.zeros(1)
if rank < size - 1:
    comm.Recv(token, source=rank + 1)
print(f"rank {rank} has the token")
if rank > 0:
    comm.Send(token, dest=rank - 1)

# %% [markdown]
# Rank 3 printed first, wherever its line stands. On your page, only calls of MPI put the events of two ranks in order: what a rank
# does after `Recv` comes after all that the sender did before its `Send`, and nobody leaves a `Barrier` before all have come.

# %% tags=["exercise: 01.q6"]

# %% [markdown]
# ## References
#
# - [mpi4py tutorial](https://mpi4py.readthedocs.io/en/stable/tutorial.html), point-to-point communication
# - [MPI standard](https://www.mpi-forum.org/docs/), chapter on point-to-point communication: *unsafe* programs, and when `MPI_Send` may return
# - [MPI in C, threads, and names you will meet](../docs/mpi-and-others.md)
# - [MPI mistakes that end in wrong numbers](../docs/mistakes.md): what the classroom finds, also in your own programs
