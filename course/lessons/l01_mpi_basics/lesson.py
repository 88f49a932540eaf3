# %% [markdown]
# # 01 · MPI basics
#
# *Let four processes exchange messages, let them wait for each other for ever, and get them out of it.*
#
# | | |
# |---|---|
# | **You will be able to** | write one program that does different things on different ranks; send arrays from one rank to another; read a hang report; remove a deadlock in two ways |
# | **Before this** | [00 · Start here](00_start_here.ipynb) |
# | **Time** | core 20 min · more 35 min |
# | **Ranks** | 4 |
#
# [← 00 · Start here](00_start_here.ipynb) · [Course map](00_start_here.ipynb) · [02 · Monte Carlo π →](02_monte_carlo_pi.ipynb)

# %% [markdown]
# ## Warm-up
#
# Answer from memory, then open the answer.
#
# 1. You run `a = 1` in a cell without `%%px`. Which ranks know `a`?
#    <details><summary>Answer</summary>None. The cell ran in the kernel, and every process has its own memory.</details>
# 2. Four ranks on a machine with two cores: how many processes are that, and how many compute at the same moment?
#    <details><summary>Answer</summary>Four processes; two at most compute at once, the others wait for their turn.</details>
# 3. How many bytes does one parameter take while it is trained with Adam?
#    <details><summary>Answer</summary>16: the weight, its gradient, and three more numbers of the optimizer.</details>

# %% [markdown]
# ## Setup

# %% tags=["nbval-ignore-output"]
from mpi_classroom.cluster import start_cluster

cluster = start_cluster(n=4)

# %%
# %%px --setup
import time

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size

# %% [markdown]
# ## 1 · One program, many ranks
#
# All ranks run the same cell; this is called **SPMD**: single program, multiple data. Only `rank` is different,
# and the program decides by it what to do.

# %%
# %%px
if rank == 0:
    secret = 43523

# %% [markdown]
# The assignment ran on rank 0 only. The others skipped it, so there the variable does not exist. The next cell fails
# on purpose: see which ranks it names.

# %% tags=["raises-exception"]
# %%px
print(f"rank {rank}: the secret is {secret}")

# %% [markdown]
# ## 2 · Send and receive
#
# What one rank has, another gets only in a **message**, and both must take part: one calls `Send` and names the
# destination, the other calls `Recv`, names the source, and brings an array to put the numbers in.

# %%
# %%px
numbers = np.zeros(3)
if rank == 0:
    numbers[:] = [4, 35, 23]
    comm.Send(numbers, dest=1)
elif rank == 1:
    comm.Recv(numbers, source=0)
print(f"rank {rank}: {numbers}")

# %% [markdown]
# Rank 1 has the numbers; ranks 2 and 3 took no part.

# %% [markdown]
# ## 3 · "Send returned" is not "received"
#
# When does `Send` return? Rank 1 is busy for half a second before it receives. Meanwhile rank 0 sends it one
# number, and the second time a million bytes. (At a `Barrier`, every rank waits until all are there.) How long
# will `Send` take for the million bytes?

# %%
predict("Seconds in Send, with 1 MB?", None)


# %%
# %%px
def timed_message(count):
    """Send `count` numbers from rank 0 to a busy rank 1; return when this rank's call began and ended."""
    comm.Barrier()
    if rank == 1:
        time.sleep(0.5)
    began = time.time()
    if rank == 0:
        comm.Send(np.zeros(count), dest=1)
    elif rank == 1:
        comm.Recv(np.empty(count), source=0)
    return began, time.time()


small, large = timed_message(1), timed_message(125_000)

# %% tags=["nbval-ignore-output"]
from course.lessons.l01_mpi_basics.figures import Message, circular_wait, space_time

small, large = cluster["small"], cluster["large"]
space_time([Message("8 B", 0, 1, *small[:2]), Message("1 MB", 0, 1, *large[:2])])

# %% [markdown]
# Time runs to the right. MPI put a copy of the small message aside, and rank 0 went on long before rank 1
# received it. For the large one it kept no copy: `Send` had to wait for `Recv`.

# %% tags=["nbval-ignore-output"]
began, ended = large[0]
why = "Send waited for Recv." if ended - began > 0.4 else "MPI had put a copy aside."
outcome("Seconds in Send, with 1 MB?", ended - began, "s", because=why)

# %% [markdown]
# So `Send` promises one thing only: when it returns, **you may use the array again**. It does not say that
# the message has arrived. And what is "small" is for the MPI library to decide, not for you.

# %% [markdown]
# ## 4 · A deadlock on purpose
#
# Now all ranks stand in a ring. Each sends an array to its right-hand neighbour, and then receives one from
# the left. First with 4 kB:

# %%
# %%px --setup
right, left = (rank + 1) % size, (rank - 1) % size

# %%
# %%px
mine = np.full(500, rank)
theirs = np.empty_like(mine)
comm.Send(mine, dest=right)
comm.Recv(theirs, source=left)
print(f"rank {rank} received the array of rank {theirs[0]}")

# %% [markdown]
# It works. Now the same lines with 1 MB. The cell may take 5 seconds; then it ends with a report.

# %% tags=["raises-exception", "nbval-ignore-output"]
# %%px --timeout 5
mine = np.full(125_000, rank)
theirs = np.empty_like(mine)
comm.Send(mine, dest=right)
comm.Recv(theirs, source=left)
print(f"rank {rank} received the array of rank {theirs[0]}")

# %% [markdown]
# This is a **hang report**, one line a rank: the call it is in, for whom it waits, and the line of the cell.
# All four are still in line 4, in `Send`; nobody has come to `Recv` in line 5, and so nobody's `Send` can
# end. The picture of it:

# %% tags=["nbval-ignore-output"]
circular_wait({0: 1, 1: 2, 2: 3, 3: 0}, call="Send")

# %% [markdown]
# A circle of waiting is called a **deadlock**. The program was wrong with 4 kB, too: it only worked because
# MPI had put copies aside.
#
# You have working ranks again: they were restarted, and the `--setup` cells run once more. Their
# other variables are lost; we need none of them.

# %% [markdown]
# ## 5 · A way out
#
# Leave the order to MPI: `Sendrecv` sends and receives in one call, and takes care that nobody
# waits in vain. For an exchange, this is the call to use.

# %%
# %%px
mine = np.full(125_000, rank)
theirs = np.empty_like(mine)
comm.Sendrecv(mine, dest=right, recvbuf=theirs, source=left)
print(f"rank {rank} received the array of rank {theirs[0]}")

# %% tags=["exercise: 01.1"]

# %% [markdown]
# ## Key points
#
# - All ranks run the same program; `rank` makes the difference; what one rank sets, the others do not have.
# - A message needs two: `Send` there, `Recv` here. Capitals for arrays, small letters for objects.
# - When `Send` returns, you may use the array again. Nothing is said about the other side.
# - Everyone sends first: a deadlock that hides until messages grow. `Sendrecv`, or an order without a circle, avoids it.

# %% [markdown]
# ## Discuss
#
# In the ring every rank receives first and sends afterwards, with messages of 8 bytes. Does it work? Always,
# never, or does it depend on the MPI library?

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More

# %% [markdown]
# ### 6 · Any object: small letters
#
# With a small first letter, the same calls carry any Python object, and `recv` returns it:

# %%
# %%px
if rank == 0:
    comm.send({"colours": ["red", "blue"], "sent by": rank}, dest=1)
elif rank == 1:
    print(comm.recv(source=0))

# %% [markdown]
# | | `Send`, `Recv` | `send`, `recv` |
# |---|---|---|
# | carry | arrays: size and type are known | any Python object |
# | by | taking the bytes as they are: fast | packing into bytes and unpacking (pickle): slow |
# | the receiver | brings the array to fill | gets a new object |
#
# Use capitals for data, small letters for a few words about it, and the same kind on both sides.

# %% [markdown]
# ### 7 · The screen is not a clock
#
# A token goes from rank 3 to rank 2 to rank 1 to rank 0. No rank prints before the token has come, so the
# order in time is certain: 3, 2, 1, 0. In which order are the lines on your screen?

# %%
# %%px
token = np.zeros(1)
if rank < size - 1:
    comm.Recv(token, source=rank + 1)
print(f"rank {rank} has the token")
if rank > 0:
    comm.Send(token, dest=rank - 1)

# %% [markdown]
# What a rank prints travels to this page by itself, and is shown there in a block of its own. The order of
# these blocks proves nothing about the order of events. Messages do: whatever a rank does after `Recv`, it does
# after the other has begun its `Send`.

# %% [markdown]
# ### 8 · Three questions
#
# Write your letter between the quotes, and run the cell.

# %% tags=["exercise: 01.q1"]

# %% tags=["exercise: 01.q2"]

# %% tags=["exercise: 01.q3"]

# %% [markdown]
# ### 9 · Break the circle yourself
#
# In the cell of section 4 that draws the circle, remove one of the four pairs and run it again: what does the
# title say now? A program can break the circle, too. Ranks with an even number send first, the others receive
# first: now each `Send` meets a `Recv`.

# %%
# %%px
if rank % 2 == 0:
    comm.Send(mine, dest=right)
    comm.Recv(theirs, source=left)
else:
    comm.Recv(theirs, source=left)
    comm.Send(mine, dest=right)
print(f"rank {rank} received the array of rank {theirs[0]}")

# %% [markdown]
# ### 10 · Calls that do not wait
#
# A third way out: `Isend` and `Irecv` only *begin* to send and receive, and return at once with a
# **request**. You can compute in the meantime, and then wait for all requests. Until then the arrays belong
# to MPI: read or change neither.

# %%
# %%px
requests = [comm.Irecv(theirs, source=left), comm.Isend(mine, dest=right)]
meanwhile = sum(range(100_000))
MPI.Request.Waitall(requests)
print(f"rank {rank} received the array of rank {theirs[0]}")

# %% tags=["exercise: 01.2"]

# %% [markdown]
# ### 11 · Tags, and messages from anyone
#
# A message carries a number of your choice, its **tag**; a `Recv` takes only messages with the tag that it
# asks for. Or it takes any tag from any source, and `Status` tells afterwards who sent what, and how much.

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
# The messages may come in any order: run the cell several times. The array may be longer than the message, but
# not shorter: then `Recv` raises `MPI_ERR_TRUNCATE`.
#
# In C and in the MPI standard, every message has a tag, and you must write it. Only mpi4py lets you leave it
# out; then it is 0.

# %% tags=["exercise: 01.3"]

# %% [markdown]
# ### 12 · Threads share, ranks do not
#
# The other way to do several things at once is **threads**: they live in one process and see the same
# variables. Four threads append to one list; four ranks append to *a* list.

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
# | | Shared memory (threads) | Message passing (ranks) |
# |---|---|---|
# | memory | one, for all | each its own |
# | data goes over | by being there | in messages |
# | care is needed | with two writing at once: locks | with two waiting for each other: deadlock |
# | reaches | as far as one machine | over many machines |
#
# MPI is message passing. On one machine the bytes of a message do travel through memory that both processes
# can see, but your variables stay private. (MPI has an opt-in for real sharing: `MPI.Win.Allocate_shared`.)

# %% [markdown]
# ### 13 · The same in C
#
# MPI is a standard for C and Fortran; mpi4py calls the C library. Here is the secret of section 1 again, sent
# by a C program. The file is `notebooks/code/send_recv.c`.

# %%
from course.paths import BUILD, NOTEBOOKS

source = NOTEBOOKS / "code" / "send_recv.c"
print(source.read_text())

# %% [markdown]
# `mpicc` calls your C compiler with the paths of MPI added; `mpiexec -n 2` starts two ranks. Without a C
# compiler, the cell says so, and you miss nothing that comes later.

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
# | beginning, end | `MPI_Init`, `MPI_Finalize` | done by `from mpi4py import MPI`, and at exit |
# | who am I | `MPI_Comm_rank`, `MPI_Comm_size` | `comm.rank`, `comm.size` |
# | all wait for all | `MPI_Barrier` | `comm.Barrier` |
# | one message | `MPI_Send`, `MPI_Recv` | `comm.Send`, `comm.Recv` |
# | without waiting | `MPI_Isend`, `MPI_Irecv`, `MPI_Waitall` | `comm.Isend`, `comm.Irecv`, `MPI.Request.Waitall` |
# | collectives (lessons 02 and 04) | `MPI_Bcast`, `MPI_Reduce`, … | `comm.Bcast`, `comm.Reduce`, … |

# %% [markdown]
# ### 14 · Names for parallel machines
#
# Flynn (1966) sorted computers by how many streams of instructions and of data they have at a time:
#
# | | one data stream | many data streams |
# |---|---|---|
# | **one instruction stream** | SISD: one classical core | SIMD: vector units; inside a GPU, nearly |
# | **many instruction streams** | MISD: rare; voting, against faults | MIMD: many cores, clusters, our ranks |
#
# SPMD and MPMD are often listed with them, but they are not Flynn's: they came later and say how we *program* a
# MIMD machine, with one program or with several. MPI can do MPMD too: here are two programs in one world, separated
# by `:` on the command line of `mpiexec`.

# %%
import sys

giver = "from mpi4py import MPI; MPI.COMM_WORLD.send(43523, dest=1)"
taker = "from mpi4py import MPI; print('rank 1 received', MPI.COMM_WORLD.recv(source=0))"
print(run_program(1, [sys.executable, "-c", giver, ":", "-n", "1", sys.executable, "-c", taker]))

# %% [markdown]
# ### 15 · Others that move bytes
#
# | Library | Made for | In PyTorch |
# |---|---|---|
# | MPI | CPUs and GPUs, any program; the richest set of calls | only in builds made for it; lesson 07 has a way around that |
# | Gloo | CPUs | built in |
# | NCCL | NVIDIA GPUs | built in, where there is CUDA |
# | oneCCL | Intel CPUs and GPUs | in builds for Intel, or as an extension |
#
# MPI itself is a standard with several implementations: Open MPI (yours), MPICH, Intel MPI, Cray MPICH.

# %% [markdown]
# ## On GPUs
#
# An MPI library built for CUDA or ROCm takes arrays on the GPU in the same calls. The rules of this lesson
# hold there too: a rank that waits in vain hangs just the same.

# %% [markdown]
# ## Pitfalls
#
# - "It works with small messages" proves nothing. Write `Ssend` for `Send` in a test: it waits for the receiver at any size.
# - `comm.Send` with `comm.recv` is a mismatch, even if it seems to work.
# - An array of the wrong type is received as wrong numbers: both sides need the same `dtype`.
# - `MPI.Wtime()` of two ranks cannot be compared: each rank's clock may have its own zero.

# %% [markdown]
# ## References
#
# - [mpi4py tutorial](https://mpi4py.readthedocs.io/en/stable/tutorial.html), point-to-point communication
# - [MPI standard](https://www.mpi-forum.org/docs/), chapter on point-to-point communication: when `MPI_Send` may return
# - M. J. Flynn, [Very High-Speed Computing Systems](https://doi.org/10.1109/PROC.1966.5273), 1966

# %% [markdown]
# ## Stretch
#
# Send a token once around the ring with ordinary `Send` and `Recv`, without a deadlock, and let every rank
# add its number to it. What should rank 0 hold at the end?

# %% [markdown]
# ## Teardown

# %%
cluster.stop()
