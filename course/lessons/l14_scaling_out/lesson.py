# ---
# title: Scaling out
# goal: Measure a link, and find out which all-reduce still trains on 2,048 machines.
# able:
#   - measure a link, and forecast four all-reduces on it
#   - say what a run on a few machines cannot show
#   - judge a remedy for a slow link by how it grows
# more:
#   - find out whether one process fills a device
#   - start one program over ssh, under Slurm and on Kubernetes
# before: >-
#   {04}. Helpful: {06}
# minutes: {core: 20, more: 15}
# ranks: 4
# warm-up:
#   - ask: In the alpha-beta model, how long does a message of k bytes take?
#     answer: α + βk seconds. α is the latency, 1/β the bandwidth.
#   - ask: Four ranks sum 100 MB in a ring. How many bytes does each send?
#     answer: 2(n−1)/n = 1.5 arrays, so 150 MB, in 6 messages.
#   - ask: What does a data-parallel step send?
#     answer: All gradients, in an all-reduce (lesson 06).
# ---

# %% [markdown] tags=["slide"]
# ## 1 · Four ways
#
# You may train on 2,048 machines, one rank on each. A message takes 10 ms, plus its bytes at 100 Mbit/s. A step computes for one second, *then* sums
# 1 MiB of gradients. By formula, a ring on four machines sums them in 186 ms, a tree in 376 ms. Do you take the ring?

# %%
# %%px --save 14_slow_link.py
"""Four all-reduces on the link at hand, measured and forecast."""

from collections.abc import Sequence

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD

# %% [markdown] tags=["subslide"]
# This is lesson 04's ring, with a call of itself in the middle: when each rank holds one summed chunk, the ranks with the same chunk sum it across the groups.

# %% tags=["source: course_lib.comm.allreduce:in_groups"]
# %%px --save 14_slow_link.py

# %% [markdown] tags=["subslide"]
# - One group of n is the **ring**.
# - Groups of 2, again and again, are **halving**: you exchange half of the array with your neighbour, a quarter with the rank 2 away, and so on, then go
#   all the way back.
# - Groups of 4, then one ring across them: a **hierarchy**. (Here, near links are no faster.)
#
# The fourth is a **tree**. Every second rank sends its whole array to the one before; of those, every second does so again, up to rank 0. The sum returns likewise.

# %% tags=["source: course_lib.comm.allreduce:tree"]
# %%px --save 14_slow_link.py

# %% [markdown] tags=["slide"]
# ## 2 · Two thousand

# %%
predict("Ring on 2,048: how many times 186 ms?", None)

# %% tags=["exercise: 14.3"]

# %% [markdown] tags=["subslide"]
# **Vote:** on 2,048 machines, which take less than the second that a step computes? (a) All but the tree, (b) all, (c) one.

# %%
curves = {n: forecasts(n, 2**20, alpha=0.01, beta=80e-9) for n in (2, 4, 8, 16, 64, 256, 1024, 2048)}
print("on 2,048 machines:", *(f"{way} {took:.2f} s" for way, took in curves[2048].items()))
outcome("Ring on 2,048: how many times 186 ms?", curves[2048]["ring"] / curves[4]["ring"], word="forecast")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# (c). In all but the tree a rank sends about two arrays, in 4,094 messages (ring), 1,028 (hierarchy) or 22 (halving). In the tree 22 whole arrays follow one another.
# On four machines the ring's 6 messages cost only 60 of 186 ms.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 3 · Is it true?
#
# Nobody lends you 2,048 machines, but you can measure 16. A message in two sizes tells α and β:


# %%
# %%px --save 14_slow_link.py
def seconds(team, work, *arguments):
    """How long `work(*arguments)` takes: all start together, the slowest rank counts."""
    team.Barrier()
    began = MPI.Wtime()
    work(*arguments)
    return team.allreduce(MPI.Wtime() - began, op=MPI.MAX)


def link(team):
    """Seconds of a message, alpha, and of each of its bytes, beta."""
    partner, took = team.rank ^ team.size // 2, []  # far away
    for nbytes in (1, 2**18):
        out, into = np.zeros((2, nbytes), np.uint8)
        took.append(min(seconds(team, team.Sendrecv, out, partner, 0, into, partner, 0) for _ in range(9)))
    return took[0], max(took[1] - took[0], 0) / 2**18  # noise may exceed the bytes


# %% tags=["nbval-ignore-output", "subslide"]
# %%px --save 14_slow_link.py
def main(team, nbytes=2**20):
    """Measure each way on 2, 4, 8 … ranks, and say what its formula says."""
    n, (alpha, beta), array = team.size, link(team), np.zeros(nbytes // 4, np.float32)
    groups = {"ring": [n], "hierarchy": [min(n, 4), max(n // 4, 1)], "halving": [2] * (n.bit_length() - 1)}
    if team.rank == 0:
        print(f"{nbytes:,} bytes on {n} ranks; a message {1e3 * alpha:.3f} ms, a byte {1e9 * beta:.2f} ns")
    for way, expected in forecasts(n, nbytes, alpha, beta).items():
        call = (tree, team, array) if way == "tree" else (in_groups, team, array, groups[way])
        took = min(seconds(team, *call) for _ in range(4))  # the first opens connections
        if team.rank == 0:
            print(f"{way:9} {took:.5f} s, forecast {expected:.5f} s")


if __name__ == "__main__":
    team = comm.Split(comm.rank < 2 ** (comm.size.bit_length() - 1))  # 1, 2, 4 … ranks, and the rest
    if comm.rank == team.rank:
        main(team)

# %% [markdown]
# On 4 ranks the hierarchy *is* the ring. Ranks that share cores also wait for those: no formula says how long. Now `course_lib.effects` delays messages
# like our slow link. Delayed ranks sleep, so few cores suffice. **Vote:** on 16, which is faster, (a) tree, (b) ring?

# %% tags=["nbval-ignore-output"]
from subprocess import getoutput

program = "python -m course_lib.effects 0.01 0.1 code/14_slow_link.py"
said = {n: getoutput(f"mpiexec -n {n} {program}") for n in (8, 16)}
print(said[16])

# %% tags=["nbval-ignore-output"]
from course_lib.rows import predicted

rows = [predicted(took, ranks=n, way=way) for n in curves for way, took in curves[n].items()]
for n in said:
    for way, took, *_ in map(str.split, said[n].splitlines()[1:]):
        rows.append({"labels": {"ranks": n, "way": way}, "value": float(took)})
show(rows, x="ranks", y="an all-reduce takes", by="way")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# (b), but from 64 on the tree. The dashed lines hold if no two ranks share a link and none comes late.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 4 · A remedy
#
# Or send less. Seconds until the same accuracy, on *two* machines ([recorded](../docs/several-machines.md#what-helps-on-a-slow-link)):
#
# | | a step sends | seconds |
# |---|---|---|
# | plain (DDP) | all gradients | 78 |
# | bfloat16 | half of the bytes | 40 |
# | local SGD | weights, every 8 batches | 18 |
# | top-k | the largest 1 %, each with its index | 7 |
# | PowerSGD | two thin matrices whose product is nearly the gradient | 4 |
#
# Each rank picks other entries, so libraries seldom add on the way: every rank *gathers* all picks.
#
# **Vote:** on 2,048 of our machines, plain by halving, top-k by a gather in 11 messages, each twice the last: top-k is (a) ten times as fast, (b) twice as fast, (c) slower.

# %%
for n in 2, 2048:
    top_k = (n.bit_length() - 1) * 0.01 + (n - 1) * 0.01 * 2 * 2**20 * 80e-9
    print(f"{n:4} ranks: plain {curves[n]['halving']:.2f} s, top-k {top_k:.2f} s")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# (c). Some nine times faster became nine times *slower*: what is gathered grows with n. (Beside the *ring*'s 41 s it looks 12 times faster. Name both
# algorithms.) Bfloat16 and PowerSGD save *bytes*, not messages; 22 messages cost 0.22 of halving's 0.39 s. So bfloat16
# gains a fifth; PowerSGD sums twice per step, and loses. Local SGD saves both.
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# | | what changes |
# |---|---|
# | latency | RDMA (the card copies) 1 to 5 µs, TCP 10 to 50; shared memory below 1 on idle cores |
# | choice | libraries choose by size and ranks. NCCL's trees send *pieces*, about two arrays per rank |
# | nodes | messages inside a node need an α and β of their own |
# | overlap | sums start while the backward pass computes |

# %% tags=["exercise: 14.q4", "subslide"]

# %% [markdown] tags=["slide"]
# ## Key points
#
# - Few ranks hide the cost of messages: a *flat ring* pays 2(n−1) α, halving 2 log₂ n α.
# - Measure α and β; forecast each algorithm that your library may take.
# - A remedy that is a sum saves bytes, not messages. If it gathers, its bytes grow with n.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# Your all-reduce on 2,048 GPUs takes 1.2 s; the forecast is 60 ms. What do you look at first? (a) Which algorithm ran, (b) when each rank
# *entered* it, (c) the bandwidth of each network card.
#
# <details><summary>What to listen for</summary>(b): one rank that enters 1.1 s late explains it. If all enter
# together, (a), then (c): all wait for the slowest card.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# First a question about section 2.

# %% tags=["exercise: 14.q3"]

# %% [markdown]
# ### Is one process enough for a device?
#
# NVIDIA's **MPS** lets kernels of several processes run on one GPU at the same time. *AccDP* trains data-parallel with up to four processes per GPU. It reports up
# to 62 % more throughput. But these processes exchange gradients, and each keeps a copy of the weights. How can that be faster than one?
#
# The CPU analogue: our device is all cores of this machine. First one process uses it alone (with one thread or one per core, whichever is faster). Then two
# processes share it: each takes half of the batch and half of the cores, and they sum their gradients in every step. It is the same training.


# %%
# %%px --targets 0:2
import os

import torch
from torch import nn
from torch.nn import functional as F

from course_lib.measure import timed
from course_lib.parallel.data_parallel import sum_gradients

cores = os.cpu_count()
pair = comm.Create_group(comm.group.Incl([0, 1]))
cases = [(batch, side) for side in (16, 64) for batch in (16, 128)]

# %% [markdown]
# Batches of 16 and 128 images, of 16 × 16 and 64 × 64 pixels.


# %%
# %%px --targets 0:2
def rate(team, threads, batch, side):
    """Images per second of one training whose batches the ranks of `team` share."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images, labels = torch.randn(batch // team.size, 1, side, side), torch.zeros(batch // team.size).long()

    def step():
        optimizer.zero_grad()
        (F.cross_entropy(model(images), labels, reduction="sum") / batch).backward()
        sum_gradients(team, model)
        optimizer.step()

    step()
    return batch / timed(team, step, repeat=20)


# %% [markdown]
# For the smallest images and batch:

# %%
predict("Two processes: how many times the images per second of one?", None)

# %% tags=["nbval-ignore-output"]
# %%px --targets 0 --timeout 100
one = [max(rate(MPI.COMM_SELF, threads, *case) for threads in (1, cores)) for case in cases]

# %% tags=["nbval-ignore-output"]
# %%px --targets 0:2 --timeout 100
two = [rate(pair, max(1, cores // 2), *case) for case in cases]

# %% [markdown]
# Here is each case:

# %% tags=["nbval-ignore-output"]
one, two, cases = cluster[0]["one"], cluster[0]["two"], cluster[0]["cases"]
outcome("Two processes: how many times the images per second of one?", two[0] / one[0])
show(
    [
        {"labels": {"batch": f"{batch} of {side}²", "processes": name}, "value": found, "unit": "images/s"}
        for name, rates in (("one", one), ("two", two))
        for (batch, side), found in zip(cases, rates)
    ],
    x="batch",
    y="images per second",
    by="processes",
)

# %% [markdown]
# Where two lose, splitting and summing cost more than the idle cores gave. Where they win, one process used a core badly or not at all. How much is idle? The **model FLOP utilization (MFU)** gives a bound: the operations that the *model*
# needs per second, divided by those that the device could do. ResNet-50 needs 4.1 billion multiplications with additions for an image forward, and twice as
# many backward. On a V100 that could do 15.7 · 10¹² operations per second in float32:

# %%
for name, images_per_s in {"one V100": 334.0, "each of 1,536 on Summit": 420_000 / 1536}.items():
    print(f"{name}: MFU {images_per_s * 3 * 2 * 4.1e9 / 15.7e12:.0%}")

# %% [markdown]
# What MFU lacks is not all idle: memory may be the limit, and then a second process waits for the same memory. A gain of 62 % asks for a first process that
# leaves at least 38 % idle. On a GPU, try a larger batch first: it often fills the device without a second copy of the weights.
#
# ### Did it happen on thousands?
#
# A talk of the Ohio State University reports ResNet-50 with MVAPICH2 on 1,536 GPUs of Summit, 420,000 images per second, and on 2,048 nodes of Frontera,
# 260,000. MVAPICH2 chooses its algorithm from tables; for long arrays it sums inside a node, then between nodes by halving and doubling.
#
# We assume 102 MB of gradients, 5 µs, 12.5 GB/s per port (Summit's nodes have two), nothing for the sum inside a node, no overlap. On Summit a GPU
# computes 64 images in 0.192 s. For Frontera (128 images per node) no rate of one node is published. So we predict nothing there, and only compute the share
# of the published step that is not all-reduce. **Predict:** for Summit, does your formula say more or less than what was published?

# %%
halving = forecasts(256, 102.2e6, alpha=5e-6, beta=1 / 25e9)["halving"]
found = {"published": 420_000, "halving": 1536 * 64 / (64 / 334 + halving), "no network": 1536 * 334}
for name, images_per_s in found.items():
    print(f"Summit, {name}: {images_per_s / 1e3:.0f},000 images per second")
step = 2048 * 128 / 260_000  # seconds, from Frontera's published rate
for way, took in forecasts(2048, 102.2e6, alpha=5e-6, beta=1 / 12.5e9).items():
    print(f"Frontera, {way}: {1 - took / step:.0%} of a step computes")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# More: 492,000 images per second for Summit where 420,000 were published. The network explains 8 of the 42 ms that a step loses. The rest is not in the model: reading images,
# ranks that come late, and a rate of one GPU (334) that is PyTorch's while Summit ran TensorFlow. With RDMA's 5 µs and long steps even a flat ring between the nodes is
# harmless. The same talk reports problems of NCCL 2 beyond 384 GPUs on Summit, and shows no curve there: a good formula does not make a library run.
#
# </details>
#
# **Your own cluster.** `14_slow_link.py` fits α and β of any link. First on a network with real packets: four **nodes** on this machine, with a network,
# host name and shared memory each, joined by links that are limited to 100 Mbit/s. (It needs Linux and the right to make network namespaces;
# [Several machines](../docs/several-machines.md#a-lab-on-one-machine).)

# %% tags=["nbval-ignore-output"]
from mpi_classroom.network import network
from mpi_classroom.network_commands import NetworkError

# send at once: no question and answer before a large message
eager = {f"OMPI_MCA_btl_tcp_{name}": "8388608" for name in ("eager_limit", "max_send_size")}
try:
    with network(nodes=4, rate="100mbit") as lab:
        job = lab.run_ranks(["-m", "mpi4py", "code/14_slow_link.py"], timeout=100, environment=eager)
    print(job.stdout)
except NetworkError as error:
    print(f"no lab here: {error}")

# %% [markdown]
# α is now that of TCP through one kernel, plus any wait for a core. Where a way misses its forecast, TCP or waiting ranks, which no formula knows, may be why. A byte takes more than 80 ns: packets of 1,514 bytes carry 1,448 of ours. mpiexec found the nodes in a hostfile,
# and started a helper on each through a stand-in for ssh. On a cluster the same file starts in three ways:
#
# ```sh
# mpiexec --hostfile hosts -n 8 python 14_slow_link.py                 # over ssh
# sbatch --nodes=4 --ntasks-per-node=2 --wrap "mpiexec python 14_slow_link.py"     # Slurm
# kubectl apply -f job.yaml        # Kubernetes: an MPIJob, whose launcher runs the first line
# ```
#
# **Slurm** gives nodes to jobs that wait in a queue; a real **batch script** holds its options in lines `#SBATCH`. On **Kubernetes**, which runs containers, an add-on called
# MPI Operator reads an **MPIJob**. [Several machines](../docs/several-machines.md#with-slurm) has complete files, and says which of these we ran.

# %% tags=["exercise: 14.q2"]

# %% [markdown]
# ## References
#
# - R. Thakur, R. Rabenseifner and W. Gropp, [Optimization of collective communication operations in
#   MPICH](https://doi.org/10.1177/1094342005051521), 2005: halving and doubling.
# - T. Vogels, S. Karimireddy and M. Jaggi, [PowerSGD](https://arxiv.org/abs/1905.13727), 2019: compression that can be summed.
# - N. Alnaasan and others, *AccDP: Accelerated Data-Parallel Distributed DNN Training for Modern GPU-Based HPC Clusters*, HiPC 2022.
# - D. K. Panda and others, *High Performance Distributed Deep Learning*, a talk of the Ohio State University, without a date; its latest
#   sources are of 2022. The group's page: <http://hidl.cse.ohio-state.edu>.
# - A. Jain and others, [Scaling TensorFlow, PyTorch, and MXNet using MVAPICH2 on
#   Frontera](https://sc19.supercomputing.org/proceedings/workshops/workshop_pages/ws_dls117.html), 2019. Its abstract says 250,000 images per second.
# - A. Chowdhery and others, [PaLM](https://arxiv.org/abs/2204.02311), 2022: the model FLOP utilization.
