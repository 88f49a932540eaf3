# ---
# title: Data parallelism by hand
# goal: Find out whether four ranks learn what one learns, and which rank they wait for.
# able:
#   - write a training loop for n ranks, and find the late rank
# more:
#   - overlap all-reduces with backward
#   - compare a parameter server with an all-reduce
# before: >-
#   {04}, {05}
# minutes: {core: 20, more: 26}
# ranks: 4
# warm-up:
#   - ask: Each of four ranks has an array, and all call `Allreduce`. Which of them hold the sum afterwards?
#     answer: All four.
#   - ask: A rank sends 64-bit integers. What if the receiver's array has 64-bit floats?
#     answer: It reads wrong numbers. Types must match; Open MPI does not check.
#   - ask: Four ranks share ten images as evenly as possible. How many does each get?
#     answer: Two get 3, two get 2.
# ---

# %% [markdown] tags=["slide"]
# ## 1 · Five lines
#
# A training step uses 128 images of digits, the **global batch**. Do four ranks with 32 each learn what one rank learns from 128?
#
# In **data parallelism**, each rank has a copy of the network, its **replica**, and part of the batch, its **shard**. The ranks
# sum their gradients and take the same step:
#
# ```
#              ┌ rank 0: 32 images → replica → gradient ┐
#              ├ rank 1: 32 images → replica → gradient ┤
# 128 images → ├ rank 2: 32 images → replica → gradient ┤ → sum → same step
#              └ rank 3: 32 images → replica → gradient ┘
# ```

# %%
# %%px --save 06_by_hand.py
"""Data parallelism by hand: trains on data/digits.npz, beside this file."""

from pathlib import Path

import numpy as np
import torch
from mpi4py import MPI
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)  # hides rounding

comm = MPI.COMM_WORLD
data = np.load(Path(__file__).with_name("data") / "digits.npz")
images, new_images = (torch.tensor(data[name]).flatten(1) / 16 for name in ("train_images", "test_images"))
labels, new_labels = (torch.tensor(data[name]).long() for name in ("train_labels", "test_labels"))
draw = np.random.default_rng(0)  # the same batches on every rank
batches = [draw.choice(len(images), 128, replace=False) for _ in range(60)]

# %% [markdown] tags=["subslide"]
# Five numbered lines make the usual loop parallel. `team` is a communicator.


# %%
# %%px --save 06_by_hand.py
def train(team, rate, cut=np.array_split):
    torch.manual_seed(team.rank)  # unequal weights, so line 1 matters
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    broadcast_weights(team, model)  # 1 copy rank 0's weights to all
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    losses = []
    for batch in batches:
        mine = cut(batch, team.size)[team.rank]  # 2 this rank's shard
        optimizer.zero_grad()
        loss = share_of_loss(model(images[mine]), labels[mine], len(batch))  # 3 its share
        loss.backward()
        sum_gradients(team, model)  # 4 add all ranks' gradients
        optimizer.step()
        losses.append(team.allreduce(loss.item()))  # 5 add their losses
    right = (model(new_images).argmax(1) == new_labels).double().mean()
    if comm.rank == 0:  # team.rank is 0 everywhere in COMM_SELF
        print(f"ranks: {team.size}, first loss {losses[0]:.2f}, last {losses[-1]:.6f}, {right:.1%} right")


# %% [markdown] tags=["subslide"]
# Lines 1 and 4 send arrays:

# %% tags=["source: course_lib.parallel.data_parallel:numbers"]
# %%px --save 06_by_hand.py

# %% tags=["source: course_lib.parallel.data_parallel:broadcast_weights"]
# %%px --save 06_by_hand.py

# %% [markdown]
# With `MPI.IN_PLACE`, the sum overwrites the gradient:

# %% tags=["source: course_lib.parallel.data_parallel:sum_gradients"]
# %%px --save 06_by_hand.py

# %% [markdown]
# For now, `share_of_loss` returns a shard's mean loss. The ranks train alone on whole batches, then together on shards.
#
# **Vote:** compared with rank 0 alone, do the four get (a) fewer of the 297 new images right, (b) as many, (c) more?


# %%
# %%px
def share_of_loss(outputs, targets, batch_size):
    return F.cross_entropy(outputs, targets)


train(MPI.COMM_SELF, rate=0.1)  # four teams of one
train(comm, rate=0.1)

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (c). The *first* loss is four times 2.33: line 5 adds four means. Line 4 adds their gradients, so each SGD step is four times too large.
#
# </details>
#
# Now each rank trains *alone*, at four times the rate. **Predict** its last loss, to six decimals.

# %%
# %%px
train(MPI.COMM_SELF, rate=0.4)

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# 1.603732 / 4 = 0.400933, and again 85.5 %. Rate 0.1 was too small for 60 steps; our mistake acted like rate 0.4.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 2 · Repair the loss
#
# Lines 4 and 5 add, so line 3 needs a *share*.

# %% tags=["exercise: 06.1"]

# %% [markdown] tags=["notes"]
# Seven minutes up to here, six for the exercise. The usual slip divides the mean by `comm.size`:
# ask what the mean runs over, ranks or images.

# %% [markdown]
# Do four ranks reach 0.400933? Three? Shards of 1, 1, 1 and 125 images?

# %%
# %%px --save 06_by_hand.py
if __name__ == "__main__":
    train(comm, rate=0.4)

# %%
# !mpiexec -n 3 python code/06_by_hand.py

# %%
# %%px
train(comm, rate=0.4, cut=lambda batch, _: np.split(batch, [1, 2, 3]))  # three positions: try others

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# Yes: any cut works that uses each image once. Dividing *means* by `comm.size` needs equal shards: the last run would get 49.5 % right.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 3 · One line is missing
#
# Somebody removes line 1, line 4, or the cut in line 2 (`mine = batch`). The program still runs. Which is missing?


# %%
# %%px
line = np.random.default_rng(14).choice([1, 2, 4])  # equal on all ranks
broadcast_weights = (lambda team, model: None) if line == 1 else broadcast_weights
sum_gradients = (lambda team, model: None) if line == 4 else sum_gradients
train(comm, rate=0.4, cut=(lambda batch, n: [batch] * n) if line == 2 else np.array_split)

from course_lib.parallel.data_parallel import broadcast_weights, sum_gradients  # restored

# %% [markdown]
# Compare with 2.33, 0.400933 and 85.5 %. **Vote**, then try seeds 15 and 16.
#
# <details><summary>Open after all three runs</summary>
#
# ```
#           first loss     last       right
# line 1       2.34      0.611890    79.5 %    weights start and stay unequal
# line 2       9.32      1.131913    85.2 %    four whole batches: loss and step four times too large
# line 4       2.33      1.573289    76.8 %    each learns only from its shard, in steps four times too small
# ```
#
# Without a reference: is the first loss near ln 10 = 2.3 (ten classes)? Do ranks' weights stay equal?
#
# </details>

# %% [markdown] tags=["slide"]
# ## 4 · Who is late?
#
# Rank 0 secretly shuffles four sleeps: 30, 20, 10 and 0 ms. In all 60 steps, each rank sleeps, then
# times the gradient sum. **Predict:** how long does the rank that never sleeps wait, 0.9 or 1.8 s?

# %% tags=["nbval-ignore-output"]
# %%px
sleeps = comm.bcast(10 * np.random.default_rng().permutation(4))  # ms per rank, from rank 0
waited = []

import time

from course_lib.parallel.data_parallel import sum_gradients as punctual  # as above


def sum_gradients(team, model):
    time.sleep(sleeps[comm.rank] / 1000)
    began = MPI.Wtime()
    punctual(team, model)
    waited.append(MPI.Wtime() - began)


train(comm, rate=0.4)
print(f"rank {comm.rank} waited {sum(waited):.2f} s")
sum_gradients = punctual

# %% [markdown]
# Who slept how long? Change the zeros until four are right:

# %% tags=["nbval-ignore-output"]
print((cluster["sleeps"][0] == [0, 0, 0, 0]).sum(), "of 4 are right")  # your guess: ms on ranks 0 to 3

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# ```
# 30 ms     ···············░            · asleep
# 20 ms     ··········░░░░░░            ░ in the sum
# 10 ms     ·····░░░░░░░░░░░
#  0 ms     ░░░░░░░░░░░░░░░░
# ```
#
# 1.8 s, 60 · 30 ms: in each step, all wait for the slowest rank, the **straggler**. It waits least.
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# | | PyTorch's DDP (lesson 07), one rank per GPU |
# |---|---|
# | lines 1, 4 | are run for you, line 4 during backward |
# | line 3 | Gradients are *averaged* over n data-parallel ranks: call `(n * share).backward()` |
# | lines 2, 5 | stay yours. Call `item()` rarely: it waits for the GPU |
# | section 4 | NCCL calls return early, so use a profiler: late ranks' all-reduces are shortest |

# %% [markdown] tags=["slide"]
# ## Key points
#
# - Start with equal weights. Shard a common batch. Divide a shard's *summed* loss by the *whole* batch's size (text: its tokens). Add the gradients; clip only their sum. Then n ranks train as one, up to rounding.
# - Exceptions: **batch norm** (lesson 07), dropout (seed it differently on data-parallel ranks), losses that compare samples.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# Four ranks reach 2.33, 0.400933 and 85.5 %. Line 3 returns the *mean* loss; lines 4 and 5 divide by 4. Which line is missing? What would show it?
#
# <details><summary>What to listen for</summary>The cut in line 2. Each rank computes all 128 images: the numbers are right, but four GPUs take as long as one. Count images per rank.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# Equal seeds give equal weights. Is line 1 needed at all?

# %% tags=["exercise: 06.q3"]

# %% [markdown]
# If *one* of 2,048 GPUs computes 10 % longer in *every* step and all wait, ten days of training become up to eleven. Can you find that GPU in the ranks' timings?

# %% tags=["exercise: 06.q1"]

# %% [markdown]
# Does a library do what your loop does?

# %% tags=["exercise: 06.q2"]

# %% [markdown]
# ### Can messages travel while a rank computes?
#
# Backward computes the *last* layer's gradient first, but our line 4 starts only when backward is over. Could we send that gradient earlier?
#
# Here is a toy: three layers that sleep for 100 ms each. We delay all-reduces (*messages*, for short) *on purpose*: each takes 100 ms, and only one
# runs at a time. If the three all-reduces follow backward, a step takes 600 ms. How long does a step take if each all-reduce starts once its layer's gradient is complete? (`Iallreduce` starts
# an all-reduce and returns a request, as `Isend` does in lesson 01.)

# %%
predict("Milliseconds, if messages start during backward?", None)

# %% tags=["nbval-ignore-output"]
# %%px
from course_lib.effects import slow_messages

link = slow_messages(comm, 0.1)  # as comm, but 0.1 s per message
requests = []
comm.Barrier()
began = MPI.Wtime()
for gradient in np.ones((3, 10)):  # rows: the last layer's first
    time.sleep(0.1)  # backward through one layer
    requests.append(link.Iallreduce(MPI.IN_PLACE, gradient))
for request in requests:
    request.Wait()  # until the sum is complete
milliseconds = 1000 * (MPI.Wtime() - began)

# %% tags=["nbval-ignore-output"]
outcome("Milliseconds, if messages start during backward?", round(max(cluster["milliseconds"]), -1))

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# ```
# backward  ▓▓▓▓▓▓▓▓▓▓ ▓▓▓▓▓▓▓▓▓▓ ▓▓▓▓▓▓▓▓▓▓
# messages             ░░░░░░░░░░ ░░░░░░░░░░ ░░░░░░░░░░
#           0        100        200        300        400 ms
# ```
#
# About 400. While layer 2 computes, layer 3's gradient travels. This is **overlap**. Only the last message adds time:
# no layer is left to compute. (Slower messages would queue.)
#
# </details>
#
# In a real network, `backward` completes one gradient after another. After each, PyTorch can call a function, a **hook**. `sum_when_ready` gives every parameter a hook that starts its all-reduce, and returns a function that waits for all.

# %% tags=["source: course_lib.parallel.gradient_buckets:sum_when_ready"]
# %%px

# %% [markdown]
# Does overlap help a real network of six layers? Each layer has a weight and a bias: 12 messages per step.
#
# Our unit of time is forward plus backward. Each message costs a fixed 0.3; all bytes together take 0.5. If the 12 messages follow backward, a step takes 1 + 12 · 0.3 + 0.5 = 5.1. Overlap hides at most
# backward's time (about 2/3), but the 12 fixed costs take 3.6. So libraries collect gradients in **buckets**, and send each as one message (**tensor fusion**). The **fusion threshold** limits a bucket's bytes. `GradientBuckets` sends a bucket
# once all its gradients are complete.
#
# **Predict** the fastest: 12 messages with overlap, 4, or a single one? (Only ranks 0 and 1 take part, `--targets 0:2`, so that each has a core. `Create_group` makes their communicator; `Split` would wait for the others.)

# %%
# %%px --targets 0:2
from course_lib.measure import measure, timed
from course_lib.parallel.gradient_buckets import GradientBuckets

pair = comm.Create_group(comm.group.Incl([0, 1]))


def deep():
    middle = [layer for _ in range(4) for layer in (nn.Linear(256, 256), nn.ReLU())]
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), *middle, nn.Linear(256, 10))


def compute(model):
    """Forward and backward, for timing only: both ranks take the same images."""
    model.zero_grad()
    share_of_loss(model(images[:500]), labels[:500], 500).backward()


plain = deep()
once = timed(pair, lambda: compute(plain), repeat=40)  # our unit
nbytes = sum(parameter.nbytes for parameter in plain.parameters())

# %% [markdown]
# We time five kinds of steps. *none* sends nothing: about 1 unit. Divide each bar by the printed unit. (Bars are medians of five runs; thin lines span fastest to slowest.)

# %%
# %%px --targets 0:2 --timeout 100
link = slow_messages(pair, seconds=0.3 * once, gbit_per_s=8e-9 * nbytes / (0.5 * once))  # all: 0.5
hooked, four, single = deep(), deep(), deep()
wait = sum_when_ready(link, hooked)
fused = GradientBuckets(link, four, bucket_bytes=2**20)  # whole tensors, up to 1 MiB
whole = GradientBuckets(link, single, bucket_bytes=2**24)
ways = {
    "none": lambda: compute(plain),
    "12 after backward": lambda: (compute(plain), sum_gradients(link, plain)),
    "12, overlap": lambda: (compute(hooked), wait()),
    f"{len(fused.buckets)}, overlap": lambda: (compute(four), fused.wait()),
    f"{len(whole.buckets)}, overlap": lambda: (compute(single), whole.wait()),
}
rows = measure(pair, ways, repeat=5, by="messages")

# %% tags=["nbval-ignore-output"]
print(f"one unit: {1000 * cluster[0]['once']:.0f} ms")  # rank 0's
show(cluster[0]["rows"], x="messages", y="time of a step")

# %% [markdown]
# **Contest:** change one number in `link`'s cell, and draw again, so that four messages beat one.
#
# <details><summary>Open after your runs</summary>
#
# With 0.3 per message, a single one should be fastest, although it waits for backward: 1 + 0.3 + 0.5 = 1.8. With 12, the first starts soon after forward (1/3), and the link never rests: about 1/3 + 12 · 0.3 + 0.5 = 4.4.
# With four, the first bucket is complete halfway through backward: 1/3 + 1/3 + 4 · 0.3 + 0.5 = 2.4.
#
# Below 0.1 per message (try `seconds=0.02 * once`), these four buckets beat one. On GPUs with long steps, several buckets usually win. More ranks need larger buckets: a ring's fixed cost grows with n (a tree's, with log n). From its second step on, PyTorch's DDP (lesson 07) by default closes its
# first bucket at 1 MiB and the others at 25 MiB. The library **Horovod** made fusion popular.
#
# Our delay is a sleep. On a real link, overlap may hide less: many MPI libraries make **progress** (move bytes) only inside MPI calls, and backward makes few.
# NCCL makes progress by itself, but its kernels slow backward: both share the GPU.
#
# </details>
#
# Overlap brings a new bug:

# %% tags=["exercise: 06.2"]

# %% [markdown]
# ### What if one rank kept the weights?
#
# Many large networks were once trained with a **parameter server**: a process that keeps the weights. The other processes are its **workers**:
#
# ```
#                 ┌───────────────────────────┐
#                 │  server: w ← w − rate · g │
#                 └───────────────────────────┘
#                  g₁ ↑↓ w   g₂ ↑↓ w   g₃ ↑↓ w
#                 worker 1  worker 2  worker 3
#                  shard 1   shard 2   shard 3
# ```
#
# A *synchronous* server waits for every worker's gradient, then updates once. With section 2's shares, this equals training with an all-reduce, up to rounding. But with n workers, a single server
# receives n gradients and sends n copies of the weights per step (so real systems split the weights over servers). In a ring all-reduce, each rank sends less than twice the gradient's bytes for any n, but in 2(n − 1) messages, one after another (a tree: about 2 log₂ n; lesson 04).
#
# An *asynchronous* server updates as soon as any gradient arrives, so a straggler delays no other worker. What does this cost? While one worker computes, the others' gradients
# change the server's weights. So this worker's gradient is **stale**. **Staleness** counts the updates since the worker received weights.
#
# Three equal workers sleep 40 ms before every batch. In a second run, worker 3 sleeps 400 ms. How stale are its gradients then? (`train_asynchronously` runs the
# server on rank 0. There, `service.order` and `service.staleness` list each update's worker and staleness.)

# %%
predict("Median staleness of the slow worker's gradients?", None)

# %%
# %%px --timeout 100
from course_lib.parallel.parameter_server import train_asynchronously
from course_lib.training.loop import Batch, summed_cross_entropy


def slowly(count, seconds):
    """Yield `count` batches, the same on all workers, each after a sleep."""
    for batch in (batches * 3)[:count]:
        time.sleep(seconds)
        yield Batch(images[batch], labels[batch], len(batch))


def with_a_server(count, seconds):
    """Rank 0 serves, the others train. Rank 0 returns the staleness of each gradient of worker 3."""
    torch.manual_seed(0)
    model = nn.Linear(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    mine = slowly(count if comm.rank > 0 else 0, seconds)
    _, service = train_asynchronously(comm, model, summed_cross_entropy, optimizer, mine)
    updates = zip(service.order, service.staleness, strict=True) if service else []
    return [staleness for worker, staleness in updates if worker == 3]


equal = with_a_server(12, 0.04)
slower = with_a_server(12, 0.4) if comm.rank == 3 else with_a_server(150, 0.04)  # others outlast worker 3

# %% tags=["nbval-ignore-output"]
print("staleness of worker 3's gradients if all sleep 40 ms: ", cluster[0]["equal"])
print("their staleness if worker 3 sleeps 400 ms:            ", cluster[0]["slower"])
outcome("Median staleness of the slow worker's gradients?", sorted(cluster[0]["slower"])[6])

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# Among n equal workers, staleness is about n − 1, here 2. If one worker takes k times as long per gradient, each of the n − 1 others sends k gradients meanwhile: the slow worker's staleness is
# about k · (n − 1). This holds while the server keeps up. (Here k is about 9, not 10: both times also include computing and sending.) With 19 equal workers, every gradient is about 18 updates stale.
#
# </details>
#
# Does staleness hurt? One process imitates 3 or 19 equal workers: it queues its gradients and applies each 2 or 18
# updates late. It trains at rate 0.4 for 240 steps. **Predict** its accuracy on the new images at a staleness of 2 and of 18; with fresh gradients, it is 91 %.


# %%
# %%px --targets 0
def train_late(staleness, rate):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    queue = []
    for batch in batches * 4:
        loss = F.cross_entropy(model(images[batch]), labels[batch])
        queue.append(torch.autograd.grad(loss, list(model.parameters())))
        if len(queue) > staleness:
            for parameter, gradient in zip(model.parameters(), queue.pop(0), strict=True):
                parameter.data -= rate * gradient
    right = (model(new_images).argmax(1) == new_labels).double().mean()
    print(f"rate {rate:g}, {staleness:2} updates late: {right:.1%} right")


for staleness in (0, 2, 18):
    train_late(staleness, rate=0.4)

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# At this rate, a staleness of 2 costs little. At 18, each update corrects errors that earlier updates have already corrected. The
# weights overshoot until almost all ReLUs output 0, so the network calls all 297 images the same digit.
#
# </details>
#
# **Rescue it:** find a rate that gets 80 % or more right, 18 updates late.

# %%
# %%px --targets 0
train_late(18, rate=0.4)

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# Rates from 0.03 to 0.04 give 80 %, 0.05 only 69 %. Was asynchrony worth it? Not if no worker is late and messages are free: 19 workers compute 240 gradients while they could take 240 / 19 ≈ 13 *synchronous* steps. With all 1,500 images per step (79 per worker)
# and rate 0.8, these reach 84 % (we ran it).
#
# Stale gradients need a smaller rate, and the order of arrival makes every run different. With fast links and enough computing per step, overlap hides most of an all-reduce. So large models are almost always pre-trained synchronously, and slow machines are replaced. Parameter servers
# remain in some recommender systems whose embedding tables outgrow one machine.
#
# </details>

# %% [markdown]
# ## References
#
# - M. Jakovac and E. Pichler, *MPI in Distributed Training*, 2025: data parallelism in ten phases, [listed here](../docs/torch-distributed.md). The paper says that
#   PyTorch's DDP starts one `Allreduce` per parameter; in fact, DDP sends buckets, like Horovod.
# - P. Goyal and others, [Accurate, large minibatch SGD](https://arxiv.org/abs/1706.02677), 2017: large global batches, and what to divide the loss by.
# - A. Sergeev and M. Del Balso, [Horovod](https://arxiv.org/abs/1802.05799), 2018: tensor fusion over MPI and NCCL.
# - S. Li and others, [PyTorch Distributed](https://arxiv.org/abs/2006.15704), 2020: buckets that overlap with backward.
# - J. Dean and others, *Large scale distributed deep networks*, 2012: the asynchronous parameter server.
# - E. Alpaydin and C. Kaynak, [Optical Recognition of Handwritten Digits](https://doi.org/10.24432/C50P49), 1998 (CC BY 4.0): the digits.
