# ---
# title: Data parallelism by hand
# goal: Train one network on several ranks with nothing but MPI, and find out what a rank waits for.
# able:
#   - turn a training loop for one process into one for any number of ranks
#   - divide the loss so that it is the same training
#   - find the rank that the others wait for
# more:
#   - let messages travel while a rank computes
#   - compare a parameter server with an all-reduce
# before: >-
#   {01}, {04}; a training loop in PyTorch. Helpful: {05}
# minutes: {core: 20, more: 20}
# ranks: 4
# warm-up:
#   - ask: Four ranks call `Reduce`. Which of them hold the sum afterwards?
#     answer: Rank 0, the root. After <code>Allreduce</code>, all do.
#   - ask: Tensors are arrays. Do you send them with `send` or with `Send`?
#     answer: With <code>Send</code>. <code>send</code> pickles every object first.
#   - ask: Four ranks share ten images as evenly as they can. How many does each get?
#     answer: Two of them get 3, two get 2.
# ---

# %% [markdown] tags=["slide"]
# ## 1 · Five lines
#
# In **data parallelism**, each rank has a complete copy of the network, a **replica**, and its own part of every batch, a **shard**.
#
# ```
#                ┌ rank 0: 32 images → replica → gradient ┐
#                ├ rank 1: 32 images → replica → gradient ┤
#  128 images  → ├ rank 2: 32 images → replica → gradient ┤ → the sum, on every rank → the same step
#                └ rank 3: 32 images → replica → gradient ┘
# ```
#
# We train on handwritten digits. Cells marked `--save` also fill a program, `code/06_by_hand.py`, and `__file__` is its path.

# %%
# %%px --save 06_by_hand.py
"""Data parallelism by hand: trains a network on data/digits.npz, which lies beside this file."""

from pathlib import Path

import numpy as np
import torch
from mpi4py import MPI
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional as F

BATCH, STEPS = 128, 60

torch.set_num_threads(1)  # one thread per rank
torch.set_default_dtype(torch.float64)  # no mistake can hide behind rounding

comm = MPI.COMM_WORLD
digits = np.load(Path(__file__).with_name("data") / "digits.npz")
images = torch.from_numpy(digits["train_images"] / 16).flatten(1)
labels = torch.from_numpy(digits["train_labels"]).long()
new_images = torch.from_numpy(digits["test_images"] / 16).flatten(1)
new_labels = torch.from_numpy(digits["test_labels"]).long()
draw = np.random.default_rng(0)  # the same on every rank, so all ranks know every batch
batches = [draw.choice(len(images), BATCH, replace=False) for _ in range(STEPS)]

# %% [markdown] tags=["subslide"]
# Here is the training loop that you know. Five of its lines are new, and numbered. `team` is the communicator of the ranks that train together.


# %%
# %%px --save 06_by_hand.py
def train(team, rate):
    """Train a network on all ranks of `team`; return it, and the loss of every batch."""
    torch.manual_seed(team.rank)  # each rank draws weights of its own …
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    broadcast_weights(team, model)  # 1 … and all get rank 0's
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    losses = []
    for batch in batches:
        mine = np.array_split(batch, team.size)[team.rank]  # 2 this rank's shard
        optimizer.zero_grad()
        loss = share_of_loss(model(images[mine]), labels[mine], len(batch))  # 3 its share
        loss.backward()
        sum_gradients(team, model)  # 4 the gradients of all ranks, added
        optimizer.step()
        losses.append(team.allreduce(loss.item()))  # 5 the losses of all ranks, added
    return model, losses


# %% [markdown] tags=["subslide"]
# Line 1 calls `broadcast_weights`. MPI wants arrays, so `numbers` shows it a tensor's memory as one flat array.

# %% tags=["source: course_lib.parallel.data_parallel:numbers"]
# %%px --save 06_by_hand.py

# %% tags=["source: course_lib.parallel.data_parallel:broadcast_weights"]
# %%px --save 06_by_hand.py

# %% [markdown]
# Line 4 calls `sum_gradients`. With `MPI.IN_PLACE`, `Allreduce` overwrites each rank's gradient with the sum.

# %% tags=["source: course_lib.parallel.data_parallel:sum_gradients"]
# %%px --save 06_by_hand.py


# %% [markdown] tags=["subslide"]
# At the end, we measure what share of new images the network reads correctly.


# %%
# %%px --save 06_by_hand.py
def report(team, rate=1.0):
    """Train on all ranks of `team`; rank 0 prints the losses and the new images read correctly."""
    model, losses = train(team, rate)
    right = (model(new_images).argmax(1) == new_labels).double().mean()
    if comm.rank == 0:
        print(f"ranks: {team.size}, first loss {losses[0]:.2f}, last {losses[-1]:.6f}, {right:.1%} right")


# %% [markdown] tags=["subslide"]
# One function is missing: `share_of_loss`, in line 3. The obvious choice is the mean loss, as in every training loop. Let us run it twice. In
# `COMM_SELF` a rank is alone and takes all 128 images of a batch; in `comm`, four ranks take 32 each. **Vote:** the four learn (a) as much as the one, (b)
# less, (c) nothing.


# %% tags=["nbval-ignore-output"]
# %%px
def share_of_loss(outputs, targets, batch_size):
    return F.cross_entropy(outputs, targets)  # the mean over the images at hand


report(MPI.COMM_SELF, rate=1.0)
report(comm, rate=1.0)

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# (c). The four guess: about one image in ten is right. And nothing warned us.
#
# </details>
#
# Perhaps the rate is too large? We take a tenth. **Vote:** the four now read (a) fewer new images correctly than the one, (b) as many, (c) more.

# %%
# %%px
report(MPI.COMM_SELF, rate=0.1)
report(comm, rate=0.1)

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# (c). Judged by new images, four ranks look *better*: ship it! Only the first loss betrays them: 9.32 is four times 2.33.
#
# Each rank takes the *mean* over its shard, and line 4 *adds* the gradients of four means. So all of SGD's steps are four times as long, as at rate 0.4.
# Line 5 adds four means, too, so even the printed loss is four times too large.
#
# </details>
#
# If that explains it, you can **predict** all six decimals of the last loss of *one* rank at a rate of 0.4:

# %%
# %%px
report(MPI.COMM_SELF, rate=0.4)

# %% [markdown] tags=["slide"]
# ## 2 · Repair line 3

# %% tags=["exercise: 06.1"]

# %% [markdown] tags=["notes"]
# Seven minutes up to here, six for the exercise. The usual slip is to divide by `comm.size`, which is right only while shards are equal:
# ask what the mean runs over, ranks or images.

# %% [markdown] tags=["subslide"]
# Two lines complete the program. Four ranks share evenly; three get 43, 43 and 42 images. **Vote:** in how many decimals does their last loss agree with that of
# one rank? (a) None, (b) two or three, (c) all six.

# %%
# %%px --save 06_by_hand.py
if __name__ == "__main__":
    report(comm)

# %%
# !mpiexec -n 1 python code/06_by_hand.py
# !mpiexec -n 3 python code/06_by_hand.py

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# (c), all six. Each rank adds the losses of *its* images and divides by the *whole* batch:
# `F.cross_entropy(outputs, targets, reduction="sum") / batch_size`. It is the same training, up to rounding.
#
# Two kinds of layers break this. **Batch norm** normalises over the images at hand: 128 on one rank, 42 or 43 on three. On GPUs,
# `SyncBatchNorm` repairs that. **Dropout** draws other units than one process would.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 3 · Who is late?
#
# Training is correct. Is it fast? A sum needs all ranks, and one of ours will be late. Before each `sum_gradients` the ranks sleep 0, 5, 10 or 20 ms, by a
# secret draw; who comes last is the **straggler**. Each rank measures how long it spends in `sum_gradients`.

# %%
# %%px
import time

secret = np.random.default_rng().permutation([0, 5, 10, 20])  # ms
delays = comm.bcast(secret)  # rank 0's draw counts
layer, seconds = nn.Linear(64, 128), []  # the sums are of zeros; we look at the time alone
for _ in range(20):
    time.sleep(delays[comm.rank] / 1000)
    began = MPI.Wtime()
    sum_gradients(comm, layer)
    seconds.append(MPI.Wtime() - began)

row = {"labels": {"rank": f"rank {comm.rank}"}, "value": np.median(seconds)}

# %% tags=["nbval-ignore-output"]
show(cluster["row"], x="rank", y="time in sum_gradients")

# %% [markdown]
# Who comes last? Accuse one: write its number in place of `None`.

# %%
predict("Which rank comes last?", None)

# %% tags=["nbval-ignore-output"]
outcome("Which rank comes last?", cluster["delays"][0].argmax(), word="it was rank")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# ```
#  0 ms late   ░░░░░░░░░░░░░░░░░░░░ sum
#  5 ms late   ·····░░░░░░░░░░░░░░░ sum     · asleep
# 10 ms late   ··········░░░░░░░░░░ sum     ░ waiting in sum_gradients
# 20 ms late   ···················· sum
# ```
#
# The rank with the *shortest* bar: when it comes, the others are there, and it waits for nobody. The longest bar belongs to the punctual rank. A faster
# network would hardly shorten it. (If *all* bars were long, it might.)
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# | | with 64 GPUs |
# |---|---|
# | line 4 | NCCL, NVIDIA's library, adds gradients during backward (More); clip their norm only afterwards |
# | batch | 32 images per GPU make 2,048; a rate for 128 is then usually too small (lesson 05) |
# | language model | divide summed losses by all ranks' target tokens |

# %% tags=["exercise: 06.q1", "subslide"]

# %% [markdown] tags=["slide"]
# ## Key points
#
# - Add gradients, and divide the *sum* of a shard's losses by the *whole* batch. Then any number of ranks trains alike, unless
#   layers mix images or draw at random.
# - Who waits longest in an all-reduce is a victim. Who hardly waits while others do is late.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# On eight ranks, a network is 3 points less accurate than on one. What do you ask first? (a) Which network card? (b) Which batch and
# learning rate? (c) Which seed?
#
# <details><summary>What to listen for</summary>(b), quick to check: if each rank kept the old batch, the global one is eight times as
# large. Then batch norm, dropout, seeds (c). (a) changes only time.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# First a question about section 3.

# %% tags=["exercise: 06.q2"]

# %% [markdown]
# ### When do messages cost no time?
#
# Our loop sends when backward is done. But backward begins with the last layer, so that layer's gradient is complete early. PyTorch can call a **hook**, a function
# of ours, as soon as a gradient is complete. In it, `Iallreduce` starts a sum and returns at once; `sum_when_ready` hands us a function that waits for all of them:

# %% tags=["source: course_lib.parallel.gradient_buckets:sum_when_ready"]
# %%px

# %% [markdown]
# To compute while messages travel is called **overlap**. To see it, we need a deep network and a slow link: a step's 12 messages (6 layers, a weight and a bias each) will together take about 2/3 of the time of forward and
# backward. They are *delayed on purpose*; `course_lib/effects.py` says how, on one page. `--targets 0:2` lets ranks 0 and 1 work alone, so that each has a core. (Both take the same images: we
# look at the time alone.)

# %%
# %%px --targets 0:2
from course_lib.effects import slow_messages
from course_lib.measure import measure, timed

pair = comm.Create_group(comm.group.Incl([0, 1]))


def deep():
    middle = [layer for _ in range(4) for layer in (nn.Linear(256, 256), nn.ReLU())]
    return nn.Sequential(nn.Linear(64, 256), *middle, nn.Linear(256, 10))


def compute(model):
    """Forward and backward."""
    model.zero_grad()
    share_of_loss(model(images[:500]), labels[:500], 500).backward()


plain, hooked = deep(), deep()
once = timed(pair, lambda: compute(plain))
link = slow_messages(pair, once * 2 / 3 / 12)
wait = sum_when_ready(link, hooked)

# %% [markdown]
# Three kinds of steps: *compute* only; *compute, then send*; *overlap*. If the first takes 1, the second takes about 1 + 2/3, and a little more for the real messages. **Predict** the third.

# %%
# %%px --targets 0:2
ways = {
    "compute": lambda: compute(plain),
    "compute, then send": lambda: (compute(plain), sum_gradients(link, plain)),
    "overlap": lambda: (compute(hooked), wait()),
}
rows = measure(pair, ways)

# %% tags=["nbval-ignore-output"]
show(cluster[0]["rows"], x="way", y="time of a step")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# Between the two: overlap hides more than half of the messages' time here. Why not all of it? The gradients of the *first* layer come last, and then nothing is left to hide their messages behind.
# Nor do gradients travel during forward here. And somebody has to move messages while you compute. With NCCL the GPU does (so time a sum there: the call returns at once), and takes some of
# backward's speed for it; plain MPI often moves them only inside MPI calls; our slow link is a timer.
#
# </details>
#
# **How many messages should a step send?** Let forward and backward together take 1 again. On the next link each message costs 1/8, however short, and the bytes of a whole step (64 bits per number) cost 1 more; messages travel one after the other.
# `GradientBuckets` of `course_lib` collects gradients in **buckets** of at most so many bytes, the **fusion threshold**. A bucket's sum starts when its last gradient is there. Numbers travel with all
# 64 bits, or rounded to 16. **Predict** the fastest of six: 12, 4 or 1 messages, each with 64 or 16 bits.

# %%
# %%px --targets 0:2 --timeout 100
from course_lib.parallel.gradient_buckets import GradientBuckets

THRESHOLDS = {"12 messages": 2**14, "4 messages": 2**20, "1 message": 2**24}  # bytes per bucket
NUMBERS = {"64 bits": None, "16 bits": torch.bfloat16}

once = timed(pair, lambda: compute(plain))
nbytes = sum(parameter.nbytes for parameter in plain.parameters())
slow = slow_messages(pair, seconds=once / 8, gbit_per_s=8e-9 * nbytes / once)


def bucketed(threshold, dtype):
    """A step of a new network whose gradients travel in buckets; and how many, with how many bytes."""
    model = deep()
    buckets = GradientBuckets(slow, model, bucket_bytes=threshold, wire_dtype=dtype)
    return lambda: (compute(model), buckets.wait()), (len(buckets.buckets), buckets.nbytes)


steps, sent = {}, {}
for messages, threshold in THRESHOLDS.items():
    for bits, dtype in NUMBERS.items():
        name = f"{messages}, {bits}"
        steps[name], sent[name] = bucketed(threshold, dtype)
bucket_rows = measure(pair, steps, repeat=5, by="messages per step, and bits per number")

# %%
for name, (messages, nbytes) in cluster[0]["sent"].items():
    print(f"{name:20} counted per step: messages {messages:2}, bytes {nbytes}")

# %% tags=["nbval-ignore-output"]
show(cluster[0]["bucket_rows"], x="messages per step, and bits per number", y="time of a step")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# Twelve messages pay twelve times, and lose. One pays once, but starts when backward is over: nothing is left to hide it. Four pay four times, but three of them can travel while backward computes. Which
# of these two wins is a matter of the link: measure on yours. PyTorch's DDP (lesson 07) allows 25 MiB per bucket, and 1 MiB for the first.
#
# Going from 64 bits to 16 gains about as much here as going from twelve messages to one. (From float32 it would save half of the bytes, not three quarters.) The price: numbers are rounded to 8 significant bits, so it is no longer the
# training of one process. In a bfloat16, 256 + 1 is 256.
#
# </details>
#
# Hooks, fusion and 16 bits are what **Horovod** made popular, over MPI and NCCL. It also broadcasts weights, as line 1 does, *and the optimizer's state*. Why? Say rank 0
# alone reads a checkpoint after a restart, and line 1 sends its weights. **Predict:** are the replicas equal one step later,
# without the optimizer's broadcast, and with it? (All ranks take the same images here, so no sum is needed.)

# %%
# %%px
from course_lib.parallel.data_parallel import broadcast_optimizer, replicas_agree


def network():
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def take_step(model, optimizer):
    optimizer.zero_grad()
    share_of_loss(model(images[:500]), labels[:500], 500).backward()
    optimizer.step()


# %%
# %%px
def restart(send_optimizer):
    """A step, a restart, a step; whether all ranks hold the same weights afterwards."""
    model = network()
    broadcast_weights(comm, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    take_step(model, optimizer)
    if comm.rank > 0:  # only rank 0 has the momentum back
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    if send_optimizer:
        broadcast_optimizer(comm, optimizer)
    take_step(model, optimizer)
    return replicas_agree(comm, model)


alone, both = restart(False), restart(True)
if comm.rank == 0:
    print(f"replicas equal? Weights sent: {alone}. Optimizer sent, too: {both}.")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# Momentum is state, too. Without it, ranks 1 to 3 take a different step from rank 0's, although weights and gradients are equal. And again no error message.
#
# </details>

# %% tags=["exercise: 06.2"]

# %% [markdown]
# ### What if one rank kept the weights?
#
# In Google's DistBelief of 2012, a **parameter server** kept the weights. (In truth many processes shared that work.) The other ranks were its
# **workers**:
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
# A *synchronous* server waits for one gradient from every worker, then updates once. That gives an all-reduce's numbers (up to rounding), but with n workers the server
# receives n gradients and sends n copies of the weights per step. In a ring all-reduce each rank sends less than the bytes of two gradients, for any n (lesson 04).
#
# An *asynchronous* server updates as soon as any gradient arrives, so a straggler delays no other worker. But the straggler's gradient is **stale**: since it
# fetched the weights, others have updated them. **Staleness** counts those updates.
#
# Three equal workers train. Then, in a second run, worker 3 takes 100 ms longer for each batch. **Vote:** in the second run, the largest staleness of its gradients is (a) 2,
# one update by each of the others, (b) about 5, (c) more than 10.

# %%
# %%px --timeout 100
from course_lib.parallel.parameter_server import train_asynchronously
from course_lib.training.loop import Batch, summed_cross_entropy


def lesson_of(count, seconds):
    """So many batches for a worker, which fetches weights, sleeps, then computes."""
    for batch in (batches * 5)[:count]:
        yield Batch(images[batch], labels[batch], len(batch))
        time.sleep(seconds)


def with_a_server(count, seconds=0.0):
    """Rank 0 serves, the others train; on rank 0, how many gradients had which staleness."""
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    mine = lesson_of(count if comm.rank > 0 else 0, seconds)
    _, service = train_asynchronously(comm, model, summed_cross_entropy, optimizer, mine)
    return service.histogram() if service else {}


alike = with_a_server(40)
straggling = with_a_server(8, seconds=0.1) if comm.rank == 3 else with_a_server(300)

# %% tags=["nbval-ignore-output"]
BINS = {"0 to 1": range(2), "2 to 4": range(2, 5), "5 to 20": range(5, 21), "21 or more": range(21, 10**6)}
gradients = []
for run in ("alike", "straggling"):
    histogram = cluster[0][run]
    print(f"{run}: largest staleness {max(histogram)}")
    for name, group in BINS.items():
        count = sum(n for staleness, n in histogram.items() if staleness in group)
        labels = {"staleness": name, "workers": run}
        gradients.append({"labels": labels, "value": count, "unit": "gradients", "kind": "counted"})
show(gradients, x="staleness", y="number", by="workers")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# (c). While worker 3 is at one gradient, the other two update many times (and mostly see each other: staleness 0 to 1). Among n equal workers, staleness is about n − 1 on average, here 2 (a paused worker can exceed it by far); a worker that
# is k times slower has about k · (n − 1). And its gradient belongs to weights that are long gone. No run can be repeated exactly, because the order of arrival decides
# the numbers. Large networks are almost always trained synchronously today. Servers live on where tables of embeddings are too large for one machine, as in recommenders.
#
# </details>

# %% tags=["exercise: 06.q3"]

# %% [markdown]
# ## References
#
# - M. Jakovac and E. Pichler, *MPI in Distributed Training*, 2025: data parallelism in ten phases, which are [on a page of their own](../docs/torch-distributed.md). The paper says that
#   PyTorch's DDP starts one `Allreduce` per parameter; DDP sends buckets, like Horovod.
# - P. Goyal and others, [Accurate, large minibatch SGD](https://arxiv.org/abs/1706.02677), 2017: large global batches, and by what to divide the loss.
# - A. Sergeev and M. Del Balso, [Horovod](https://arxiv.org/abs/1802.05799), 2018: tensor fusion over MPI and NCCL.
# - S. Li and others, [PyTorch Distributed](https://arxiv.org/abs/2006.15704), 2020: buckets that overlap with backward.
# - J. Dean and others, *Large scale distributed deep networks*, 2012: the asynchronous parameter server.
# - E. Alpaydin and C. Kaynak, [Optical Recognition of Handwritten Digits](https://doi.org/10.24432/C50P49), 1998 (CC BY 4.0): the digits.
