# ---
# title: Collectives
# goal: Build the sum behind distributed training from messages, count its bytes, predict when it is fast.
# able:
#   - say what broadcast, scatter, gather, reduce and all-reduce leave on every rank
#   - build an all-reduce round a ring
#   - count what each rank sends
#   - predict which of two all-reduces is faster
# more:
#   - write a broadcast along a tree
#   - count what crosses between nodes
#   - use PyTorch's collectives and probe its backends
# before: >-
#   {01}. Helpful: {02}
# minutes: {core: 20, more: 45}
# ranks: 4
# warm-up:
#   - ask: >-
#       Four ranks form a ring. Each calls `Send` to the right, then `Recv` from the left: 4 kB arrive. Will 1 MB?
#     answer: >-
#       It may hang: every Send waits for a Recv. Use <code>Sendrecv</code>.
#   - ask: >-
#       (After lesson 02.) Four ranks estimate π, each with `np.random.default_rng(7)`. What does the mean of
#       their estimates gain?
#     answer: >-
#       Nothing: all ranks draw the same darts, so their estimates are equal.
#   - ask: How many ranks do you time on two cores?
#     answer: Two. More ranks share a core, and you time that.
# ---

# %%
# %%px --setup
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
mine = np.array([1, 2, 3, 4]) * 10**rank

# %% [markdown] tags=["slide"]
# ## 1 · Five collectives
#
# A **collective** is a call that all ranks make together. Some have a root, the one rank that sends to all or collects
# from all. A **broadcast** copies the root's array to all ranks. **Scatter** cuts the root's array into parts, one per
# rank. **Gather** collects a part from each rank on the root. **Reduce** (lesson 02) adds up all arrays on the root. An
# **all-reduce** adds them up and leaves the sum on every rank.
#
# Rank 0 holds 1, 2, 3, 4. Rank 1 holds tens, rank 2 hundreds, rank 3 thousands. So the place of a digit tells which rank
# it came from. All ranks make all five calls. Each call names an array for the result.

# %%
predict("After how many of the five do all ranks hold the same four numbers?", None)

# %%
# %%px
broadcast, scatter = mine.copy(), np.zeros(1, int)
gather, reduce, all_reduce = np.zeros((3, 4), int)
comm.Bcast(broadcast, root=0)
comm.Scatter(mine, scatter, root=0)
comm.Gather(mine[:1], gather, root=0)
comm.Reduce(mine, reduce, root=0)
comm.Allreduce(mine, all_reduce)

# %% [markdown]
# A cell's colour is the rank that held the number before the call.

# %% tags=["nbval-ignore-output"]
from course.lessons.l04_collectives.figures.collectives import what_each_leaves

names = ("broadcast", "scatter", "gather", "reduce", "all_reduce")
everywhere = sum(len(set(map(str, cluster[name]))) == 1 for name in names)
outcome("After how many of the five do all ranks hold the same four numbers?", everywhere, word="counted")
what_each_leaves(cluster["mine"], {name: cluster[name] for name in names})

# %% [markdown] tags=["notes"]
# 4 minutes. Ask the room before the cell runs: "Ranks 1 to 3 only receive in the broadcast. Do they have to call it?"
# Many say no. Let somebody put `if rank == 0:` before that line. These numbers are few, so nothing hangs: ranks 1 to 3
# keep their own. Undo it, then call `cluster.restart()`: a later broadcast would receive the one that nobody received.

# %% [markdown]
# After a reduce only the root has the sums; after an all-reduce every rank has them. The sum 1111 contains the
# numbers of all four ranks; in 1011, rank 2 would be missing. All ranks make the same collective calls in the same
# order. On a communicator, MPI matches the first collective calls of all ranks, then the second, and so on.
#
# Data-parallel training (lesson 06) depends on the all-reduce: every step all-reduces the gradients. So how is it made?

# %% [markdown] tags=["slide"]
# ## 2 · Once round the ring
#
# In lesson 01 every rank sent three whole arrays round the ring, and all four ranks did the same additions. The
# **ring algorithm** shares the work. Each rank cuts its array into four **chunks**. In each of size − 1 steps a rank
# sends one chunk to its right neighbour and receives a different one from the left. It adds what it received to its own
# copy of that chunk.


# %%
# %%px
def ring_reduce_scatter(comm, chunks):
    """Sum all ranks' chunks, in place; each rank ends with one complete chunk."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for step in range(comm.size - 1):
        out, into = (comm.rank - step) % comm.size, (comm.rank - step - 1) % comm.size
        incoming = np.empty_like(chunks[into])
        comm.Sendrecv(chunks[out], dest=right, recvbuf=incoming, source=left)
        chunks[into] += incoming


# %% [markdown]
# Let us film it: `filmed` makes a communicator that copies the array to the film before each exchange.

# %%
# %%px
from course.lessons.l04_collectives.filmed import filmed

film, array = [], mine.copy()
chunks = np.array_split(array, size)  # views: changing a chunk changes array
ring_reduce_scatter(filmed(comm, array, film), chunks)
film.append(array.tolist())

# %% tags=["nbval-ignore-output"]
from course.lessons.l04_collectives.figures.collectives import ring_film

ring_film(cluster["film"])

# %% [markdown]
# Follow the last column. Chunk 3 starts as 4000 on rank 3. Rank 0 adds its 4, rank 1 its 40, rank 2 its 400: 4444 is
# complete on rank 2. All four chunks travel like this at once. Each rank now has one complete chunk. This first half is a
# **reduce-scatter**.
#
# The second half is an **all-gather**: every rank needs the chunks of all others. The complete chunks go round the ring
# once more.

# %% tags=["exercise: 04.1"]

# %% [markdown] tags=["notes"]
# 8 minutes with the exercise. Most people stumble over the first index: they send chunk r, which is still
# incomplete. Point at the last picture of the film: "Which green box does rank 0 have?" Those who finish early
# change a line in the first half and film it.

# %%
continue_with("04.1")

# %% [markdown]
# Film both halves.

# %%
# %%px
film, array = [], mine.copy()
chunks = np.array_split(array, size)
ring_reduce_scatter(filmed(comm, array, film), chunks)
ring_all_gather(filmed(comm, array, film), chunks)
film.append(array.tolist())

# %% tags=["nbval-ignore-output"]
ring_film(cluster["film"])

# %% [markdown]
# A reduce-scatter and an all-gather make an all-reduce. MPI has a call for each half, too: `Reduce_scatter` and
# `Allgather`.

# %% [markdown] tags=["slide"]
# ## 3 · What does each rank send?
#
# A rank's **communication volume** is the bytes that it sends. In the film every rank sends one chunk per step. With n
# ranks each half has n−1 steps, and in each step a rank sends 1/n of the array. So a rank sends **2(n−1)/n arrays**: 1.5
# with four ranks (in lesson 01 it sent three), 1.97 with 64, and never two.

# %% tags=["exercise: 04.q2"]

# %% [markdown] tags=["slide"]
# ## 4 · When is the ring faster?
#
# The ring sends few bytes in many steps. **Recursive doubling** does the opposite: in round 1, ranks 0↔1 and 2↔3
# exchange their *whole* arrays and add; in round 2, ranks 0↔2 and 1↔3; then partners 4 apart, and so on.
#
# In the **alpha-beta model** a message of k bytes takes α + βk seconds: α is the **latency**, the time of the shortest
# message, and 1/β the **bandwidth**. Below, m is the size of the array in bytes. (The additions are left out.)
#
# | n ranks | steps | bytes per step | seconds |
# |---|---|---|---|
# | ring | 2(n−1) | m/n | 2(n−1)·(α+βm/n) |
# | doubling (n = 2, 4, 8, …) | log₂n | m | log₂n·(α+βm) |
#
# Two of your ranks measure α and β: they exchange arrays from 4 bytes to 16 MiB.

# %%
# %%px
from course_lib.comm.ping_pong import measure_ping_pong

pings = measure_ping_pong(comm, [4**power for power in range(1, 13)])

# %% tags=["nbval-ignore-output"]
line = cluster["pings"][0].hockney()  # fits the line α + βk
alpha, beta = line.alpha_seconds, line.beta_seconds_per_byte
print(f"latency α = {1e6 * alpha:.2f} µs, bandwidth 1/β = {line.gbyte_per_s:.1f} GB/s")

# %% [markdown]
# On four ranks the ring takes four steps more, and sends half an array less. Take a pencil: for how many bytes do the
# two take equally long? That size is their **crossover**.

# %%
predict("From how many KiB on is the ring faster, on four ranks?", None)

# %% tags=["nbval-ignore-output"]
from course.lessons.l04_collectives.figures.sizes import WHY_8_ALPHA, say_crossover
from course_lib.theory.cost_model import Hockney, crossover_nbytes

kib = crossover_nbytes(4, Hockney(alpha, beta)) / 1024
outcome("From how many KiB on is the ring faster, on four ranks?", kib, "KiB", WHY_8_ALPHA, "predicted")

# %% [markdown]
# Is there such a crossover? On the reference machine, where our stored measurements were made, we timed tuned versions
# of both, with four ranks. The last column is the time of doubling divided by that of the ring: above 1, the ring is
# faster.

# %% tags=["nbval-ignore-output"]
from course.lessons.l04_collectives.reference import all_reduces, ratios, say_closest, table

on_four = all_reduces(ranks=4)
sizes = [12 * 4**power for power in (0, *range(5, 12))]
print(table("reference machine, 4 ranks on 2 cores", on_four, sizes))
print("measured:", say_crossover(ratios(on_four)))
again = all_reduces(ranks=4, peer="MPI_Allreduce, in place")
print(f"measured in a second run, at other sizes: {say_crossover(ratios(again))}; {say_closest(again)}")

# %% [markdown]
# Compare with the prediction from your α and β. The reference machine is a different one, and there four ranks shared
# two cores, so its times are rough. Near the crossover, repeated timings of one algorithm vary by more than the two
# differ. So each run finds the crossover at a different size. Expect only the order of magnitude.
#
# The model can also predict what we cannot run: up to 64 ranks, if every pair of ranks has the same α and β.

# %% tags=["nbval-ignore-output"]
from course.lessons.l04_collectives.figures.sizes import predicted_ratios

predicted_ratios(alpha, beta, ranks=(2, 4, 8, 16, 64))

# %% [markdown]
# Why is there no crossover on two ranks? In this model each rank sends one array either way, the ring in two steps,
# doubling in one.
#
# For large arrays on four ranks, the model predicts a ratio of 1.33. The last rows of the table differ, because the
# model leaves out additions, caches, memory, and cores that ranks share.
#
# For small arrays the number of steps decides, for large arrays the bytes. MPI libraries and NCCL, NVIDIA's library for
# its GPUs, therefore choose an algorithm for each call, by message size and number of ranks.

# %% [markdown] tags=["notes"]
# 4 minutes. Let two people say their pencil result before the cell runs; many forget the half. If α or β look odd, the
# machine was busy: run the cells again.

# %% [markdown] tags=["slide"]
# ## Key points
#
# - All ranks make the same collective calls in the same order. Only the root has the result of `Reduce` and `Gather`.
# - Reduce-scatter and all-gather make an all-reduce. In a ring each rank sends 2(n−1)/n arrays: less than two.
# - The latency, the bandwidth and the number of ranks predict roughly from which size on the ring is faster.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# 64 ranks all-reduce a hundred million gradients in a ring. You double the ranks. Does the ring take as long,
# a little longer, or twice as long? Vote, talk to your neighbour, vote again.
#
# <details><summary>What to listen for</summary>A little longer: hardly more bytes per rank (1.97 and 1.98 arrays), but twice as many steps. "Twice as long" holds for small arrays, where nearly all time is latency.</details>

# %% [markdown]
# **Stop here in a short workshop.** More: fewer steps, several nodes, PyTorch's collectives.

# %% [markdown] tags=["more", "slide"]
# ## More
#
# First a question about section 1.

# %% tags=["exercise: 04.q1"]

# %% [markdown]
# ### Fewer steps: a tree, and doubling
#
# A ring needs 2(n−1) steps even for a single number: 2046 steps on 1024 ranks. A **tree** needs few steps. In a
# broadcast, let every rank that has the array pass it on. After one round two ranks have it, then four, then eight;
# ten rounds reach 1024 ranks.

# %% tags=["exercise: 04.2"]

# %% [markdown]
# Recursive doubling uses the same idea for an all-reduce. After each round, a rank's array is the sum over twice
# as many ranks.


# %%
# %%px
def doubling_allreduce(comm, array):
    """Sum `array` over 2, 4, 8 … ranks, in place."""
    incoming, distance = np.empty_like(array), 1
    while distance < comm.size:
        partner = comm.rank ^ distance  # the two numbers differ in one bit
        comm.Sendrecv(array, dest=partner, recvbuf=incoming, source=partner)
        array += incoming
        distance *= 2


work = mine.copy()
doubling_allreduce(comm, work)
print(f"rank {rank}: {work}")

# %% [markdown]
# The library's `recursive_doubling_allreduce` takes any number of ranks: ranks beyond the last power of two
# first send their array to a partner. At the end the partner sends them the sum.

# %% [markdown] tags=["slide"]
# ### Several nodes
#
# On a cluster, several ranks share a node, and a message between nodes costs far more than one inside. A
# **hierarchical all-reduce** uses that: first each node sums its own ranks' arrays, then one **leader** per node
# exchanges with the other leaders, then each leader passes the result on inside its node.

# %% tags=["source: course_lib.comm.collectives:hierarchical_allreduce"]
# %%px

# %% [markdown]
# (`tree_reduce` is a tree backwards: it leaves the sum on rank 0.) You have one machine, so we pretend: ranks 0 and
# 1 are one node, ranks 2 and 3 the other. On a real cluster, `comm.Split_type(MPI.COMM_TYPE_SHARED)` makes
# `inside`.

# %%
# %%px
inside = comm.Split(rank // 2, rank)
leader = inside.rank == 0
between = comm.Split(0 if leader else MPI.UNDEFINED, rank)  # COMM_NULL on the others
work = mine.copy()
hierarchical_allreduce(inside, between, work)
print(f"rank {rank}: {work}")

# %% [markdown]
# What crosses from node to node? First look at the plain ring, without a hierarchy: it sums 600 kB, and two of its
# four connections lead from one node to the other.

# %%
predict("How many kB does the ring send between the two nodes, all ranks together?", None)


# %%
# %%px
from course_lib.comm.collectives import recursive_doubling_allreduce, ring_allreduce
from course_lib.comm.counting import counted
from course_lib.theory.cost_model import Traffic


def crossing(allreduce, node_of):
    """What this rank sends to other nodes while 600 kB are summed."""
    counting = counted(comm)
    allreduce(counting, np.ones(75_000))
    away = [sent for dest, sent in counting.sent_to.items() if node_of[dest] != node_of[rank]]
    return sum(away, Traffic())


leaders = counted(between) if leader else MPI.COMM_NULL
hierarchical_allreduce(inside, leaders, np.ones(75_000))
crossed = {
    "ring, neighbours on one node": crossing(ring_allreduce, [0, 0, 1, 1]),
    "ring, neighbours on different nodes": crossing(ring_allreduce, [0, 1, 0, 1]),
    "recursive doubling": crossing(recursive_doubling_allreduce, [0, 0, 1, 1]),
    "hierarchical": leaders.sent if leader else Traffic(),
}

# %%
from course_lib.theory.cost_model import Traffic

crossed = cluster["crossed"]
total = {name: sum((sent[name] for sent in crossed), Traffic()) for name in crossed[0]}
outcome(
    "How many kB does the ring send between the two nodes, all ranks together?",
    total["ring, neighbours on one node"].nbytes / 1000,
    word="counted",
    because="Two of the four ranks send all their 900 kB to the other node.",
)
for name, sent in sorted(total.items(), key=lambda each: each[1].nbytes):
    print(f"{name:36} {sent.messages:3} messages, {sent.nbytes / 1000:5.0f} kB between the nodes")

# %% [markdown]
# Placement matters: the same ring sends twice as much between the nodes when neighbours live on different ones. And
# what does the hierarchy save? We count for a larger cluster, 64 nodes with 8 ranks each.

# %%
from math import log2

nodes, n = 64, 64 * 8
larger = {
    "ring, neighbours on one node": (nodes * 2 * (n - 1), nodes * 2 * (n - 1) / n),
    "recursive doubling": (n * log2(nodes), n * log2(nodes)),
    "hierarchical": (nodes * 2 * (nodes - 1), 2 * (nodes - 1)),
}
for name, (messages, arrays) in larger.items():
    print(f"{name:30} {messages:6.0f} messages, {arrays:6.0f} arrays between the nodes")

# %% [markdown]
# A ring that is placed well sends hardly more bytes between nodes than the hierarchy does. But the ring takes 1022 steps
# and the leaders take 126, and each of these steps waits for a message between nodes. Doubling sends 24 times as many
# bytes.

# %% [markdown] tags=["slide"]
# ### The collectives of PyTorch
#
# A training script never calls a ring. It calls a framework; the framework calls a **communication runtime**; the
# runtime uses the network that it finds. Which of these are on your machine?

# %%
# %%px
import os
from importlib.util import find_spec
from pathlib import Path

import torch
import torch.distributed as dist

from course_lib.network import loopback

here = {
    "Gloo": dist.is_gloo_available(),
    "NCCL": dist.is_nccl_available(),
    "oneCCL": find_spec("oneccl_bindings_for_pytorch") is not None,
    "DeepSpeed": find_spec("deepspeed") is not None,
    "Horovod": find_spec("horovod") is not None,
    "InfiniBand": Path("/sys/class/infiniband").exists(),
    "GPU to GPU": torch.cuda.device_count() > 1,
}

# %% tags=["nbval-ignore-output"]
from course.lessons.l04_collectives.figures.stack import stack

stack(cluster["here"][0])

# %% [markdown]
# PyTorch calls the runtime of a group of ranks its **backend**. Gloo is the built-in one for CPUs, and it knows nothing of
# our MPI ranks, so they have to find each other first. Rank 0 opens a **store**, a small table in which every rank
# writes where it can be reached and reads where the others can. MPI tells the ranks where the store is. (PyTorch's
# documentation calls this meeting a *rendezvous*; the rendezvous protocol of lesson 01 is something else.)

# %%
# %%px
if dist.is_initialized():  # when you run this cell again
    dist.destroy_process_group()
os.environ["GLOO_SOCKET_IFNAME"] = loopback()  # this machine's own network
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if rank == 0 else None
port = comm.bcast(store.port if rank == 0 else None)
store = store or dist.TCPStore("127.0.0.1", port, is_master=False)
store.set(f"who is rank {rank}?", f"process {os.getpid()}")
left_of_me = store.get(f"who is rank {(rank - 1) % size}?").decode()  # waits until it is written
dist.init_process_group("gloo", store=store, rank=rank, world_size=size)

# %% tags=["nbval-ignore-output"]
print("left of rank 0 is", cluster["left_of_me"][0])

# %% [markdown]
# You will meet the store under other names: `tcp://host:port` says where it is, `file://path` keeps it in a file,
# `env://` takes the address from environment variables. Now the collectives.


# %%
# %%px
def own():
    """The first two numbers of this rank, as a tensor."""
    return torch.from_numpy(mine[:2].copy())


held = {name: own() for name in ("broadcast", "reduce", "all_reduce", "scatter")}
dist.broadcast(held["broadcast"], src=0)
dist.reduce(held["reduce"], dst=0)
dist.all_reduce(held["all_reduce"])
dist.scatter(held["scatter"], [own() + n for n in range(size)] if rank == 0 else None, src=0)
room = [torch.zeros(2, dtype=torch.int64) for _ in range(size)]
dist.gather(own(), room if rank == 0 else None, dst=0)
held["gather"] = torch.cat(room)
dist.all_gather(room, own())
held["all_gather"] = torch.cat(room)
dist.barrier()
held = {name: tensor.tolist() for name, tensor in held.items()}

# %%
for name in ("broadcast", "all_reduce", "scatter", "gather", "all_gather"):
    print(f"{name:11}", *(f"rank {rank}: {held[name]}" for rank, held in enumerate(cluster["held"][:2])))

# %% [markdown]
# The collectives are MPI's; names and arguments are PyTorch's. `all_gather` fills a list with one tensor per rank.

# %% tags=["exercise: 04.q3"]

# %% [markdown]
# What does `reduce` leave in the tensors of the ranks that are not its destination?

# %% tags=["nbval-ignore-output"]
for rank, held in enumerate(cluster["held"]):
    print(f"after reduce, rank {rank} holds", held["reduce"])

# %% [markdown]
# Rank 0 has the sums. Gloo used the tensors of the other ranks for partial sums. The digits show which ranks each
# partial sum includes. The documentation promises nothing for these tensors. After `reduce`, read the tensor only on
# `dst`.

# %% tags=["exercise: 04.3"]

# %% [markdown]
# Which operation works on which backend? Printed tables grow old. `probe_backends` tries each operation on two
# ranks and looks at the result. The operations are `send` and `recv`, `isend` and `irecv`, `broadcast`, `all_reduce`,
# `reduce`, `gather`, `scatter`, collectives of Python objects, `barrier`, `monitored_barrier`, and `all_gather`,
# `reduce_scatter` and **all-to-all**. The last three have two forms each, with a list and with one tensor. In an
# all-to-all every rank has one part for every other rank.

# %%
predict("Of 16 operations, how many work on Gloo?", None)

# %% tags=["nbval-ignore-output"]
from course.lessons.l04_collectives.backends import probe_backends

table = probe_backends()
works = sum(table.state("gloo", operation) == "works" for operation in table.operations)
outcome("Of 16 operations, how many work on Gloo?", works, word="counted")
table

# %% [markdown]
# A ✓ means that the result was right. The column `mpi4py` is a backend of this course, built on the library of that
# name. It turns PyTorch's calls into MPI's. The column `mpi` is PyTorch's own, which works only in a PyTorch that was
# compiled with MPI.
#
# > **What the sources say.** A report that this course grew from (Kolly 2022, see References) says that
# > `reduce` leaves the other ranks' tensors unchanged, and its table has no `reduce_scatter` and no `all_to_all` on
# > Gloo. PyTorch's own table lacked these two then, too. You have just tried all three.

# %% [markdown] tags=["slide"]
# ### Does the prediction hold?
#
# The core's model left out the additions. The model below counts them. On two ranks the ring adds half as many numbers
# as doubling, so this model predicts a crossover even on two ranks.
#
# We time the all-reduces on as many ranks as you have cores, but on two at least: our plain ring and doubling, a tuned
# ring that adds each piece of 1 MiB while the cache still holds it, MPI's own, and Gloo's.

# %%
# %%px
import time
from functools import partial

from course_lib.comm.ping_pong import seconds_of
from course_lib.comm.timing import one_rank_per_core
from course_lib.fast.collectives import ring_allreduce as fast_ring_allreduce
from mpi_classroom.launch import available_cores

n = min(size, max(2, available_cores()))
team, gloo = one_rank_per_core(comm, cores=n), dist.new_group(range(n))


def seconds_by_size(work):
    """Seconds of `work(array)` on the slowest rank of the team, by the bytes of the array."""
    if rank >= n:
        return None
    arrays = {4**power: np.zeros(4**power // 4, "f") for power in range(1, 14)}
    return {nbytes: seconds_of(team, lambda a=array: work(a), 3) for nbytes, array in arrays.items()}


# %%
# %%px
cpu, clock = time.process_time(), time.perf_counter()
measured = {
    "ring": seconds_by_size(lambda array: ring_allreduce(team, array)),
    "doubling": seconds_by_size(lambda array: recursive_doubling_allreduce(team, array)),
}
core_share = (time.process_time() - cpu) / (time.perf_counter() - clock)  # of one core, for this rank
measured |= {
    "tuned ring": seconds_by_size(lambda array: fast_ring_allreduce(team, array)),
    "MPI": seconds_by_size(lambda array: team.Allreduce(MPI.IN_PLACE, array)),
    "Gloo": seconds_by_size(lambda array: dist.all_reduce(torch.from_numpy(array), group=gloo)),
}

# %% [markdown]
# A call costs time in Python before any message leaves. We measure that on one rank alone.

# %%
# %%px
calling = {}
for name, allreduce in {"ring": ring_allreduce, "doubling": recursive_doubling_allreduce}.items():
    if rank < n:
        alone = partial(allreduce, MPI.COMM_SELF, np.zeros(1, "f"))
        calling[name] = seconds_of(MPI.COMM_SELF, alone, 5)

# %% [markdown]
# Markers are measured. Lines without markers are predicted: the calling time, plus what two ranks need to exchange and
# to add arrays of each size (`pings.machine()` fits up to four lines to each, not one). Nothing was fitted to an
# all-reduce.

# %% tags=["nbval-ignore-output"]
from course.lessons.l04_collectives.figures.sizes import times_by_size
from course_lib.theory.cost_model import (
    predict_seconds,
    recursive_doubling_allreduce_cost,
    ring_allreduce_cost,
)
from mpi_classroom.launch import available_cores

costs = {"ring": ring_allreduce_cost, "doubling": recursive_doubling_allreduce_cost}
ranks, calling, machine = cluster["n"][0], cluster["calling"][0], cluster["pings"][0].machine()
measured = {name: cluster["measured"][0][name] for name in (*costs, "tuned ring", "MPI", "Gloo")}
predicted = {
    name: {m: predict_seconds(cost(ranks, m), machine, calling[name]) for m in measured[name]}
    for name, cost in costs.items()
}
times_by_size(measured, predicted, ranks=ranks, cores=available_cores())

# %% [markdown]
# So does the prediction hold? A rank that waits in MPI keeps its core busy. If it used much less than one core, another
# program took the rest.

# %% tags=["nbval-ignore-output"]
from course.lessons.l04_collectives.figures.sizes import say_hold, say_predictions
from course.lessons.l04_collectives.reference import all_reduces, misses, say_alike, table

share = min(cluster["core_share"][:ranks])
print(f"the ranks had {100 * share:.0f}% of a core each, or more")
if share < 0.9:
    print("The cores were busy: this run says nothing about the prediction.")
print(say_predictions(measured, predicted))

on_two = all_reduces(ranks=2)
title = f"\nreference machine, 2 ranks on 2 cores, tuned versions, {len(sizes)} of the 12 sizes"
print(table(title, on_two, sizes, "predicted"))
for name, off in misses(on_two).items():
    print(f"{name}: {say_hold(off)}")
print(say_alike(on_two))

# %% [markdown]
# The reference machine ran the tuned versions, so its predictions differ from yours. Where ring and doubling take nearly
# the same time, their order can come out differently even if both times are predicted well.
#
# Where a marker lies above its line, time went into something that the model does not know: memory that all ranks
# share, Python between the messages, a rank that waited for a core. Gloo sends through the operating system's network,
# and a thread of its own has to wake up for every message; a jump in its line may be a thread that woke up late.

# %% [markdown]
# And beside MPI's own? `python -m benchmarks.allreduce` ran MPI's all-reduce and our tuned ones in turn:

# %% tags=["nbval-ignore-output"]
from mpi_classroom.figures import listed, say_bytes

beside_mpi = all_reduces(ranks=2, peer="MPI_Allreduce, in place")
title = "reference machine, 2 ranks on 2 cores, tuned versions"
print(table(title, beside_mpi, [4**6, 4**9, 4**12], "MPI"))
faster = [say_bytes(m) for m, ring in beside_mpi["ring"].items() if ring.ours < ring.peer]
print("The tuned ring is faster than MPI's own at", listed(faster) or "no size")

# %% [markdown]
# ## On GPUs
#
# NCCL has the same collectives on GPU memory. It chooses between rings and trees for every call, by the size of the
# message and by how the GPUs are connected.

# %% [markdown]
# ## Pitfalls
#
# - A collective under `if rank == 0`. The other ranks never call it: the program hangs, or computes with wrong
#   numbers.
# - Reading the result of a reduce on a rank that is not the root.
# - Receiving a broadcast with `Recv`.
# - `dist.all_gather` returns nothing; it fills the list that you give it.
# - Neighbours in the ring that live on different nodes. Let the launcher fill one node after the other.

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
# - T. Kielmann and others, [MagPIe: MPI's collective communication operations for clustered wide area
#   systems](https://doi.org/10.1145/301104.301116), 1999: a hierarchy of nodes.
# - PyTorch, [Distributed communication package](https://docs.pytorch.org/docs/stable/distributed.html).
# - F. Kolly, *Data Parallelism in PyTorch*, 2022: the report with the table of backends.

# %% [markdown]
# ## Stretch
#
# Recursive doubling sends the whole array in every round. Halve it instead: exchange a half with the partner that
# is furthest away, then a quarter, then an eighth, and add. Then go back, and double what you have in every round.
# How many steps does that take, and how many bytes?
#
# <details><summary>Answer</summary>2 log₂ n steps, and as many bytes as the ring. It is Rabenseifner's algorithm.</details>
