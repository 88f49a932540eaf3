# ---
# title: MPI basics
# goal: Send arrays from rank to rank, and find out when a program can hang.
# able:
#   - send and receive an array
#   - say what you know when `Send` returns
#   - write an exchange that ends on any number of ranks
# more:
#   - let a rank compute while its message travels
#   - say which message a receive takes, and which rank was first
# before: >-
#   {00}
# minutes: {core: 20, more: 25}
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
# All ranks run the same program (**SPMD**: single program, multiple data). A **message** takes two calls: one rank calls `Send`, and another
# calls `Recv` with an array to fill.

# %%
# %%px --setup --save 01_ring.py
"""Messages around a ring of ranks."""

import time

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD  # all ranks
rank, size = comm.rank, comm.size

# %% [markdown] tags=["subslide"]
# Rank 0 sends four numbers to rank 1. **Vote:** what does rank 1 print? (a) 0 to 3, (b) nothing, (c) other numbers

# %% tags=["raises-exception"]
# %%px
if rank == 0:
    comm.Send(np.arange(4), dest=1)
elif rank == 1:
    numbers = np.empty(4)
    comm.Recv(numbers, source=0)
    print(numbers)

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (c). `np.arange(4)` holds integers, and `np.empty(4)` holds floats. MPI copies the bits and converts nothing. The error message comes from
# our classroom; MPI says nothing. **Repair the cell.**
#
# </details>

# %% [markdown] tags=["slide"]
# ## 2 · Once around the ring
#
# In the ring 0 → 1 → 2 → 3 → 0, each rank sends an array to its right neighbour, then receives one from its left.


# %%
# %%px --setup
def ring(nbytes):
    """Send an array of so many bytes to the right, and receive the left neighbour's."""
    mine = np.full(nbytes, rank, np.uint8)  # one byte per number
    theirs = np.empty(nbytes, np.uint8)
    comm.Send(mine, dest=(rank + 1) % size)
    comm.Recv(theirs, source=(rank - 1) % size)
    print(f"rank {rank} received the array of rank {theirs[0]}")


# %%
# %%px
ring(80)

# %% [markdown] tags=["subslide"]
# Now we send 1 MB. **Vote:** which ranks print? (a) all, (b) some, (c) none

# %% tags=["raises-exception", "nbval-ignore-output"]
# %%px --timeout 3
ring(1_000_000)

# %% [markdown] tags=["notes"]
# Who votes for "some" thinks of one rank that sends first. Ask which rank that is: all four run the same line. Then read one line of
# the report aloud: the rank, its call, the rank it waits for, the line of the cell.

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (c). The **hang report** shows all four ranks in `Send`, so nobody gets to `Recv`. Ranks that wait for each other in a circle
# are in a **deadlock**. But why did 80 bytes arrive?
#
# </details>

# %% [markdown] tags=["slide"]
# ## 3 · At which byte?

# %%
predict("Largest message with which the ring ends, in bytes?", None)

# %% [markdown]
# How do we find it without a hang? `Isend` starts a send and returns at once. For 0.05 s we ask `Test` whether the send is done. `allreduce` returns
# on no rank before all have called it, so nobody gets to `Recv` early. If a send is done without any `Recv`, a plain `Send` of that size returns, too.


# %%
# %%px --setup --save 01_ring.py
def ring_ends(comm, nbytes):
    """Whether all Sends around the ring return before anybody calls Recv."""
    mine, theirs = np.zeros(nbytes, np.uint8), np.empty(nbytes, np.uint8)
    sending = comm.Isend(mine, dest=(comm.rank + 1) % comm.size)
    for _ in range(50):
        time.sleep(0.001)
        done = sending.Test()
    all_done = comm.allreduce(done, op=MPI.LAND)  # logical and: True if all ranks are done
    comm.Recv(theirs, source=(comm.rank - 1) % comm.size)
    sending.Wait()
    return all_done


# %% [markdown]
# The search halves the interval each time:


# %%
# %%px --setup --save 01_ring.py
def largest(comm):
    """The largest message with which the ring ends, in bytes."""
    ends, hangs = 80, 1_000_000
    while hangs - ends > 1:
        middle = (ends + hangs) // 2
        if ring_ends(comm, middle):
            ends = middle
        else:
            hangs = middle
    return ends


# %%
# %%px
limit = largest(comm)

# %%
outcome("Largest message with which the ring ends, in bytes?", cluster["limit"][0], word="it is")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# ```
#           small message: eager            large message: rendezvous      time →
# rank 0    Send ┐ goes on                  Send ┬─── waits ────┐
# rank 1    computes ┄┄┄┄┄┄┄┄┄ Recv         computes ┄┄┄┄┄ Recv ┘
# ```
#
# MPI libraries send a small message at once and **buffer** it until `Recv` comes. This is the **eager protocol**. They only announce a large
# message, and `Send` waits for `Recv`. This is the **rendezvous protocol**. In both cases, you may change the array when `Send` returns. You do not know whether
# anybody has received it.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 4 · Two repairs
#
# The MPI standard promises no buffer. A program that needs one is **unsafe**, so our ring is unsafe even with 80 bytes. (Try `Ssend`, which
# waits for `Recv` at any size.)
#
# In our first repair, odd ranks receive first. We try 1 MB in the ring of four. Then `Split` makes two rings, each numbered from 0: one of
# three ranks, and one of rank 3 alone. **Vote:** which ring hangs? (a) of four, (b) of three, (c) of one, (d) none


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
    theirs = shift(team, np.full(125_000, rank))
    print(f"ring of {team.size}: from rank {theirs[0]}")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (c). In the ring of three, rank 1 receives first. So rank 0's `Send` ends, rank 0 goes on to `Recv`, and that frees rank 2. In its own ring, rank 3 has number 0.
# It sends to itself first, and never gets to `Recv`. So test on one rank, too.
#
# </details>

# %% tags=["exercise: 01.1", "subslide"]

# %% [markdown] tags=["notes"]
# Six minutes. Common mistakes: `left` and `right` exchanged, and `return value`. Who is done early tries `Send`, then `Recv`, and reads the report.

# %% [markdown] tags=["subslide"]
# Your `shift` and `largest` make a program. **Predict:** is the limit on one rank the same, smaller or larger?


# %%
# %%px --save 01_ring.py
if __name__ == "__main__":
    theirs = shift(comm, np.full(125_000, rank))
    limit = largest(comm)
    if rank == 0:
        print(f"ranks: {size}, 1 MB came from rank {theirs[0]}, limit {limit} bytes")

# %%
# !mpiexec -n 3 python code/01_ring.py
# !mpiexec -n 1 python code/01_ring.py

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# It is smaller. Add 80 to both limits: 4,096 and 1,024. With Open MPI, a message and its header of 80 bytes must fit into one slot, and a message to
# oneself has smaller slots.
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# | | what changes |
# |---|---|
# | limit | with Open MPI over TCP, usually 65,456 bytes: again 80 less than a power of two. Ranks of one machine keep theirs |
# | GPUs | with NVIDIA's NCCL, any send may wait for its receive. Start both together (PyTorch: `batch_isend_irecv`) |

# %% [markdown] tags=["slide"]
# ## Key points
#
# - When `Send` returns, you may change the array. You know nothing about the receiver.
# - A ring in which all ranks send first is unsafe. `Sendrecv` is safe.
# - Sender and receiver must use the same type.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# Forty of your exchanges call `Send` before `Recv`. They worked for a year with 3 kB. Tomorrow they carry 60 kB over TCP. You have one day. Do you
# (a) change nothing, (b) test with `Ssend` and repair what hangs, (c) rewrite all with `Sendrecv`?
#
# <details><summary>What to listen for</summary>(a) hangs if two of the ranks share a machine, where the limit is 4,016 bytes. (b) finds only
# what the tests run. (c) risks forty new mistakes.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# ### What if the ranks form a line?
#
# In section 2, every rank had two neighbours. The strips of an image form a line, so the first and the last strip have only one.

# %% tags=["exercise: 01.q4"]

# %% [markdown]
# ### How long does a message take, and whose is the array meanwhile?
#
# This is how the course measures a time. The ranks start nearly together, because `Barrier` returns only when all ranks have called it.
# The time of the slowest rank counts. The result is the median of ten runs.

# %% tags=["source: course_lib.measure:timed"]
# %%px

# %% [markdown]
# 1 MB is 12,500 times as much as 80 bytes. **Predict:** how many times as long does your `shift` take with 1 MB?

# %% tags=["nbval-ignore-output"]
# %%px
few, many = np.ones(10), np.ones(125_000)  # 80 bytes, and 1 MB
small = timed(comm, lambda: shift(comm, few))
large = timed(comm, lambda: shift(comm, many))
if rank == 0:
    print(f"80 bytes: {1e6 * small:.0f} µs; 1 MB: {large / small:.0f} times as long")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# It takes far less than 12,500 times as long. Each message has a fixed cost, whatever its size. With 80 bytes, there is hardly any other
# cost (lesson 04).
#
# </details>
#
# Can a rank work while a message travels? `Isend` and `Irecv` are **non-blocking**: each starts a send or a receive and returns a
# **request**. `Wait` returns when you may use the array again.
#
# In the next cell, `course_lib/effects.py` delays every message over `link` by 0.2 s. Each rank also has 0.2 s of work, here a sleep.
# **Predict:** how many seconds do message and work take together?


# %%
# %%px
from course_lib.effects import slow_messages

link = slow_messages(comm, 0.2)
mine, theirs = np.full(10, rank), np.empty(10, int)
right, left = (rank + 1) % size, (rank - 1) % size


def both_at_once():
    receiving, sending = link.Irecv(theirs, source=left), link.Isend(mine, dest=right)
    time.sleep(0.2)
    receiving.Wait()
    sending.Wait()


seconds = timed(comm, both_at_once, repeat=3)
if rank == 0:
    print(f"{seconds:.1f} s")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# 0.2 s: the rank worked while the message travelled. (Many MPI libraries move a large message only while the rank is inside an MPI
# call. With them, message and work take longer together.)
#
# </details>
#
# But whose is the array between `Isend` and `Wait`? Rank 0 starts to send zeros, and overwrites them with nines before `Wait`. It does this
# with 80 bytes, then with 1 MB. **Vote:** what does rank 1 receive? (a) zeros both times, (b) nines both times, (c) zeros, then nines

# %% tags=["raises-exception"]
# %%px
for nbytes in (80, 1_000_000):
    array = np.zeros(nbytes, np.uint8)
    if rank == 0:
        sending = comm.Isend(array, dest=1)
        array[:] = 9  # too early
        comm.Barrier()  # rank 1 receives after this
        sending.Wait()
    else:
        comm.Barrier()
    if rank == 1:
        comm.Recv(array, source=0)
        print(f"{nbytes} bytes: {array[0]}")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (c). When `Isend` returned, the small message was in a buffer. The large message was only announced (section 3), and MPI read the array
# later. So a test with small messages does not find the mistake. Until `Wait` returns, the array belongs to MPI: do not change an array
# that you send, and do not read one that you receive.
#
# </details>

# %% tags=["exercise: 01.2"]

# %% tags=["exercise: 01.q5"]

# %% [markdown]
# ### Which message comes first?
#
# A **tag** is a number that the sender puts on a message. A `Recv` with `ANY_SOURCE` and `ANY_TAG` takes a message from any rank, with any
# tag. Its `Status` then says who sent the message, and how long it was. (The array to fill may be longer.)
#
# `--twice` runs the cell twice, the second time with random pauses. **Predict:** in which order do the messages of ranks 1, 2 and 3 come?

# %% tags=["nbval-ignore-output"]
# %%px --twice
if rank > 0:
    comm.Send(np.full(rank, rank), dest=0, tag=10 * rank)
else:
    inbox, status = np.empty(10, int), MPI.Status()
    for _ in range(size - 1):
        comm.Recv(inbox, source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG, status=status)
        count = status.Get_count(MPI.INT64_T)  # how many numbers came
        print(f"from rank {status.source}, tag {status.tag}: {inbox[:count]}")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# They come in any order, because MPI promises none between messages of different ranks. If your two runs agree, run the cell a few times
# more. Suppose that rank 0 adds up floats as they come. Then the last digits of its sum may differ from run to run, because (a + b) + c
# may be rounded differently from a + (b + c).
#
# </details>
#
# Two messages from one rank to another do not overtake each other: if a `Recv` could take either, it takes the one sent first. A receiver
# that names a tag takes only messages with that tag. Calls in lower case (`send`, `recv`) take almost any Python object and **pickle** it,
# that is, pack it into bytes. This is handy for one number and slow for arrays.

# %% tags=["exercise: 01.3"]

# %% [markdown]
# Does the page show who printed first? A token goes from rank 3 to rank 2, then to 1, then to 0. Each rank prints when it has the token.
# **Vote:** whose line is on top? (a) always rank 3's, (b) always rank 0's, (c) sometimes one, sometimes another

# %%
# %%px
token = np.zeros(1)
if rank < size - 1:
    comm.Recv(token, source=rank + 1)
print(f"rank {rank} has the token")
if rank > 0:
    comm.Send(token, dest=rank - 1)

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (b), although rank 0 printed last, because the page sorts its lines by rank. The order on a page proves nothing. Only messages put events
# in order: what a rank does after `Recv` happens after everything that the sender did before `Send`.
#
# </details>

# %% tags=["exercise: 01.q6"]

# %% [markdown]
# ## References
#
# - [mpi4py tutorial](https://mpi4py.readthedocs.io/en/stable/tutorial.html), point-to-point communication
# - [MPI standard](https://www.mpi-forum.org/docs/), chapter on point-to-point communication: *unsafe* programs, and when `MPI_Send` may return
# - [MPI in C, threads, and names you will meet](../docs/mpi-and-others.md)
# - [MPI mistakes that end in wrong numbers](../docs/mistakes.md): what the classroom finds, also in your own programs
