# ---
# title: DDP on MNIST
# goal: Train one network on four ranks with PyTorch's DDP, and find out what DDP leaves to you.
# able:
#   - turn the loop of one process into a DDP loop that mpiexec or torchrun starts
#   - say what DDP does and what it leaves to you
#   - find out why a training is less accurate on more ranks
# more:
#   - read measured, replayed and published speed-ups side by side
#   - find in a profiler's trace what a step waits for
# before: >-
#   {06}
# minutes: {core: 20, more: 26}
# ranks: 4
# warm-up:
#   - ask: In data parallelism, what do the ranks send in every step?
#     answer: Their gradients. Weights are sent once; images never.
#   - ask: Four ranks train on 64 images each per step. How large is the global batch?
#     answer: >-
#       256: what all ranks together train on in one step.
#   - ask: Every rank draws its own first weights, and nobody broadcasts. What goes wrong?
#     answer: >-
#       The weights start different, and every rank adds the same update, so they stay different. Nothing raises
#       an error.
# ---

# %% [markdown] tags=["slide"]
# ## 1 · A process group
#
# PyTorch's data parallelism is **DistributedDataParallel** (**DDP**). First the processes form a **process group**: each
# needs its rank, their number, and rank 0's address and port. `torchrun`, PyTorch's launcher, puts these four into the environment;
# under `mpiexec` we ask MPI:

# %%
# %%px --save 07_ddp.py
"""DDP: trains a network on data/digits.npz, which lies beside this file, and saves it as 07_ddp.pt.

Start it with one of these:

    mpiexec -n 4 python code/07_ddp.py
    torchrun --standalone --nproc-per-node 4 code/07_ddp.py
    sbatch -n 8 --wrap "mpiexec python code/07_ddp.py"             under Slurm

IMAGES=480 in the environment: images per step, of all ranks together.
"""

import atexit
import os
import socket
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


# %%
# %%px --save 07_ddp.py
def join():
    """Make all processes one process group, whichever launcher started them."""
    if "RANK" not in os.environ:  # not torchrun
        from mpi4py import MPI

        comm, free = MPI.COMM_WORLD, socket.create_server(("", 0))  # 0: a port that nobody uses
        hosts = comm.allgather(socket.gethostname())
        port = comm.bcast(free.getsockname()[1])
        free.close()
        os.environ |= {"RANK": str(comm.rank), "WORLD_SIZE": str(comm.size), "MASTER_PORT": str(port)}
        os.environ["MASTER_ADDR"] = hosts[0] if len(set(hosts)) > 1 else "localhost"
    dist.init_process_group("gloo")
    atexit.register(dist.destroy_process_group)


if not dist.is_initialized():
    join()
rank, size = dist.get_rank(), dist.get_world_size()

# %% [markdown]
# The **backend** moves the bytes: here Gloo, for CPUs.

# %% [markdown] tags=["slide"]
# ## 2 · Wrap the model
#
# Take the smallest model: a single weight. Every rank draws its own, then wraps it.

# %%
# %%px
torch.manual_seed(rank)
line = nn.Linear(1, 1, bias=False)
before = line.weight.item()
replica = DistributedDataParallel(line)
print(f"rank {rank}: weight {before:+.3f} before, {line.weight.item():+.3f} after")

# %% [markdown]
# Wrapping gives every rank the weight of rank 0. Ranks 0 to 3 get inputs 4, 40, 400 and 4000. The output is weight times
# input, so each rank's own gradient is its input. Which gradient does rank 2 hold after `backward`?

# %%
predict("Gradient on rank 2 after backward?", None)

# %%
# %%px
line.weight.grad = None  # in case you run this cell again
replica(torch.tensor([[4 * 10.0**rank]])).backward()
gradient = line.weight.grad.item()

# %%
outcome("Gradient on rank 2 after backward?", cluster["gradient"][2], because="It is 4444 / 4.")

# %% [markdown]
# So `backward` all-reduces, and DDP **averages**: the mean of four means over 30 images each is the mean over all 120.

# %% [markdown] tags=["slide"]
# ## 3 · A shard for each rank
#
# DDP never looks at the images. A **DistributedSampler** gives each rank its shard. Ten images, four ranks, two epochs: which come
# twice in an epoch, and why?

# %%
# %%px
sampler = DistributedSampler(range(10), shuffle=True)
for epoch in (0, 1):
    sampler.set_epoch(epoch)
    print(f"rank {rank}, epoch {epoch}: {list(sampler)}")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# All ranks shuffle with one seed, made from the epoch: one order, no message. Rank r takes every fourth image, from place r on. Four does
# not divide ten, so the order's first two come again; otherwise some ranks could have a batch more, and wait in its all-reduce. Without `set_epoch`,
# all epochs have one order.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 4 · Train
#
# Digits and network are lesson 06's; MNIST comes in More. A **DataLoader** makes batches of what its sampler lists.

# %%
# %%px --save 07_ddp.py
torch.set_num_threads(1)  # one thread per rank
torch.set_default_dtype(torch.float64)  # no mistake can hide behind rounding

digits = np.load(Path(__file__).with_name("data") / "digits.npz")
images, new_images = (torch.from_numpy(digits[f"{part}_images"] / 16) for part in ("train", "test"))
labels, new_labels = (torch.from_numpy(digits[f"{part}_labels"]).long() for part in ("train", "test"))


def network():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


# %% tags=["exercise: 07.1"]

# %% [markdown] tags=["notes"]
# Five minutes up to here, six for the exercise. The usual slip is the third place: batch_size=120 on each rank runs and
# learns, with a global batch of 480.

# %% [markdown] tags=["subslide"]
# All ranks end with the same weights, so one tests and saves. It calls `model`: the wrapper might wait for the other ranks.


# %%
# %%px --save 07_ddp.py
def main(batch_size=120):
    torch.manual_seed(rank)
    model = network()
    train(model, TensorDataset(images, labels), batch_size, epochs=5)
    if rank == 0:
        outputs = model(new_images)
        loss = F.cross_entropy(outputs, new_labels)
        right = (outputs.argmax(1) == new_labels).double().mean()
        print(f"ranks: {size}, images per step: {batch_size}, loss {loss:.6f}, {right:.1%} right")
        torch.save(model.state_dict(), Path(__file__).with_suffix(".pt"))


if __name__ == "__main__":
    main(int(os.environ.get("IMAGES", 120)))

# %% [markdown] tags=["slide"]
# ## 5 · Is it the same network?
#
# Batch norm also has **buffers**: averages of what it saw in training. **Vote:** after an epoch, a running mean is (a) the same on all
# ranks, (b) different on each, (c) on rank 0 only.

# %%
# %%px
model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10))
train(model, TensorDataset(images, labels), 120, epochs=1)
print(f"running mean {model[1].running_mean[20]:.6f}, weight {model[2].weight[0, 20]:.6f}")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# (b). DDP copies rank 0's buffers to all before each training forward pass; each then sees its own shard. So rank 0 saves what a quarter of the
# images left. With few per rank, wrap `nn.SyncBatchNorm.convert_sync_batchnorm(model)`: one mean over all ranks (on GPUs only).
#
# </details>

# %% [markdown] tags=["slide"]
# ## 6 · Four small batches, one step
#
# Is a batch too large for memory? Each rank adds up four micro-batches' gradients before the step. Inside `no_sync`, DDP sends
# nothing. **Vote:** it belongs around (a) all four, (b) all but the last, (c) all but the first. And without it, how many bytes
# go into all-reduces, if all gradients have 76,880? A **communication hook** counts: DDP calls it with each **bucket** (gradients sent together), instead of all-reducing.

# %%
# %%px
from contextlib import nullcontext

from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook


def count(sent, bucket):
    sent.append(bucket.buffer().nbytes)
    return allreduce_hook(None, bucket)  # what DDP does by itself


for name, silent in {"none": (), "(a)": (0, 1, 2, 3), "(b)": (0, 1, 2), "(c)": (1, 2, 3)}.items():
    torch.manual_seed(0)
    replica, sent = DistributedDataParallel(network()), []
    replica.register_comm_hook(sent, count)
    for part, mine in enumerate(np.arange(480).reshape(4, size, -1)[:, rank]):
        with replica.no_sync() if part in silent else nullcontext():
            (F.cross_entropy(replica(images[mine]), labels[mine]) / 4).backward()
    gradient = replica.module[-1].weight.grad.norm()
    print(f"{name:4} {sum(sent):6} bytes, length of a gradient: {gradient:.6f}")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# Without it, 4 × 76,880: every `backward` all-reduces. (b) sends a quarter, for the same gradient. In (a) and (c) ranks hold different
# gradients: replicas drift apart, and nothing raises an error.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 7 · Do ranks cost accuracy?
#
# Jakovac and Pichler (2025) trained a CNN on MNIST for five epochs: 99.1 % right on one rank, 98.88 % on four, 98.7 % on eight.
# Accuracy falls with the ranks, they conclude. **Vote:** is it the ranks? Our program takes 120 images per step, all ranks together:

# %%
# !mpiexec -n 1 python code/07_ddp.py
# !mpiexec -n 3 python code/07_ddp.py
# !torchrun --standalone --nproc-per-node 2 code/07_ddp.py

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# No: the same images in every step, the same averages. (Float32 or dropout: nearly. Batch norm: less so.)
#
# </details>
#
# Perhaps each rank took 128 images; the authors do not say. Let each of ours take 120. **Predict** the per cent.

# %%
# %%px
main(batch_size=120 * size)

# %% [markdown]
# Was it the ranks, or the 480? One process decides:

# %%
# !IMAGES=480 mpiexec -n 1 python code/07_ddp.py

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# The same loss, without a message. Five epochs are 65 steps of 120 images, but 20 of 480: too few at this rate, on any number of ranks.
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# | | with 64 GPUs |
# |---|---|
# | start | `torchrun --nnodes 8 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29400 FILE`, on each machine |
# | backend | `"nccl"`, after `torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))`; model and images there |
# | sums | buckets travel while backward computes: `no_sync` saves only the time this cannot hide |
# | batch | 7,680 images want another rate, reached slowly (warm-up); test on all GPUs |

# %% tags=["exercise: 07.q3", "subslide"]

# %% [markdown] tags=["slide"]
# ## Key points
#
# - DDP broadcasts weights when it wraps, and averages gradients in every `backward`.
# - Yours are shards, `set_epoch`, rate, `no_sync`, batch norm, testing, saving.
# - Compare numbers of ranks at one global batch.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# Eight GPUs for one night: (a) the old batch, epochs twice as fast; (b) eight times the batch, epochs seven times as fast; (c) first an
# hour for each?
#
# <details><summary>What to listen for</summary>Time to equal accuracy counts. (b) loses beyond 3.5 times as many epochs. With its
# own rate and a warm-up it often wins. (c) finds out.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# First two questions about section 3.

# %% tags=["exercise: 07.q1"]

# %% tags=["exercise: 07.q4"]

# %% [markdown]
# ### What did the study measure?
#
# Jakovac and Pichler compared one process, their own loop over MPI, and DDP over Gloo, on a laptop with eight cores. We repeated the
# study: real MNIST, a global batch of 128, three seeds, two cores. Their two ways to train, phase by phase:
#
# | phase | over MPI | with DDP |
# |---|---|---|
# | 0 init | `Init`, `Comm_rank`, `Comm_size` | `init_process_group` |
# | 1 equal weights | `Bcast` | `DistributedDataParallel(model)` |
# | 2 shard | slices, by rank and size | `DistributedSampler` |
# | 3 forward | – | – |
# | 4 backward | – | – |
# | 5 average | `Allreduce` | inside `backward`, in buckets (they write: one all-reduce per parameter) |
# | 6 update | – | – |
# | 7 barrier | `Barrier` | not needed: the update waits for the sums |
# | 8 metrics | `Gather` | left to you: often rank 0 alone |
# | 9 finalize | `Finalize` | `destroy_process_group` |
#
# They trained three models, for which they give 235k, 422k and 82k parameters:

# %%
from course_lib.training.models import MNIST_MODELS, build, parameter_count

for model in MNIST_MODELS:
    print(f"{model.upper():4} {parameter_count(build(model, seed=0)):7} parameters")

# %% [markdown]
# **Does accuracy fall with the ranks?** They say so. Section 7 suggests that the batch decides. Here are three models after five epochs, with the same
# global batch on any number of ranks, and with 128 images on each. We draw what is read *wrong*, the mean of three seeds with the best and the worst. Before you
# run the cell: which lines are flat?

# %%
from statistics import fmean

from course.lessons.l07_ddp_on_mnist.study_published import SOURCE, TABLE
from course.lessons.l07_ddp_on_mnist.study_results import load
from course.lessons.l07_ddp_on_mnist.study_tables import curves, finals, timings

study, published = load(), {"source": "Jakovac & Pichler 2025"}


def wrong(accuracies, labels, kind="measured"):
    """A row: per cent of the test images that are read wrong, over several seeds."""
    errors = [100 * (1 - one) for one in accuracies]
    ends = {"value": fmean(errors), "low": min(errors), "high": max(errors)}
    return {"labels": labels, "unit": "%", "kind": kind, **ends}


# %% tags=["nbval-ignore-output"]
rules = {"global": "same global batch", "local": "128 per rank"}
errors = [
    wrong(one.accuracies, {"ranks": one.ranks, "what": f"{one.model.upper()}, {rules[one.batch_rule]}"})
    for one in finals(study.rows)
    if one.rate_rule == "fixed"
]
errors += [
    wrong([one.accuracy], {"ranks": one.ranks, "what": "CNN", **published}, "published")
    for one in TABLE
    if one.accuracy and one.engine != "ddp-gloo"
]
show(errors, x="ranks", y="test images read wrong", by="what")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# The lines of the same global batch are flat: four ranks err as often as one. (On one rank both rules are the same, so the others begin at two.) With 128 images per rank, all three models err more often with every doubling; the
# LSTM most, from 1.4 to 4.9 % on eight ranks. The published points rise, too. A larger global batch would do that; a message would not. (The authors do not say which batch it
# was.) A learning rate that grows with the ranks wins most of it back here: see the site's page *The study*.
#
# </details>
#
# **How does a training look against the clock?** An epoch's time is the median of the timed runs; errors are means of three seeds.

# %% tags=["nbval-ignore-output"]
seconds = {
    (one.model, one.engine, one.ranks): one.epoch_seconds
    for one in timings(study.rows)
    if one.threads == 1 and one.label != "replayed"
}
learning = [
    wrong([accuracy], {"seconds": epoch * seconds[key], "way": f"{one.model.upper()}, {one.name}"})
    for model in MNIST_MODELS
    for one in curves(study.rows, model=model)
    if one.ranks < 4 and (key := (model, one.engine, one.ranks)) in seconds
    for epoch, accuracy in enumerate(one.accuracies, 1)
]
show(learning, x="seconds", y="test images read wrong", by="way")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# Two ranks go through nearly the same errors as one process, only at other times: the CNN and the LSTM in less than 0.6 of the time. The MLP is *slower* on two ranks. One
# step of it takes 2.5 ms: halving the computing saves less than the messages cost.
#
# </details>
#
# **Epoch time against errors after five epochs**, with the published points beside ours:

# %% tags=["nbval-ignore-output"]
ends = [
    wrong(one.ends, {"seconds": seconds[model, one.engine, one.ranks], "model": model.upper()})
    for model in MNIST_MODELS
    for one in curves(study.rows, model=model)
]
ends += [
    wrong([one.accuracy], {"seconds": one.epoch_seconds, "model": "CNN", **published}, "published")
    for one in TABLE
    if one.accuracy and one.epoch_seconds
]
show(ends, x="seconds", y="test images read wrong", by="model")

# %% [markdown]
# Each of our lines joins one, two and four ranks (four share two cores); all are level, so ranks cost no accuracy. The published points are one
# rank, at 65 s, and eight, at 17 s (Gloo) and 19 s (MPI): faster, and less accurate. Their seconds are of another machine: compare slopes, not places.
#
# **Do ranks beat threads?** On their eight cores, eight ranks had a speed-up of 3.9 (Gloo) and 3.4 (MPI), eight threads only 2.2, all for the CNN (they name no model for the ranks; the times fit the CNN). We
# have two cores. What eight ranks would do is *replayed*, that is, calculated: for every step we draw eight of the step times that we measured (all wait for the
# slowest of the eight). For DDP we add 469 all-reduces per epoch, one a step, in a ring over Gloo or MPI; their time follows from what 4 B and 4 MiB took between two ranks. Nothing overlaps.

# %%
import json

from course.paths import ROOT

recorded = json.loads((ROOT / "benchmarks" / "results" / "torch_mpi.json").read_text())
sums = {row["case"]: row for row in recorded if row["ranks"] == 2}
sides = {"ddp-gloo": "peer", "ddp-mpi4py": "ours"}  # in that file
ways = {"sequential": "threads", "mpi": "ranks, by hand"}
ways |= {"ddp-gloo": "DDP, Gloo", "ddp-mpi4py": "DDP, MPI"}


def ring(engine, n, nbytes):
    """Seconds of a ring all-reduce: 2(n - 1) messages, together 2(n - 1)/n times the bytes."""
    small, large = (1e-6 * sums[f"all_reduce, {size}"][sides[engine]] for size in ("4 B", "4 MiB"))
    return (n - 1) * small + 2 * (n - 1) / n * nbytes * (large - small) / 2**22


def gain(model, engine, workers, speedup, kind, **more):
    labels = {"model, ranks or threads": f"{model.upper()}, {workers}", "way": ways[engine], **more}
    return {"labels": labels, "value": speedup, "unit": "times", "kind": kind}


# %% tags=["nbval-ignore-output"]
gains = []
for one in timings(study.rows):
    alone = seconds[one.model, "sequential", 1]
    if one.label == "measured" and one.ranks * one.threads == 2:
        gains.append(gain(one.model, one.engine, 2, one.speedup, "measured"))
    if one.label == "replayed" and one.ranks == 8:
        gains.append(gain(one.model, "mpi", 8, one.speedup, "replayed"))
        nbytes = 4 * parameter_count(build(one.model, seed=0))
        for engine in sides:
            epoch = (one.compute + one.wait) * one.epoch_seconds + 469 * ring(engine, 8, nbytes)
            gains.append(gain(one.model, engine, 8, alone / epoch, "replayed"))
first = {one.model: one.epoch_seconds for one in TABLE if one.ranks * one.threads == 1}
gains += [
    gain(
        one.model,
        one.engine,
        8,
        one.speedup or first[one.model] / one.epoch_seconds,
        "published",
        **published,
    )
    for one in TABLE
    if one.epoch_seconds and one.ranks * one.threads == 8
]
show(gains, x="model, ranks or threads", y="speed-up over one thread", by="way")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# On two cores, two *threads* beat two ranks, for every model. So "ranks beat threads" is no law. Threads split each operator: two of them share the work well; eight may find too little
# in a step of 128 images, as the published 2.2 suggests. Ranks split the batch and pay for messages. The replay is mostly too fast: it leaves out that eight cores share
# memory bandwidth, and DDP's own work. Held against the measurement on two ranks, the same calculation is 9 % too fast for the CNN over Gloo, and 2.2 times too fast for the MLP. It is no bound, as overlap is left out, too: over Gloo, the published 3.9 lies above our 3.17. And read nothing into small differences: the messages by
# hand and those of DDP over MPI were measured on different days.
#
# </details>

# %% tags=["exercise: 07.q5"]

# %% [markdown]
# Ranks × threads, where the time of an epoch goes, and every seed are on the site's page *The study*. `.venv/bin/course study --quick` measures a small one on
# *your* machine in some minutes.
#
# Accuracy can be lost silently in other ways, too:

# %% tags=["exercise: 07.2"]

# %% [markdown]
# ### What does a step wait for?
#
# A step is slow, and you may look at one rank's trace. Let us make one. Rank 1 is late on purpose: it sleeps 200 ms before its step. The network has several buckets, so several all-reduces.

# %%
# %%px
import time

from torch.profiler import ProfilerActivity, profile

mine = slice(100 * rank, 100 * rank + 100)


def wrap(**options):
    """A network with eight tensors, in buckets of about 250 kB, and a step of it."""
    torch.manual_seed(0)
    middle = [layer for _ in range(2) for layer in (nn.Linear(256, 256), nn.ReLU())]
    layers = nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), *middle, nn.Linear(256, 10)
    replica = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=0.25, **options)
    return replica, lambda: F.cross_entropy(replica(images[mine]), labels[mine]).backward()


def trace(step):
    """What the profiler saw in one step."""
    for _ in range(2):
        step()  # DDP arranges its buckets in the first
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        time.sleep(0.2 * (rank == 1))
        step()
    return profiler.events()


# %% tags=["nbval-ignore-output"]
# %%px
_, step = wrap()
events = trace(step)
spans = {"forward": "DistributedDataParallel.forward", "backward": "autograd::", "sum": "gloo:all_reduce"}
zero = min(event.time_range.start for event in events)
for name, prefix in spans.items():
    found = [event.time_range for event in events if event.name.startswith(prefix)]
    began, ended = (
        (min(one.start for one in found) - zero) / 1e3,
        (max(one.end for one in found) - zero) / 1e3,
    )
    if rank < 2:
        print(f"rank {rank}: {name:8} {began:5.1f} to {ended:5.1f} ms")

# %% [markdown]
# Read rank 0's lines alone. **Vote:** what would shorten its step? (a) faster links between ranks, (b) fewer bytes, (c) another look, at rank 1.
#
# <details><summary>Open after you have voted</summary>
#
# (c). Rank 0's sums take some 200 ms; rank 1, which comes last, is done far sooner. The bytes need no more than rank 1's time, and the rest is **waiting** for rank 1. One rank's trace cannot say
# them apart. And look when the sums *begin*: before backward ends. That is overlap: the first bucket travels while backward computes the next gradients. (A clock of its own
# starts each rank's trace at 0: compare lengths between ranks, not moments.)
#
# </details>

# %% tags=["exercise: 07.q2"]

# %% [markdown]
# `profiler.export_chrome_trace("trace.json")` writes the timeline for [Perfetto](https://ui.perfetto.dev). There you would find something else: copies. DDP copies each gradient into its
# bucket, and the average back. With `gradient_as_bucket_view=True` a gradient *is* a piece of its bucket. **Predict** how many copies of our eight gradients that saves per step, and how many bytes of
# memory; then whether the result changes.


# %%
# %%px
def held(*tensors):
    """The bytes of memory of tensors, by address: what they share is there once."""
    return {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in tensors}


def look(memory, bucket):
    memory |= held(bucket.buffer())
    return allreduce_hook(None, bucket)


COPIES = ("torch::distributed::reducer::mul_out", "torch.distributed.ddp.reducer::copy_bucket_to_grad")
for view in (False, True):
    replica, step = wrap(gradient_as_bucket_view=view)
    copies, memory = sum(event.name in COPIES for event in trace(step)), {}
    replica.register_comm_hook(memory, look)
    step()
    gradients = [one.grad for one in replica.parameters()]
    nbytes, norm = sum((memory | held(*gradients)).values()), sum(one.norm() for one in gradients)
    if rank == 0:
        print(f"view {view}: {copies} copies, {nbytes} bytes, gradients {norm:.6f}")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# All 16 copies, eight in and eight back, and half of the memory: a network of a billion float32 parameters saves 4 GB per GPU. The numbers stay. The price: a gradient has no memory of
# its own any more, and `detach_()` on it raises an error.
#
# </details>
#
# ### Where to go from here
#
# `code/train_mnist_ddp.py` is the long form of your program: real MNIST, checkpoints that survive a failure, GPUs, `spawn`. Lesson 14 starts it on several machines.
# [PyTorch's distributed package on one page](../docs/torch-distributed.md) has what is not in this lesson: four ways to meet, messages and groups, other
# backends, `DataParallel`, the synthetic benchmark, and mistakes that we found in published scripts.
#
# ## References
#
# - S. Li and others, [PyTorch Distributed](https://arxiv.org/abs/2006.15704), 2020: how DDP works, and why.
# - M. Jakovac and E. Pichler, *MPI in Distributed Training*, 2025: the study whose figures are called published.
# - P. Goyal and others, [Accurate, large minibatch SGD](https://arxiv.org/abs/1706.02677), 2017: larger batches with a warm-up.
# - PyTorch, [DistributedDataParallel](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html)
#   and [DistributedSampler](https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler).
