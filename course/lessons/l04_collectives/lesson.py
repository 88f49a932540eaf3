# ---
# title: Collectives
# goal: Sum arrays over all ranks in two ways. Which wins where?
# able:
#   - follow an all-reduce message by message
#   - count what each rank sends
#   - choose an all-reduce
# more:
#   - count bytes sent between nodes
#   - use PyTorch's collectives
# before: >-
#   {01}. Helpful: {02}
# minutes: {core: 20, more: 24}
# ranks: 4
# warm-up:
#   - ask: Four ranks form a ring. Each sends 1 MB to the right with `Send`, then calls `Recv`. What may happen?
#     answer: All may wait in Send. <code>Sendrecv</code> avoids this.
#   - ask: How many bytes are a million float64 numbers?
#     answer: 8 million.
#   - ask: In Python, `5 ^ 1` flips the last bit of 5, binary 101. What is `5 ^ 4`?
#     answer: 1 (binary 001).
# ---

# %% [markdown] tags=["slide"]
# ## 1 · One sum, two ways
#
# An **all-reduce** gives each rank the sum of all ranks' arrays. It is a **collective**: all ranks of a communicator must call
# collectives in the same order.
#
# Every rank all-reduces its gradient, 1.0. First, rank 0 alone calls `allreduce(100.0)` to log the summed loss.
#
# **Vote:** this call (a) pairs with the others' next all-reduce, (b) returns rank 0's loss, (c) fetches and adds the others' losses.

# %% tags=["raises-exception", "nbval-ignore-output"]
# %%px --timeout 3
from mpi4py import MPI

comm = MPI.COMM_WORLD
if comm.rank == 0:
    comm.allreduce(100.0)
print("sum of gradients:", comm.allreduce(1.0))

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (a). MPI matches collectives by order, so rank 0's 100 enters the others' sum. Rank 0's second call hangs; in training, it pairs with their next.
#
# </details>

# %% tags=["subslide"]
# %%px --setup --save 04_allreduce.py
"""All-reduce by hand, in a ring and by doubling."""

import sys
from timeit import repeat

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD

# %% [markdown] tags=["subslide"]
# In the **ring algorithm**, rank r of n cuts its array into n **chunks** and sends one per step to its right neighbour, chunk r first.
# The first loop is a **reduce-scatter**: each rank adds the arriving chunk to its own and sends the sum next. The second is an **all-gather**: ranks pass on complete sums.

# %% tags=["source: course_lib.comm.allreduce:ring"]
# %%px --setup --save 04_allreduce.py

# %% [markdown] tags=["subslide"]
# In **recursive doubling**, pairs of ranks exchange whole arrays and add. Partners are one rank apart (0–1, 2–3), then two, then four.

# %% tags=["source: course_lib.comm.allreduce:doubling"]
# %%px --setup --save 04_allreduce.py

# %% [markdown] tags=["subslide"]
# Rank r has [1, 2, 3, 4] · 10ʳ (four chunks). `Filmed` records `array` before each exchange. **Predict:** after the ring's first two exchanges, which rank holds the largest number, and what is it?


# %%
# %%px
class Filmed(MPI.Intracomm):
    def Sendrecv(self, *sent, **received):
        frames.append(array.tolist())  # globals, set below
        super().Sendrecv(*sent, **received)


films = {}
for way in ring, doubling:
    frames, array = [], np.array([1, 2, 3, 4]) * 10**comm.rank
    way(Filmed(MPI.COMM_WORLD), array)
    films[way.__name__] = [*frames, array.tolist()]

# %% tags=["nbval-ignore-output"]
from course.lessons.l04_collectives.figures import film

film(
    cluster["films"],
    "The ring sends chunks; doubling sends arrays (darker: more ranks; thick: new)",
)

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# Rank 1: 4044, the last chunk's sum over ranks 3, 0, 1. Three exchanges complete one chunk per rank; three more
# copy these everywhere.
#
# </details>

# %% tags=["exercise: 04.4", "subslide"]

# %% [markdown] tags=["notes"]
# Six minutes. Most forget the ring's second half, or that a message holds only a chunk.
# Point at the film.

# %% [markdown] tags=["slide"]
# ## 2 · Which is faster?
#
# An empty message takes α seconds, the **latency**. Each byte adds β seconds;
# 1/β is the **bandwidth**. All ranks exchange at once, so an all-reduce takes
#
# α · (messages per rank) + β · (bytes per rank)
#
# This **alpha-beta model** ignores additions and congestion, and assumes equal two-way links, one per rank.
#
# `slow_messages` imitates slow links: α is 10 ms, bandwidth 5 MB/s (0.04 Gbit/s).

# %%
# %%px --setup
from course_lib.effects import slow_messages

comm = slow_messages(MPI.COMM_WORLD, seconds=0.01, gbit_per_s=0.04)


# %% tags=["subslide"]
# %%px --save 04_allreduce.py
def seconds(comm, way, nbytes, runs=3):
    """The slowest rank's best run."""
    array = np.ones(nbytes // 8)
    best = min(repeat(lambda: way(comm, array), number=1, repeat=runs))
    return comm.allreduce(best, op=MPI.MAX)


# %% [markdown] tags=["subslide"]
# **Vote:** which way wins at 1 kB, and which at 4 MB? (a) ring, ring; (b) ring, doubling; (c) doubling, ring; (d) doubling, doubling

# %% tags=["nbval-ignore-output"]
# %%px --save 04_allreduce.py
if __name__ == "__main__":
    ways = [ring, doubling] if comm.size.bit_count() == 1 else [ring]  # doubling needs a power of two
    sizes = [int(float(each)) for each in sys.argv[1:] if each[0].isdigit()]  # not others' options
    for nbytes in sizes or (1_000, 400_000, 4_000_000):
        times = [f"{way.__name__} {1000 * seconds(comm, way, nbytes):7.2f} ms" for way in ways]
        if comm.rank == 0:
            print(f"ranks: {comm.size}, {nbytes:9,} bytes:", *times, sep="  ")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (c). In the model, latency decides at 1 kB (ring 60 ms, doubling 20), bandwidth at 4 MB (1,260 and 1,620). At 400 kB, both take 180 ms. Measurements include overhead.
#
# </details>

# %% [markdown] tags=["subslide"]
# At the **crossover** size `b`, both take equally long. Compute `b` from `counts(8)`, α, β. Time b/2, b, 2b on eight ranks (α `0.01` s, `0.04` Gbit/s):

# %% tags=["nbval-ignore-output"]
b = 1_000_000  # replace: your crossover in bytes
# !mpiexec -n 8 python -m course_lib.effects 0.01 0.04 code/04_allreduce.py {b / 2} {b} {2 * b} | grep bytes:

# %% [markdown]
# <details><summary>Open after your runs</summary>
#
# 14α + 1.75βb = 3α + 3βb, so b = 8.8 α/β = 440,000 bytes (294 ms).
#
# </details>

# %% [markdown] tags=["slide"]
# ## 3 · On 2,048 ranks
#
# The crossover was 400 kB on four ranks, 440 kB on eight. **Vote:** where is it on 2,048? (a) At about 0.5 MB, (b) at 2 MB, (c) above 20 MB.

# %%
# %%px --save 04_allreduce.py
alpha, bandwidth = 10e-3, 5e6  # section 2's: s, bytes/s
if __name__ == "__main__" and comm.rank == 0:
    for n in 4, 8, 64, 2048:
        (ring_messages, ring_arrays), (messages, arrays) = counts(n)
        megabytes = bandwidth * alpha * (ring_messages - messages) / (arrays - ring_arrays) / 1e6
        print(f"{n:4} ranks: ring {ring_messages:4}, doubling {messages:2} messages; b {megabytes:.2f} MB")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (c). The ring's extra messages grow with n, doubling's extra arrays only with log₂ n.
# Each ring call pays 4,094 α: 41 s here, 8 ms at 2 µs. So PyTorch (lesson 07) sums several layers' gradients per call.
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# | | what changes |
# |---|---|
# | a fast network card per rank | with MPI's 2 µs and 25 GB/s, α/β stays 50 kB: same crossovers; doubling's extra additions (on CPUs) or shared cards lower them severalfold |
# | NCCL | chooses rings, trees (lesson 14) or others, not doubling; assumes up to 14 µs per message between nodes |
# | data-parallel training | partly overlaps all-reduces with computing (lesson 06) |

# %% [markdown] tags=["slide"]
# ## Key points
#
# - Ring: a rank sends 2(n−1) chunks, less than two arrays. Doubling: log₂ n arrays.
# - On 4, 8, 16 … ranks, doubling beats the ring below the crossover, which grows with n (in the model).

# %% [markdown] tags=["slide"]
# ## Discuss
#
# 64 GPUs, one per node, sum 25 MB; α is 14 µs, bandwidth 25 GB/s. Ring or doubling? And on 2,048? Check: change section 3's `alpha, bandwidth`.
#
# <details><summary>What to listen for</summary>In the model, the ring wins on 64, doubling on 2,048. (Lesson 14's halving beats both.)
#
# ```
#               crossover   ring   doubling
#    64 GPUs      10 MB    3.7 ms     6.1 ms
# 2,048 GPUs     159 MB   59   ms    11   ms
# ```
#
# </details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# ### Does it matter where a rank runs?
#
# On a cluster, several ranks share a node, and a message between nodes often costs more than one inside. Our ring knows the ranks' numbers, but not their nodes. Is that a problem?
#
# Suppose ranks 0 and 1 run on one node, and ranks 2 and 3 on another. All four sum 600 kB in a ring.

# %%
predict("How many kB does the ring send between the two nodes, all ranks together?", None)


# %%
# %%px
from course_lib.comm.counting import counted

comm = MPI.COMM_WORLD  # without delay


def crossing(allreduce, node_of):
    """The kB that all ranks together send to the other node while 600 kB are summed."""
    counting = counted(comm)  # counts sends by destination
    allreduce(counting, np.ones(75_000))
    away = [sent.nbytes for dest, sent in counting.sent_to.items() if node_of[dest] != node_of[comm.rank]]
    return comm.allreduce(sum(away)) / 1000


kilobytes = crossing(ring, [0, 0, 1, 1])
shuffled = crossing(ring, [0, 1, 0, 1])  # every neighbour is on the other node

# %%
found = cluster["kilobytes"][0]
outcome("How many kB does the ring send between the two nodes, all ranks together?", found, word="counted")
print(f"neighbours on different nodes: {cluster['shuffled'][0]:.0f} kB")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# In a ring of four, each rank sends 1.5 arrays, or 900 kB, to its right neighbour. For two ranks, this neighbour is on the other node, so 1,800 kB cross.
# If neighbours are always on different nodes, 3,600 kB cross. So let the launcher fill one node before the next. NCCL orders its rings by node itself.
#
# </details>
#
# Can fewer bytes cross? In the simplest **hierarchical all-reduce**, each node has a **leader**. A **reduce** (`Reduce`) leaves each node's sum on its leader. Then the leaders all-reduce
# among themselves. Finally a **broadcast** (`Bcast`) copies the result from each leader to its node. **Predict:** how many kB do our two leaders together send to each other?

# %%
# %%px
inside = comm.Split(comm.rank // 2)  # on a real cluster: comm.Split_type(MPI.COMM_TYPE_SHARED)
between = comm.Split(0 if inside.rank == 0 else MPI.UNDEFINED)  # COMM_NULL on the others
array, total = np.ones(75_000), np.empty(75_000)
inside.Reduce(array, total)  # to rank 0 of the node
if inside.rank == 0:
    leaders = counted(between)
    ring(leaders, total)
inside.Bcast(total)
if comm.rank == 0:
    print(f"{between.size * leaders.sent.nbytes / 1000:.0f} kB between the nodes; sums: {total[:3]}")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# They send 1,200 kB, a third less: in a ring of two, each leader sends one array of 600 kB.
#
# </details>
#
# Should a cluster of 64 nodes with 8 ranks each use leaders? **Predict** for both rings, of 512 ranks and of 64 leaders: how many arrays cross between nodes in all? How many steps in each?
#
# <details><summary>Open after your prediction</summary>
#
# | | all 512 ranks, ordered by node | 64 leaders |
# |---|---|---|
# | arrays between the nodes, about | 64 · 2 = 128 | 64 · 2 = 128 |
# | steps, one after the other | 2 · 511 = 1,022 | 2 · 63 = 126, plus 3 + 3 with whole arrays inside each node (trees, below) |
#
# In both rings, 64 ranks send to the next node, and each sends almost two arrays. So leaders save steps but hardly any bytes: they help small arrays.
#
# If each GPU has its own network card, a single ring or leaders leave most cards idle. Instead, each node runs a reduce-scatter, each GPU all-reduces its eighth with its
# counterparts on the other nodes, and an all-gather follows. (NCCL runs several rings at once, each through a different card.)
#
# </details>
#
# **Remember:** for a ring, fill one node before the next. On many nodes with one card each, leaders save most steps, but hardly any bytes between nodes.
#
# Inside a node, `Bcast` may run as a (binomial) **tree**: every rank that has the array sends it on. After one round two ranks have it, then four, then eight.

# %% tags=["exercise: 04.2"]

# %% [markdown] tags=["slide"]
# ### What does PyTorch call?
#
# Is our code as fast as MPI's own? We time 1 KiB, 64 KiB and 4 MiB without delay on two ranks, one per core. Our two algorithms send one array per rank; the ring needs two messages. **Predict** the winners: ring,
# doubling or the library?


# %% tags=["nbval-ignore-output"]
# %%px
def library(comm, array):
    comm.Allreduce(MPI.IN_PLACE, array)  # replaces `array`


two = MPI.COMM_WORLD.Split(comm.rank // 2)  # only ranks 0 and 1 sum
for nbytes in (1_024, 65_536, 4_194_304) if comm.rank < 2 else ():
    ways = ring, doubling, library
    times = [f"{way.__name__} {1000 * seconds(two, way, nbytes, 20):6.3f} ms" for way in ways]
    if comm.rank == 0:
        print(f"two ranks, one per core: {nbytes:9,} bytes", *times, sep="  ")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# In our runs, the faster of ours took 0.5 to 2.2 times the library's time. At 1 KiB, the ring loses time to a second message and cutting the array. At 4 MiB, doubling adds and allocates (`incoming`) twice as much as the ring. The model ignores all but the second message. Your order may differ.
# In the course's folder, `python -m benchmarks.allreduce` compares faster versions of ours with MPI and Gloo.
#
# </details>
#
# A PyTorch script calls `torch.distributed`, which passes each call to a **communication library** (also called communication runtime):
#
# ```
# application      your training script
# on top           DeepSpeed (lesson 12), Lightning, Hugging Face's Trainer
# framework        torch.distributed                             Horovod (lesson 06)
# library          NCCL (NVIDIA's GPUs)    Gloo (CPUs)    MPI    oneCCL (Intel)
# network          NVLink, InfiniBand (RDMA), TCP, shared memory
# ```
#
# DeepSpeed (lesson 12) sits on `torch.distributed`, even when `mpiexec` starts its ranks. In PyTorch, the library that a group of ranks uses is its **backend**.
#
# On NVIDIA's GPUs, one per rank, choose NCCL. For each call, it picks rings, trees (lesson 14) or summing in switches.
# An NCCL call returns when the sum is *queued* in a **stream** (a GPU's queue), not when it is done. So call `torch.cuda.synchronize()` before you read the clock. A **CUDA-aware MPI** accepts arrays in a GPU's memory; any other MPI needs
# a copy in main memory.
#
# PyTorch has most of MPI's collectives, under similar names. The **root** is the rank that sends or receives the full data:
#
# | collective | what it does |
# |---|---|
# | broadcast | copies the root's array to all ranks |
# | **scatter** | sends each rank a part of the root's array |
# | **gather** | collects each rank's part on the root |
# | all-gather | collects each rank's part on all ranks |
# | reduce | leaves the sum on the root |
# | all-reduce | leaves the sum on all ranks |
# | reduce-scatter | leaves a different part of the sum on each rank |
# | **all-to-all** | sends a different part from each rank to each rank |
#
# Does `reduce` do the same on every backend? Four ranks hold 1, 10, 100 and 1000, and reduce them to rank 0. We try Gloo on ranks 0 and 1 only, then on all four, then this course's
# backend `mpi4py`, which calls MPI. Gloo's ranks find each other through a **store** (a small table that all can reach). **Predict:** what does rank 1 hold afterwards?

# %%
# %%px
import torch
import torch.distributed as dist

from course_lib.parallel.ddp import process_group

left = []
for backend, ranks in ("gloo", [0, 1]), ("gloo", [0, 1, 2, 3]), ("mpi4py", [0, 1, 2, 3]):
    with process_group(comm, backend):  # starts torch.distributed (Gloo: rank 0 opens the store)
        group = dist.new_group(ranks)
        number = torch.tensor([10**comm.rank])
        if comm.rank in ranks:
            dist.reduce(number, dst=0, group=group)
    left.append(number.item())

# %%
ways = "Gloo, ranks 0 and 1", "Gloo, all ranks", "MPI, all ranks"
for way, numbers in zip(ways, zip(*cluster["left"])):
    print(f"{way:19}", *(f"  rank {rank}: {number:4}" for rank, number in enumerate(numbers)))

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# Rank 0 holds the sum each time. On two ranks, Gloo kept rank 1's 10. On four, it left a partial sum, 1110, because it uses some tensors as work space. MPI kept 10.
#
# That is no bug: PyTorch guarantees the result on rank `dst` only. A published guide ran Gloo on two ranks, and concluded that the other tensors "shouldn't be
# changed" (Kolly 2022).
#
# </details>
#
# **Remember:** after `reduce`, read the tensor only on `dst`. Backends may leave different values on the other ranks.
#
# In PyTorch 2.13, NCCL, Gloo and our backend offer `reduce_scatter` and `all_to_all`. Only Gloo has `dist.monitored_barrier`, which names late ranks
# ([table of calls](../packages/torch_mpi4py/README.md#which-operation-works-on-which-backend)).

# %% tags=["exercise: 04.q5"]

# %% tags=["exercise: 04.3"]

# %% [markdown]
# ## References
#
# - E. Chan and others, [Collective communication: theory, practice, and experience](https://doi.org/10.1002/cpe.1206), 2007: all collectives, from
#   a few building blocks.
# - R. Thakur, R. Rabenseifner and W. Gropp, [Optimization of collective communication operations in MPICH](https://doi.org/10.1177/1094342005051521),
#   2005: which algorithm for which size; halving and doubling.
# - P. Patarasuk and X. Yuan, [Bandwidth optimal all-reduce algorithms for clusters of workstations](https://doi.org/10.1016/j.jpdc.2008.09.002), 2009: the ring.
# - R. Hockney, [The communication challenge for MPP](https://doi.org/10.1016/S0167-8191(06)80021-9), 1994: latency and bandwidth.
# - NVIDIA, [NCCL's cost model](https://github.com/NVIDIA/nccl/blob/master/src/graph/tuning.cc): latencies and bandwidths of rings and trees.
# - T. Kielmann and others, [MagPIe](https://doi.org/10.1145/301104.301116), 1999: a hierarchy of clusters.
# - PyTorch, [Distributed communication package](https://docs.pytorch.org/docs/stable/distributed.html).
# - F. Kolly, *Data Parallelism in PyTorch*, 2022: the guide that ran `reduce` on two ranks.
