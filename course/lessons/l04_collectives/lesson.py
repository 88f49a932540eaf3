# ---
# title: Collectives
# goal: Sum arrays over all ranks in two ways, and find out which way wins where.
# able:
#   - follow an all-reduce message by message
#   - count what each rank sends
#   - choose an all-reduce for a size, a network and a number of ranks
# more:
#   - count what crosses between nodes
#   - use PyTorch's collectives
# before: >-
#   {01}. Helpful: {02}
# minutes: {core: 20, more: 34}
# ranks: 4
# warm-up:
#   - ask: Four ranks form a ring. Each sends 1 MB to the right with `Send`, then calls `Recv`. What may happen?
#     answer: All wait in Send, for a Recv that nobody reaches. <code>Sendrecv</code> does both at once.
#   - ask: How many bytes do a million numbers of type float64 have?
#     answer: 8 million, 8 bytes per number.
#   - ask: In Python, `5 ^ 1` flips the last bit of 5, binary 101. What are `5 ^ 1`, `5 ^ 2` and `5 ^ 4`?
#     answer: 4, 7 and 1 (binary 100, 111 and 001).
# ---

# %% [markdown] tags=["slide"]
# ## 1 · One sum, two ways
#
# Four ranks train one network. In every step, all four need the sum of their gradients: an **all-reduce**. MPI's `Allreduce` is a **collective**, a call that all ranks
# make together. What happens inside?

# %%
# %%px --save 04_allreduce.py
"""All-reduce by hand: in a ring and by doubling."""

from timeit import repeat

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD

# %% [markdown] tags=["subslide"]
# In the **ring algorithm**, each rank cuts its array into one **chunk** per rank. In each step of the first loop, it sends one chunk to the right and
# adds the chunk that arrives from the left to its own. That sum is sent next. The second loop passes complete chunks on:

# %% tags=["source: course_lib.comm.allreduce:ring"]
# %%px --save 04_allreduce.py

# %% [markdown] tags=["subslide"]
# In **recursive doubling**, each rank exchanges its whole array with a partner 1 rank away and adds what arrives, then 2 away, then 4:

# %% tags=["source: course_lib.comm.allreduce:doubling"]
# %%px --save 04_allreduce.py

# %% [markdown] tags=["subslide"]
# Let us film both. Rank 0 starts with 1, 2, 3, 4, the next ranks with tens, hundreds and thousands, so digits show who is in a sum.
# **Predict:** how many exchanges does each way need?


# %%
# %%px
class Filmed(MPI.Intracomm):
    """The same communicator, but it notes `array` before each `Sendrecv`."""

    def Sendrecv(self, *message):
        frames.append(array.tolist())
        super().Sendrecv(*message)


films = {}
for way in ring, doubling:
    frames, array = [], np.array([1, 2, 3, 4]) * 10**comm.rank
    way(Filmed(comm), array)
    films[way.__name__] = [*frames, array.tolist()]

# %% tags=["nbval-ignore-output"]
from course.lessons.l04_collectives.figures import film

film(
    cluster["films"],
    "The ring sends one chunk per exchange, doubling all four (darker: a sum over more ranks)",
)

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# The ring needs six exchanges. After three, each rank has one complete chunk: this half is a **reduce-scatter**. Three more copy the chunks to
# all ranks, an **all-gather**. Doubling needs two, but how much does each carry?
#
# </details>

# %% tags=["exercise: 04.4", "subslide"]

# %% [markdown] tags=["notes"]
# Six minutes for the exercise. Most people forget the second half of the ring, or that a message holds only a chunk.
# Point at the film.

# %% [markdown] tags=["slide"]
# ## 2 · Which is faster?
#
# There is no network here, so we *delay messages*. An empty message takes 10 ms, the **latency** α. Each byte adds β = 0.2 µs, so the **bandwidth** 1/β is 5 MB/s.
#
# In the **alpha-beta model**, an all-reduce takes α · messages + β · bytes, counted on one rank. This assumes equal links, one per rank, that work both ways at once.

# %%
# %%px
from course_lib.effects import slow_messages

comm = slow_messages(MPI.COMM_WORLD, seconds=0.01, gbit_per_s=0.04)


# %% tags=["subslide"]
# %%px --save 04_allreduce.py
def seconds(comm, way, nbytes):
    """The time of the slowest rank, in the best of three runs."""
    array = np.ones(nbytes // 8)
    best = min(repeat(lambda: way(comm, array), number=1, repeat=3))
    # A collective: if one rank calls in a different order, the calls pair up wrongly, or all wait.
    return comm.allreduce(best, op=MPI.MAX)


def race(comm, *ways):
    """Time each way at three sizes."""
    for nbytes in 2**10, 400_000, 2**22:
        times = [f"{way.__name__} {1000 * seconds(comm, way, nbytes):7.2f} ms" for way in ways]
        if comm.rank == 0:
            print(f"ranks: {comm.size}, {nbytes:9,} bytes:", *times, sep="  ")


# %% [markdown] tags=["subslide"]
# **Vote:** which way wins at 1 KiB, and which at 4 MiB? (a) The ring at both, (b) ring, then doubling, (c) doubling, then ring, (d) doubling at both

# %% tags=["nbval-ignore-output"]
# %%px --save 04_allreduce.py
if __name__ == "__main__":
    ways = [ring, doubling] if comm.size.bit_count() == 1 else [ring]  # one bit set: 1, 2, 4, 8 … ranks
    race(comm, *ways)

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (c). At 1 KiB, bytes cost almost nothing, so the ring's six messages lose to two. At 4 MiB, bytes decide: the ring sends 1.5 arrays, doubling 2.
#
# </details>

# %% [markdown] tags=["subslide"]
# Now eight ranks run the saved cells. **Predict** both times at 1 KiB from your formulas:

# %% tags=["nbval-ignore-output"]
# !mpiexec -n 8 python -m course_lib.effects 0.01 0.04 code/04_allreduce.py | grep ranks:

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# The model says 140 ms for 14 messages, and 30 ms for 3. Python and shared cores take the rest.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 3 · On 2,048 ranks
#
# On four ranks, both ways tied at 0.4 MB: the ring's four extra messages cost 40 ms, and so does the half array that it saves.
# Below this **crossover** doubling wins, above it the ring. It lies at α/β · extra messages / saved arrays, where α/β is 10 ms · 5 MB/s = 0.05 MB.

# %%
predict("At how many MB do both ways tie on 2,048 ranks?", None)

# %%
# %%px --save 04_allreduce.py
if __name__ == "__main__":
    for n in 4, 8, 64, 2048:
        (messages, arrays), (fewer, more) = counts(n)
        tie = 0.05 * (messages - fewer) / (more - arrays)  # MB; 0.05 is α / β
        if comm.rank == 0:
            doubled = f"doubling {more}; tie {tie:.1f} MB"
            print(f"{n:4}: ring {messages:4} messages, {arrays:.2f} arrays; {doubled}")

# %%
outcome("At how many MB do both ways tie on 2,048 ranks?", cluster["tie"][0], unit="MB", word="computed")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# From 4 to 2,048 ranks, extra messages grow from 4 to 4,083, but saved arrays only from 0.5 to 9, so the tie moves up.
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# | | what changes |
# |---|---|
# | link | RDMA (the card reads memory itself) offers 2 µs and 25 GB/s: the same α/β, so the same ties. |
# | NCCL | It mostly takes a ring or a tree, which is about log₂ n deep and sends about the ring's bytes. |

# %% [markdown] tags=["slide"]
# ## Key points
#
# - All ranks of a communicator make the same collective calls, in the same order.
# - In a ring, each rank sends 2(n−1) messages, together less than two arrays. By doubling, it sends log₂ n whole arrays (n = 2, 4, 8 …).
# - From four ranks on, few messages win for small arrays, and few bytes for large ones.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# You buy a network with twice the bandwidth, but the same latency. Where is the tie now? (a) At half the size, (b) the same, (c) twice.
#
# <details><summary>What to listen for</summary>(c). Each byte takes half the time, so the ring must save twice as many bytes.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# Before you read on: often only rank 0 needs a result, for example to print it. Do the other ranks have to call the collective as well?

# %% tags=["exercise: 04.q4"]

# %% [markdown]
# ### Several nodes: does it matter where a rank runs?
#
# A cluster's ranks share nodes, and a message between nodes costs far more than a message inside one. Our ring knows only the ranks' numbers, not their nodes. Is that a problem?
#
# Suppose that ranks 0 and 1 run on one node, and ranks 2 and 3 on another. All four sum 600 kB in a ring, so two of the ring's four connections lead from node to node. We count
# what crosses.

# %%
predict("How many kB does the ring send between the two nodes, all ranks together?", None)


# %%
# %%px
from course_lib.comm.counting import counted

comm = MPI.COMM_WORLD  # without delay


def crossing(allreduce, node_of):
    """The kB that this rank sends to other nodes while 600 kB are summed."""
    counting = counted(comm)
    allreduce(counting, np.ones(75_000))
    away = [sent.nbytes for dest, sent in counting.sent_to.items() if node_of[dest] != node_of[comm.rank]]
    return sum(away) / 1000


crossed = {
    "ring, neighbours on one node": crossing(ring, [0, 0, 1, 1]),
    "ring, neighbours on different nodes": crossing(ring, [0, 1, 0, 1]),
    "doubling": crossing(doubling, [0, 0, 1, 1]),
}

# %%
total = {name: sum(of_rank[name] for of_rank in cluster["crossed"]) for name in cluster["crossed"][0]}
outcome(
    "How many kB does the ring send between the two nodes, all ranks together?",
    total["ring, neighbours on one node"],
    word="counted",
)
for name, kilobytes in total.items():
    print(f"{name:36} {kilobytes:5.0f} kB")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# In a ring of four, each rank sends 1.5 arrays, or 900 kB, and all of it goes to its right neighbour. Two ranks have that neighbour on the other node, so 1,800 kB cross.
# When neighbours are always on different nodes, all four ranks send to the other node, and 3,600 kB cross. So a launcher that fills one node before it starts the next places a ring well.
#
# Doubling has its own pattern. In the first exchange both partners are on one node. In the second, all four ranks send their 600 kB to the other node, which makes 2,400 kB.
#
# </details>
#
# Even the well-placed ring sends three arrays' worth of bytes between two nodes. Can fewer cross? A **hierarchical all-reduce** first sums inside each node. Then one **leader** per node
# sums with the other leaders, and finally each leader sends the result to the ranks of its node. Only the leaders' messages cross.
#
# For the steps inside a node we need two more collectives. A **broadcast** (`Bcast`) copies an array from one rank to all, and a good way to do that is a **tree**: every rank that has
# the array sends it on. After one round two ranks have it, then four, then eight, so ten rounds reach 1,024 ranks. A **reduce** (`Reduce`) runs the same tree backwards and leaves the
# sum on one rank. The course's library has these two as `tree_broadcast` and `tree_reduce`, and our ring as `ring_allreduce`, so the whole algorithm fits into a few lines:

# %% tags=["source: course_lib.comm.collectives:hierarchical_allreduce"]
# %%px

# %% [markdown]
# Each of our two nodes has one leader. **Predict:** how many kB do the two leaders together send between the nodes?

# %%
# %%px
inside = comm.Split(comm.rank // 2)  # on a real cluster: comm.Split_type(MPI.COMM_TYPE_SHARED)
between = comm.Split(0 if inside.rank == 0 else MPI.UNDEFINED)  # COMM_NULL on the others
leaders = counted(between) if between else between
array = np.ones(75_000)
hierarchical_allreduce(inside, leaders, array)
kilobytes = comm.reduce(leaders.sent.nbytes / 1000 if leaders else 0)
if comm.rank == 0:
    print(f"{kilobytes:.0f} kB between the nodes; sums right: {bool((array == 4).all())}")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# They send 1,200 kB instead of 1,800. Two leaders form a ring of two, in which each sends one array of 600 kB.
#
# You might now expect leaders to save a third of the bytes everywhere. They don't. On 64 nodes of 8 ranks, the leaders send 126 arrays between the nodes, and a ring of all
# 512 ranks sends 128. What leaders save there is steps. The ring of all ranks takes 1,022 steps, one after the other, and if sends wait for their receiver (rendezvous, lesson 01), each step takes as
# long as a message between nodes. The ring of 64 leaders takes only 126 steps, and the trees inside each node add six rounds. Steps are worth saving: NCCL's own table has up to 14 µs per network
# hop, and with 14 µs instead of 2 at the same 25 GB/s, the core's tie on 64 ranks moves from 1.5 MB to 10 MB.
#
# Should you always choose leaders, then? Not for gigabytes. The trees move six whole arrays inside each node, one after the other, and meanwhile the network waits. The ring of all
# ranks works in chunks and keeps all links busy at once, so for large arrays it beats leaders as written here. And both algorithms use only one network card per node. That is why
# libraries let every rank of a node send a part of the array.
#
# You may wonder whether one algorithm could have few messages *and* few bytes. MPI has one, *halving and doubling*: it needs 2·log₂ n messages and sends the ring's bytes, so
# in our model it beats the ring. But its partners are far apart, and their messages share cables, which the model leaves out. A ring talks only to neighbours, and it works for any n.
#
# </details>

# %% tags=["exercise: 04.2"]

# %% [markdown] tags=["slide"]
# ### What does PyTorch call?
#
# A training script never calls a ring. It asks a framework for a sum, the framework passes the request to a **communication runtime**, and the runtime drives the network. These are the layers:
#
# ```
# application      your training script
# on top           DeepSpeed (lesson 12), Lightning, Hugging Face's Trainer
# framework        torch.distributed                             Horovod (lesson 06)
# runtime          NCCL (NVIDIA's GPUs)    Gloo (CPUs)    MPI    oneCCL (Intel)
# network          NVLink, InfiniBand (RDMA), TCP, shared memory
# ```
#
# DeepSpeed (lesson 12) sits on `torch.distributed`, not on MPI, even when MPI starts its ranks. On GPUs, the runtimes differ in two ways that matter to a program. The first is where an array may
# be: a **CUDA-aware MPI** accepts arrays in a GPU's memory, and any other MPI needs a copy in main memory. The second is when a call returns. NCCL's all-reduce has one argument more than
# MPI's, a **stream**, which is a queue of work for the GPU, and the call returns when the sum is *queued*, not when it is done.
#
# We have no GPU here, so we use Gloo. In PyTorch, the runtime of a group of ranks is called the group's **backend**. Gloo knows nothing of our MPI ranks, so the ranks have to find
# each other again. For this purpose rank 0 opens a **store**, a small table that all ranks can reach. Each rank writes its own address into the table and reads the addresses of the
# others. This meeting is called Gloo's **rendezvous**, and it has nothing to do with the protocol of lesson 01.
#
# But how do the ranks find the store? In the next cell, MPI broadcasts the store's port to all ranks. After that, Gloo does not need MPI.

# %%
# %%px
import os

import torch
import torch.distributed as dist

from course_lib.network import loopback

os.environ["GLOO_SOCKET_IFNAME"] = loopback()  # this machine's own network


def meet(ranks):
    """Make a process group of Gloo from the ranks of a communicator."""
    if dist.is_initialized():  # when you run this cell again
        dist.destroy_process_group()
    first = ranks.rank == 0
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if first else None
    port = ranks.bcast(store.port if first else None)
    store = store or dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=ranks.rank, world_size=ranks.size)


meet(comm)

# %% [markdown]
# PyTorch's collectives have MPI's names. Do they also do the same? A guide (Kolly 2022, see References) runs a `reduce` to rank 0 on two ranks, and prints `[2, 110]` on
# rank 0 and `[2, 11]` on rank 1. Rank 1 started with `[2, 11]`, and its tensor, the guide says, "shouldn't be changed". We repeat this on two ranks, and then on all four.
# **Predict** what rank 1 holds after the run on four.

# %%
# %%px
held = []
for ranks in [0, 1], [0, 1, 2, 3]:
    group = dist.new_group(ranks)
    tensor = torch.tensor([comm.rank + 1, comm.rank + 10])
    if comm.rank in ranks:
        dist.reduce(tensor, dst=0, op=dist.ReduceOp.PRODUCT, group=group)
    held.append(tensor.tolist())

# %% tags=["nbval-ignore-output"]
for rank, (in_two, in_four) in enumerate(cluster["held"]):
    print(f"rank {rank}: {in_two if rank < 2 else 'not in the group of two'}, then {in_four}")


# %% [markdown]
# <details><summary>Open after the run</summary>
#
# On two ranks, rank 1 kept its two numbers, just as the guide says. On four ranks, ranks 1 and 2 hold partial products, because Gloo uses their tensors as work space on the way to
# rank 0. Is that a bug? No: PyTorch's documentation guarantees nothing for ranks other than `dst`, and a longer tensor may change even on two ranks (PyTorch issue 76527). The guide saw what
# one backend happened to do in one small run, and took it for the rule. After `reduce`, read the tensor only on `dst`.
#
# </details>

# %% tags=["exercise: 04.q5"]

# %% tags=["exercise: 04.3"]

# %% [markdown]
# #### Does every backend have every collective?
#
# A script that runs on one backend may fail on the next, and you want to know before you submit it. The guide's table had no `reduce_scatter` and no `all_to_all` on Gloo, but such tables grow
# old. So instead of trusting a table, we call each function and check what it leaves.
#
# Two of our three functions are new. In an **all-to-all**, every rank sends a different part to every other rank. (Its simpler relatives have one **root**: a **scatter** distributes
# the root's parts, and a **gather** collects parts on the root.) A monitored barrier is a barrier that reports which ranks did not arrive in time.
#
# We try two backends: Gloo, and `torch_mpi4py`, which belongs to this course and calls MPI. **Predict:** which of these six calls fail, if any?

# %%
# %%px
import torch_mpi4py

size = comm.size
parts = list((10.0**comm.rank + torch.arange(size)).split(1))  # a number for every rank
calls = {  # each with what it should leave
    "reduce_scatter": (lambda got: dist.reduce_scatter(got[0], parts), [1111 + size * comm.rank, 0, 0, 0]),
    "all_to_all": (lambda got: dist.all_to_all(got, parts), [10**r + comm.rank for r in range(size)]),
    "monitored_barrier": (lambda got: dist.monitored_barrier(), [0] * size),
}


def tried(call, expected):
    """Whether a call leaves what is expected, or the error that it raised."""
    got = torch.zeros(size)
    try:
        call(list(got.split(1)))
    except Exception as error:
        return f"raises {type(error).__name__}"
    return "works" if got.tolist() == expected else f"wrong: {got.tolist()}"


# %% [markdown]
# The functions are ready. First we call them on Gloo, then on `torch_mpi4py` (called mpi4py in the output):

# %%
# %%px
results = {"gloo": {name: tried(*call) for name, call in calls.items()}}
dist.destroy_process_group()
torch_mpi4py.init_process_group()
results["mpi4py"] = {name: tried(*call) for name, call in calls.items()}
dist.destroy_process_group()

# %%
by_rank = cluster["results"]
for name in by_rank[0]["gloo"]:
    said = [" / ".join({of_rank[backend][name] for of_rank in by_rank}) for backend in ("gloo", "mpi4py")]
    print(f"{name:18} gloo: {said[0]:12} mpi4py: {said[1]}")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# The old table no longer holds: `reduce_scatter` and `all_to_all` leave the right numbers on both backends. One call of the six fails, `monitored_barrier` on `torch_mpi4py`. It exists for
# Gloo alone, and PyTorch refuses it on every other backend.
#
# </details>

# %% [markdown]
# #### Which all-reduce is the fastest on your machine?
#
# In the core, a delay decided. Now two ranks with a core each run our two ways, MPI's own `Allreduce` and Gloo, all without delay. To see what a message costs here, we also time a
# **ping-pong**, a message there and back: half of its time for 4 bytes is about this machine's α. In the figure, each point is the median of five runs, and its bar goes from the fastest
# run to the slowest.
#
# On two ranks, both of our ways send one array: the ring in two messages, doubling in one. **Predict** which of these two wins at 64 MiB.

# %%
# %%px --timeout 100
from course_lib.measure import measure

two = comm.Split(comm.rank // 2)  # ranks 0 and 1, or ranks 2 and 3, which rest
if comm.rank < 2:
    meet(two)


def ping_pong(array):
    """Send the array from rank 0 to rank 1, and back."""
    for sender in 0, 1:
        two.Send(array, 1 - sender) if comm.rank == sender else two.Recv(array, sender)


sweep = []
for power in range(13 if comm.rank < 2 else 0):
    array = np.zeros(4**power, np.float32)
    ways = {
        "ring": lambda: ring(two, array),
        "doubling": lambda: doubling(two, array),
        "Allreduce": lambda: two.Allreduce(MPI.IN_PLACE, array),
        "Gloo": lambda: dist.all_reduce(torch.from_numpy(array)),
        "ping-pong": lambda: ping_pong(array),
    }
    sweep += measure(two, ways, repeat=5, bytes=array.nbytes)

# %% tags=["nbval-ignore-output"]
left_end = {row["way"]: row.value for row in cluster["sweep"][0] if row["bytes"] == 4}
print(f"latency α = {1e6 * left_end['ping-pong'] / 2:.1f} µs")
for way, seconds in left_end.items():
    print(f"{way:10} {seconds / left_end['ping-pong']:4.1f} ping-pongs")
show(cluster["sweep"], x="bytes", y="time on two ranks", by="way")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# Doubling sends one message fewer and the same bytes, so the model lets it win by one α. But at 64 MiB the ring wins on most machines. The model knows messages and bytes, but
# forgets that each rank also *adds*: half an array in the ring, a whole array by doubling. Here the messages cross no network, so copies and additions decide. Where the bars of two ways overlap, one run cannot
# say which is faster.
#
# </details>
#
# Now look at the left end, where arrays have 4 bytes. How many ping-pongs does each all-reduce take, and how many should it take?
#
# <details><summary>Open after you have looked</summary>
#
# A ping-pong is two messages, one after the other. The ring's two messages should therefore take one ping-pong, and doubling's single exchange half of one. The ring often takes longer, because
# our two ways also spend time in Python, for example to cut chunks. Gloo takes the longest: it sends through the operating system's network, and wakes a thread for every message. So for
# small arrays inside one machine, the software costs more than the messages that the model counts.
#
# </details>

# %% [markdown]
# ## References
#
# - E. Chan and others, [Collective communication: theory, practice, and experience](https://doi.org/10.1002/cpe.1206), 2007: all of them, from the
#   same few pieces.
# - R. Thakur, R. Rabenseifner and W. Gropp, [Optimization of collective communication operations in MPICH](https://doi.org/10.1177/1094342005051521),
#   2005: which algorithm for which size; halving and doubling.
# - P. Patarasuk and X. Yuan, [Bandwidth optimal all-reduce algorithms for clusters of workstations](https://doi.org/10.1016/j.jpdc.2008.09.002), 2009: the ring.
# - R. Hockney, [The communication challenge for MPP](https://doi.org/10.1016/S0167-8191(06)80021-9), 1994: latency and bandwidth.
# - T. Kielmann and others, [MagPIe](https://doi.org/10.1145/301104.301116), 1999: a hierarchy of nodes.
# - PyTorch, [Distributed communication package](https://docs.pytorch.org/docs/stable/distributed.html).
# - F. Kolly, *Data Parallelism in PyTorch*, 2022: the guide with the printed example and the table of backends.
