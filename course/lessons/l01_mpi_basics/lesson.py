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
# All ranks run the same cell (**SPMD**: single program, multiple data), and `rank` decides who does what. A **message** takes two calls:
# one rank calls `Send` with an array, another calls `Recv` with an array to fill.
#
# Cells with `--save` also fill a program to take home. Those with `--setup` run again whenever the ranks are restarted.

# %%
# %%px --setup --save 01_ring.py
"""A ring of ranks: how many bytes Send takes without a receiver, and how long a shift lasts."""

import time

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
right, left = (rank + 1) % size, (rank - 1) % size  # of four ranks in a ring: 0 → 1 → 2 → 3 → 0

# %% [markdown] tags=["subslide"]
# Rank 0 sends four numbers to rank 1. **Vote:** rank 1 prints (a) 0, 1, 2, 3, (b) an error of MPI, (c) other numbers.

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
# Other numbers. `np.arange(4)` holds integers, `np.empty(4)` floats, each of 8 bytes. MPI moved 32 bytes and converted nothing. It does not
# complain, either. The error is the classroom's, which compares the calls of all ranks after each cell. Elsewhere the program goes on, with
# wrong numbers. **Repair one word** and run the cell again.
#
# </details>
#
# Upper-case calls move the bytes of an array. Lower-case `send`, `recv`, `bcast` and `allreduce` take any Python object: mpi4py **pickles** it,
# that is, packs it into bytes, which is slow for arrays and handy for one number. `bcast` gives rank 0's object to all ranks, `allreduce`
# the sum of all ranks' objects.

# %% [markdown] tags=["slide"]
# ## 2 · Once around the ring
#
# Now every rank sends an array to its right neighbour and receives one from its left: ten numbers of 8 bytes, 80 bytes.
# (`--timeout 3` ends a cell that is not done after 3 s.)

# %%
# %%px --timeout 3
mine = np.full(10, rank)
theirs = np.empty_like(mine)
comm.Send(mine, dest=right)
comm.Recv(theirs, source=left)
print(f"rank {rank} received the array of rank {theirs[0]}")

# %% [markdown] tags=["subslide"]
# The same with 125,000 numbers of 8 bytes, 1 MB. **Vote:** which ranks print, (a) all, (b) some, (c) none?

# %% tags=["raises-exception", "nbval-ignore-output"]
# %%px --timeout 3
mine = np.full(125_000, rank)
theirs = np.empty_like(mine)
comm.Send(mine, dest=right)
comm.Recv(theirs, source=left)
print(f"rank {rank} received the array of rank {theirs[0]}")

# %% [markdown] tags=["notes"]
# Who votes for "some" thinks of one rank that sends first. Ask which rank that is: all four run the same line. Then read one line of
# the report aloud: the rank, its call, the rank it waits for, the line of the cell.

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# None. In the **hang report**, each line says what a rank does, for whom it waits, and where. All four are in `Send`, in line 4. Nobody comes to `Recv` in
# line 5. Ranks that wait for each other in a circle are in a **deadlock**. Only the classroom ended it: it restarted the ranks and
# ran the setup cell again; their other variables are gone.
#
# But the same lines worked with 80 bytes. What does `Send` wait for?
#
# </details>

# %% [markdown] tags=["slide"]
# ## 3 · At which byte?
#
# Somewhere between 80 bytes and 1 MB, this MPI changes. We find the byte by halving. `Isend` starts a `Send` and returns at once; `Test`
# says whether that `Send` would have returned by now. For 0.05 s, nobody receives.


# %%
# %%px --setup --save 01_ring.py
def returns_alone(comm, nbytes):
    """Whether Send of so many bytes returns before its receiver calls Recv."""
    mine, theirs = np.zeros(nbytes, np.uint8), np.empty(nbytes, np.uint8)
    sending = comm.Isend(mine, dest=(comm.rank + 1) % comm.size)
    time.sleep(0.05)
    alone = comm.allreduce(sending.Test(), op=MPI.LAND)  # on all ranks; none receives before all have asked
    comm.Recv(theirs, source=(comm.rank - 1) % comm.size)
    sending.Wait()
    return alone


def most_alone(comm, returns=80, waits=1_000_000):
    """The largest number of bytes with which Send returns alone."""
    while waits - returns > 1:
        nbytes = (returns + waits) // 2
        if returns_alone(comm, nbytes):
            returns = nbytes
        else:
            waits = nbytes
    return returns


# %%
predict("With how many bytes does Send still return alone?", None)

# %%
# %%px
limit = most_alone(comm)

# %%
outcome("With how many bytes does Send still return alone?", cluster["limit"][0], "bytes", word="it is")

# %% [markdown] tags=["subslide"]
# Now a real `Send`, with so many bytes and with one more. All ranks begin together: `Barrier` returns when all have called it. Then rank 1
# comes 0.3 s late to its `Recv`. **Predict:** how long is rank 0 in each `Send`?


# %%
# %%px
calls = []


def call(name, function, *arguments):
    """Call the function, and note when it began and when it returned."""
    began = time.time()
    function(*arguments)
    calls.append((name, began, time.time()))


for nbytes in (limit, limit + 1):
    numbers = np.zeros(nbytes, np.uint8)
    call("Barrier", comm.Barrier)
    if rank == 0:
        call(f"Send {nbytes:,} B", comm.Send, numbers, 1)
    elif rank == 1:
        time.sleep(0.3)
        call(f"Recv {nbytes:,} B", comm.Recv, numbers, 0)

# %% tags=["nbval-ignore-output"]
from course.lessons.l01_mpi_basics.figures import timeline

timeline(cluster["calls"][:2])

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# One byte more, and `Send` waits for the receiver. Small messages go by the **eager protocol**: MPI keeps a copy, the message is **buffered**,
# and `Send` returns. (Rank 0 then waits in the next `Barrier`.) Large ones go by the **rendezvous protocol**: MPI announces the message, waits for
# `Recv`, then moves the bytes.
#
# The standard promises neither. When `Send` returns, you may change the array: that is all you know. A program that needs MPI's copies to
# end, like our ring, is called **unsafe**, with 80 bytes, too.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 4 · Two repairs
#
# The circle breaks if some ranks receive first: those with an odd number.


# %%
# %%px
def shift(comm, value):
    """Send `value` to the right neighbour; return the array of the left neighbour."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    received = np.empty_like(value)
    if comm.rank % 2 == 0:
        comm.Send(value, dest=right)
    comm.Recv(received, source=left)
    if comm.rank % 2 == 1:
        comm.Send(value, dest=right)
    return received


got = shift(comm, np.full(125_000, rank))
print(f"rank {rank} received the array of rank {got[0]}")

# %% [markdown] tags=["subslide"]
# On four ranks, 1 MB goes round. `Split` makes two teams, each with a ring of its own: ranks 0, 1 and 2, and rank 3 alone. **Vote:** who hangs?
# (a) The three: among them, two even ranks are neighbours. (b) The one. (c) Both. (d) Nobody.

# %% tags=["raises-exception", "nbval-ignore-output"]
# %%px --timeout 3
team = comm.Split(rank == 3)
got = shift(team, np.full(125_000, rank))
print(f"rank {rank}, in a team of {team.size}, received the array of rank {got[0]}")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# The one. It is its own neighbour, and sends to itself before it receives. The three get through: rank 1 receives from 0, then 0 from 2,
# then 2 from 1. Two steps wait for a third, but nothing closes the circle. So test on one rank, on an odd number, and with large messages.
#
# </details>

# %% tags=["exercise: 01.1", "subslide"]

# %% [markdown] tags=["notes"]
# Six minutes. Common mistakes: `left` and `right` exchanged, and `return value`. Who is done early tries `Send`, then `Recv`, and reads the report.

# %% [markdown] tags=["slide"]
# ## 5 · How long does it take?
#
# A timing is six lines: all ranks start together, the slowest one counts, and of ten runs we take the median. Later lessons call this
# function.

# %% tags=["source: course_lib.measure:timed"]
# %%px --save 01_ring.py

# %% [markdown] tags=["subslide"]
# One more cell makes a program. 1 MB is 12,500 times 80 bytes. **Predict:** how many times as long does a shift take?


# %%
# %%px --save 01_ring.py
def main():
    small, large = (timed(comm, lambda: shift(comm, np.zeros(count))) for count in (10, 125_000))
    most = most_alone(comm)
    if rank == 0:
        print(f"ranks: {size}, Send returns alone with up to {most} bytes;", end=" ")
        print(f"a shift: 80 B {1e6 * small:.0f} µs, 1 MB {1e6 * large:.0f} µs")


if __name__ == "__main__":
    main()

# %% tags=["nbval-ignore-output"]
# !mpiexec -n 1 python code/01_ring.py
# !mpiexec -n 3 python code/01_ring.py

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# Far less than 12,500 times as long: a message costs a fixed time, the **latency**, and then time per byte. Lesson 04 measures both. One
# rank sends to itself in another way, so its limit is different.
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# | | what changes |
# |---|---|
# | the limit | it depends on library, settings and network. Open MPI over TCP: 65,456 bytes. Run `01_ring.py` there |
# | a hang | nobody ends it, and the job pays until its time limit. Write `Ssend` for `Send` in tests: it waits for the receiver at any size |
# | GPUs | NCCL's `ncclSend` may wait at any size. `ncclGroupStart` and `ncclGroupEnd` around both calls make one exchange; in PyTorch, `batch_isend_irecv` does |

# %% tags=["exercise: 01.q4", "subslide"]

# %% [markdown] tags=["slide"]
# ## Key points
#
# - When `Send` returns, you may change the array. The receiver may not even have called `Recv`.
# - Ranks of a ring that all send first are unsafe: a larger message or another network can hang them. `Sendrecv` cannot hang in a ring.
# - Both sides need the same type. MPI does not look.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# A ring of `Send`, then `Recv`, has run for a year on one machine, with 3 kB. On the cluster it ran today with 60 kB. What do you do? (a) Keep it:
# two machines agree. (b) Set the cluster's limit to 1 MB, for safety. (c) Change it, before anybody needs 70 kB.
#
# <details><summary>What to listen for</summary>(c). 60 kB fit below the limit of TCP; 3 kB below that of one machine. Neither run tested the program.
# (b) works until the message grows or the job moves, and every pair of ranks pays in memory. How would you have found out in time? <code>Ssend</code>.</details>

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
from course_lib.measure import measure

link = slow_messages(comm, 0.2)
mine, theirs = np.full(10, rank), np.empty(10, int)


def work():
    time.sleep(0.2)


def first_the_message():
    link.Sendrecv(mine, dest=right, recvbuf=theirs, source=left)
    work()


def both_at_once():
    requests = [link.Irecv(theirs, source=left), link.Isend(mine, dest=right)]
    work()
    for request in requests:
        request.Wait()


rows = measure(comm, {"Sendrecv, work": first_the_message, "Isend, work, Wait": both_at_once}, repeat=3)
if rank == 0:
    print([round(row.value, 1) for row in rows])

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
# `MPI.ANY_SOURCE` takes a message of any rank, and a `Status` says whose it was. `--twice` runs the cell again, with random pauses.
# **Predict:** is the order 1, 2, 3 both times?

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
# Messages of different ranks arrive in any order. Two messages of one rank to another are received in the order in which they were sent,
# if the same `Recv` could take both. A **tag** is a number on a message; a receiver that names one takes only messages with that tag.

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
# Rank 3 printed first, wherever its line stands on your page. Only calls of MPI put the events of two ranks in order: what a rank does after
# `Recv` comes after all that the sender did before its `Send`, and nobody leaves a `Barrier` before all have come.

# %% tags=["exercise: 01.q3"]

# %% [markdown]
# ## References
#
# - [mpi4py tutorial](https://mpi4py.readthedocs.io/en/stable/tutorial.html), point-to-point communication
# - [MPI standard](https://www.mpi-forum.org/docs/), chapter on point-to-point communication: *unsafe* programs, and when `MPI_Send` may return
# - [MPI in C, threads, and names you will meet](../docs/mpi_and_others.md)
# - [MPI mistakes that end in wrong numbers](../docs/mistakes.md): what the classroom finds, also in your own programs
