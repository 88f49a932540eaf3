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
# Four ranks share the work on a batch. In **data parallelism**, each has a complete copy of the network, a **replica**, and its own part of
# every batch, a **shard**.
#
# ```
#                  ┌ rank 0: 32 images → replica → gradient ┐
#                  ├ rank 1: 32 images → replica → gradient ┤   added up,      the same step
#  128 images  →   ├ rank 2: 32 images → replica → gradient ┤ → on all ranks → on every replica
#                  └ rank 3: 32 images → replica → gradient ┘
# ```
#
# Cells marked `--save` also fill a program, `code/06_by_hand.py`; `__file__` is its path. The images are handwritten digits, 8 × 8 pixels.

# %%
# %%px --save 06_by_hand.py
"""Data parallelism by hand: trains a network on data/digits.npz, which lies beside this file."""

from pathlib import Path

import numpy as np
import torch
from mpi4py import MPI
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(1)  # one thread per rank
torch.set_default_dtype(torch.float64)  # no mistake can hide behind rounding

comm = MPI.COMM_WORLD
digits = np.load(Path(__file__).with_name("data") / "digits.npz")
images, new_images = (
    torch.from_numpy(digits[f"{part}_images"] / 16).flatten(1) for part in ("train", "test")
)
labels, new_labels = (torch.from_numpy(digits[f"{part}_labels"]).long() for part in ("train", "test"))
draw = np.random.default_rng(0)  # the same on every rank, so all ranks know every batch
batches = [draw.choice(len(images), 128, replace=False) for _ in range(60)]

# %% [markdown] tags=["subslide"]
# The first function copies rank 0's network to all ranks. `Bcast` does it. The lines around it matter only for tensors with an unusual
# memory layout.

# %% tags=["source: course_lib.parallel.data_parallel:broadcast_weights"]
# %%px --save 06_by_hand.py

# %% [markdown]
# The second adds up gradients. `Allreduce` with `MPI.IN_PLACE` overwrites an array on every rank with the sum over all ranks:

# %% tags=["source: course_lib.parallel.data_parallel:sum_gradients"]
# %%px --save 06_by_hand.py

# %% [markdown] tags=["subslide"]
# Now the training loop. You know it from one process; the five numbered lines are different.


# %%
# %%px --save 06_by_hand.py
def network():
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def train(comm, batches, make=network):
    """Train a network on all ranks of `comm`; return it, and the loss of every batch."""
    torch.manual_seed(comm.rank)  # each rank draws weights of its own …
    model, losses = make(), []
    broadcast_weights(comm, model)  # 1 … and all get rank 0's
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for batch in batches:
        mine = np.array_split(batch, comm.size)[comm.rank]  # 2 this rank's shard
        optimizer.zero_grad()
        loss = share_of_loss(model(images[mine]), labels[mine], len(batch))  # 3 its share
        loss.backward()
        sum_gradients(comm, model)  # 4 the gradients of all ranks, added
        optimizer.step()
        losses.append(comm.allreduce(loss.item()))  # 5 the losses of all ranks, added
    return model, losses


def accuracy(model):
    """The part of the new images that the network reads correctly."""
    return (model(new_images).argmax(1) == new_labels).double().mean().item()


# %% [markdown] tags=["subslide"]
# Line 3 calls a function that we still have to write. Let us try the mean loss, as in any program for one process. Each rank trains alone
# (`COMM_SELF` is a communicator of one rank), then all four train together. **Vote** first: together they (a) learn as well as one, (b)
# learn more slowly, (c) learn nothing.


# %% tags=["nbval-ignore-output"]
# %%px
def share_of_loss(outputs, targets, batch_size):
    return F.cross_entropy(outputs, targets)  # the mean over the images at hand


for team in (MPI.COMM_SELF, comm):
    model, losses = train(team, batches)
    if comm.rank == 0:
        print(f"ranks: {team.size}, first loss {losses[0]:.2f}, {accuracy(model):.1%} of new images right")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# Together they guess: chance gets one in ten right. The first loss shows why: 9.32 is four times 2.33. Each rank took the *mean* over its shard,
# and lines 4 and 5 *add* four means. So the gradient is four times too large, and a learning rate of 1 acts like 4. No error, no warning:
# a program that adds means passes every test on one GPU, and fails on eight.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 2 · Repair line 3

# %% tags=["exercise: 06.1"]

# %% [markdown] tags=["notes"]
# Eight minutes up to here, six for the exercise. The usual slip is to divide by `comm.size`, which is right only while shards are equal:
# ask what the mean runs over, ranks or images.

# %% [markdown] tags=["subslide"]
# One more cell makes a program of all this:


# %%
# %%px --save 06_by_hand.py
def main():
    model, losses = train(comm, batches)
    if comm.rank == 0:
        print(f"ranks: {comm.size}, last loss {losses[-1]:.6f}, {accuracy(model):.1%} of new images right")


if __name__ == "__main__":
    main()

# %% [markdown]
# Start it as you would on a cluster. Three ranks cannot share 128 images evenly: they get 43, 43 and 42. **Predict:** how many digits of the
# last loss will they share with one rank?

# %%
# !mpiexec -n 1 python code/06_by_hand.py
# !mpiexec -n 3 python code/06_by_hand.py

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# All. Each rank adds the losses of *its* images and divides by the size of the *whole* batch: the shares add up to the mean, however the
# batch was cut. Every replica takes the step that one process would take, with a third of the computing. (Lesson 07 measures the time.)
#
# </details>

# %% [markdown] tags=["slide"]
# ## 3 · A network that looks around
#
# In training, **batch norm** normalises each feature by its mean and spread over the images at hand. **Predict:** is the loss still the same on one rank and on four?


# %%
# %%px
def with_batch_norm():
    return nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 10))


for team in (MPI.COMM_SELF, comm):
    _, losses = train(team, batches, with_batch_norm)
    if comm.rank == 0:
        print(f"ranks: {team.size}, last loss {losses[-1]:.4f}")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# No. What this network says about an image depends on the others in its shard: 127 others on one rank, 31 on four. No division repairs that.
# PyTorch's `SyncBatchNorm` computes mean and spread over all ranks. **Dropout** switches off random units, others on each rank, so the trainings
# agree on average only.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 4 · Who is late?
#
# One rank, drawn at random, now comes 20 ms late to every sum: a **straggler**. Each rank measures its own time in `sum_gradients`.

# %%
# %%px
import time

late = comm.bcast(np.random.default_rng().integers(comm.size))  # rank 0 draws
model, _ = train(comm, batches[:1])
seconds = []
for _ in range(20):
    if comm.rank == late:
        time.sleep(0.02)
    began = MPI.Wtime()
    sum_gradients(comm, model)
    seconds.append(MPI.Wtime() - began)

row = {"labels": {"rank": f"rank {comm.rank}"}, "value": np.median(seconds)}

# %% tags=["nbval-ignore-output"]
show(cluster["row"], x="rank", y="time in sum_gradients")

# %% [markdown]
# Accuse one: write its number in place of `None`.

# %%
predict("Which rank is late?", None)

# %% tags=["nbval-ignore-output"]
outcome("Which rank is late?", cluster["late"][0], word="it was rank")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# ```
# on time   in sum_gradients, waiting for the straggler ░░░░░░░░░░ sum
# late      asleep ··············································· sum
# ```
#
# The one with the *shortest* bar. It arrives last, finds everybody there, and is done at once. The others look as if their communication were
# slow; a faster network would not help.
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# | | with 64 GPUs |
# |---|---|
# | batch | 64 GPUs with 32 images each make a batch of 2,048. The learning rate that suited 128 will not suit it (lesson 05) |
# | sum | NCCL adds on the GPUs, in rings or trees (lesson 04), while backward computes (More) |
# | straggler | in every step, the slowest of 64 sets the pace |
# | batch norm | usually kept with 32 images per GPU; with 2, `SyncBatchNorm` |

# %% tags=["exercise: 06.q1", "subslide"]

# %% [markdown] tags=["slide"]
# ## Key points
#
# - Divide the *sum* of a shard's losses by the *whole* batch, and add the gradients. Then one rank or a hundred do the same training, as long as
#   the network treats each image by itself, without chance. (A library that *averages* over ranks wants means: lesson 07.)
# - Who waits in an all-reduce is a victim. If the same rank always waits least, it is the straggler.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# On eight ranks, a colleague's run is 3 percentage points less accurate. What do you ask first? (a) Which network card? (b) Which batch
# and learning rate? (c) Which seed?
#
# <details><summary>What to listen for</summary>(b) first: eight ranks that each take the old batch make a batch eight times as large. Then
# ask for batch norm, dropout and several seeds: (c). (a) changes the time.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# First a question about section 4.

# %% tags=["exercise: 06.q2"]

# %% [markdown]
# ### When do messages cost no time?
#
# Between machines, messages take time. On `link` below, the messages of a step take two thirds as long as computing does: about as long as
# backward (*delayed on purpose*; `course_lib/effects.py` is one page and says how). Our loop sends when backward is done. But the gradient of the
# last layer is there when backward has hardly begun, and `Iallreduce` starts a sum and returns at once. To compute while messages travel
# is called **overlap**:

# %% tags=["source: course_lib.parallel.gradient_buckets:sum_when_ready"]
# %%px

# %% [markdown]
# We need a network whose backward takes a while. **Predict:** how long do the second and the third step take, if the first takes 1?

# %%
# %%px
from course_lib.effects import slow_messages
from course_lib.measure import measure, timed


def deep():
    middle = [layer for _ in range(4) for layer in (nn.Linear(256, 256), nn.ReLU())]
    return nn.Sequential(nn.Linear(64, 256), *middle, nn.Linear(256, 10))


def compute(model):
    """Forward and backward."""
    model.zero_grad()
    share_of_loss(model(images[:500]), labels[:500], 500).backward()


plain, hooked = deep(), deep()
link = slow_messages(comm, timed(comm, lambda: compute(plain)) * 2 / 3 / 12)  # 12 messages per step
wait = sum_when_ready(link, hooked)

# %% [markdown]
# `measure` lets the three kinds of steps take turns; the slowest rank counts.

# %%
# %%px
ways = {
    "compute": lambda: compute(plain),
    "compute, then send": lambda: (compute(plain), sum_gradients(link, plain)),
    "overlap": lambda: (compute(hooked), wait()),
}
rows = measure(comm, ways)

# %% tags=["nbval-ignore-output"]
show(cluster["rows"], x="way", y="time of a step")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# One after the other takes the sum of both times, about 1.7. With overlap the messages travel while backward computes, and the step comes nearer to 1. At
# best only the messages of the first layer remain, whose gradients come last; four ranks on two cores stay above that. That works only if messages
# move while you compute. With NCCL the GPU moves them; with plain MPI they often move only inside MPI calls; our slow link is a timer. If they take longer
# than backward, a part of them stays visible.
#
# </details>

# %% [markdown]
# **How many messages should a step send?** On the next link, every message costs a quarter of a forward and backward pass, and all bytes of a
# step together cost a whole one. Many small messages pay often; one large message leaves late, when backward is done. The library's `GradientBuckets` puts gradients into **buckets** of at
# most so many bytes, the **fusion threshold** (a larger gradient has a bucket of its own), and starts a bucket's sum when its last gradient is there. `wire_dtype` rounds the numbers
# to 16 bits on the way. **Predict** the slowest and the fastest of the six.

# %%
# %%px --timeout 100
from course_lib.parallel.gradient_buckets import GradientBuckets

once = timed(comm, lambda: compute(plain))
nbytes = sum(parameter.nbytes for parameter in plain.parameters())
slow = slow_messages(comm, seconds=once / 4, gbit_per_s=8e-9 * nbytes / once)
bucket_rows, sent = [], []
for limit in (2**14, 2**20, 2**24):
    for wire in (None, torch.bfloat16):
        model = deep()
        buckets = GradientBuckets(slow, model, bucket_bytes=limit, wire_dtype=wire)
        bits = "16 bits" if wire else "64 bits"
        counts = f"{len(buckets.buckets)} messages, {buckets.nbytes} bytes"
        sent.append(f"{limit // 1024} KiB, {bits}: {counts}")
        step = {bits: lambda: (compute(model), buckets.wait())}
        bucket_rows += measure(comm, step, repeat=4, threshold=f"{limit // 1024} KiB", by="numbers of")

# %%
print(*cluster["sent"][0], sep="\n")

# %% tags=["nbval-ignore-output"]
show(cluster["bucket_rows"], x="threshold", y="time of a step", by="numbers of")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# Twelve messages of 64-bit numbers are slowest: they cost twelve quarters, and a whole for the bytes. One bucket of 16-bit numbers costs a quarter, and a
# quarter for the bytes. Four buckets come next: they cost more, but the first three travel while backward computes. Where a message costs
# little and bytes cost much, they win. So try three thresholds on *your* link, with *your* network. The price of 16 bits: every addition is rounded, and more ranks round more often. All ranks receive the same rounded sum, so the
# replicas stay equal, but it is no longer the training of one process. The largest float16 is 65,504; a bfloat16 has the range of float32 and only 8
# significant bits: in it, 256 + 1 is 256.
#
# </details>
#
# Broadcast, hooks, fusion and compression together are what **Horovod** made popular, over MPI. (Its last release does not compile against a
# current PyTorch.) Horovod broadcasts the *optimizer*, too. Why? After a restart all ranks have the same
# weights, but only rank 0 has read the momentum from a file. **Predict** whether the replicas are equal after the next step, without
# `broadcast_optimizer` and with it. (All ranks take the same images here, so there is nothing to sum.)

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
    print(f"after a broadcast of the weights: {alone}; of the optimizer, too: {both}")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# Momentum is state, too. Without it, ranks 1 to 3 take another step than rank 0, from equal weights and with equal gradients. Nothing fails.
#
# </details>
#
# Where does *your* step spend its time? A **profiler** records what runs when. All ranks profile one step with overlap; we look at rank 0. `record_function` names a
# range.

# %%
# %%px
from torch.profiler import ProfilerActivity, profile, record_function

with profile(activities=[ProfilerActivity.CPU]) as profiler:
    with record_function("compute and hooks"):
        compute(hooked)
    with record_function("wait"):
        wait()

names = ("compute and hooks", "wait", "aten::addmm", "aten::mm")
profiled = [
    {"labels": {"what": event.key}, "value": event.cpu_time_total / 1e6}
    for event in profiler.key_averages()
    if event.key in names
]

# %% tags=["nbval-ignore-output"]
show(cluster["profiled"], x="what", y="time in a step, rank 0")

# %% [markdown]
# Ranges contain what runs inside them: the matrix products (`addmm` forward, `mm` backward) are a part of "compute and hooks". "wait" is what
# overlap did not hide, and the time until the last rank has come. (Profiling takes time itself.) `profiler.export_chrome_trace("trace.json")` writes a timeline that
# [Perfetto](https://ui.perfetto.dev) shows. On GPUs, look for an all-reduce that is long on most ranks and short on one: what did that one do before?

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
# A *synchronous* server waits for one gradient from every worker and updates once: the numbers of an all-reduce. With n workers, it
# receives n gradients and sends n copies of the weights in every step; in a ring all-reduce each rank sends less than two gradients, for any n
# (lesson 04). An
# *asynchronous* server updates as soon as any gradient arrives, so a straggler delays nobody. But its gradient is **stale**: others have moved the
# weights meanwhile. The **staleness** of a gradient is the number of their updates.
#
# First three equal workers train. In a second run, worker 3 takes 100 ms longer for each batch; the others need a few milliseconds. **Vote:** the largest
# staleness of its gradients is (a) 2, one update by each of the others, (b) about 5, (c) more than 10.

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
alike, straggling = cluster["alike"][0], cluster["straggling"][0]
updates = [
    {"labels": {"staleness": stale, "run": run}, "value": count, "unit": "updates", "kind": "counted"}
    for run, histogram in {"workers alike": alike, "worker 3 sleeps": straggling}.items()
    for stale, count in histogram.items()
    if count
]
print(f"largest staleness: {max(alike)} among equal workers, {max(straggling)} with a slow one")
show(updates, x="staleness", y="gradients", by="run")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# While worker 3 computes one gradient, the other two update dozens of times. Among w equal workers the staleness is about w − 1, here 2; a worker that
# is k times slower gives about k · (w − 1). A stale gradient belongs to weights that are gone and may point the wrong way, and no run can be
# repeated, because the order of arrival decides the numbers. Large networks are trained synchronously today; servers live on where tables of
# embeddings are too large for one machine, as in recommenders.
#
# </details>

# %% tags=["exercise: 06.q3"]

# %% [markdown]
# A study of data parallelism over MPI (Jakovac and Pichler, below) names ten phases: 0 init, 1 broadcast, 2 shard, 3 forward, 4 backward, 5 average, 6 update, 7 barrier,
# 8 gather, 9 finalize. `course_lib` trains a whole epoch so; 0 and 9 are the import of `mpi4py` and the end of the process.

# %% tags=["source: course_lib.parallel.data_parallel:train_epoch"]
# %%px

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
