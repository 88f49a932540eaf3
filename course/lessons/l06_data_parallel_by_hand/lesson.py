# ---
# title: Data parallelism by hand
# goal: Train one network on several ranks with nothing but MPI, and find out what a rank waits for.
# able:
#   - turn a training loop for one process into one for any number of ranks
#   - divide the loss so that it is the same training
#   - find the rank that the others wait for
# more:
#   - let messages travel while a rank computes, and read a profile
#   - compare a parameter server with an all-reduce
# before: >-
#   {01}, {04}; a training loop in PyTorch. Helpful: {05}
# minutes: {core: 20, more: 30}
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
# Five lines turn a training loop into **data parallelism**: each rank has a complete copy of the network, a **replica**, and its own part of every batch, a **shard**.
#
# ```
#                ┌ rank 0: 32 images → replica → gradient ┐
#                ├ rank 1: 32 images → replica → gradient ┤
#  128 images  → ├ rank 2: 32 images → replica → gradient ┤ → the sum, on every rank → the same step
#                └ rank 3: 32 images → replica → gradient ┘
# ```
#
# Cells marked `--save` also fill a program, `code/06_by_hand.py`; `__file__` is its path. It reads handwritten digits.

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

torch.set_num_threads(1)  # one thread per rank
torch.set_default_dtype(torch.float64)  # no mistake can hide behind rounding

comm = MPI.COMM_WORLD
digits = np.load(Path(__file__).with_name("data") / "digits.npz")
images = torch.from_numpy(digits["train_images"] / 16).flatten(1)
labels = torch.from_numpy(digits["train_labels"]).long()
new_images = torch.from_numpy(digits["test_images"] / 16).flatten(1)
new_labels = torch.from_numpy(digits["test_labels"]).long()
draw = np.random.default_rng(0)  # the same on every rank, so all ranks know every batch
batches = [draw.choice(len(images), 128, replace=False) for _ in range(60)]

# %% [markdown] tags=["subslide"]
# `numbers` shows MPI a tensor as a flat array. The next function copies rank 0's weights to all.

# %% tags=["source: course_lib.parallel.data_parallel:numbers"]
# %%px --save 06_by_hand.py

# %% tags=["source: course_lib.parallel.data_parallel:broadcast_weights"]
# %%px --save 06_by_hand.py

# %% [markdown]
# The next one adds up gradients: with `MPI.IN_PLACE`, `Allreduce` overwrites each rank's array with the sum.

# %% tags=["source: course_lib.parallel.data_parallel:sum_gradients"]
# %%px --save 06_by_hand.py

# %% [markdown] tags=["subslide"]
# In the training loop, the five numbered lines are new.


# %%
# %%px --save 06_by_hand.py
def network():
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def train(comm, rate):
    """Train a network on all ranks of `comm`; return it, and the loss of every batch."""
    torch.manual_seed(comm.rank)  # each rank draws weights of its own …
    model, losses = network(), []
    broadcast_weights(comm, model)  # 1 … and all get rank 0's
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for batch in batches:
        mine = np.array_split(batch, comm.size)[comm.rank]  # 2 this rank's shard
        optimizer.zero_grad()
        loss = share_of_loss(model(images[mine]), labels[mine], len(batch))  # 3 its share
        loss.backward()
        sum_gradients(comm, model)  # 4 the gradients of all ranks, added
        optimizer.step()
        losses.append(comm.allreduce(loss.item()))  # 5 the losses of all ranks, added
    return model, losses


# %%
# %%px --save 06_by_hand.py
def report(team, rate=1.0):
    """Train on all ranks of `team`; rank 0 prints the losses and the new images read correctly."""
    model, losses = train(team, rate)
    if comm.rank == 0:
        right = (model(new_images).argmax(1) == new_labels).double().mean().item()
        print(f"ranks: {team.size}, first loss {losses[0]:.2f}, last {losses[-1]:.6f}, {right:.1%} right")


# %% [markdown] tags=["subslide"]
# Line 3 calls `share_of_loss`, which is still missing. Let us try the mean loss: first each rank alone with all 128 images (`COMM_SELF` has one rank), then
# four with 32 each. **Vote:** the four learn (a) as much as one, (b) less, (c) nothing.


# %% tags=["nbval-ignore-output"]
# %%px
def share_of_loss(outputs, targets, batch_size):
    return F.cross_entropy(outputs, targets)  # the mean over the images at hand


report(MPI.COMM_SELF, rate=1.0)
report(comm, rate=1.0)

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# The four guess: about one image in ten is right. And no error message.
#
# </details>
#
# And with a tenth of the rate? **Vote:** the four read (a) fewer images correctly than one, (b) as many, (c) more.

# %%
# %%px
report(MPI.COMM_SELF, rate=0.1)
report(comm, rate=0.1)

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# Now four ranks look *better* than one, and this program would be shipped. The losses betray it: 9.32 is four times 2.33.
# Each rank took the *mean* over its shard, and line 4 *adds* four means. So a rate of 0.1 acts like 0.4: `report(MPI.COMM_SELF, rate=0.4)` ends at
# 0.400933, a quarter of 1.603732. (Adam nearly cancels the factor.)
#
# </details>

# %% [markdown] tags=["slide"]
# ## 2 · Repair line 3

# %% tags=["exercise: 06.1"]

# %% [markdown] tags=["notes"]
# Seven minutes up to here, six for the exercise. The usual slip is to divide by `comm.size`, which is right only while shards are equal:
# ask what the mean runs over, ranks or images.

# %% [markdown] tags=["subslide"]
# Two lines make a program; run both cells. Three ranks get 43, 43 and 42 images. **Vote:** their last loss agrees with one rank's in (a) no decimal, (b) two
# or three, (c) all six.

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
# All six, however the batch was cut. Each rank adds the losses of *its* images and divides by the *whole* batch:
# `F.cross_entropy(outputs, targets, reduction="sum") / batch_size`. It is the same training *up to rounding*: the order of additions changes float64's
# 16th digit, and in float32, or over many steps, earlier ones.
#
# Two layers break this. **Batch norm** normalises each feature over the images at hand: 128 on one rank, 43 on three. No division repairs that; PyTorch's
# `SyncBatchNorm` does. **Dropout** switches off other units than one process would.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 3 · Who is late?
#
# The ranks now come 0, 5, 10 and 20 ms late to every sum; a draw decides who. The last is a **straggler**. Each measures its time in
# `sum_gradients`.

# %%
# %%px
import time

delays = comm.bcast(np.random.default_rng().permutation([0, 5, 10, 20]))  # ms; rank 0 draws
model, seconds = network(), []  # the sums are of zeros; we look at the time alone
for _ in range(20):
    time.sleep(delays[comm.rank] / 1000)
    began = MPI.Wtime()
    sum_gradients(comm, model)
    seconds.append(MPI.Wtime() - began)

row = {"labels": {"rank": f"rank {comm.rank}"}, "value": np.median(seconds)}

# %% tags=["nbval-ignore-output"]
show(cluster["row"], x="rank", y="time in sum_gradients")

# %% [markdown]
# Accuse one: write its number in place of `None`.

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
# The one with the *shortest* bar, which is the sum itself. The longest bar is the punctual rank's: its messages look slow, but a faster network would
# not help. (If *all* bars were long, it might.)
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# | | with 64 GPUs |
# |---|---|
# | line 4 | NCCL adds, in rings, in trees or inside the switch, while backward computes (More); limit (clip) gradients only after the sum |
# | batch | 32 images per GPU make 2,048; the rate for 128 is then usually too small (lesson 05) |
# | language model | divide by the tokens that the loss counts on all ranks |

# %% tags=["exercise: 06.q1", "subslide"]

# %% [markdown] tags=["slide"]
# ## Key points
#
# - Add gradients, and divide the *sum* of a shard's losses by the *whole* batch: the same training on any number of ranks, up to rounding, unless
#   layers mix images or draw at random.
# - Who waits in an all-reduce is a victim. A rank that waits far less, step after step, is late.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# On eight ranks, a network is 3 points less accurate than on one. What do you ask first? (a) Which network card? (b) Which batch and
# learning rate? (c) Which seed?
#
# <details><summary>What to listen for</summary>(b): it is quick to check. Eight ranks with the old batch each make one eight times as
# large. Then shards, batch norm, dropout, seeds (c). (a) changes the time.</details>

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
# Our loop sends when backward is done. But the gradient of the last layer is complete when backward has hardly begun, and `Iallreduce` starts a sum and
# returns at once. To compute while messages travel is called **overlap**. PyTorch calls a **hook**, a function of ours, as soon as a gradient is
# complete:

# %% tags=["source: course_lib.parallel.gradient_buckets:sum_when_ready"]
# %%px

# %% [markdown]
# We need a deep network and a slow link. Its 12 messages of a step (6 layers, weight and bias) together take 2/3 of the time of forward and backward
# (*delayed on purpose*; `course_lib/effects.py` is one page and says how). From here to the profile, `--targets 0:2` lets ranks 0 and 1 work alone, so that each has a core. (Both take the same images: we look at the time alone.)

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
# `measure` lets three kinds of steps take turns: *compute* only; *compute, then send*; *overlap*. If the first takes 1, **predict** the other two.

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
# One after the other takes the sum, 1 + 2/3. Overlap hides more than half of the 2/3 here: messages travel while backward computes. Not everything can
# be hidden. The gradients of the first layer come last, and nothing is left to hide their messages behind. During forward there is nothing to send, and starting messages
# costs time, too. Overlap needs somebody who moves messages while you compute.
# With NCCL the GPU does, and takes a little of backward's speed for it; plain MPI often moves them only inside MPI calls; our slow link is a timer.
#
# </details>
#
# **How many messages should a step send?** On the next link, each message costs a twentieth of a forward and backward pass, and the bytes of a step
# together a whole one. `GradientBuckets` of `course_lib` collects gradients in **buckets** of at most so many bytes, the **fusion threshold**, and starts a
# bucket's sum when its last gradient is there. Thresholds of 16 KiB, 1 MiB and 16 MiB make 12, 4 and 1 messages here. We send all 64 bits of a number, or only 16.
# **Predict** the fastest of the three.

# %%
# %%px --targets 0:2 --timeout 100
from course_lib.parallel.gradient_buckets import GradientBuckets

nbytes = sum(parameter.nbytes for parameter in plain.parameters())
slow = slow_messages(comm=pair, seconds=once / 20, gbit_per_s=8e-9 * nbytes / once)
bucket_rows, sent = [], []
for limit, name in ((2**14, "16 KiB"), (2**20, "1 MiB"), (2**24, "16 MiB")):
    for bits, wire in ((64, None), (16, torch.bfloat16)):
        model = deep()
        buckets = GradientBuckets(slow, model, bucket_bytes=limit, wire_dtype=wire)
        sent.append(f"{name}, {bits} bits: messages {len(buckets.buckets)}, bytes {buckets.nbytes}")
        step = {f"{bits} bits": lambda: (compute(model), buckets.wait())}
        bucket_rows += measure(pair, step, repeat=5, threshold=name, by="numbers of")

# %%
print(*cluster[0]["sent"], sep="\n")

# %% tags=["nbval-ignore-output"]
show(cluster[0]["bucket_rows"], x="threshold", y="time of a step", by="numbers of")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# Twelve messages pay twelve times. Four pay four times, but three of them can travel while backward computes. One pays once, and has nothing left to
# hide behind. Which number wins is a matter of the link: measure on yours. PyTorch's DDP (lesson 07) allows 25 MiB per bucket, and 1 MiB
# for the first. 16 bits gain more than any threshold. Their price: every sum is rounded to 8 significant bits, so it is no longer the
# training of one process. The largest number in float16 is 65,504; a bfloat16 has the range of float32, but in it, 256 + 1 is 256.
#
# </details>
#
# **Where does *your* step spend its time?** A **profiler** records what runs when. `record_function` names a range.

# %% tags=["nbval-ignore-output"]
# %%px --targets 0:2
from torch.profiler import ProfilerActivity, profile, record_function

with profile(activities=[ProfilerActivity.CPU]) as profiler:
    with record_function("compute"):
        compute(hooked)
    with record_function("wait"):
        wait()

if comm.rank == 0:
    for each in sorted(profiler.key_averages(), key=lambda event: -event.cpu_time_total):
        if each.key in ("compute", "wait", "aten::mm", "aten::addmm"):
            print(f"{each.key:12} {each.cpu_time_total / 1000:5.1f} ms in {each.count} calls")

# %% [markdown]
# Read it from the top. `compute` contains `aten::addmm`, the products of forward, and, the larger part, `aten::mm`, the products of backward. `wait` is two things: messages still on
# their way, and ranks still on theirs.
# `profiler.export_chrome_trace("trace.json")` writes a timeline that [Perfetto](https://ui.perfetto.dev) shows. On GPUs, look for an all-reduce that is long
# on most ranks and short on one.
#
# Broadcast, hooks, fusion and compression together are what **Horovod** made popular, over MPI and NCCL. It broadcasts the *optimizer*, too. Say rank 0
# alone reads a checkpoint after a restart, and line 1 sends its weights. **Predict:** are the replicas equal one step later,
# without that broadcast, and with it? (All ranks take the same images here, so there is nothing to sum.)

# %%
# %%px
from course_lib.parallel.data_parallel import broadcast_optimizer, replicas_agree


def restart(send_optimizer):
    """Two steps with a restart between them; whether all ranks hold the same weights afterwards."""
    model = network()
    broadcast_weights(comm, model)
    for step in range(2):
        if step == 0 or comm.rank > 0:  # a new optimizer, without momentum; rank 0 keeps its own
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        if step == 1 and send_optimizer:
            broadcast_optimizer(comm, optimizer)
        optimizer.zero_grad()
        share_of_loss(model(images[:500]), labels[:500], 500).backward()
        optimizer.step()
    return replicas_agree(comm, model)


alone, both = restart(False), restart(True)
if comm.rank == 0:
    print(f"replicas equal? Weights sent: {alone}. Optimizer sent, too: {both}.")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# Momentum is state, too. Without it, ranks 1 to 3 take another step than rank 0, from equal weights and with equal gradients. Nothing fails.
#
# </details>

# %% [markdown]
# A study of data parallelism over MPI (Jakovac and Pichler, below) names ten phases of such a program: 0 init, 1 broadcast, 2 shard, 3 forward, 4 backward,
# 5 average (ours adds, as line 3 has divided), 6 update, 7 barrier, 8 gather, 9 finalize. `course_lib` trains a whole epoch in these phases; 0 and 9 are the
# import of `mpi4py` and the end of the process. One epoch of the digits is twelve steps:

# %% tags=["source: course_lib.parallel.data_parallel:train_epoch"]
# %%px

# %%
# %%px
torch.manual_seed(0)
parts = ("train_images", "train_labels", "test_images", "test_labels")
data = Dataset("digits", True, *(digits[part] * (15 if "images" in part else 1) for part in parts))
model = nn.Sequential(nn.Flatten(), network()).float()  # `course_lib` trains in float32
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
epoch = train_epoch(comm, model, optimizer, data, batch_size=128, seed=0)
if comm.rank == 0:
    print(f"steps: {len(epoch.losses)}, ranks: {epoch.ranks}, {epoch.score.accuracy:.0%} right")

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
# A *synchronous* server waits for one gradient from every worker and updates once: the numbers of an all-reduce. With w workers, it
# receives w gradients and sends w copies of the weights in every step; in a ring all-reduce each rank sends less than two gradients, for any w
# (lesson 04). An *asynchronous* server updates as soon as any gradient arrives, so a straggler delays nobody. But the straggler's gradient is **stale**: since it
# fetched the weights, the others have moved them. **Staleness** counts those updates.
#
# First three equal workers train. In a second run, worker 3 takes 100 ms longer for each batch. **Vote:** the largest staleness of its gradients is (a) 2,
# one update by each of the others, (b) about 5, (c) more than 10.

# %%
# %%px --timeout 100
from course_lib.parallel.parameter_server import train_asynchronously
from course_lib.training.loop import Batch, summed_cross_entropy


def with_a_server(slow_worker):
    """Train with rank 0 as the server; on rank 0, how many updates had which staleness."""
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    count = 40 if slow_worker is None else 8 if comm.rank == slow_worker else 300

    def worker_batches():
        for batch in (batches * 5)[:count] if comm.rank > 0 else []:
            yield Batch(images[batch], labels[batch], len(batch))
            time.sleep(0.1 if comm.rank == slow_worker else 0)

    _, service = train_asynchronously(comm, model, summed_cross_entropy, optimizer, worker_batches())
    return service.histogram() if service else {}


alike, straggling = with_a_server(None), with_a_server(3)

# %% tags=["nbval-ignore-output"]
updates = []
for run in ("alike", "straggling"):
    for low, high in ((0, 1), (2, 4), (5, 20), (21, 1000)):
        count = sum(n for stale, n in cluster[0][run].items() if low <= stale <= high)
        words = f"{low} to {high}" if high < 1000 else "more"
        updates.append(
            {
                "labels": {"staleness": words, "workers": run},
                "value": count,
                "unit": "gradients",
                "kind": "counted",
            }
        )
print(f"largest staleness: {max(cluster[0]['alike'])} alike, {max(cluster[0]['straggling'])} straggling")
show(updates, x="staleness", y="number", by="workers")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# While worker 3 computes one gradient, the other two update dozens of times. So the two are nearly alone: mostly 0 to 1. Among w equal workers the staleness is w − 1 on average, here 2; a worker that
# is k times slower gives about k · (w − 1). A stale gradient belongs to weights that are gone, and no run can be
# repeated, because the order of arrival decides the numbers. Large networks are almost always trained synchronously today; servers live on where tables of
# embeddings are too large for one machine, as in recommenders.
#
# </details>

# %% tags=["exercise: 06.q3"]

# %% [markdown]
# ## References
#
# - M. Jakovac and E. Pichler, *MPI in Distributed Training*, 2025: the ten phases. The paper says that PyTorch's DDP starts one `Allreduce` per
#   parameter; DDP sends buckets, like Horovod.
# - P. Goyal and others, [Accurate, large minibatch SGD](https://arxiv.org/abs/1706.02677), 2017: large global batches, and which loss to divide by what.
# - A. Sergeev and M. Del Balso, [Horovod](https://arxiv.org/abs/1802.05799), 2018: tensor fusion over MPI and NCCL.
# - S. Li and others, [PyTorch Distributed](https://arxiv.org/abs/2006.15704), 2020: buckets that overlap with backward.
# - J. Dean and others, *Large scale distributed deep networks*, 2012: the asynchronous parameter server.
# - E. Alpaydin and C. Kaynak, [Optical Recognition of Handwritten Digits](https://doi.org/10.24432/C50P49), 1998 (CC BY 4.0): the digits.
