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
# ## 1 · Two thousand
#
# You may use 2,048 machines, a rank each. A message takes 10 ms, plus its bytes at 100 Mbit/s. A step computes for one second, *then* sums 1 MiB of gradients. On four machines, lesson 04's ring
# needs 0.186 s.

# %%
predict("How many seconds does the ring need on 2,048?", None)

# %%
ALPHA, BETA = 0.01, 80e-9  # seconds per message, seconds per byte
GRADIENTS = 2**20  # bytes
ring = 2 * 2047 * (ALPHA + BETA * GRADIENTS / 2048)
outcome("How many seconds does the ring need on 2,048?", ring, word="forecast")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# You wait 41 s per second of computing. A rank sends two arrays, not 1.5, but in 4,094 messages, not 6, one after another.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 2 · Fewer messages
#
# In **halving**, a rank exchanges and adds half of the array (`████`) with one rank, then a quarter with another, and so on. The sums go back. In a **tree**, whole arrays go up to
# rank 0, pairs at once, and the sum comes down. A **hierarchy** has 256 machines of eight ranks, which add inside almost for free. The machines form a ring.
#
# ```
# halving on 8 ranks: what rank 0 exchanges          tree on 8 ranks: who sends to whom
#
#   there   with 1 ████   with 2 ██   with 4 █         up     1→0 3→2 5→4 7→6   2→0 6→4   4→0
#   back    with 4 █      with 2 ██   with 1 ████      down   0→4   0→2 4→6   0→1 2→3 4→5 6→7
# ```
#
# **Vote:** on 2,048 ranks, how many of the three take less than a second? (a) All, (b) two, (c) one.

# %%
# %%px --save 14_slow_link.py
"""Measure a link, and forecast four all-reduces on it."""

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD

# %% tags=["exercise: 14.3"]

# %%
from course_lib.rows import predicted

curves = {n: forecasts(n, GRADIENTS, ALPHA, BETA) for n in (2, 4, 8, 16, 64, 256, 2048)}
print("on 2,048 ranks:", *(f"{way} {took:.2f} s" for way, took in curves[2048].items()))
rows = [predicted(took, ranks=n, way=way) for n in curves for way, took in curves[n].items() if took]
show(rows, x="ranks", y="an all-reduce takes", by="way")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# (c), halving: its 22 messages hold two arrays, the tree's 22. The hierarchy, drawn from 16 ranks, is fastest there, but a ring.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 3 · Is it true?
#
# Nobody lends you 2,048 machines to test. But a few ranks with slow messages test a formula. Halving:

# %% tags=["source: course_lib.comm.allreduce:halving"]
# %%px --save 14_slow_link.py

# %% [markdown] tags=["subslide"]
# Short messages give α, long ones β:


# %%
# %%px --save 14_slow_link.py
def seconds(team, work, *arguments):
    """How long `work(*arguments)` takes: all start together, the slowest rank counts."""
    team.Barrier()
    began = MPI.Wtime()
    work(*arguments)
    return team.allreduce(MPI.Wtime() - began, op=MPI.MAX)


def link(team):
    """Seconds per message, alpha, and per byte, beta."""
    partner, took = team.rank ^ team.size // 2, {}  # far away
    for k in 1, 2**18:  # bytes
        out, into = np.zeros((2, k), np.uint8)
        took[k] = min(seconds(team, team.Sendrecv, out, partner, 0, into, partner, 0) for _ in range(9))
    return took[1], max(took[2**18] - took[1], 0) / 2**18


# %% [markdown]
# Now, section 1's link:

# %%
# %%px
from course_lib.effects import slow_messages

comm = slow_messages(comm, seconds=0.01, gbit_per_s=0.1)


# %% tags=["nbval-ignore-output"]
# %%px --save 14_slow_link.py
def main(team):
    """Measure the link and halving; forecast all on 2,048 ranks."""
    array = np.zeros(2**18, np.float32)  # 1 MiB
    alpha, beta = link(team)
    measured = min(seconds(team, halving, team, array) for _ in range(4))  # the first opens connections
    if team.rank == 0:
        here, far = (forecasts(n, array.nbytes, alpha, beta) for n in (team.size, 2048))
        print(f"alpha {1e3 * alpha:.1f} ms, beta {1e9 * beta:.1f} ns")
        print(f"halving, {team.size} ranks: {1e3 * here['halving']:.1f} ms, measured {1e3 * measured:.1f}")
        print("on 2,048 ranks:", *(f"{way} {took:.2f} s" for way, took in far.items()))


if __name__ == "__main__":
    team = comm.Split(comm.rank < 2 ** (comm.size.bit_length() - 1))  # 1, 2, 4 … ranks, and the rest
    if comm.rank == team.rank:
        main(team)

# %% [markdown]
# That is close. Waiting ranks sleep (late wake-ups raise α) and few cores suffice for 16:

# %% tags=["nbval-ignore-output"]
# !mpiexec -n 16 python -m course_lib.effects 0.01 0.1 code/14_slow_link.py  # seconds, Gbit/s

# %% [markdown] tags=["slide"]
# ## 4 · A remedy
#
# Or send less. Seconds to equal accuracy, *two* hosts, 100 Mbit/s ([recorded](../docs/several-machines/measured.md#what-helps-on-a-slow-link)):
#
# | | a step sends | seconds |
# |---|---|---|
# | plain (DDP) | all gradients | 78 |
# | bfloat16 | half of the bytes | 40 |
# | local SGD | weights, every 8 batches | 18 |
# | top-k | the largest 1 %, each with its index | 7 |
#
# In top-k, ranks pick different entries: every rank *gathers* all picks, in log₂ n messages. **Vote:** on 2,048, top-k is (a) ten times as fast as plain halving, (b) twice, (c) slower.

# %%
from math import log2

for n in 2, 2048:
    top_k = log2(n) * ALPHA + (n - 1) * 0.02 * GRADIENTS * BETA  # 1 % of the numbers, and as many indices
    print(f"{n:4} ranks: plain {curves[n]['halving']:.3f} s, top-k {top_k:.3f} s")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# (c). Nine times as fast on two machines, nine times as *slow* on 2,048: each rank receives the picks of 2,047 others. Bfloat16 halves the bytes for any n, not α. Local SGD saves both, if accuracy allows.
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# | | what changes |
# |---|---|
# | latency | RDMA 1–5 µs (ring: 4–20 ms), TCP 10–50 |
# | choice | libraries choose; NCCL's trees send *pieces*, all levels at once |
# | nodes | sum inside each node, then between nodes by *any* algorithm |
# | overlap | sums run during backward |
# | 2,048 | formulas hold if messages share no link and no rank is late |

# %% tags=["exercise: 14.q4", "subslide"]

# %% [markdown] tags=["slide"]
# ## Key points
#
# - On few ranks latency hides: a ring pays 2(n−1) α, halving 2α log₂ n.
# - Measure α and β, then forecast.
# - Ask which cost of a remedy grows with n: gathering does.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# Your all-reduce on 2,048 GPUs takes 1.2 s; the forecast says 60 ms. What do you look at first? (a) Which algorithm ran, (b) when each rank *entered* it, (c) each network card's bandwidth.
#
# <details><summary>What to listen for</summary>(b): one rank that enters 1.1 s late explains it. If none: (a), then (c).</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# First a question about section 1.

# %% tags=["exercise: 14.q3"]

# %% [markdown]
# ### Is one process enough for a device?
#
# NVIDIA's **MPS** (Multi-Process Service) lets several processes compute on one GPU at the same time. *AccDP* trains with up to four processes per GPU, and reports up to 62 % more images per second. But
# these processes sum gradients, and each keeps a copy of the weights. How can four be faster than one?
#
# Here the device is all cores of this machine. First one process has it alone, with one thread or one per core, whichever is faster. Then two processes share it: each takes half of the
# batch and half of the cores, and they sum their gradients. It is the same training, as no layer looks at the whole batch (batch norm would).


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
# We train on batches of 16 and 128 images, of 16 × 16 and 64 × 64 pixels:


# %%
# %%px --targets 0:2
def rate(team, threads, batch, side):
    """Images per second of one training whose batches the ranks of `team` share."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(1 + team.rank)  # other images on every rank
    images, labels = torch.randn(batch // team.size, 1, side, side), torch.zeros(batch // team.size).long()

    def step():
        optimizer.zero_grad()
        (F.cross_entropy(model(images), labels, reduction="sum") / batch).backward()
        sum_gradients(team, model)
        optimizer.step()

    step()
    return batch / timed(team, step, repeat=20)


# %% [markdown]
# Guess for the smallest images and batch:

# %%
predict("Two processes: how many times the images per second of one?", None)

# %% tags=["nbval-ignore-output"]
# %%px --targets 0 --timeout 100
one = [max(rate(MPI.COMM_SELF, threads, *case) for threads in (1, cores)) for case in cases]

# %% tags=["nbval-ignore-output"]
# %%px --targets 0:2 --timeout 100
two = [rate(pair, max(1, cores // 2), *case) for case in cases]

# %% [markdown]
# And in each case?

# %% tags=["nbval-ignore-output"]
one, two, cases = cluster[0]["one"], cluster[0]["two"], cluster[0]["cases"]
outcome("Two processes: how many times the images per second of one?", two[0] / one[0])
print("images per second of one process, of two, and two : one")
for (batch, side), alone, shared in zip(cases, one, two):
    print(f"{batch:3} images of {side}²: {alone:6,.0f} {shared:6,.0f}  {shared / alone:.2f}")

# %% [markdown]
# Above 1, one process left cores idle. Below 1, splitting and summing cost more than that gave. How much can one leave idle? The **model FLOP utilization (MFU)** gives a
# bound: the operations per second that the *model* needs, divided by those that the device could do. ResNet-50 needs 4.1 billion multiply-adds per image forward, and twice as
# many backward. A V100 could do 15.7 · 10¹² operations per second in float32. One alone trained 334 images per second; 1,536 of them, on the cluster Summit, 420,000:

# %%
for name, images_per_s in {"one V100": 334.0, "each of 1,536 on Summit": 420_000 / 1536}.items():
    print(f"{name}: MFU {images_per_s * 3 * 2 * 4.1e9 / 15.7e12:.0%}")

# %% [markdown]
# The rest up to 100 % is not all idle: memory may be the limit, and then a second process waits for the same memory. A gain of 62 % needs a first process that
# leaves at least 38 % idle. On a GPU, try a larger batch first: it often fills the device without a second copy of the weights.
#
# ### Did it happen on thousands?
#
# A talk of the Ohio State University reports ResNet-50 with MVAPICH2 on 1,536 GPUs of Summit (six per node), 420,000 images per second, and on 2,048 CPU nodes of Frontera,
# 260,000. MVAPICH2 chooses its algorithm from tables; for long arrays it sums inside a node, then between nodes by section 2's halving.
#
# Assume 102 MB gradients, α = 5 µs, 12.5 GB/s per port (Summit's nodes have two), nothing for the sum inside a node, no overlap. On Summit a GPU
# computes 64 images in 0.192 s. For Frontera (128 images per node) nobody published the rate of one node. There we only compute which share of the
# published step is left for computing. **Predict:** for Summit, does your formula say more or less than what was published?

# %%
halving = forecasts(256, 102.2e6, alpha=5e-6, beta=1 / 25e9)["halving"]
found = {"published": 420_000, "halving": 1536 * 64 / (64 / 334 + halving), "no network": 1536 * 334}
for name, images_per_s in found.items():
    print(f"Summit, {name}: {images_per_s / 1e3:.0f},000 images per second")
nodes, images_per_node = 2048, 128
step = nodes * images_per_node / 260_000  # seconds, from Frontera's published rate
took = forecasts(nodes, 102.2e6, alpha=5e-6, beta=1 / 12.5e9)
for way in "ring", "halving", "tree":
    print(f"Frontera, {way}: {1 - took[way] / step:.0%} of a step computes")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# More: 492,000 images per second for Summit where 420,000 were published. The network explains 8 of the 42 ms that a step loses. The rest is not in the model: reading images,
# ranks that come late, and a rate of one GPU (334) that is PyTorch's while Summit ran TensorFlow. With RDMA's 5 µs and long steps even a ring of all nodes is
# harmless. The same talk reports problems of the NCCL 2 of its day beyond 384 GPUs on Summit, and shows no curve there: a good formula does not make a library run.
#
# </details>
#
# **Your own cluster.** `14_slow_link.py` fits α and β of any link. First on a network with real packets: four **nodes** on this machine, with a network,
# host name and shared memory each, joined by links that are limited to 100 Mbit/s. (It needs Linux and the right to make network namespaces;
# [Several machines](../docs/several-machines/lab.md).)

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
# α is now TCP's in one kernel. A wait for a core adds to any time, also to halving's. A byte should take over 80 ns: packets of 1,514 bytes carry 1,448 of ours; a burst past the limiter may hide a part. mpiexec found the nodes in a hostfile,
# and started a helper on each through a stand-in for ssh. On a cluster the same file starts in three ways:
#
# ```sh
# mpiexec --hostfile hosts -n 8 python -m mpi4py 14_slow_link.py       # over ssh; with -m mpi4py, an error ends all ranks
# sbatch --nodes=4 --ntasks-per-node=2 --wrap "mpiexec python -m mpi4py 14_slow_link.py"     # Slurm
# kubectl apply -f job.yaml        # Kubernetes: an MPIJob, whose launcher runs the first line
# ```
#
# **Slurm** gives nodes to jobs that wait in a queue; a real **batch script** holds its options in `#SBATCH` lines. On **Kubernetes**, which runs containers, an add-on called
# MPI Operator reads an **MPIJob**. [Several machines](../docs/several-machines/README.md) has complete files, and says which of these we ran.

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
