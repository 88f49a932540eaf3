# ---
# title: Data parallelism by hand
# goal: Train one network on several ranks with nothing but MPI, and find out what a rank waits for.
# able:
#   - turn a training loop for one process into one for any number of ranks
#   - divide the loss so that they train as one process does
#   - find the rank that the others wait for
# more:
#   - let messages travel while backward computes, and read a profiler's trace
#   - compare a parameter server with an all-reduce
# before: >-
#   {01}, {04}; a training loop in PyTorch. Helpful: {05}
# minutes: {core: 20, more: 25}
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
# ## 1 · Five new lines
#
# In **data parallelism** every rank holds a complete copy of the network, a **replica**, and computes a part of every batch, its **shard**.
# The cells marked `--save` are also a program: they fill `code/06_by_hand.py`.

# %%
# %%px --save 06_by_hand.py
"""Data parallelism by hand: every rank has the whole network and a part of every batch."""

from pathlib import Path

import numpy as np
import torch
from mpi4py import MPI
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(1)  # one core per rank
torch.set_default_dtype(torch.float64)  # rounding is then far below the effect of a mistake

comm = MPI.COMM_WORLD
digits = np.load(Path(__file__).with_name("data") / "digits.npz")  # 1,500 handwritten digits
images = torch.from_numpy(digits["train_images"] / 16).flatten(1)  # (1500, 64)
labels = torch.from_numpy(digits["train_labels"]).long()
draw = np.random.default_rng(0)  # the same on every rank, so that all know every batch
batches = [draw.choice(len(images), 128, replace=False) for _ in range(60)]

# %% [markdown] tags=["subslide"]
# Two functions hold all communication. The first runs once, at the start:

# %% tags=["source: course_lib.parallel.data_parallel:broadcast_weights"]
# %%px --save 06_by_hand.py

# %% [markdown]
# The second runs in every step. With `MPI.IN_PLACE`, `Allreduce` replaces each rank's array by the sum over all ranks. The
# array is the gradient's own memory.

# %% tags=["source: course_lib.parallel.data_parallel:sum_gradients"]
# %%px --save 06_by_hand.py

# %% [markdown] tags=["subslide"]
# Now the loop. The five numbered lines are new, compared with one process:


# %%
# %%px --save 06_by_hand.py
def network():
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def train(comm, batches, make=network, combine=sum_gradients):
    """Train a network on all ranks of `comm`; return it, and the loss of every batch."""
    torch.manual_seed(comm.rank)
    model, losses = make(), []
    broadcast_weights(comm, model)  # 1 replicas start equal
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for batch in batches:
        mine = np.array_split(batch, comm.size)[comm.rank]  # 2 this rank's shard
        optimizer.zero_grad()
        loss = share_of_loss(model(images[mine]), labels[mine], len(batch))  # 3 its share
        loss.backward()
        combine(comm, model)  # 4 add the gradients
        optimizer.step()
        losses.append(comm.allreduce(loss.item()))  # 5 add the losses, to print them
    return model, losses


# %% [markdown] tags=["subslide"]
# Line 3 needs a function: first, the loss as a program for one process has it. We train on one rank (`COMM_SELF` is a communicator of
# one) and on four, on the same batches. **Vote:** on four ranks, the network (a) learns as well, (b) learns more slowly, (c) does not learn.


# %% tags=["nbval-ignore-output"]
# %%px
def share_of_loss(outputs, targets, batch_size):
    return F.cross_entropy(outputs, targets)  # the mean over the images at hand


for team in (MPI.COMM_SELF, comm):
    _, losses = train(team, batches)
    if comm.rank == 0:
        print(f"ranks: {team.size}, loss {losses[0]:.2f} at first, {losses[-1]:.2f} at last")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# Four ranks do not learn. Their first loss says why: 9.32 is four times 2.33. Each rank took the *mean* over its shard, and lines 4 and 5
# *add* the means. Loss and gradient are four times too large, and so is every step. Nothing crashed: whoever tests on one GPU and trains on
# eight meets this mistake there.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 2 · Divide once

# %% tags=["exercise: 06.1"]

# %% [markdown] tags=["notes"]
# Eight minutes up to here, six for the exercise. The usual slip is to divide by `comm.size`, which is right only while shards are equal:
# ask what the mean runs over, ranks or images.

# %% [markdown] tags=["subslide"]
# The last part makes a program of the cells above:


# %%
# %%px --save 06_by_hand.py
def main():
    model, losses = train(comm, batches)
    outputs = model(torch.from_numpy(digits["test_images"] / 16).flatten(1))
    right = np.mean(outputs.argmax(1).numpy() == digits["test_labels"])
    if comm.rank == 0:
        print(f"ranks: {comm.size}, loss {losses[-1]:.6f}, {right:.1%} of new images right")


if __name__ == "__main__":
    main()

# %% [markdown]
# `mpiexec` starts it on as many ranks as you like, here or on a cluster. Three ranks have shards of 43, 43 and 42 images. **Predict:** which
# of the printed digits depend on the number of ranks?

# %%
# !mpiexec -n 1 python code/06_by_hand.py
# !mpiexec -n 3 python code/06_by_hand.py

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# None. The shares of all ranks add up to the mean over the batch, however it was cut. So each replica takes the step that one process
# would take, and the replicas stay equal: weights are sent only in line 1.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 3 · Which networks may be cut so?
#
# We train together for 20 steps, then every rank alone, and count the weights that differ by more than 10⁻⁹. First our network, then one
# with **batch norm**, which scales each feature by its mean and spread over the images at hand. **Predict** both counts.


# %%
# %%px
def with_batch_norm():
    return nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 10))


for make in (network, with_batch_norm):
    (together, _), (alone, _) = (train(team, batches[:20], make) for team in (comm, MPI.COMM_SELF))
    pairs = zip(together.parameters(), alone.parameters())
    differ = torch.cat([((a - b).abs() > 1e-9).flatten() for a, b in pairs])
    if comm.rank == 0:
        print(f"{make.__name__}: {differ.sum()} of {len(differ)} weights differ")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# With batch norm, all weights that the data ever move. Four ranks normalise over 32 images, one process over 128: what one image gives
# depends on the others in its shard. `SyncBatchNorm` normalises over all ranks. **Dropout** draws other masks on every rank: equal on
# average only.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 4 · Who waits?
#
# Rank 1 now sleeps for 20 ms in every step: it is a **straggler**. Each rank times its own `sum_gradients`.

# %%
predict("Which rank spends the least time in sum_gradients?", None)

# %%
# %%px
import time

waits = []


def sum_late(comm, model):
    if comm.rank == 1:
        time.sleep(0.02)  # late on purpose
    began = MPI.Wtime()
    sum_gradients(comm, model)
    waits.append(MPI.Wtime() - began)


train(comm, batches, combine=sum_late)
row = {"labels": {"rank": f"rank {comm.rank}"}, "value": np.median(waits)}

# %% [markdown]
# The smallest of the four medians, then all of them:

# %%
seconds = [row["value"] for row in cluster["row"]]
outcome("Which rank spends the least time in sum_gradients?", seconds.index(min(seconds)), word="rank")

# %% tags=["nbval-ignore-output"]
show(cluster["row"], x="rank", y="time per step in sum_gradients")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# The straggler. The others come early and wait for it inside the collective call. A profile of *their* ranks shows a slow all-reduce, and a
# faster network would change nothing.
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# | | with 64 GPUs |
# |---|---|
# | batch | 64 · 32 images make a batch of 2,048: choose the rate for it (lesson 05), or cut the old batch |
# | `Allreduce` | NCCL adds on the GPUs: rings inside a node, rings or trees across (lesson 04) |
# | messages | sent while backward computes (More), in buckets (lesson 07) |
# | straggler | the slowest of 64 decides |
# | batch norm | left as it is with 32 images per GPU, `SyncBatchNorm` with 2 |

# %% tags=["exercise: 06.q1", "subslide"]

# %% [markdown] tags=["slide"]
# ## Key points
#
# - Five lines: broadcast the weights; shard the batch; divide the sum of its losses by the *global* batch; add the gradients; add the losses.
# - Then any number of ranks trains as one process, where a network treats each sample alone.
# - Who waits in a collective is a victim. The straggler waits least.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# On eight ranks, your colleague's run is 3 percentage points less accurate than on one. What do you ask first? (a) Which network card,
# (b) which global batch and learning rate, (c) which seed.
#
# <details><summary>What to listen for</summary>(b): with both equal, and no batch norm, the runs do the same training up to rounding. Then
# (c): run several seeds. (a) changes the time.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# First a question about section 2.

# %% tags=["exercise: 06.q2"]

# %% [markdown]
# The loop of section 1 holds the ten phases that Jakovac and Pichler name. Three of them are not in sight: MPI starts when `mpi4py` is imported,
# and ends with the process.
#
# | phase | here | MPI call |
# |---|---|---|
# | 0 init | `from mpi4py import MPI` | `Init` |
# | 1 broadcast | line 1 | `Bcast` |
# | 2 shard | line 2 | – |
# | 3 forward, 4 backward | line 3 and the one below | – |
# | 5 average | line 4: a sum of shares | `Allreduce` |
# | 6 update | `optimizer.step()` | – |
# | 7 barrier | only where one measures | `Barrier` |
# | 8 gather | line 5 | `Gather`; here `allreduce` |
# | 9 finalize | the end of the process | `Finalize` |

# %% [markdown]
# ### When do messages cost no time?
#
# Between machines, messages take time. On `link` below, the messages of a step take as long as backward (*delayed on purpose*:
# `course_lib/effects.py` says how). Our loop sends when backward is done. But the gradient of the last layer is there when backward has
# hardly begun, and `Iallreduce` starts a sum and returns at once. Computing while messages travel is called **overlap**:

# %% tags=["source: course_lib.parallel.gradient_buckets:sum_when_ready"]
# %%px

# %% [markdown]
# **Predict** the two longer bars, in times of the first.

# %%
# %%px
from course_lib.effects import slow_messages
from course_lib.measure import measure, timed


def deep():
    middle = [layer for _ in range(4) for layer in (nn.Linear(256, 256), nn.ReLU())]
    return nn.Sequential(nn.Linear(64, 256), *middle, nn.Linear(256, 10))


def backward(model):
    model.zero_grad()
    share_of_loss(model(images[:500]), labels[:500], 500).backward()


plain, hooked = deep(), deep()
link = slow_messages(comm, timed(comm, lambda: backward(plain)) / 12)  # 12 messages per step
wait = sum_when_ready(link, hooked)

# %% [markdown]
# `measure` lets three kinds of steps take turns; the slowest rank counts.

# %%
# %%px
ways = {
    "backward": lambda: backward(plain),
    "backward, then messages": lambda: (backward(plain), sum_gradients(link, plain)),
    "overlap": lambda: (backward(hooked), wait()),
}
rows = measure(comm, ways)

# %% tags=["nbval-ignore-output"]
show(cluster["rows"], x="way", y="time of a step")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# One after the other takes twice as long as backward. With overlap, most of the messages' time disappears behind backward; the last gradient
# still has to travel. Two conditions: something other than your cores moves the bytes, and messages take no longer than backward. Here
# the link sleeps; on a cluster a network card works.
#
# </details>

# %% [markdown]
# **How many messages should a step send?** On the next link a message takes 20 ms, and its bytes travel at 0.1 Gbit/s besides. Many small
# messages pay the 20 ms often; one large message leaves late. The library's `GradientBuckets` puts gradients into **buckets** of at
# most so many bytes, the **fusion threshold**, and starts a bucket's sum when its last gradient is there. `wire_dtype` rounds the numbers
# to 16 bits on the way. **Predict:** which of the six is slowest, which is fastest?

# %%
# %%px --timeout 100
from course_lib.parallel.gradient_buckets import GradientBuckets

slow = slow_messages(comm, seconds=0.02, gbit_per_s=0.1)
bucket_rows, messages = [], {}
for limit in (2**14, 2**20, 2**24):
    for wire in (None, torch.bfloat16):
        model = deep()
        buckets = GradientBuckets(slow, model, bucket_bytes=limit, wire_dtype=wire)
        messages[limit, str(wire)] = len(buckets.buckets), buckets.nbytes
        step = {"16 bits" if wire else "64 bits": lambda: (backward(model), buckets.wait())}
        bucket_rows += measure(comm, step, repeat=4, threshold=f"{limit // 1024} KiB", by="numbers of")

# %%
for (limit, wire), (count, nbytes) in cluster["messages"][0].items():
    print(f"threshold {limit:>8}, {wire:>14}: {count:>2} messages, {nbytes:>7} bytes")

# %% tags=["nbval-ignore-output"]
show(cluster["bucket_rows"], x="threshold", y="time of a step", by="numbers of")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# Twelve messages of 64-bit numbers are slowest: 12 · 20 ms, and 180 ms for the bytes. Four buckets pay 80 ms for the same bytes, and three of
# them travel while backward computes. One bucket pays 20 ms, and leaves when backward is done. A quarter of the bytes takes 45 ms instead
# of 180. Which threshold wins depends on the link and on backward: try three. The price of 16 bits: all ranks receive the same rounded
# sum, so replicas agree, but no longer with one process. The largest float16 is 65,504; a bfloat16 has the range of float32 and only 8
# significant bits: in it, 256 + 1 is 256.
#
# </details>
#
# Broadcast, hooks, fusion and compression together are what **Horovod** made popular, over MPI. (Its last release does not compile against a
# current PyTorch.)
#
# Where does *your* step spend its time? A **profiler** records what runs when. We profile one step with overlap on rank 0. `record_function` names a range.

# %%
# %%px
from torch.profiler import ProfilerActivity, profile, record_function

with profile(activities=[ProfilerActivity.CPU]) as profiler:
    with record_function("backward and hooks"):
        backward(hooked)
    with record_function("wait for the last sums"):
        wait()

names = (
    "backward and hooks",
    "wait for the last sums",
    "aten::addmm",
    "aten::mm",
    "aten::threshold_backward",
)
profiled = [
    {"labels": {"what": event.key, "calls": event.count}, "value": event.cpu_time_total / 1e6}
    for event in profiler.key_averages()
    if event.key in names
]

# %% tags=["nbval-ignore-output"]
show(cluster["profiled"], x="what", y="time in a step, rank 0")

# %% [markdown]
# Ranges contain what runs inside them: the matrix products `mm` and `addmm` are a part of the first bar. What is left of it is small
# operations and hooks. `profiler.export_chrome_trace("trace.json")` writes a timeline that [Perfetto](https://ui.perfetto.dev) shows. A gap on the
# timeline of one rank is a wait: look at the other ranks' timelines at the same moment.

# %% tags=["exercise: 06.2"]

# %% [markdown]
# ### What if one rank kept the weights?
#
# Before all-reduces were common, one rank was a **parameter server**. It kept the weights; the others were its **workers**:
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
# A *synchronous* server waits for one gradient from every worker and updates once: the numbers of an all-reduce. Per step, it receives and
# sends w copies of the model, for w workers; in a ring all-reduce no rank sends more than two, however many there are (lesson 04). An
# *asynchronous* server updates as soon as any gradient arrives, so a straggler delays nobody. But its gradient is **stale**: others have moved the
# weights meanwhile. The **staleness** of a gradient is the number of their updates.
#
# Three workers train on 40 batches each. Worker 3 sleeps 50 ms after each batch.

# %%
predict("Largest staleness of a gradient?", None)

# %%
# %%px --timeout 100
from course_lib.parallel.parameter_server import train_asynchronously
from course_lib.training.loop import Batch, summed_cross_entropy


def with_a_server(slow_worker):
    """Train with rank 0 as the server; on rank 0, the staleness of every update by its worker."""
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def worker_batches():
        for batch in batches[:40] if comm.rank > 0 else []:
            yield Batch(images[batch], labels[batch], len(batch))
            time.sleep(0.05 if comm.rank == slow_worker else 0)

    _, service = train_asynchronously(comm, model, summed_cross_entropy, optimizer, worker_batches())
    return list(zip(service.order, service.staleness)) if service else []


alike, straggling = with_a_server(None), with_a_server(3)

# %% tags=["nbval-ignore-output"]
alike, straggling = cluster["alike"][0], cluster["straggling"][0]
outcome("Largest staleness of a gradient?", max(stale for _, stale in straggling), word="counted")
bars = []
for name, updates in {"workers alike": alike, "worker 3 sleeps": straggling}.items():
    for worker in (1, 2, 3):
        worst = max(stale for who, stale in updates if who == worker)
        bars.append(
            {"labels": {"worker": f"worker {worker}", "run": name}, "value": worst, "unit": "updates"}
        )
show(bars, x="worker", y="largest staleness", by="run")

# %% [markdown]
# While worker 3 sleeps, the other two go on updating, so its gradients belong to weights that no longer exist. And two asynchronous runs hardly ever
# give the same numbers, because these depend on who arrives first. That is why large models are trained synchronously today, with all-reduces.

# %% tags=["exercise: 06.q3"]

# %% [markdown]
# ## References
#
# - M. Jakovac and E. Pichler, *MPI in Distributed Training*, 2025: the ten phases. The paper says that PyTorch's DDP starts one `Allreduce` per
#   parameter; DDP sends buckets, like Horovod.
# - P. Goyal and others, [Accurate, large minibatch SGD](https://arxiv.org/abs/1706.02677), 2017: large global batches, and which loss to divide by what.
# - A. Sergeev and M. Del Balso, [Horovod](https://arxiv.org/abs/1802.05799), 2018: tensor fusion and compression over MPI.
# - S. Li and others, [PyTorch Distributed](https://arxiv.org/abs/2006.15704), 2020: buckets that overlap with backward.
# - J. Dean and others, *Large scale distributed deep networks*, 2012: the asynchronous parameter server.
# - E. Alpaydin and C. Kaynak, [Optical Recognition of Handwritten Digits](https://doi.org/10.24432/C50P49), 1998 (CC BY 4.0): the digits.
