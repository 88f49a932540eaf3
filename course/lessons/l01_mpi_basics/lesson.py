# ---
# title: MPI basics
# goal: Your program worked for a year, and today it hangs. Why?
# able:
#   - send and receive an array
#   - say what you know when `Send` returns
#   - write an exchange that ends on any number of ranks
# more:
#   - let a rank compute while its message travels
#   - say which message a receive takes, and which rank was first
# before: >-
#   {00}
# minutes: {core: 20, more: 26}
# ranks: 4
# warm-up:
#   - ask: You run `a = 1` in a cell without `%%px`. Which ranks have a variable `a`?
#     answer: None. The cell ran in the kernel, and each rank has its own memory.
#   - ask: How many Python processes does `mpiexec -n 3 python train.py` start?
#     answer: Three. All run the same program, and each has its own rank.
#   - ask: How many bytes per parameter do weight, gradient and optimizer state take with Adam?
#     answer: >-
#       16. In mixed precision: 2 for the weight, 2 for its gradient, 12 for the optimizer state.
# ---

# %% [markdown] tags=["slide"]
# ## 1 · One message
#
# How does one rank get another's numbers? Through a **message**: the sender calls `Send`, and the receiver calls `Recv` with an array to fill.
# All ranks run the same program (**SPMD**: single program, multiple data), so an `if` decides who does what.

# %%
# %%px --setup --save 01_ring.py
"""Messages around a ring of ranks."""

import time
from bisect import bisect

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD  # all ranks
rank, size = comm.rank, comm.size

# %% [markdown] tags=["subslide"]
# Rank 0 sends the numbers 0 to 3 to rank 1. **Vote:** what does rank 1 print? (a) 0 to 3, (b) nothing, (c) other numbers

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
# (c). `np.arange(4)` holds integers, `np.empty(4)` holds floats, and MPI copies bytes. Our classroom complains; MPI alone would not.
#
# **Repair the cell:** send `np.arange(4.0)`.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 2 · Once around the ring
#
# ```
# ┌─▶ rank 0 ──▶ rank 1 ──▶ rank 2 ──▶ rank 3 ─┐
# └────────────────────────────────────────────┘
# ```
#
# What if all ranks send at once? Each sends an array to its right neighbour, then receives one from its left.


# %%
# %%px --setup
def ring(nbytes):  # `% size` closes the ring: right of rank 3 is rank 0
    mine = np.full(nbytes, rank, np.uint8)  # one byte per number
    theirs = np.empty(nbytes, np.uint8)
    comm.Send(mine, dest=(rank + 1) % size)
    comm.Recv(theirs, source=(rank - 1) % size)
    print(f"rank {rank} received the array of rank {theirs[0]}")


# %%
# %%px --timeout 3
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
# (c). In the **hang report**, every rank waits in `Send` for its right neighbour to receive. Such a circle is a
# **deadlock**. Why did 80 bytes arrive?
#
# </details>

# %% [markdown] tags=["slide"]
# ## 3 · At which byte?
#
# Between 80 bytes and 1 MB, our ring begins to hang. Guess where.

# %%
predict("Largest array that still gets around the ring, in bytes?", None)

# %% [markdown]
# Each hang costs a restart (`--setup` cells then run again). So we ask MPI whether `Send` *would* wait:
#
# 1. `Isend` starts the same send, but returns at once.
# 2. For 50 ms, nobody receives. If `Test` then says that the send is done, `Send` would have returned.
# 3. `allreduce` combines the answers: the ring hangs if *every* rank would wait. (A rank that goes on to `Recv` frees its left neighbour.)
# 4. All ranks receive, and `Wait` completes the send.


# %%
# %%px --setup --save 01_ring.py
def ring_hangs(comm, nbytes):
    """Whether every Send around the ring would wait for its Recv."""
    mine, theirs = np.zeros(nbytes, np.uint8), np.empty(nbytes, np.uint8)
    sending = comm.Isend(mine, dest=(comm.rank + 1) % comm.size)
    for _ in range(50):  # Test also lets MPI work on the send
        time.sleep(0.001)
        waits = not sending.Test()
    all_wait = comm.allreduce(waits, op=MPI.LAND)  # logical and; nobody receives before this
    comm.Recv(theirs, source=(comm.rank - 1) % comm.size)
    sending.Wait()
    return all_wait


# %% [markdown]
# `bisect` counts the sizes, from 1 byte up, at which `ring_hangs` is `False`. It needs only 20 tries, as each halves the range:


# %%
# %%px --setup --save 01_ring.py
def largest(comm):
    """The largest array that gets around the ring, in bytes."""
    return bisect(range(1, 1_000_001), False, key=lambda nbytes: ring_hangs(comm, nbytes))


# %%
# %%px
limit = largest(comm)

# %%
outcome("Largest array that still gets around the ring, in bytes?", cluster["limit"][0], word="it is")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# ```
#            eager (here up to 4,016 bytes)          rendezvous (more bytes)
#
# rank 0     Send ┬── goes on ───────────────        Send ──── waits ──────┬── goes on ──
#                 └─▶ buffer ──────┐                                       │
# rank 1     computes ──────────── Recv ─────        computes ──────────── Recv ─────────
#
#            time ──▶
# ```
#
# Why 4,016? Between ranks on this machine, Open MPI has **buffers** of 4,096 bytes, and its header takes 80. If a message fits and a buffer is
# free, MPI copies it there, and `Send` returns at once: the **eager protocol**. For a larger message, `Send` waits for `Recv`: the **rendezvous
# protocol**.
#
# What do you know when `Send` returns? You may change the array. Perhaps nobody has received it yet.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 4 · Two repairs
#
# The MPI standard promises no buffer. A program that needs one is **unsafe**: our ring is, even with 80 bytes.
#
# In our first repair, odd ranks receive first. We send 1 MB around a ring of four, then around two that `Split` makes, each numbered from 0:
# ranks 0 to 2, and rank 3 alone. **Vote:** which ring hangs? (a) the ring of four, (b) of three, (c) of one, (d) none


# %% tags=["raises-exception", "nbval-ignore-output"]
# %%px --timeout 3
def shift(comm, value):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    received = np.empty_like(value)
    if comm.rank % 2 == 0:  # even ranks send first
        comm.Send(value, dest=right)
        comm.Recv(received, source=left)
    else:  # odd ranks receive first
        comm.Recv(received, source=left)
        comm.Send(value, dest=right)
    return received


for team in (comm, comm.Split(rank == 3)):  # ranks that pass equal values share a ring
    theirs = shift(team, np.full(125_000, rank))  # 8 bytes per number: 1 MB
    print(f"ring of {team.size}: from rank {theirs[0]}")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (c). In the ring of three, ranks 0 and 2 both send first, but rank 1 frees rank 0:
#
# ```
# time ──▶     1 frees 0         0 frees 2         2 frees 1
#
# rank 0       Send to 1         Recv from 2
# rank 1       Recv from 0       waits in Send     Send to 2
# rank 2       waits in Send     Send to 0         Recv from 1
# ```
#
# Rank 3, alone, is number 0. It sends first, to itself, and never gets to `Recv`. So test on one rank, too.
#
# </details>

# %% tags=["exercise: 01.1", "subslide"]

# %% [markdown] tags=["notes"]
# Six minutes. Common mistakes: `left` and `right` exchanged, and `return value`. Whoever is done early tries `Send`, then `Recv`, and reads the report.

# %% [markdown] tags=["subslide"]
# It also runs without the classroom:


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
# A message to oneself has a lower limit here.
#
# Somebody gives Open MPI buffers of 2,048 bytes. **Predict** the limit, to the byte:

# %%
# !mpiexec --mca btl_sm_eager_limit 2048 -n 3 python code/01_ring.py

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# 2,048 − 80 = 1,968. So a program that worked for a year can hang after an update.
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# | | what changes |
# |---|---|
# | limit | Depends on network and settings: usually 65,456 bytes with Open MPI over TCP. A ring hangs only above its links' largest limit |
# | GPUs | With NVIDIA's NCCL, a GPU may wait in a send of any size. So start send and receive together (PyTorch: `batch_isend_irecv`) |

# %% [markdown] tags=["slide"]
# ## Key points
#
# - When `Send` returns, you may change the array, but you know nothing about the receiver.
# - If all send first, a ring is unsafe: it hangs once messages outgrow MPI's buffers. With `Sendrecv`, it is safe.
# - Both sides must use the same type.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# In forty places of your program, two ranks exchange 3 kB. In some, both call `Send` first; you do not know where. Tomorrow
# it is 60 kB, on several machines over TCP, and you have one day. Do you (a) change nothing, (b) test with `Ssend`, which always waits for
# `Recv`, and repair what hangs, (c) rewrite all with `Sendrecv`?
#
# <details><summary>What to listen for</summary>(a) may work between machines, but two ranks on one machine have a lower limit. (b) finds each wrong exchange that the tests run, at any size. (c) risks forty new mistakes. How good are your tests?</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# Our ring is a circle. When an image is cut into strips, the strips form a line: the first and the last have only one neighbour. Is it
# still a mistake if everybody sends first?

# %% tags=["exercise: 01.q4"]

# %% [markdown]
# ### Can a rank work while its message travels?
#
# Working meanwhile pays only if messages take long. How long? To find out, we need a clock that is fair to all ranks. The whole course
# uses this one:
#
# - `Barrier` returns only when all ranks have called it, so they start nearly together.
# - The slowest rank's time counts, because sooner or later the others wait for it.
# - A computer is sometimes busy with other things, so we take the median of ten runs. (On a GPU, synchronize before you read the clock.)

# %% tags=["source: course_lib.measure:timed"]
# %%px

# %% [markdown]
# Now we time your `shift`, with 80 bytes and with 1 MB. That is 12,500 times as much. **Predict:** how many times as long does it take?

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
# It takes far less than 12,500 times as long. Each message has a fixed cost, and 80 bytes add hardly anything to it.
# (With a core per rank, this cost is smaller, and the ratio larger.) This is why training libraries collect many small gradients and send them in a few large messages (lessons 04 and 06).
#
# </details>
#
# Must a rank wait while its message travels? In `Recv`, yes, and in a `Send` above the limit. `Send`, `Recv` and `Sendrecv` are **blocking**: they
# return only when you may use their arrays again.
#
# `Isend`, from section 3, is **non-blocking**. It only starts the send and returns a **request** at once. `Irecv` starts a receive in the
# same way. Now the rank is free to compute. When it needs the array again, it calls the request's `Wait`, which returns when the array may
# be used.
#
# On one computer, a small message takes microseconds: too little to see the difference. So `slow_messages` gives us a communicator, `link`, on which each
# message takes 0.2 s longer. Each rank also has 0.2 s of work (a `sleep` stands in for it).
# **Predict:** how many seconds do the message and the work take together?


# %%
# %%px
from course_lib.effects import slow_messages

link = slow_messages(comm, 0.2)
mine, theirs = np.full(10, rank), np.empty(10, int)
right, left = (rank + 1) % size, (rank - 1) % size


def both_at_once():
    receiving = link.Irecv(theirs, source=left)
    sending = link.Isend(mine, dest=right)
    time.sleep(0.2)  # the work
    receiving.Wait()
    sending.Wait()


seconds = timed(comm, both_at_once, repeat=3)
if rank == 0:
    print(f"{seconds:.1f} s")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# 0.2 s, not 0.4. The rank worked while its message travelled. Do not count on this with large messages: many MPI libraries move
# them only while the rank is inside an MPI call. A rank that computes then delays its own message. (NCCL has threads and kernels of its own for this.)
#
# </details>
#
# The rank is free while its message travels. Is the array free, too? Let us change it too early:
#
# 1. Rank 0 starts to send zeros with `Isend`.
# 2. It fills the array with nines.
# 3. After a `Barrier`, rank 1 calls `Recv`, and rank 0 calls `Wait`.
#
# We do this with 80 bytes, then with 1 MB. **Vote:** what does rank 1 receive? (a) zeros both times, (b) nines both times, (c) zeros,
# then nines

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
        print(f"{nbytes} bytes: {array[-1]}")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (c). The 80 bytes went out eagerly: they were in a buffer before the nines came. The 1 MB stayed in rank 0's own array
# until its rendezvous, when the array already held nines. (Over some networks the beginning leaves at once: then the message is partly zeros.) A test with small messages
# may never find this mistake.
#
# Until `Wait` returns, the array belongs to MPI: do not change an array that you send, and do not touch one that you receive.
#
# </details>

# %% tags=["exercise: 01.2"]

# %% tags=["exercise: 01.q5"]

# %% [markdown]
# ### Which message comes first?
#
# Rank 0 often collects results from all the others. If it receives from rank 1 first, it may wait although rank 3 was done long ago. With
# `ANY_SOURCE`, `Recv` takes a message from any rank. But whose is it? After the `Recv`, a `Status` says who sent the message and how long it was.
# (The array to fill may be longer than the message.)
#
# And what is the message about? A sender may put a number on its message, a **tag**. The `Status` reports it, too, and `ANY_TAG`, the default, accepts every tag.
#
# Ranks 1, 2 and 3 work for a random time, then send one message each. `--twice` runs the cell twice. **Predict:** in which order do
# the messages come?

# %% tags=["nbval-ignore-output"]
# %%px --twice
from random import random

if rank > 0:
    time.sleep(0.2 * random())  # the work
    comm.Send(np.full(rank, rank), dest=0, tag=10 * rank)  # e.g. [3 3 3]
else:
    inbox, status = np.empty(10, int), MPI.Status()
    for _ in range(size - 1):
        comm.Recv(inbox, source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG, status=status)
        count = status.Get_count(MPI.INT64_T)  # how many numbers came
        print(f"from rank {status.source}, tag {status.tag}: {inbox[:count]}")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# They come in any order: whoever is done first sends first, and MPI promises no order between messages of different ranks. (If your two
# runs agree, run the cell again.)
#
# Does it matter? Yes, if rank 0 adds up floats as they come: (a + b) + c may be rounded differently from a + (b + c). Then the last
# digits of the sum may differ from run to run.
#
# </details>
#
# What about two messages from *one* rank? In the same communicator they keep their order. If a `Recv` could take either, it takes the one
# sent first. But a `Recv` that names a tag takes only messages with that tag.
#
# For a single number, mpi4py also has calls in lower case: `send` and `recv` take almost any Python object and
# **pickle** it, that is, pack it into bytes. This is slow for arrays (so was `allreduce` in lesson 00).

# %% tags=["exercise: 01.3"]

# %% [markdown]
# Does the page at least show which rank was first? Rank 3 passes a token to rank 2, which passes it to 1,
# and so on. Each rank prints a line when it has the token. **Vote:** whose line is on top? (a) always rank 3's, (b) always rank 0's,
# (c) sometimes one, sometimes another

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
# (b), although rank 0 printed last: the page sorts its lines by rank. So the order on a page proves nothing.
#
# Only messages put events of two ranks in order. What a rank does after its `Recv` happens after everything that the sender did before
# its `Send`.
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
