# ---
# title: Scaling out
# goal: Forecast four all-reduces on 2,048 ranks, and test three on sixteen.
# able:
#   - measure a link, and forecast four all-reduces
#   - say what a few machines cannot show
# more:
#   - judge a remedy by how its cost grows
#   - find out whether one process fills a device
#   - start a program over ssh, Slurm and Kubernetes
# before: >-
#   {04}. Helpful: {06}
# minutes: {core: 20, more: 15}
# ranks: 4
# warm-up:
#   - ask: In the alpha-beta model, how long does a message of k bytes take?
#     answer: α + βk seconds. α is the latency, 1/β the bandwidth.
#   - ask: Four ranks sum 100 MB in a ring. How many bytes does each send?
#     answer: Each sends 2(n−1)/n = 1.5 arrays, so 150 MB. They travel in 2(n−1) = 6 messages, one after another.
#   - ask: What do ranks send in a data-parallel step?
#     answer: Their gradients, which an all-reduce sums (lesson 06).
# ---

# %% [markdown] tags=["slide"]
# ## 1 · Two thousand
#
# Volunteers lend you 2,048 machines, one rank each. A message takes 10 ms, plus 84 ms per MiB. Per step, every rank computes for one second. *Then* all sum 1 MiB of gradients in lesson 04's ring.
#
# On four machines, the sum takes 0.186 s. Among 2,048, each sends little more: almost two arrays, not 1.5.

# %%
predict("How many seconds does the ring need on 2,048?", None)

# %%
ALPHA, BETA, GRADIENTS = 0.01, 80e-9, 2**20  # seconds, seconds per byte, bytes
ring_2048 = 2 * 2047 * (ALPHA + BETA * GRADIENTS / 2048)
outcome("How many seconds does the ring need on 2,048?", ring_2048, word="forecast")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# You wait 41 s per second of work: 2,048 machines do the work of 49. Bytes take only 0.17 s. The rest is latency: 4,094 messages in a row.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 2 · Fewer messages
#
# Lesson 04's doubling needs only 11 messages. But each holds a whole array. Can we send few messages *and* few bytes?
#
# - **Halving:** Partners exchange halves, and each sums the half that it keeps. The next partners exchange quarters, and so on. The sums go back the same way.
# - **Tree:** One rank of each pair sends its whole array. The other adds it and pairs up again, until rank 0 has the sum. It goes back the same way.
# - **Hierarchy:** You rent 256 machines of eight ranks. On each, one rank sums eight arrays almost for free. These 256 form a ring over the same links.

# %% [markdown] tags=["subslide"]
# ```
# halving (recursive halving and doubling): what rank 0 of 8 sends, and to whom (████ is half its array)
#
#   there   ████ to 1              ██ to 2        █ to 4
#   back    █ to 4                 ██ to 2        ████ to 1
#
# tree on 8 ranks: who sends a whole array to whom
#
#   up      1→0  3→2  5→4  7→6     2→0  6→4       4→0
#   down    0→4                    0→2  4→6       0→1  2→3  4→5  6→7
# ```

# %% [markdown]
# **Vote:** which of the three take less than a second on 2,048 ranks? (a) All, (b) halving and hierarchy, (c) only halving.

# %%
# %%px --save 14_slow_link.py
"""Measure a link, and forecast four all-reduces."""

from functools import partial
from timeit import repeat

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD

# %% tags=["exercise: 14.3"]

# %%
from course_lib.rows import predicted

curves = {n: {"compute": 1.0, **forecasts(n, GRADIENTS, ALPHA, BETA)} for n in (2, 4, 16, 64, 256, 2048)}
print("on 2,048 ranks:", *(f"{way} {took:.2f} s" for way, took in curves[2048].items()))
rows = [predicted(took, ranks=n, way=way) for n in curves for way, took in curves[n].items() if took]
show(rows, x="ranks", y="seconds per step", by="way")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (c). Halving and the tree need 22 messages in a row. Halving's hold two arrays in all, the tree's 22. The hierarchy, fastest on 16, needs 510.
#
# </details>
#
# **Contest:** beat halving's 0.39 s with the 256 machines.

# %%
print(f"{forecasts(2048, GRADIENTS, ALPHA, BETA)['halving']:.2f} s")  # change a number or the way

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# Halving between machines (`forecasts(256, …)`) takes 0.33 s.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 3 · Did we count right?
#
# Lesson 04's ring, as one loop:


# %%
# %%px --save 14_slow_link.py
def ring(comm, array):
    n, rank, chunks = comm.size, comm.rank, np.array_split(array, comm.size)
    for step in range(2 * (n - 1)):
        out, into = chunks[(rank - step) % n], chunks[(rank - step - 1) % n]
        mine = into.copy()
        comm.Sendrecv(out, (rank + 1) % n, 0, into, (rank - 1) % n, 0)
        if step < n - 1:  # later, what arrives is a complete sum
            into += mine


# %% [markdown] tags=["subslide"]
# Halving calls itself for its half:

# %% tags=["source: course_lib.comm.allreduce:halving"]
# %%px --save 14_slow_link.py

# %% [markdown] tags=["subslide"]
# In the tree, the higher rank of each pair sends and waits:


# %%
# %%px --save 14_slow_link.py
def tree(comm, array, near=1):
    if comm.rank & near:  # mine is the higher rank
        comm.Send(array, comm.rank - near)
        comm.Recv(array, comm.rank - near)
    elif near < comm.size:
        incoming = np.empty_like(array)
        comm.Recv(incoming, comm.rank + near)
        array += incoming
        tree(comm, array, 2 * near)
        comm.Send(array, comm.rank + near)


# %% [markdown] tags=["subslide"]
# A message of one number measures α. Each further byte adds β:


# %%
# %%px --save 14_slow_link.py
def seconds(team, work):
    """The slowest rank's best of five, each after a barrier."""
    return team.allreduce(min(repeat(work, team.Barrier, number=1, repeat=5)), op=MPI.MAX)


def exchange(team, n):
    """Seconds to swap n numbers with the farthest partner."""
    return seconds(team, partial(team.Sendrecv, np.ones(n), team.rank ^ team.size // 2, 0, np.empty(n)))


# %% [markdown]
# Here, messages take microseconds. Delaying them tests our counting, not a network:

# %%
# %%px
from course_lib.effects import slow_messages

comm = slow_messages(comm, seconds=0.01, gbit_per_s=0.1)  # at least 10 ms, 80 ns per byte

# %% [markdown] tags=["subslide"]
# Measure the link, then race with 256 KiB:


# %% tags=["nbval-ignore-output"]
# %%px --save 14_slow_link.py
if __name__ == "__main__":
    team = comm.Split(comm.rank < 2 ** (comm.size.bit_length() - 1))  # 1, 2, 4 … ranks
    if comm.rank == team.rank:  # the renumbered rest sits out
        alpha = exchange(team, 1)
        beta = max(exchange(team, 2**15) - alpha, 0) / 2**18  # 2**15 numbers are 2**18 bytes
        array = np.ones(2**15)
        found = {way.__name__: seconds(team, partial(way, team, array)) for way in (ring, tree, halving)}
        assert (array == float(team.size) ** 15).all()  # three ways, five sums each
    if comm.rank == 0:
        print(f"alpha {1e6 * alpha:,.0f} µs, beta {1e9 * beta:.1f} ns; {team.size} ranks, 256 KiB:")
        for way, took in found.items():
            here = forecasts(team.size, 2**18, alpha, beta)[way]
            print(f"{way}: forecast {1e3 * here:.1f} ms, measured {1e3 * took:.1f} ms")
        far = forecasts(2048, 2**20, alpha, beta)
        print("1 MiB on 2,048 ranks:", *(f"{way} {took:.2f} s" for way, took in far.items()))

# %% [markdown]
# The forecasts hold, and the ring beats the tree.
#
# **Vote:** on 16 ranks, does the ring (a) win by more, (b) win by less, or (c) lose?

# %% tags=["nbval-ignore-output"]
# !mpiexec -n 16 python -m course_lib.effects 0.01 0.1 code/14_slow_link.py  # the same delay

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (c). On four ranks, bytes decide: 1.5 arrays in the ring, four in the tree. On sixteen, latency decides: the ring sends 30 messages in a row, the tree 8. (With 1 MiB, the ring wins even on 32.)
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# - NCCL's trees between nodes send *pieces*, so all levels work at once.
# - With α = 5 µs and 12.5 GB/s per rank, a ring of 2,048 sums 102 MB in 37 ms, halving in 16 (idle links, nobody late).
# - With one port per GPU, a node's eight GPUs each sum and send an eighth of the array.

# %% [markdown] tags=["slide"]
# ## Key points
#
# - A few ranks can measure an idle link and test a formula.
# - But their race can name the wrong winner: a ring's latency grows with n, a tree's with log₂ n.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# Two nodes trained a network to equal accuracy over 100 Mbit/s (recorded):
#
# | | each rank sends | seconds |
# |---|---|---|
# | plain DDP | all gradients | 78 |
# | bfloat16 | half the bytes | 40 |
# | local SGD | weights and momentum, every eighth step | 18 |
# | **top-k** | the largest 1 % of its gradients, with indices | 7 |
#
# Ranks pick different entries, so each rank *gathers* all picks. Which remedy would you *not* take to 2,048 ranks? (a) bfloat16, (b) local SGD, (c) top-k.
#
# <details><summary>What to listen for</summary>(c). On section 1's link, top-k takes a ninth of halving's time on two ranks. On 2,048, it takes at least nine times as long: each rank receives 2,047 sets of picks, or 41 arrays. The others <i>sum</i>, and a sum is as long as one array. (Test accuracy, too: bfloat16 rounds every sum.)</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# What else grows with n? (The times of Discuss are from a [recorded comparison](../docs/several-machines/measured.md#what-helps-on-a-slow-link) of more remedies.)

# %% tags=["exercise: 14.q3"]

# %% tags=["exercise: 14.q4"]

# %% [markdown]
# ### Is one process enough for a device?
#
# Before you ask for 2,048 devices: does your program fill the one that you have? NVIDIA's **MPS** (Multi-Process Service) lets several processes compute on one GPU at the same time. *AccDP* trains with up to
# four processes per GPU, and reports up to 58 % more images per second on one GPU, and 62 % on 16. Yet four processes keep four copies of the weights, and must sum their gradients. (They use MPI, because NCCL refuses
# two ranks on one GPU.) How can they be faster than one?
#
# We try it with two, on a CPU: our device is this whole machine. First, one process trains alone, with one thread or with one per core, whichever is faster. Then two train together, each with
# half of the batch and half of the cores. On the same images, both ways would train alike, because no layer of this model looks at the whole batch. (Batch norm would, and dropout would draw other masks.)


# %%
# %%px --targets 0:2
import os

import torch
from torch import nn
from torch.nn import functional as F

from course_lib.measure import timed
from course_lib.parallel.data_parallel import sum_gradients

cores = os.cpu_count()
pair = comm.Create_group(comm.group.Incl([0, 1]))  # its messages are not delayed
cases = [(batch, side) for side in (16, 64) for batch in (16, 128)]

# %% [markdown]
# A process with little work should leave more of the device idle. So we try batches of 16 or 128 images, of 16 × 16 or 64 × 64 pixels:


# %%
# %%px --targets 0:2
def rate(team, threads, batch, side):
    """Images per second of one training whose batches the ranks of `team` share."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)  # the same weights on every rank
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
# Guess for the least work, 16 images of 16 × 16 pixels. Above 1, two processes win.

# %%
predict("Two processes: how many times the images per second of one?", None)

# %% tags=["nbval-ignore-output"]
# %%px --targets 0 --timeout 100
one = [max(rate(MPI.COMM_SELF, threads, *case) for threads in (1, cores)) for case in cases]

# %% tags=["nbval-ignore-output"]
# %%px --targets 0:2 --timeout 100
two = [rate(pair, max(1, cores // 2), *case) for case in cases]

# %% [markdown]
# Do the ratios follow the work?

# %% tags=["nbval-ignore-output"]
one, two, cases = cluster[0]["one"], cluster[0]["two"], cluster[0]["cases"]
outcome("Two processes: how many times the images per second of one?", two[0] / one[0])
print("images per second of one process, of two, and two : one")
for (batch, side), alone, shared in zip(cases, one, two):
    print(f"{batch:3} images of {side}²: {alone:6,.0f} {shared:6,.0f}  {shared / alone:.2f}")

# %% [markdown]
# If two processes won, the second probably used cores that the first left idle (half a batch also fits better into a cache). If they lost, splitting the batch and summing the gradients cost more than this gained. Little work alone, then, need not favour two. Ignore differences of a few
# per cent. A GPU will show other ratios.
#
# How much can one process leave idle? The **model FLOP utilization (MFU)** gives a bound: the operations per second that the *model* needs, divided by the most that the device
# could do in the same number format. For one image, ResNet-50 needs 4.1 billion multiply-adds forward and twice as many backward. A multiply-add is two operations. A V100 could do 15.7 · 10¹² operations per second in
# float32. Alone, it trained 334 images per second. On the cluster Summit, 1,536 of them trained 420,000:

# %%
for name, images_per_s in {"one V100": 334.0, "each of 1,536 on Summit": 420_000 / 1536}.items():
    print(f"{name}: MFU {images_per_s * 3 * 2 * 4.1e9 / 15.7e12:.0%}")

# %% [markdown]
# Processes together cannot pass 100 % (unless fast convolutions need fewer operations than we counted). AccDP's processes trained 1.58 times as many images as one, so one alone had an MFU of at most 100 % / 1.58 = 63 %. The other 37 % need not be idle: if one process waits for memory, so does
# the second. To remember: **a second process wins only what the first leaves idle.** A larger batch, if your training allows one, often fills the device without a second copy of the weights.
#
# ### Did the network take the difference?
#
# Alone, a V100 reached an MFU of 52 %; among 1,536, each reached 43 %. What took the difference?
#
# A talk of the Ohio State University reports the 420,000. Six GPUs per node trained with the MPI library MVAPICH2. (The talk adds: "We observed issues for NCCL2 beyond
# 384 GPUs.")
#
# If each GPU takes 64 images, one alone computes a step in 192 ms. At the published rate, a step takes 1,536 · 64 / 420,000 = 234 ms, so 42 ms are lost. How many does the all-reduce take by our formula? We assume: 102 MB of gradients are summed after
# backward. A message takes 5 µs. A node's two ports send 25 GB/s. The sum inside a node costs nothing, and the 256 nodes use section 2's halving.
#
# The cell also looks at the cluster Frontera, whose 2,048 CPU nodes trained 260,000 images per second.

# %%
predict("Of 42 ms lost per step, how many does the all-reduce take?", None)

# %%
took = forecasts(256, 102.2e6, alpha=5e-6, beta=1 / 25e9)["halving"]
outcome("Of 42 ms lost per step, how many does the all-reduce take?", 1e3 * took, word="forecast")
step = 2048 * 128 / 260_000  # on Frontera, if each node takes 128 images
frontera = forecasts(2048, 102.2e6, alpha=5e-6, beta=1 / 12.5e9)
print(f"Frontera: ring {frontera['ring'] / step:.0%} of a step, halving {frontera['halving'] / step:.0%}")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# Only 8. If the all-reduce ran as we assume, most of the loss lies elsewhere, perhaps in reading images or in GPUs that come late. (The others wait for them in the all-reduce, so a late GPU looks like a slow network: lesson 15.) The two rates also come from two programs: the GPU alone ran
# PyTorch, Summit ran TensorFlow.
#
# On Frontera, with 128 images per node, a step takes a second. Even a ring of all nodes would cost only 4 % of it.
#
# </details>
#
# Your α and β will differ, so measure them. Here is a network with real packets: four **nodes** on this machine, each with its own network, host name and shared memory, and links of
# 100 Mbit/s. (This needs Linux and the right to make network namespaces; see [Several machines](../docs/several-machines/lab.md).)

# %% tags=["nbval-ignore-output"]
from mpi_classroom.network import network
from mpi_classroom.network_commands import NetworkError

# eager up to 8 MiB: no rendezvous
eager = {f"OMPI_MCA_btl_tcp_{name}": "8388608" for name in ("eager_limit", "max_send_size")}
try:
    with network(nodes=4, rate="100mbit") as lab:
        job = lab.run_ranks(["-m", "mpi4py", "code/14_slow_link.py"], timeout=100, environment=eager)
    print(job.stdout)
except NetworkError as error:
    print(f"no lab here: {error}")

# %% [markdown]
# Nobody delays these messages, so α is far below 10 ms, and even a ring of 2,048 ranks would take a second or less. β should be a little above 80 ns, because headers take 66 of each packet's 1,514 bytes. (It can be lower: the limiter lets a first burst pass.)
#
# This is TCP on one machine. With RDMA, the network card moves the data, and α is a few microseconds. There, Python's own time per call would count as latency: use osu_latency and nccl-tests. To remember: **before you blame the network, compute what it can take.**
#
# On a cluster, you start the same file in one of three ways. One rank per node makes every message cross the network, and with `-m mpi4py`, an error ends all ranks:
#
# ```sh
# mpiexec --hostfile hosts --map-by node -n 4 python -m mpi4py 14_slow_link.py   # over ssh
# sbatch --nodes=4 --ntasks-per-node=1 --wrap "mpiexec python -m mpi4py 14_slow_link.py"     # Slurm
# kubectl apply -f job.yaml        # Kubernetes: an MPIJob, whose launcher runs the first line
# ```
#
# **Slurm** gives nodes to jobs that wait in a queue. For longer jobs, you write a **batch script** with the options in `#SBATCH` lines. **Kubernetes** runs containers, and knows nothing of ranks: an
# add-on, the MPI Operator, reads an **MPIJob** and starts them. [Several machines](../docs/several-machines/README.md) has complete files, and says which of these we ran.

# %% tags=["exercise: 14.q2"]

# %% [markdown]
# ## References
#
# - R. Thakur, R. Rabenseifner and W. Gropp, [Optimization of collective communication operations in
#   MPICH](https://doi.org/10.1177/1094342005051521), 2005: halving and doubling.
# - N. Alnaasan and others, *AccDP: Accelerated Data-Parallel Distributed DNN Training for Modern GPU-Based HPC Clusters*, HiPC 2022.
# - D. K. Panda and others, *High Performance Distributed Deep Learning*, a talk of the Ohio State University, without a date; its latest
#   sources are of 2022. The group's page: <http://hidl.cse.ohio-state.edu>.
# - A. Jain and others, [Scaling TensorFlow, PyTorch, and MXNet using MVAPICH2 on
#   Frontera](https://sc19.supercomputing.org/proceedings/workshops/workshop_pages/ws_dls117.html), 2019. Its abstract says 250,000 images per second.
# - A. Chowdhery and others, [PaLM](https://arxiv.org/abs/2204.02311), 2022: the model FLOP utilization.
