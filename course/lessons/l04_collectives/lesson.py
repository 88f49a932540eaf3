# %% [markdown]
# # 04 · Collectives
#
# *See what the calls that all ranks make together leave on each of them, and what they cost.*
#
# | | |
# |---|---|
# | **You will be able to** | say what broadcast, scatter, gather, reduce and all-reduce leave on every rank; make an all-reduce of its two halves; write a ring and a tree with messages, and count what each rank sends; choose an algorithm by the size of the array; find out what a backend of PyTorch can do |
# | **Before this** | [01 · MPI basics](01_mpi_basics.ipynb), [02 · Monte Carlo π](02_monte_carlo_pi.ipynb) |
# | **Time** | core 20 min · more 61 min |
# | **Ranks** | 4 |
#
# [← 03 · arctan π and quadrature](03_arctan_pi.ipynb) · [Course map](00_start_here.ipynb) · [05 · Training in one process →](05_training_one_process.ipynb)

# %% [markdown]
# ## Warm-up
#
# Answer from memory, then open the answer.
#
# 1. All ranks stand in a ring; each calls `Send` to the right, then `Recv` from the left. It works with 4 kB. And with 1 MB?
#    <details><summary>Answer</summary>It may hang: nobody comes to Recv before somebody's Send has ended. <code>Sendrecv</code> does both at once.</details>
# 2. Four ranks count darts, and `Reduce` adds up the counts. On which rank is the sum?
#    <details><summary>Answer</summary>On the root, and only there.</details>
# 3. A cell is to be timed on a machine with two cores. How many ranks should take part?
#    <details><summary>Answer</summary>Two. More ranks than cores take turns, and you time the taking of turns.</details>

# %% [markdown]
# ## Setup

# %% tags=["nbval-ignore-output"]
from mpi_classroom.cluster import start_cluster

cluster = start_cluster(n=4)

# %%
# %%px --setup
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
mine = np.array([1, 2, 3, 4]) * 10**rank

# %% [markdown]
# ## 1 · Five collectives
#
# A **collective** is a call that *all* ranks make, each with its own part in it. The numbers in `mine` tell whose
# they are: 1 to 4 on rank 0, tens on rank 1, hundreds on rank 2, thousands on rank 3. We draw what the ranks
# really hold, before and after. Zeros are room where nothing has come, and are left out.


# %%
from course.lessons.l04_collectives.figures.collectives import before_after


def picture(name):
    """What the ranks held before and after a collective."""
    held = [dict(enumerate(cluster[when])) for when in ("before", "after")]
    before, after = ({rank: a[a != 0] for rank, a in arrays.items()} for arrays in held)
    return before_after(before, after, name=name)


# %% [markdown]
# **Broadcast**: the root's array, to everyone. Who has to call it? All four ranks, with the same line; `root=0`
# says who gives.

# %%
# %%px
before, after = mine, mine.copy()
comm.Bcast(after, root=0)

# %% tags=["nbval-ignore-output"]
picture("Broadcast")

# %% [markdown]
# **Scatter**: the root deals its array out. Each rank brings room for its part.

# %%
# %%px
before, after = mine * (rank == 0), np.zeros(1, int)
comm.Scatter(before, after, root=0)

# %% tags=["nbval-ignore-output"]
picture("Scatter")

# %% [markdown]
# **Gather** goes the other way: a part from every rank, and the root has them all, in the order of the ranks.

# %%
# %%px
before, after = mine[:1], np.zeros(4, int)
comm.Gather(before, after, root=0)

# %% tags=["nbval-ignore-output"]
picture("Gather")

# %% [markdown]
# **Reduce** combines the arrays, number by number; unless you say otherwise, it adds. Every rank brings
# an array, and room for the sums. On how many ranks will they be?

# %%
predict("Ranks that have the sums after Reduce?", None)

# %%
# %%px
before, after = mine, np.zeros(4, int)
comm.Reduce(before, after, root=0)

# %% tags=["nbval-ignore-output"]
have = sum(after.any() for after in cluster["after"])
outcome("Ranks that have the sums after Reduce?", have, word="counted", because="Only the root has them.")
picture("Reduce")

# %% [markdown]
# A sum of 1111 says that all ranks are in it; 1011 would miss rank 2. **All-reduce** leaves the sums everywhere.
# Training on many ranks lives on this one: their gradients are added up so, in every step.

# %%
# %%px
before, after = mine, np.zeros(4, int)
comm.Allreduce(before, after)

# %% tags=["nbval-ignore-output"]
picture("All-reduce")

# %% [markdown]
# ## 2 · An all-reduce is two things
#
# How would you make an all-reduce? Let everybody send the whole array to everybody, and all four ranks do all the
# additions. That is four times the work, and three arrays sent by each. Better share it: rank 0 adds up the first
# part of all arrays, rank 1 the second, and so on. This half is called **reduce-scatter**.

# %%
# %%px
before, after = mine, np.zeros(1, int)
comm.Reduce_scatter_block(before, after)

# %% tags=["nbval-ignore-output"]
picture("Reduce-scatter")

# %% [markdown]
# Each addition was made once. Now every rank gives its part of the sum to all the others: an **all-gather**, which is
# a gather without a root.

# %%
# %%px
before, after = after, np.zeros(4, int)
comm.Allgather(before, after)

# %% tags=["nbval-ignore-output"]
picture("All-gather")

# %% [markdown]
# That is the all-reduce of section 1. In each half, a rank gives away no more than three of its four parts: with n
# ranks, (n−1)/n of an array. Both together send **2(n−1)/n arrays a rank**: 1.5 arrays on four ranks, and never
# 2, however many ranks there are.

# %% tags=["exercise: 04.1"]

# %% [markdown]
# ## Key points
#
# - A collective is a call of all ranks, in the same order on all. `root` says which part a rank has in it.
# - Only the root has the result of `Reduce` and `Gather`; all ranks have that of `Allreduce` and `Allgather`.
# - An all-reduce is a reduce-scatter and an all-gather. Each rank sends 2(n−1)/n arrays: less than two, on any number
#   of ranks.
# - Small arrays: count the steps (tree, doubling). Large arrays: count the bytes (ring).
# - Two numbers, latency and time for a byte, predict most of what you will measure.

# %% [markdown]
# ## Discuss
#
# A model has a hundred million parameters, and 64 ranks sum its gradients with a ring. You double the ranks, and the bytes
# that each of them sends hardly grow. Does the all-reduce take as long as before? Vote, talk to your neighbour for two
# minutes, vote again: (a) yes; (b) a little longer; (c) twice as long.
#
# <details><summary>What to listen for</summary>(b) for large arrays: the bytes stay, but there are twice as many steps, and
# each costs a latency and waits for the slowest of more ranks. (c) is right for small arrays, where the steps are all there
# is. (a) forgets both.</details>

# %% [markdown]
# **Stop here in a short workshop.** More takes the collectives apart: made by hand from messages, counted, timed,
# and predicted.

# %% [markdown] tags=["more"]
# ## More
#
# ### Three questions
#
# Write your letter between the quotes, and run the cell.

# %% tags=["exercise: 04.q1"]

# %% tags=["exercise: 04.q2"]

# %% tags=["exercise: 04.q3"]

# %% [markdown]
# ### A ring, by hand
#
# Where do the two halves come from? From messages between neighbours: the **ring algorithm**. All ranks cut their arrays
# into n **chunks**. In every step each rank sends one chunk to the right and adds the one that comes from the left to
# its own. After n−1 steps, a chunk has come past every rank. Then the complete chunks go round once more.

# %% tags=["source: course_lib.comm.collectives:ring_allreduce"]
# %%px

# %% [markdown]
# (`flat` shows an array of any shape as one dimension, without a copy.) To see it work, we hand it a communicator that
# keeps a picture of the array before every step.


# %%
# %%px
class Filmed(MPI.Intracomm):
    """A communicator that notes what this rank holds whenever it exchanges a chunk."""

    def Sendrecv(self, *args):
        film.append(work.tolist())
        super().Sendrecv(*args)


film, work = [], mine.copy()
ring_allreduce(Filmed(comm), work)
film.append(work.tolist())

# %% tags=["nbval-ignore-output"]
from course.lessons.l04_collectives.figures.collectives import ring_film

ring_film([dict(enumerate(states)) for states in zip(*cluster["film"], strict=True)])

# %% [markdown]
# Follow one chunk on its way down the diagonal: 4, then 4004, 4044, and 4444 is complete. No rank ever holds more than
# its own array and one chunk. Change a line of the ring above, run it and the film again: what does a mistake
# look like?

# %% tags=["exercise: 04.2"]

# %% [markdown]
# ### Count what is sent
#
# A ring of four sums an array of 600 kB. How much does each rank send? `counted` gives us the same communicator, with
# its sends counted.

# %%
predict("kB that each of four ranks sends, to sum 600 kB round the ring?", None)

# %%
# %%px
from course_lib.comm.counting import counted

sent = {}
for n in (2, 3, 4):
    first_n = comm.Split(0 if rank < n else MPI.UNDEFINED, rank)
    if rank < n:
        counting = counted(first_n)
        ring_allreduce(counting, np.ones(75_000))
        sent[n] = counting.sent.messages, counting.sent.nbytes / 1000

# %% tags=["nbval-ignore-output"]
_, counted = cluster["sent"][0][4]
outcome("kB that each of four ranks sends, to sum 600 kB round the ring?", counted, word="counted")

# %% [markdown]
# And on fewer ranks?

# %%
for n, (messages, kilobytes) in cluster["sent"][0].items():
    formula = 2 * (n - 1) / n * 600
    print(f"{n} ranks: {messages} messages, {kilobytes:.0f} kB; 2(n−1)/n · 600 kB = {formula:.0f} kB")

# %% tags=["exercise: 04.3"]

# %% [markdown]
# ### A tree, and doubling
#
# The ring sends few bytes, but in 2(n−1) steps: 2 046 for 1 024 ranks, even if the array is a single number. A **tree**
# needs few steps. In a broadcast, let everyone who has the array pass it on: after one round two ranks have it, then
# four, then eight. Ten rounds reach 1 024 ranks.

# %% tags=["exercise: 04.4"]

# %% [markdown]
# The all-reduce with few steps is called **recursive doubling**: in every round, each rank exchanges *all* of its
# array with a partner, first its neighbour, then two places away, then four. What it holds is a sum over 2, 4, 8 …
# ranks.


# %%
# %%px
def doubling_allreduce(comm, buffer):
    """Sum `buffer` over 2, 4, 8 … ranks, in place."""
    incoming, distance = np.empty_like(buffer), 1
    while distance < comm.size:
        partner = comm.rank ^ distance  # its number differs in one bit
        comm.Sendrecv(buffer, partner, recvbuf=incoming, source=partner)
        buffer += incoming
        distance *= 2


work = mine.copy()
doubling_allreduce(comm, work)
print(f"rank {rank}: {work}")

# %% [markdown]
# | all-reduce of an array, on n ranks | steps | each rank sends |
# |---|---|---|
# | everyone to everyone | 1 | n − 1 arrays |
# | ring | 2(n − 1) | 2(n − 1)/n arrays |
# | recursive doubling | log₂ n | log₂ n arrays |
#
# The ring wins on bytes, doubling on steps. Which one is faster must depend on the size of the array; we shall
# measure that below, with the library's versions: `recursive_doubling_allreduce` takes any number of ranks.

# %% [markdown]
# ### The same in torch.distributed
#
# PyTorch has these calls, too, and behind them a **backend** that does the work: Gloo for CPUs, NCCL for NVIDIA's GPUs.
# Gloo knows nothing of our MPI ranks. They first have to find each other, at a **rendezvous**: rank 0 opens a
# *store*, in which all ranks write where they can be reached, and read where the others can. MPI tells them
# where the store is.

# %%
# %%px
import os

import torch
import torch.distributed as dist

if dist.is_initialized():  # when you run this cell again
    dist.destroy_process_group()
os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # this machine's own network
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if rank == 0 else None
port = comm.bcast(store.port if rank == 0 else None)
store = store or dist.TCPStore("127.0.0.1", port, is_master=False)
store.set(f"who is rank {rank}?", f"process {os.getpid()}")
left_of_me = store.get(f"who is rank {(rank - 1) % size}?").decode()  # waits until it is written
dist.init_process_group("gloo", store=store, rank=rank, world_size=size)

# %% tags=["nbval-ignore-output"]
print("left of rank 0 is", cluster["left_of_me"][0])

# %% [markdown]
# You will meet the store behind other words: `tcp://host:port` says where it is, `file://path` puts it into a file,
# and `env://` reads the address from the environment. Now the collectives. A report that this course grew from (Kolly,
# see References) counts six and lists seven; the seventh is `barrier`, which moves no data.


# %%
# %%px
def own():
    """The first two numbers of this rank, as a tensor."""
    return torch.from_numpy(mine[:2].copy())


held = {name: own() for name in ("broadcast", "reduce", "all_reduce")}
dist.broadcast(held["broadcast"], src=0)
dist.reduce(held["reduce"], dst=0)
dist.all_reduce(held["all_reduce"])

held["scatter"] = torch.zeros(2, dtype=torch.int64)
dist.scatter(held["scatter"], [own() + n for n in range(size)] if rank == 0 else None, src=0)
gathered = [torch.zeros(2, dtype=torch.int64) for _ in range(size)]
dist.gather(own(), gathered if rank == 0 else None, dst=0)
held["gather"] = torch.cat(gathered)
dist.all_gather(gathered, own())
held["all_gather"] = torch.cat(gathered)
dist.barrier()
held = {name: tensor.tolist() for name, tensor in held.items()}

# %%
for name in ("broadcast", "all_reduce", "scatter", "gather", "all_gather"):
    print(f"{name:11}", *(f"rank {rank}: {held[name]}" for rank, held in enumerate(cluster["held"][:2])))

# %% [markdown]
# And `reduce`? The report says that the other ranks' tensors stay as they are. Look:

# %% tags=["nbval-ignore-output"]
for rank, held in enumerate(cluster["held"]):
    print(f"after reduce, rank {rank} holds", held["reduce"])

# %% [markdown]
# Rank 0 has the sums. The others hold what Gloo left in their tensors on the way; the digits tell you whose numbers
# have passed there. The documentation promises nothing, so never read a tensor after `reduce` but on `dst`.

# %% tags=["exercise: 04.5"]

# %% [markdown]
# ### What works on which backend
#
# The report prints a table of backends: on Gloo, it says, `reduce_scatter` and `all_to_all` do not work. Printed
# tables grow old. `probe_backends` tries every operation on two ranks of a job of its own, and looks at the result.

# %%
predict("Of 16 operations, how many work on Gloo?", None)

# %% tags=["nbval-ignore-output"]
from course.lessons.l04_collectives.backends import probe_backends

table = probe_backends()
works = sum(table.state("gloo", operation) == "works" for operation in table.operations)
why = "The report's table has 9 of 11."
outcome("Of 16 operations, how many work on Gloo?", works, word="counted", because=why)
table

# %% [markdown]
# Two of these calls are new: in an **all-to-all**, every rank has a part for every other, and all parts go at once.
# `mpi4py` is a backend of this course, for PyTorch as pip installs it: it makes MPI's calls, by way of mpi4py. The `mpi` of
# PyTorch itself has to be compiled with PyTorch. A *✓* means that the numbers that came out were right.

# %% [markdown]
# ### How long does a message take?
#
# To a good first guess, α + βm seconds for m bytes. α, the **latency**, is the price of any message, however short. β is
# the time for one more byte, and 1/β the **bandwidth**. This is the **alpha-beta** model (Hockney). Two ranks measure it:
# they exchange messages from 4 B to 16 MiB, both ways at once, as neighbours in a ring do.

# %%
# %%px
from course_lib.comm.ping_pong import measure_ping_pong

sizes = [4**power for power in range(1, 13)]
messages = measure_ping_pong(comm, sizes)

# %% tags=["nbval-ignore-output"]
from course.lessons.l04_collectives.figures.sizes import times_by_size
from mpi_classroom.launch import available_cores

messages, cores = cluster["messages"][0], available_cores()
line = messages.hockney()
print(f"latency α = {1e6 * line.alpha_seconds:.2f} µs, bandwidth 1/β = {line.gbyte_per_s:.1f} GB/s")
exchange = dict(zip(messages.nbytes, messages.exchange_seconds, strict=True))
on_the_line = {nbytes: line.exchange_seconds(nbytes) for nbytes in exchange}
times_by_size({"exchange": exchange}, {"exchange": on_the_line}, ranks=2, cores=cores, fitted=list(exchange))

# %% [markdown]
# A single line tells short messages from long ones. It is off in between: MPI treats messages of different sizes
# differently, and caches are faster than memory. `messages.machine()` therefore fits up to four lines, one after the
# other, and does so for adding and copying, too.

# %% [markdown]
# ### What an all-reduce should take
#
# Now the model can say what an algorithm takes, without running it: count its steps, and add up what each costs. This is
# all it knows of the ring:

# %% tags=["source: course_lib.theory.cost_model:ring_allreduce_cost"]

# %%
print(ring_allreduce_cost(4, 600_000).busiest)

# %% [markdown]
# Six messages and 900 kB, as counted above. From how many kB on is the ring faster than doubling, on as many ranks as you
# have cores?

# %%
predict("From how many kB on is the ring faster than recursive doubling?", None)


# %%
# %%px
from course_lib.comm.collectives import recursive_doubling_allreduce
from course_lib.comm.ping_pong import seconds_of
from course_lib.comm.timing import one_rank_a_core
from course_lib.fast.collectives import ring_allreduce as fast_ring_allreduce
from mpi_classroom.launch import available_cores

n = min(size, max(2, available_cores()))
team, gloo = one_rank_a_core(comm, cores=n), dist.new_group(range(n))


def seconds_by_size(work):
    """Seconds of `work(array)` on the slowest rank of the team, by the bytes of the array."""
    if rank >= n:
        return None
    arrays = {nbytes: np.zeros(nbytes // 4, "f") for nbytes in sizes}
    return {nbytes: seconds_of(team, lambda a=array: work(a), 5) for nbytes, array in arrays.items()}


# %%
# %%px
measured = {
    "ring": seconds_by_size(lambda array: ring_allreduce(team, array)),
    "doubling": seconds_by_size(lambda array: recursive_doubling_allreduce(team, array)),
    "fast ring": seconds_by_size(lambda array: fast_ring_allreduce(team, array)),
    "MPI": seconds_by_size(lambda array: team.Allreduce(MPI.IN_PLACE, array)),
    "Gloo": seconds_by_size(lambda array: dist.all_reduce(torch.from_numpy(array), group=gloo)),
}

# %% [markdown]
# Python takes its time, too, before any message leaves: for cutting the array into chunks. We measure that on a rank
# alone.

# %%
# %%px
from functools import partial

calling = {}
for name, allreduce in {"ring": ring_allreduce, "doubling": recursive_doubling_allreduce}.items():
    if rank < n:
        alone = partial(allreduce, MPI.COMM_SELF, np.zeros(1, "f"))
        calling[name] = seconds_of(MPI.COMM_SELF, alone, 5)

# %% [markdown]
# Dots are **measured**, lines **predicted** from messages between two ranks; nothing was fitted to an all-reduce. MPI and
# Gloo choose their algorithms themselves, so for them we predict nothing. The fast ring is our ring, tuned: it sends
# long chunks in pieces of 1 MiB, and adds each piece while the cache still holds it. Below, how far off the model is.

# %% tags=["nbval-ignore-output"]
from course_lib.theory.cost_model import predict_seconds, recursive_doubling_allreduce_cost

costs = {"ring": ring_allreduce_cost, "doubling": recursive_doubling_allreduce_cost}
n, calling, machine = cluster["n"][0], cluster["calling"][0], messages.machine()
measured = {name: cluster["measured"][0][name] for name in (*costs, "fast ring", "MPI", "Gloo")}
predicted = {name: {} for name in costs}
for name, cost in costs.items():
    for nbytes in measured[name]:
        predicted[name][nbytes] = predict_seconds(cost(n, nbytes), machine, calling[name])
times_by_size(measured, predicted, ranks=n, cores=cores)

# %% [markdown]
# Where a dot lies far above its line, time goes into something that the model does not know: Python between the messages,
# a rank that waits for its turn on a core, memory that two ranks share.

# %% tags=["nbval-ignore-output"]
ring, doubling = measured["ring"], measured["doubling"]
slower = [nbytes for nbytes in ring if ring[nbytes] >= doubling[nbytes]]
faster = [nbytes for nbytes in ring if nbytes > max(slower, default=0)]
kilobytes = min(faster) / 1000 if faster else float("inf")
why = "It sends more messages, and adds fewer numbers." if faster else "It never was, up to 16 MiB."
outcome("From how many kB on is the ring faster than recursive doubling?", kilobytes, because=why)

# %% [markdown]
# The fewest bytes do not win at every size: below the **crossover**, the ring's extra messages cost more than the bytes
# that it saves.

# %% [markdown]
# ### Many ranks
#
# You do not have 1 024 ranks. The model has: the following is **predicted**, for ranks that are all as near to each other as
# the two that you measured. Between machines, α and β are larger, and the model has to be fitted there.

# %% tags=["nbval-ignore-output"]
from course_lib.theory.cost_model import crossover_nbytes

print("predicted      4 kB: ring  doubling    16 MiB: ring  doubling    crossover")
for ranks in (2, 4, 16, 64, 1024):
    ms = [1e3 * predict_seconds(cost(ranks, m), line) for m in (4096, 2**24) for cost in costs.values()]
    small, large = f"{ms[0]:9.3f} {ms[1]:9.3f} ms", f"{ms[2]:11.1f} {ms[3]:9.1f} ms"
    print(f"{ranks:4} ranks  {small}  {large}  {crossover_nbytes(ranks, line) / 1000:8.0f} kB")

# %% [markdown]
# Read down the columns. With more ranks, the ring pays for more steps, a latency each, but for no more bytes; doubling pays
# for one more array whenever the ranks double. Libraries change the algorithm at the crossover, and it moves with the
# number of ranks.

# %% [markdown]
# ### The reference machine
#
# The course's own benchmark, `python -m benchmarks.allreduce`, does the same with more repetitions and our fast forms, and MPI
# and ours take turns. These times are from the **reference machine**, two ranks on two cores; yours are in the figure above.

# %% tags=["nbval-ignore-output"]
import json

from course.paths import ROOT

results = ROOT / "benchmarks" / "results" / "allreduce.json"
rows = json.loads(results.read_text()) if results.exists() else []
for row in rows:
    beside_mpi = row["ranks"] == 2 and row["peer_name"].startswith("MPI_Allreduce")
    if beside_mpi and row["case"].endswith((" 4 KiB", " 256 KiB", " 16 MiB")):
        print(f"{row['case']:40} {row['ours']:9.1f} µs     MPI {row['peer']:9.1f} µs")
print(f"{len(rows)} rows in {results.name}" if rows else "not measured yet")

# %% [markdown]
# ## On GPUs
#
# NCCL has the same collectives, on GPU memory. It chooses between rings and trees for every call, by the size of the
# message and by how the GPUs are wired, as you have just done with two of them: it is not only rings.

# %% [markdown]
# ## Pitfalls
#
# - A collective under `if rank == 0`: the others never call it. Where that does not hang, the numbers are wrong.
# - Reading the result of a reduce on a rank that is not the root.
# - Receiving a broadcast with `Recv`.
# - `dist.all_gather` wants a list with room for every rank's tensor, and fills it; it returns nothing.
# - Believing a printed table, this course's included. Probe.

# %% [markdown]
# ## References
#
# - E. Chan and others, [Collective communication: theory, practice, and
#   experience](https://doi.org/10.1002/cpe.1206), 2007: all of them, from the same few pieces.
# - R. Thakur, R. Rabenseifner and W. Gropp, [Optimization of collective communication operations in
#   MPICH](https://doi.org/10.1177/1094342005051521), 2005: which algorithm for which size.
# - P. Patarasuk and X. Yuan, [Bandwidth optimal all-reduce algorithms for clusters of
#   workstations](https://doi.org/10.1016/j.jpdc.2008.09.002), 2009: the ring.
# - R. Hockney, [The communication challenge for MPP](https://doi.org/10.1016/S0167-8191(06)80021-9), 1994: latency
#   and bandwidth.
# - PyTorch, [Distributed communication package](https://docs.pytorch.org/docs/stable/distributed.html).
# - F. Kolly, *Data Parallelism in PyTorch*, 2022: the report with the table of backends.

# %% [markdown]
# ## Stretch
#
# Recursive doubling sends all of the array in every round. Halve it instead: exchange a half with the partner that is
# furthest away, then a quarter, then an eighth, and add. Then go back, and double what you have in every round. How many
# steps, and how many bytes? (This is Rabenseifner's algorithm: log₂ n steps each way, and the ring's bytes.)

# %% [markdown]
# ## Teardown

# %%
cluster.stop()
