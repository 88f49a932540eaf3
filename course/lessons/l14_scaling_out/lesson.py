# ---
# title: Scaling out
# goal: Forecast four all-reduces on 2,048 machines, and test three of them on sixteen ranks.
# able:
#   - measure a link, and forecast four all-reduces on it
#   - say what a few machines cannot show
# more:
#   - judge a remedy by how its cost grows
#   - find out whether one process fills a device
#   - start a program over ssh, Slurm and Kubernetes
# before: >-
#   {04}. Helpful: {06}
# minutes: {core: 20, more: 22}
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
# Volunteers lend you 2,048 machines, one rank each. A message takes 10 ms, plus 84 ms per MiB. In each step, every rank computes for one second. *Then* all sum 1 MiB of gradients in lesson 04's ring.
#
# On four machines, the sum takes 0.186 s. On more, each rank sends hardly more bytes: 1.5 arrays become almost two. How many machines' work would 2,048 do?

# %%
predict("How many seconds does the ring need on 2,048?", None)

# %%
ALPHA, BETA, GRADIENTS = 0.01, 80e-9, 2**20  # seconds, seconds per byte, bytes
outcome(
    "How many seconds does the ring need on 2,048?",
    2 * 2047 * (ALPHA + BETA * GRADIENTS / 2048),
    word="forecast",
)

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# You would wait 41 s for each second of work: 2,048 machines do the work of 49. Bytes take only 0.17 s. The rest is latency: 4,094 messages in a row, 10 ms each for 512 bytes.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 2 · Fewer messages
#
# Lesson 04's doubling needs only 11 messages. But each holds a whole array, so the sum takes 1.03 s. Can messages be few *and* short? Three attempts:
#
# - **Halving:** Partners exchange halves of their arrays, and each sums the half that it keeps. The next partners exchange halves of these halves, and so on. On the way back, they exchange the sums.
# - **Tree:** One rank of each pair sends its whole array, and the other adds it, until rank 0 has the sum. It returns along the same pairs.
# - **Hierarchy:** You rent 256 machines instead, with eight ranks each. In each, one rank sums the eight arrays at almost no cost. Only these 256 ranks form a ring over the slow links.

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
#
# hierarchy on 24 ranks: in each machine of eight, only the first uses the network
#
#   inside  1 … 7→0                9 … 15→8       17 … 23→16
#   ring    0→8                    8→16           16→0
#   inside  0→1 … 7                8→9 … 15       16→17 … 23
# ```

# %% [markdown]
# **Vote:** which of the three take less than a second on 2,048 ranks? (a) All, (b) halving and hierarchy, (c) only halving.
#
# Your program begins:

# %%
# %%px --save 14_slow_link.py
"""Measure a link, and forecast four all-reduces on it."""

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
# (c). Halving and the tree both need 22 messages. Halving's hold two arrays in all, the tree's hold 22. The hierarchy, fastest on 16 ranks, needs 2 · 255 messages here.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 3 · Did we count right?
#
# We race three. This is lesson 04's ring, with both loops in one:


# %%
# %%px --save 14_slow_link.py
def ring(comm, array):
    """Sum `array`, cut into equal chunks."""
    n, rank, chunks = comm.size, comm.rank, np.array_split(array, comm.size)
    for step in range(2 * (n - 1)):
        out, into = chunks[(rank - step) % n], chunks[(rank - step - 1) % n]
        mine = into * (step < n - 1)  # what to add: my part, or 0 to a complete sum
        comm.Sendrecv(out, (rank + 1) % n, 0, into, (rank - 1) % n, 0)
        into += mine


# %% [markdown] tags=["subslide"]
# After each exchange, halving calls itself for the half that it keeps:

# %% tags=["source: course_lib.comm.allreduce:halving"]
# %%px --save 14_slow_link.py

# %% [markdown] tags=["subslide"]
# In the tree, the partner with the higher rank sends and waits. The other adds and goes on:


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
# Now we measure the link. A message of one number takes about α. Each further byte adds β:


# %%
# %%px --save 14_slow_link.py
def seconds(team, work):
    """The slowest rank's best time of five, each after a Barrier."""
    return team.allreduce(min(repeat(work, team.Barrier, number=1, repeat=5)), op=MPI.MAX)


def exchange(team, n):
    """Seconds of a swap of n numbers with the farthest partner."""
    return seconds(team, partial(team.Sendrecv, np.ones(n), team.rank ^ team.size // 2, 0, np.empty(n)))


# %% [markdown]
# Here, messages take microseconds, so we delay them. That tests our counting, not a network:

# %%
# %%px
from course_lib.effects import slow_messages

comm = slow_messages(comm, seconds=0.01, gbit_per_s=0.1)  # 10 ms, 80 ns per byte

# %% [markdown] tags=["subslide"]
# Run it all, with 256 KiB in place of 1 MiB:


# %% tags=["nbval-ignore-output"]
# %%px --save 14_slow_link.py
if __name__ == "__main__":
    team = comm.Split(comm.rank < 2 ** (comm.size.bit_length() - 1))  # 1, 2, 4 … ranks, and the rest
    if comm.rank == team.rank:
        alpha = exchange(team, 1)
        beta = max(exchange(team, 2**15) - alpha, 0) / 2**18  # 2**15 numbers are 2**18 bytes
        array = np.ones(2**15)  # 256 KiB
        found = {way.__name__: seconds(team, partial(way, team, array)) for way in (ring, tree, halving)}
        assert (array == float(team.size) ** 15).all()  # three ways, five sums each
    if comm.rank == 0:
        print(f"alpha {1e6 * alpha:,.0f} µs, beta {1e9 * beta:.1f} ns; {team.size} ranks, 256 KiB:")
        here, far = forecasts(team.size, array.nbytes, alpha, beta), forecasts(2048, 2**20, alpha, beta)
        for way, took in found.items():
            print(f"{way}: forecast {1e3 * here[way]:.1f} ms, measured {1e3 * took:.1f} ms")
        print("1 MiB on 2,048 ranks:", *(f"{way} {took:.2f} s" for way, took in far.items()))

# %% [markdown]
# The forecasts hold, and the ring beats the tree. (In the last line, the ring takes more than 41.1 s: a delayed message takes a little over 10 ms.)
#
# Now start 16 ranks, again with 256 KiB. (Few cores are enough: a rank sleeps while it waits for a delayed message.) **Vote:** against the tree, does the ring (a) win by more, (b) win by less, or (c) lose?

# %% tags=["nbval-ignore-output"]
# !mpiexec -n 16 python -m course_lib.effects 0.01 0.1 code/14_slow_link.py  # 10 ms, 0.1 Gbit/s

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (c). On four ranks, bytes decide: 1.5 arrays in the ring, four in the tree. On sixteen, latency decides: the ring's messages in a row grew from 6 to 30, the tree's from 4 to 8. (Halving won both races. With 1 MiB, the ring falls behind only between 16 and 64 ranks.)
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# - NCCL's all-reduce has no halving. It sums in rings, in trees, or inside switches (NVLS, SHARP).
# - Between nodes, NCCL's two trees send the array in *pieces*, so all levels work at once. That takes about as long as halving.
# - The formulas leave out busy links, late ranks and overlap with backward.

# %% [markdown] tags=["slide"]
# ## Key points
#
# - A few ranks can measure an idle link and test a formula.
# - A race on a few ranks can name the wrong winner for many: the ring's latency grows with n, the tree's with log₂ n.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# A vendor's ring on eight nodes reaches 98 % of the bandwidth, for 1 GB. "Bytes per rank hardly grow, so 2,048 nodes will do as well." What do you ask for first? (a) α, and the bytes of *my* all-reduce, (b) the card's peak bandwidth, (c) a run on 16 nodes.
#
# <details><summary>What to listen for</summary>(a). On 2,048 nodes, a ring sends 4,094 messages in a row: α and the bytes say whether they matter. (c) has only 30.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# Before you read on, back to section 1's ring. What happens when there is almost nothing to send?

# %% tags=["exercise: 14.q3"]

# %% [markdown]
# ### Which remedies keep their speed-up?
#
# On 2,048 of section 1's ranks, bytes take 0.17 s of halving's 0.39 s. Could we send fewer?
#
# Most entries of a gradient are small. So in **top-k**, each rank sends only the 1 % of its gradients that are largest in magnitude, with their indices. On two ranks, this takes 0.012 s, and halving takes 0.104 s. Top-k is
# nine times as fast.
#
# But ranks pick different entries, and these cannot be added like arrays. In the simplest form, every rank *gathers* the picks of all ranks, in log₂ n messages. **Predict:** does top-k stay nine times as fast?

# %%
predict("How many times as fast is top-k on 2,048 ranks?", None)

# %%
from math import log2

for n in 2, 64, 2048:
    top_k = log2(n) * ALPHA + (n - 1) * 0.02 * GRADIENTS * BETA  # 1 % of the numbers, and as many indices
    print(f"{n:4} ranks: plain {curves[n]['halving']:.3f} s, top-k {top_k:.3f} s")
outcome("How many times as fast is top-k on 2,048 ranks?", curves[n]["halving"] / top_k, word="forecast")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# It is nine times as *slow*. A sum of 2,048 arrays is as long as one array. But gathered picks stay separate: each rank receives 2,047 sets, together as long as 41 arrays. From about 140 ranks on, top-k is slower than
# halving, even without the time for choosing entries.
#
# </details>

# %% [markdown]
# What about other remedies? In a [recorded comparison](../docs/several-machines/measured.md#what-helps-on-a-slow-link), two nodes of our lab, on one machine, trained the same network
# over 100 Mbit/s, once with each remedy, until all were equally accurate:
#
# | | what each rank sends | seconds |
# |---|---|---|
# | plain DDP over Open MPI | all gradients, in every step | 78 |
# | bfloat16 | all gradients, in half the bytes | 40 |
# | local SGD | all weights, in every eighth step | 18 |
# | top-k | 1 % of the gradients with indices, in every step | 7 |
#
# The first two rows take twice as long as their bytes need: this Open MPI's non-blocking all-reduce leaves one direction of the link idle. This top-k adds the entries that it does not send to its next
# gradient (*error feedback*). They arrive later.
#
# On two machines, top-k wins this table. Which rows would you trust on 2,048? Ask whether ranks can *sum* what they send. A sum is as long as one of its terms, so what a rank receives hardly grows with n.
# The gradients in bfloat16 are summed, and so are local SGD's weights. Top-k's picks are gathered.
#
# Bfloat16 halves the bytes on any number of ranks. But it saves no message: with section 1's link, halving on 2,048 ranks then takes 0.30 s instead of 0.39 s. A sum over many ranks is also less exact in
# bfloat16. Local SGD saves bytes *and* messages, because ranks talk only in every eighth step. The accuracy that you need limits how rarely they may sum.
#
# Is there a way to send as little as top-k, and still sum? *PowerSGD* approximates each matrix of gradients by the product of two thin matrices. Ranks sum the first of them, compute the second from that sum, and sum the
# second. It needs error feedback, too. In the recorded comparison, it sent 1.4 % of the bytes, and took 4 s.
#
# So PowerSGD sends little, and its sums do not pile up. But it needs two all-reduces, and the second cannot start before the first has ended. **Predict:** on 2,048 of section 1's ranks, is it faster than plain halving with 1 MiB of
# gradients? And with 1 GB?

# %%
for name, nbytes in {"1 MiB": GRADIENTS, "1 GB": 1e9}.items():
    plain = forecasts(2048, nbytes, ALPHA, BETA)["halving"]
    power_sgd = 2 * forecasts(2048, 0.007 * nbytes, ALPHA, BETA)["halving"]  # two sums, half of 1.4 % each
    print(f"{name}: plain {plain:.2f} s, PowerSGD {power_sgd:.2f} s")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# With 1 MiB, PowerSGD is slower. It saves nearly all of the 0.17 s that bytes take, but its second all-reduce costs another 22 messages, 0.22 s. With 1 GB, it is about 60 times as fast, because there you wait for bytes.
#
# So first find out what you wait for, with your α and β. If you wait for bytes that backward does not hide, choose a remedy whose data can be summed. If you wait for latency, choose local SGD: of
# these remedies, only it skips whole all-reduces. (Summing one long array in place of many short ones helps, too.)
#
# </details>

# %% tags=["exercise: 14.q4"]

# %% [markdown]
# ### Is one process enough for a device?
#
# Before you ask for 2,048 devices: does your program fill the one that you have? NVIDIA's **MPS** (Multi-Process Service) lets several processes compute on one GPU at the same time. *AccDP* trains with up to
# four processes per GPU, and reports up to 62 % more images per second. That is odd, because the four processes do more work than one. They must sum their gradients through MPI (NCCL refuses two ranks on one
# GPU), and each keeps a copy of the weights. How can four be faster than one?
#
# We try it with two, and our device is this whole machine. First, one process trains alone, with one thread or with one thread per core, whichever is faster. Then two processes train together. Each takes
# half of the batch and half of the cores, and they sum their gradients. Both ways are the same training, because no layer of this model looks at the whole batch. (Batch norm would, and dropout would draw other masks.)


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
# How much a process leaves idle should depend on how much it has to do. So we try four cases: batches of 16 or 128 images, and images of 16 × 16 or 64 × 64 pixels.


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
# Now guess for the least work, 16 images of 16 × 16 pixels. A number above 1 says that two processes win.

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
# A ratio above 1 is what idle cores would give, though half a batch also fits better into a cache. Below 1, splitting the batch and summing the gradients cost more than the idle cores gave. A few per cent around 1
# say nothing. Idle cores explain a ratio of at most the number of cores (in the run shown, 2). The rows need not follow a pattern: if they do not, more than idle cores is at work, and a GPU will show other ratios.
#
# How much could a single process leave idle at most? The **model FLOP utilization (MFU)** gives a bound. It is the number of operations per second that the *model* needs, divided by the most that the device
# could do in the same number format. Take ResNet-50. For one image, it needs 4.1 billion multiply-adds forward and twice as many backward, and a multiply-add is two operations. A V100 could do 15.7 · 10¹² operations per second in
# float32. One V100 alone trained 334 images per second. On the cluster Summit, 1,536 of them together trained 420,000:

# %%
for name, images_per_s in {"one V100": 334.0, "each of 1,536 on Summit": 420_000 / 1536}.items():
    print(f"{name}: MFU {images_per_s * 3 * 2 * 4.1e9 / 15.7e12:.0%}")

# %% [markdown]
# Is the rest up to 100 % idle time? Not all of it: where memory is the limit, a second process would wait for the same memory. But processes together cannot pass 100 %, so the MFU bounds their speed-up. For
# example, AccDP's processes trained 1.62 times as many images as one. So that one had an MFU of at most 100 % / 1.62 = 62 %. Before you try MPS on a GPU, try a larger batch if your training allows one. It often fills the device without a
# second copy of the weights.
#
# ### Fast networks: did the network take the difference?
#
# Alone, a V100 reached an MFU of 52 %, but among 1,536 each reached only 43 %. Did the all-reduce take the difference? You have the formulas to find out.
#
# A talk of the Ohio State University reports runs of ResNet-50 with the MPI library MVAPICH2. On Summit, 1,536 GPUs (six per node) trained 420,000 images per second. On Frontera, 2,048 CPU nodes
# trained 260,000. MVAPICH2 chooses its algorithm from tables. For long arrays it sums inside each node, and then between the nodes by section 2's halving. We assume:
#
# - The gradients have 102 MB. No part of their sum overlaps with computing.
# - α is 5 µs. A port sends 12.5 GB/s, and Summit's nodes have two ports.
# - The sum inside a node costs nothing.
#
# For Summit, we know the rate of one GPU: it computes 64 images in 0.192 s. To that, the cell adds the seconds of halving. For Frontera, we know no rate of one node alone. So the cell takes the published rate with
# 128 images per node and step (our assumption), and prints how much of a step remains for computing. **Predict:** does the forecast for Summit exceed the published 420,000 images per second?

# %%
halving = forecasts(256, 102.2e6, alpha=5e-6, beta=1 / 25e9)["halving"]
found = {"published": 420_000, "halving": 1536 * 64 / (64 / 334 + halving), "no network": 1536 * 334}
for name, images_per_s in found.items():
    print(f"Summit, {name}: {images_per_s / 1e3:.0f},000 images per second")
nodes, images_per_node = 2048, 128
step = nodes * images_per_node / 260_000  # seconds, from Frontera's published rate
took = forecasts(nodes, 102.2e6, alpha=5e-6, beta=1 / 12.5e9)
for way in "ring", "halving":
    print(f"Frontera, {way}: {1 - took[way] / step:.0%} of a step computes")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# It does: the formula says 492,000. If each GPU had 64 images, a step of the published run took 234 ms. One GPU computes them in 192 ms, so 42 ms were lost, and halving explains only 8 of them. If
# the all-reduce ran as we assume, most of the loss lies elsewhere: the formula leaves out reading images, and ranks that come late. The two rates also come from two programs: one GPU's 334 images per second were measured with PyTorch, but
# Summit ran TensorFlow.
#
# On Frontera, even a ring of all nodes costs only 4 % of a step, because α is 5 µs here and a step takes a second. In shorter steps its share would be larger.
#
# </details>
#
# #### Which arrays are short on a fast network?
#
# Take 2,048 nodes with one GPU each. A message takes 5 µs, and a link sends 50 GB/s. The gradients of a large model, 1 GB, could be summed at once. But PyTorch's DDP (lesson 07) collects them in **buckets** of
# about 25 MB, and starts an all-reduce as soon as a bucket is full. **Predict:** how many times as long as halving does the ring take, for 1 GB and for one bucket?

# %%
for nbytes in 1e9, 25e6:
    fast = forecasts(2048, nbytes, alpha=5e-6, beta=1 / 50e9)
    print(f"{nbytes / 1e6:,.0f} MB:", *(f"{way} {1e3 * fast[way]:.1f} ms" for way in ("ring", "halving")))

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# For 1 GB, 1.5 times. For a bucket, 19 times. On 2,048 nodes, a bucket's chunks hold only 12 kB, so the ring waits for latency, not for bytes. Forty buckets hold 1 GB. One after another, they take the ring
# 0.86 s, where 1 GB at once takes 0.06 s.
#
# So should you make the buckets larger (`bucket_cap_mb`)? First find out which algorithm runs: where a ring would be this slow, NCCL usually chooses a tree. If it is a ring, larger buckets save latency. But each fills
# later, so less of their sum overlaps with backward. Try a few sizes, and measure whole steps.
#
# </details>
#
# #### What if a node has eight cards?
#
# Now put the same 2,048 GPUs into 256 nodes, each with eight network cards.
#
# NCCL then runs several rings, one per card, and each ring sums about an eighth of the array. So the bytes of 1 GB take about 5 ms, not 40. Latency shrinks, too: of a ring's 4,094 messages, only about 510
# cross the network. The others stay inside a node.
#
# A hierarchy profits as well, if it does not leave seven cards idle. Its ranks reduce-scatter inside each node, run eight all-reduces side by side between the nodes, each over its own card, and all-gather inside.
# And the nodes need not form a ring. On section 1's slow links, halving between the 256 machines would take 0.33 s, not 5.27 s.
#
# #### And your own network?
#
# All this rests on α and β, and yours will differ. `14_slow_link.py` measures them on a slow link. (With RDMA, it would count Python's own time per call as latency. There, use osu_latency
# and nccl-tests.)
#
# And do the formulas hold where nobody delays messages on purpose? Here is a network with real packets, on this machine: four **nodes**, each with its own network, host name and shared memory. The links between
# them are limited to 100 Mbit/s. (This needs Linux and the right to make network namespaces; see [Several machines](../docs/several-machines/lab.md).)

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
# α is smaller than in section 1, because nothing delays the messages on purpose. β should be a little above 80 ns, since only 1,448 of each packet's 1,514 bytes are ours. (It can be lower: the limiter lets a
# first burst pass.) If a measurement exceeds its forecast, ranks may have waited for a core. And look at the last line: with a small α, even the ring takes only about a second on 2,048 ranks.
#
# Here, α and β came from the same link, a moment before. `python -m benchmarks.several_machines` is stricter: it fits a link at two rates, and forecasts ring, halving and tree on four nodes at two other rates.
# The forecasts of halving and tree came within 20 %.
#
# How did the ranks get onto four nodes? mpiexec read the nodes' names from a hostfile. Then it started a helper on each node, here through a stand-in for ssh. On a cluster, you start the same file in one of
# three ways, with one rank per node, so that every message crosses the network (and with `-m mpi4py`, so that an error ends all ranks):
#
# ```sh
# mpiexec --hostfile hosts --map-by node -n 4 python -m mpi4py 14_slow_link.py   # over ssh
# sbatch --nodes=4 --ntasks-per-node=1 --wrap "mpiexec python -m mpi4py 14_slow_link.py"     # Slurm
# kubectl apply -f job.yaml        # Kubernetes: an MPIJob, whose launcher runs the first line
# ```
#
# **Slurm** gives nodes to jobs that wait in a queue. For longer jobs, you write a **batch script**, which holds the options in `#SBATCH` lines. **Kubernetes** runs containers, and knows nothing of ranks. So an
# add-on, the MPI Operator, reads an **MPIJob** and starts them. [Several machines](../docs/several-machines/README.md) has complete files, and says which of these we ran.

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
