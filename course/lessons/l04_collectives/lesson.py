# ---
# title: Collectives
# goal: Sum arrays over all ranks in two ways. Which one wins where?
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
#     answer: 8 million.
#   - ask: In Python, `5 ^ 1` flips the last bit of 5, binary 101. What are `5 ^ 1`, `5 ^ 2` and `5 ^ 4`?
#     answer: 4, 7 and 1 (binary 100, 111 and 001).
# ---

# %% [markdown] tags=["slide"]
# ## 1 · One sum, two ways
#
# Four ranks train one network, and all need the sum of their gradients: an **all-reduce**. MPI's `Allreduce` is a **collective**: all ranks of a communicator call it together,
# and make all such calls in the same order.
#
# How would you write one? All could send to rank 0, but then all wait for it. Two algorithms spread the work.

# %%
# %%px --save 04_allreduce.py
"""All-reduce by hand: in a ring and by doubling. Numbers of bytes may follow the program's name."""

import sys
from timeit import repeat

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD

# %% [markdown] tags=["subslide"]
# In the **ring algorithm**, each rank cuts its array into one **chunk** per rank. In each step, every rank sends one chunk to its right neighbour.
#
# In the first loop, a rank adds the chunk from its left neighbour to its own, and sends this sum next. The second loop passes complete sums on.

# %% tags=["source: course_lib.comm.allreduce:ring"]
# %%px --save 04_allreduce.py

# %% [markdown] tags=["subslide"]
# In **recursive doubling**, pairs of ranks exchange whole arrays, and each rank adds what it receives. First, partners are one rank apart
# (0 and 1, 2 and 3), then two, and on eight ranks also four.

# %% tags=["source: course_lib.comm.allreduce:doubling"]
# %%px --save 04_allreduce.py

# %% [markdown] tags=["subslide"]
# The communicator `Filmed` records the array before each exchange. Rank 0 brings 1 to 4, and rank 3 brings 1000 to 4000, so 4004 is 4 + 4000. **Predict:** how many exchanges does each way need?


# %%
# %%px
class Filmed(MPI.Intracomm):
    def Sendrecv(self, *message):
        frames.append(array.tolist())  # the array of the loop below
        super().Sendrecv(*message)


films = {}
for way in ring, doubling:
    frames, array = [], np.array([1, 2, 3, 4]) * 10**comm.rank
    way(Filmed(comm), array)
    films[way.__name__] = [*frames, array.tolist()]

# %% tags=["nbval-ignore-output"]
from course.lessons.l04_collectives.figures import film

film(cluster["films"], "The ring moves chunks, doubling moves whole arrays (darker: from more ranks)")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# Follow rank 3's 4000 through the ring: 4004, 4044, 4444. After three exchanges, each rank has one complete chunk: a **reduce-scatter**. Three more copy these chunks to all
# ranks: an **all-gather**.
#
# The ring needs six exchanges, doubling two. Is doubling three times as fast?
#
# </details>

# %% tags=["exercise: 04.4", "subslide"]

# %% [markdown] tags=["notes"]
# Six minutes for the exercise. Most people forget the second half of the ring, or that a message holds only a chunk.
# Point at the film.

# %% [markdown] tags=["slide"]
# ## 2 · Which is faster?
#
# The ring sends more messages, doubling more bytes. Which costs more? An empty message takes the **latency** α. Each byte adds a time β, so 1/β is the **bandwidth**. In both
# ways, all ranks exchange at the same time, so an all-reduce takes
#
# α · (messages of a rank) + β · (bytes of a rank)
#
# This **alpha-beta model** assumes one two-way link per rank, all equal and independent.
#
# We have no network here, so we *delay* messages: α is 10 ms, 1/β is 5 MB/s (0.04 Gbit/s).

# %%
# %%px
from course_lib.effects import slow_messages

comm = slow_messages(MPI.COMM_WORLD, seconds=0.01, gbit_per_s=0.04)


# %% tags=["subslide"]
# %%px --save 04_allreduce.py
def seconds(comm, way, nbytes):
    """The slowest rank's best of three runs."""
    array = np.ones(nbytes // 8)
    best = min(repeat(lambda: way(comm, array), number=1, repeat=3))
    return comm.allreduce(best, op=MPI.MAX)


# %% [markdown] tags=["subslide"]
# **Vote:** which way wins at 1 kB, and which at 4 MB? (a) ring, ring; (b) ring, doubling; (c) doubling, ring; (d) doubling, doubling

# %% tags=["nbval-ignore-output"]
# %%px --save 04_allreduce.py
if __name__ == "__main__":
    ways = [ring, doubling] if comm.size.bit_count() == 1 else [ring]  # doubling needs a power of two
    sizes = [int(each) for each in sys.argv[1:] if each.isdigit()]  # those of the command, if any
    for nbytes in sizes or (1_000, 400_000, 4_000_000):
        times = [f"{way.__name__} {1000 * seconds(comm, way, nbytes):7.2f} ms" for way in ways]
        if comm.rank == 0:
            print(f"ranks: {comm.size}, {nbytes:9,} bytes:", *times, sep="  ")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (c). By the model, 1 kB takes 60 and 20 ms: messages decide. 400 kB takes 180 both ways. At 4 MB, bytes decide: 60 + 1.5 · 800 = 1,260 and 20 + 2 · 800 = 1,620 ms.
#
# </details>

# %% [markdown] tags=["subslide"]
# On eight ranks, with the same delays, at which size do both take equally long? Use `counts(8)`, and write your number of bytes in place of
# 1000000:

# %% tags=["nbval-ignore-output"]
# !mpiexec -n 8 python -m course_lib.effects 0.01 0.04 code/04_allreduce.py 1000000 | grep ranks:

# %% [markdown]
# <details><summary>Open after your runs</summary>
#
# At 440,000 bytes, the **crossover**. In the 10 ms of one message, our link carries 0.05 MB. So there,
#
# (arrays that the ring saves) · size = (extra messages) · 0.05 MB
#
# On eight ranks: (3 − 1.75) · size = (14 − 3) · 0.05 MB. Both ways then take 294 ms.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 3 · On 2,048 ranks
#
# Now 2,048 ranks sum 100 MB of gradients over links like ours, either in one call, or in a hundred successive calls, one per layer. **Vote** for the slowest, then for the fastest: (a) one call, ring; (b) one call, doubling; (c) a hundred, ring; (d) a hundred, doubling

# %%
# %%px --save 04_allreduce.py
if __name__ == "__main__" and comm.rank == 0:
    for n in 4, 64, 2048:
        for way, (messages, arrays) in zip(["ring", "doubling"], counts(n)):
            one, hundred = (calls * messages * 0.01 + arrays * 100 / 5 for calls in (1, 100))
            print(f"{n:4} ranks, {way:8}: one call {one:5.1f} s, a hundred calls {hundred:6.1f} s")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (c), then (a): the ring sends 4,094 messages per call. On 2,048 ranks, the crossover is at 22.7 MB. So lesson 07's DDP joins small arrays.
#
# Could one way send as few messages as doubling, and as few bytes as the ring? Lesson 14 builds one.
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# | | what changes |
# |---|---|
# | a fast network card per rank | α = 2 µs and 1/β = 25 GB/s are both 5,000 times better, so the crossovers stay |
# | eight ranks share a card | In each exchange between nodes, doubling sends eight arrays through it. A ring ordered by node sends under two in all, so it wins from smaller sizes on |
# | NCCL | Its two trees (lesson 14) need about 2·log₂(nodes) steps between nodes, and two arrays per rank. On many nodes, they can beat the ring even at 100 MB |

# %% [markdown] tags=["slide"]
# ## Key points
#
# - In a ring, each rank sends 2(n−1) chunks, less than two arrays. In doubling (n = 2, 4, 8 …), it sends log₂ n arrays.
# - Of these two, from four ranks on, doubling wins below the crossover, and the ring wins above it (equal links, one per rank).

# %% [markdown] tags=["slide"]
# ## Discuss
#
# You buy twice the bandwidth, but the latency stays. At which size is the crossover now? (a) Half, (b) the same, (c) twice.
#
# <details><summary>What to listen for</summary>(c): in one message's 10 ms, the link now carries 0.1 MB.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# Here is a common mistake in training scripts. Decide what happens before you open the reply.

# %% tags=["exercise: 04.q4"]

# %% [markdown]
# ### Several nodes: does it matter where a rank runs?
#
# On a cluster, several ranks share a node, and a message between nodes costs far more than one inside a node. Our ring knows the ranks' numbers, but not their nodes. Is that a problem?
#
# Suppose that ranks 0 and 1 run on one node, and ranks 2 and 3 on another. All four sum 600 kB in a ring. Two of its four links then lead from node to node. Let us count what
# crosses.

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
# In a ring of four, each rank sends 1.5 arrays, or 900 kB, all of it to its right neighbour. For two ranks, this neighbour is on the other node, so 1,800 kB cross.
#
# If neighbours are always on different nodes, all four ranks send to the other node, and 3,600 kB cross. So the fewest bytes cross if the launcher fills one node before the next.
# NCCL looks for the nodes itself, and orders its rings by node.
#
# Doubling exchanges inside the nodes first. Then all four ranks send their 600 kB to the other node, which makes 2,400 kB.
#
# </details>
#
# Can fewer bytes cross? In every step of our ring, bytes pass from node to node. A **hierarchical all-reduce** does the work inside each node first: one rank per node, its **leader**, gets the sum of its node. Then
# the leaders sum among themselves. Finally each leader sends the result to the ranks of its node. Only the leaders' messages cross.
#
# Inside a node we need two more collectives. A **broadcast** (`Bcast`) copies an array from one rank to all. For small arrays, a good way is a **tree**: every rank that has the array sends it
# on. After one round two ranks have it, then four, then eight. A **reduce** (`Reduce`) runs such a tree backwards, and leaves the sum on one rank.
#
# The course's library has both as `tree_broadcast` and `tree_reduce`. Its `ring_allreduce` is our ring. So the whole algorithm takes a few lines:

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
# They send 1,200 kB. Two leaders form a ring of two, in which each sends one array of 600 kB. With two nodes of two ranks, that is a third less than the ring sent.
#
# </details>
#
# Should a cluster of 64 nodes with 8 ranks each use leaders? **Predict** for both ways, the ring of all 512 ranks and the ring of the 64 leaders: how many arrays cross between the nodes, and how many steps
# follow one another?
#
# <details><summary>Open after your prediction</summary>
#
# | | all 512 ranks | 64 leaders |
# |---|---|---|
# | arrays between the nodes, about | 64 · 2 = 128 | 64 · 2 = 128 |
# | steps, one after the other | 2 · 511 = 1,022 | 2 · 63 = 126, and 6 inside the nodes |
#
# In both rings, 64 ranks send to the next node, and each sends almost two arrays. So leaders save hardly any bytes there. They save steps. Only 64 of the 512 links lead to another node. Eager messages wait
# there about 128 times; with rendezvous (lesson 01), all 1,022 steps do.
#
# For small arrays, steps decide: doubling on all 512 ranks takes nine steps, and leaders that double take twelve. Leaders help when doubling's eight arrays per card cost too much. For gigabytes on these 512 ranks, take the ring. Our leaders' two trees move whole arrays inside each node for six rounds, and the network
# is idle meanwhile. The ring works in chunks and keeps all its links busy at once.
#
# Both ways use one network card per node. If each GPU has a card, seven of eight are idle. So NCCL runs several rings at once, each with a part of the array.
#
# </details>

# %% tags=["exercise: 04.2"]

# %% [markdown] tags=["slide"]
# ### What does PyTorch call?
#
# A training script never calls a ring. It calls `torch.distributed`, which passes the request to a **communication library** (also called communication runtime), and the library drives the network:
#
# ```
# application      your training script
# on top           DeepSpeed (lesson 12), Lightning, Hugging Face's Trainer
# framework        torch.distributed                             Horovod (lesson 06)
# library          NCCL (NVIDIA's GPUs)    Gloo (CPUs)    MPI    oneCCL (Intel)
# network          NVLink, InfiniBand (RDMA), TCP, shared memory
# ```
#
# DeepSpeed (lesson 12) sits on `torch.distributed`, even when MPI starts its ranks. In PyTorch, the library of a group of ranks is called the group's **backend**.
#
# On GPUs you would choose NCCL. One thing about it surprises people who time their code: NCCL's all-reduce takes a **stream**, which is a queue of work for the GPU, and the call returns when the sum
# is *queued*, not when it is done. You can also use MPI on GPUs: a **CUDA-aware MPI** accepts arrays in a GPU's memory. Any other MPI needs a copy in main memory.
#
# When NCCL estimates which of its algorithms is faster for a call, it uses latencies and bandwidths, as we did. Between nodes, recent versions assume about 3 to 14 µs per step of a ring, depending on the protocol (see References). With 14 µs per step, one rank per node and 25 GB/s,
# our crossovers would be seven times those with our table's 2 µs.
#
# We have no GPU here, so we use Gloo. It knows nothing of our MPI ranks, so the ranks must find each other again. Rank 0 opens a **store**, a small table that all ranks can reach. Each rank
# writes its address into the table and reads the others' addresses.
#
# And how do the ranks find the store? In the next cell, MPI broadcasts the store's port. After that, Gloo does not need MPI.

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
    # 127.0.0.1 is this machine; on several nodes, all ranks need the host name of rank 0
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if first else None
    port = ranks.bcast(store.port if first else None)
    store = store or dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=ranks.rank, world_size=ranks.size)


# %% [markdown]
# PyTorch has most of MPI's collectives, under almost the same names. Later lessons use most of them. The **root** is the one rank that has, or gets, everything:
#
# | collective | what it does |
# |---|---|
# | broadcast | copies the root's array to all ranks |
# | **scatter** | sends each rank its own part from the root |
# | **gather** | collects a part from each rank on the root |
# | all-gather | collects a part from each rank on all ranks |
# | reduce | leaves the sum on the root |
# | all-reduce | leaves the sum on all ranks |
# | reduce-scatter | leaves a different part of the sum on each rank |
# | **all-to-all** | sends a different part from each rank to each rank |
#
# Do the same names do the same everywhere? We try `reduce`. Four ranks bring 1, 10, 100 and 1000, and rank 0 gets 1111. **Predict:** what does rank 1 hold afterwards? We ask Gloo with two
# ranks and with four, and then `torch_mpi4py`, this course's backend that calls MPI.


# %%
# %%px
import torch_mpi4py


def left_by_reduce(ranks):
    """What this rank's number is after a reduce over `ranks` to rank 0."""
    group = dist.new_group(ranks)
    number = torch.tensor([10**comm.rank])
    if comm.rank in ranks:
        dist.reduce(number, dst=0, group=group)
    return number.item()


meet(comm)
left = {"Gloo, two ranks": left_by_reduce([0, 1]), "Gloo, four ranks": left_by_reduce([0, 1, 2, 3])}
dist.destroy_process_group()
torch_mpi4py.init_process_group()
left["MPI, four ranks"] = left_by_reduce([0, 1, 2, 3])
dist.destroy_process_group()

# %%
for way in cluster["left"][0]:
    taking_part = cluster["left"][:2] if "two" in way else cluster["left"]
    print(f"{way:16}", *(f"  rank {rank}: {of_rank[way]:4}" for rank, of_rank in enumerate(taking_part)))

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# Rank 0 has the sum each time. On two ranks, rank 1 kept its 10. On four ranks, Gloo left 1110 there, the sum over ranks 1, 2 and 3: it uses the tensors of some ranks as work space on the way to rank 0.
# Through MPI, rank 1 kept its 10.
#
# Is that a bug of Gloo? No. PyTorch's documentation says that only rank `dst` receives the result. It says nothing about the others. A longer tensor may change even on two ranks (PyTorch issue 76527).
# A published guide ran Gloo on two ranks, and concluded that the other ranks' tensors "shouldn't be changed" (Kolly 2022). One small run on one backend is not a rule. After `reduce`, read the tensor
# only on `dst`.
#
# </details>

# %% tags=["exercise: 04.q5"]

# %% tags=["exercise: 04.3"]

# %% [markdown]
# #### Does every backend have every collective?
#
# The same guide prints a table: Gloo has no `reduce_scatter` and no `all_to_all`. Such tables age, so we test it. We call both and look at what they leave. We also call a **monitored barrier**, which
# reports the ranks that did not arrive in time. **Predict:** on Gloo and through MPI, which of the six calls fail, if any?

# %%
# %%px
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


# %%
# %%px
meet(comm)
on_gloo = {name: tried(*call) for name, call in calls.items()}
dist.destroy_process_group()
torch_mpi4py.init_process_group()
by_mpi = {name: tried(*call) for name, call in calls.items()}
dist.destroy_process_group()
if comm.rank == 0:
    for name in calls:
        print(f"{name:18} Gloo: {on_gloo[name]:12} torch_mpi4py: {by_mpi[name]}")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# The printed table no longer holds: `reduce_scatter` and `all_to_all` leave the right numbers on both. One call of the six fails, the monitored barrier through MPI. It exists for Gloo alone, and PyTorch refuses it on every
# other backend.
#
# </details>

# %% [markdown]
# #### Which all-reduce is the fastest on your machine?
#
# In the core, we delayed the messages. How do our two ways compare with MPI's own `Allreduce` and with Gloo when nothing is delayed? We time all four on two ranks, one per core.
#
# We also need this machine's α. So we time a **ping-pong**, a message there and back: half of its time for 4 bytes is about α.
#
# On two ranks, both of our ways send one array: the ring in two messages, doubling in one. **Predict:** which of these two wins at 64 MiB? In the figure, each point is the median of five runs, and
# its bar goes from the fastest run to the slowest.

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
# The model says that doubling is faster at every size, by one α. But at 64 MiB, where α hardly counts, the ring often has the lower median. What did the model forget? It counts messages
# and bytes, but each rank also *adds*: half an array in the ring, a whole array by doubling. No message crosses a network here, so copies and additions count. Where the bars of two ways
# overlap, one run cannot say which is faster. This figure cannot say why `Allreduce` takes so long, either. (Bumps that all ways share come from the machine.)
#
# </details>
#
# Now look at the left end, where arrays have 4 bytes. How many ping-pongs does each all-reduce take, and how many should it take?
#
# <details><summary>Open after you have looked</summary>
#
# A ping-pong is two messages, one after the other. So the ring should take one ping-pong, and doubling's single exchange half of one. The ring takes longer: it also spends time in
# Python, for example to cut chunks. Gloo takes the longest: it sends through the operating system's network, and a thread of its own has to wake up for every message, on cores that are busy. Doubling
# and `Allreduce` stay close to the model. For the ring and Gloo, software costs more than the messages that the model counts.
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
# - NVIDIA, [NCCL's cost model](https://github.com/NVIDIA/nccl/blob/master/src/graph/tuning.cc): latencies and bandwidths of rings and trees.
# - T. Kielmann and others, [MagPIe](https://doi.org/10.1145/301104.301116), 1999: a hierarchy of nodes.
# - PyTorch, [Distributed communication package](https://docs.pytorch.org/docs/stable/distributed.html).
# - F. Kolly, *Data Parallelism in PyTorch*, 2022: the guide that ran `reduce` on two ranks.
