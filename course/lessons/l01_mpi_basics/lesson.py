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
# All ranks run the same program (**SPMD**: single program, multiple data). Yet a **message** takes two calls: one rank calls
# `Send`, and another calls `Recv` with an array to fill.

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
# (c). `np.arange(4)` holds integers, and `np.empty(4)` holds floats. MPI moves bytes and converts nothing, so rank 1 read integers as floats.
# Our classroom complains; MPI alone would not. **Repair the cell.**
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
# Now every rank sends an array to its right neighbour, then receives one from its left.


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
# 80 bytes arrive. Now we send 1 MB. **Vote:** which ranks print? (a) all, (b) some, (c) none

# %% tags=["raises-exception", "nbval-ignore-output"]
# %%px --timeout 3
ring(1_000_000)

# %% [markdown] tags=["notes"]
# Who votes for "some" thinks of one rank that sends first. Ask which rank that is: all four run the same line. Then read one line of
# the report aloud: the rank, its call, the rank it waits for, the line of the cell.

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (c). The **hang report** shows all four ranks in `Send`. Each waits until its right neighbour receives, so nobody gets to `Recv`. Such a
# circle of waiting ranks is a **deadlock**. But why did 80 bytes arrive?
#
# </details>

# %% [markdown] tags=["slide"]
# ## 3 · At which byte?
#
# Somewhere between 80 bytes and 1 MB, our ring begins to hang.

# %%
predict("Largest message with which the ring ends, in bytes?", None)

# %% [markdown]
# Let us find the byte without a hang. `Isend` starts a send and returns at once. For 0.05 s we ask `Test` whether the send is done, while
# `allreduce`, which waits for all ranks, keeps them from `Recv`. If a send is done without a receiver, a plain `Send` would have returned, too.


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
# Each try halves the interval:


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
#            eager (here up to 4,016 bytes)          rendezvous (more bytes)
#
# rank 0     Send ┬── goes on ───────────────        Send ──── waits ──────┬── goes on ──
#                 └─▶ buffer ──────┐                                       │
# rank 1     computes ──────────── Recv ─────        computes ──────────── Recv ─────────
#
#            time ──▶
# ```
#
# Most MPI libraries send a small message at once and **buffer** it until `Recv` comes: the **eager protocol**. A large message would need
# a large buffer, so `Send` waits for `Recv`: the **rendezvous protocol**. Either way, when `Send` returns you may change the array, but
# you do not know whether anybody has received it.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 4 · Two repairs
#
# The MPI standard promises no buffer. A program that needs one is **unsafe**, so our ring is unsafe even with 80 bytes.
#
# Our first repair breaks the circle: odd ranks receive first. We send 1 MB around three rings: all four ranks, then ranks 0 to 2, and rank 3
# alone. (`Split` numbers each ring from 0.) **Vote:** which ring hangs? (a) four, (b) three, (c) one, (d) none


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
# (c). Three ranks get through, because rank 1 frees rank 0, which frees rank 2:
#
# ```
# time ──▶     1 frees 0         0 frees 2         2 frees 1
#
# rank 0       Send to 1         Recv from 2
# rank 1       Recv from 0                         Send to 2
# rank 2       waits in Send     Send to 0         Recv from 1
# ```
#
# Alone in its ring, rank 3 has number 0. It sends first, to itself, and never gets to `Recv`. So test on one rank, too.
#
# </details>

# %% tags=["exercise: 01.1", "subslide"]

# %% [markdown] tags=["notes"]
# Six minutes. Common mistakes: `left` and `right` exchanged, and `return value`. Whoever is done early tries `Send`, then `Recv`, and reads the report.

# %% [markdown] tags=["subslide"]
# Your `shift` and `largest` make a program. In a ring of one, a rank sends to itself. **Predict:** is the limit the same, smaller or larger?


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
# It is smaller, because a message to oneself takes a different path. Add Open MPI's header of 80 bytes: 4,016 and 944 become 4,096 and 1,024.
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# | | what changes |
# |---|---|
# | limit | Over TCP, Open MPI's is usually 65,456 bytes (add 80 again) |
# | GPUs | With NVIDIA's NCCL, any send may wait for its receive, so start both together (PyTorch: `batch_isend_irecv`) |

# %% [markdown] tags=["slide"]
# ## Key points
#
# - When `Send` returns, you may change the array, but you know nothing about the receiver.
# - A ring in which all ranks send first is unsafe. `Sendrecv` is safe.
# - Sender and receiver must use the same type.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# In forty places of your program, two ranks exchange 3 kB, and both call `Send` first. It worked for a year. Tomorrow it is 60 kB over
# TCP, and you have one day. Do you (a) change nothing, (b) test with `Ssend`, which always waits for `Recv`, and repair what hangs, (c) rewrite all with `Sendrecv`?
#
# <details><summary>What to listen for</summary>(a) hangs if the two share a machine, where the limit is 4,016 bytes. (b) finds only
# what the tests run. (c) risks forty new mistakes.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# Before you read on, one more question about waiting. In our ring, each rank has two neighbours. When an image is cut into strips, the
# strips form a line, so the first and the last have only one neighbour. Is it still a mistake if everybody sends first?

# %% tags=["exercise: 01.q4"]

# %% [markdown]
# ### How long does a message take, and whose is the array meanwhile?
#
# Is a message of 1 MB much slower than one of 80 bytes? To compare them, we need a clock that is fair to all ranks, and the whole course uses this
# one. `Barrier` returns only when all ranks have called it, so they start nearly together. The slowest rank's time counts, because sooner
# or later the others wait for it. And because a computer is sometimes busy with other things, we take the median of ten runs.

# %% tags=["source: course_lib.measure:timed"]
# %%px

# %% [markdown]
# Now we time your `shift`. 1 MB is 12,500 times as much as 80 bytes. **Predict:** how many times as long does it take?

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
# It takes far less than 12,500 times as long. Each message has a fixed cost, whatever its size, and with 80 bytes, there is hardly any other cost.
# This is why training libraries collect many small gradients and send them in one large message (lessons 04 and 06).
#
# </details>
#
# Must a rank wait while a message travels? In `Recv` it does, and with a large message in `Send`, too. These calls are **blocking**: they return only
# when you may use their arrays again. `Isend` and `Irecv` are **non-blocking**: each only starts a send or a receive, and returns a **request**
# at once. Now the rank is free to compute. Later it calls `Wait`, which returns when the array may be used again.
#
# On one computer, messages arrive so fast that we would not see the difference. So `slow_messages` makes `link`, which is `comm` with every
# message delayed by 0.2 s. Each rank also has 0.2 s of work to do, for which a sleep stands in. **Predict:** how many seconds do the message and the work take
# together?


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
# 0.2 s, not 0.4, because the rank worked while its message travelled. Do not count on this with large messages: many MPI libraries move
# them only while the rank is inside an MPI call. A rank that computes then keeps its own message waiting.
#
# </details>
#
# So the rank is free, but is the array? Rank 0 starts to send zeros, then overwrites them with nines. Only then does rank 1 call `Recv`, and
# rank 0 calls `Wait`. We try this with 80 bytes, then with 1 MB. **Vote:** what does rank 1 receive? (a) zeros both times, (b) nines both
# times, (c) zeros, then nines

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
# (c). The 80 bytes were in a buffer when `Isend` returned, so the nines came too late to change them. The 1 MB stayed in rank 0's array until
# rank 1 called `Recv` (the rendezvous of section 3), and by then the array held nines. A test with small messages would never find this mistake.
#
# Until `Wait` returns, the array belongs to MPI: do not change an array that you send, and do not touch one that you receive.
#
# </details>

# %% tags=["exercise: 01.2"]

# %% tags=["exercise: 01.q5"]

# %% [markdown]
# ### Which message comes first?
#
# Rank 0 often collects results from all the others, and it should not wait for rank 1 when rank 3 was done long ago. For this, a `Recv` with
# `ANY_SOURCE` takes a message from any rank. A sender may also put a number on its message, a **tag**, and `ANY_TAG` accepts them all.
# Afterwards, the `Status` says who sent the message, with which tag, and how long it was. (The array to fill may be longer.)
#
# Ranks 1, 2 and 3 send one message each. `--twice` runs the cell twice, the second time with random pauses. **Predict:** in which order do the
# messages come?

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
# more. The order matters as soon as rank 0 adds up floats as they come: (a + b) + c may be rounded differently from a + (b + c). So the last digits
# of the sum may differ from run to run, although the program and its data are the same.
#
# </details>
#
# Messages from *one* rank keep their order: in the same communicator, they do not overtake each other. If a `Recv` could take either of two, it takes the one sent
# first. And a receiver that names a tag takes only messages with that tag.
#
# The next exercise sends single numbers, so it uses the calls in lower case. `send` and `recv` take almost any Python object and
# **pickle** it, that is, pack it into bytes. This is handy for one number and slow for arrays.

# %% tags=["exercise: 01.3"]

# %% [markdown]
# So messages of different ranks come in any order. Does the page, at least, show which rank was first? We let a token go from rank 3 to rank 2, then to 1, then to 0.
# Each rank prints a line when it has the token. **Vote:** whose line is on top? (a) always rank 3's, (b) always rank 0's, (c) sometimes one, sometimes another

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
# (b), although rank 0 printed last, because the page sorts its lines by rank. So the order on a page proves nothing. Only messages put
# events of two ranks in order: what a rank does after `Recv` happens after everything that the sender did before `Send`.
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
