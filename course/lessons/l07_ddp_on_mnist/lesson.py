# ---
# title: DDP on MNIST
# goal: Train one network on four ranks with PyTorch's DDP.
# able:
#   - turn the loop of one process into a DDP loop
#   - say what DDP does and what it leaves to you
# more:
#   - find out why training is less accurate on more ranks
#   - compare measured with published results
#   - find what a step waits for
# before: >-
#   {06}
# minutes: {core: 20, more: 22}
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
# PyTorch's data parallelism is **DistributedDataParallel** (**DDP**). Its ranks first form a **process group**, PyTorch's communicator.
# The group's **backend** moves the bytes; ours is Gloo.
#
# To form a group, a process needs its rank, the number of ranks, and an address where rank 0 listens. PyTorch's launcher `torchrun` puts these into the environment. Under
# `mpiexec`, the second cell does. You need not read it closely.

# %%
# %%px --save 07_ddp.py
"""DDP: trains a network on data/digits.npz, which lies beside this file, and saves it as 07_ddp.pt.

    mpiexec -n 4 python code/07_ddp.py
    torchrun --standalone --nproc-per-node 4 code/07_ddp.py
    sbatch -n 8 --wrap "mpiexec python code/07_ddp.py"

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

torch.set_num_threads(1)  # one thread per rank

# %%
# %%px --save 07_ddp.py
if "RANK" not in os.environ:  # not torchrun
    from mpi4py import MPI

    comm, host = MPI.COMM_WORLD, socket.gethostname()
    with socket.create_server(("", 0)) as free:  # 0: any port that nobody uses
        address, port = comm.bcast((host, free.getsockname()[1]))
    os.environ |= {"RANK": str(comm.rank), "WORLD_SIZE": str(comm.size), "MASTER_PORT": str(port)}
    os.environ["MASTER_ADDR"] = "localhost" if address == host else address
if not dist.is_initialized():
    dist.init_process_group("gloo")
    atexit.register(dist.destroy_process_group)
rank, size = dist.get_rank(), dist.get_world_size()

# %% [markdown] tags=["slide"]
# ## 2 · Wrap the model
#
# Each rank draws a model with one weight and wraps it.

# %%
# %%px
torch.manual_seed(rank)
line = nn.Linear(1, 1, bias=False)
before = line.weight.item()
replica = DistributedDataParallel(line)
print(f"rank {rank}: weight {before:+.3f} before, {line.weight.item():+.3f} after")

# %% [markdown]
# Now all ranks have the weight of rank 0. Ranks 0 to 3 get the inputs 4, 40, 400 and 4000. The output is weight
# times input, so a rank's own gradient is its input.

# %%
predict("Gradient on rank 2 after backward?", None)

# %%
# %%px
replica.zero_grad()  # in case you run this cell again
replica(torch.full_like(line.weight, 4 * 10.0**rank)).backward()
gradient = line.weight.grad.item()

# %%
outcome("Gradient on rank 2 after backward?", cluster["gradient"][2], because="It is 4444 / 4.")

# %% [markdown]
# DDP all-reduces gradients inside `backward`, and it **averages** them. With equally many images per rank, this is the gradient of the global batch's mean loss.

# %% [markdown] tags=["slide"]
# ## 3 · A shard for each rank
#
# DDP never looks at the images. A **DistributedSampler** lists each rank's shard. **Vote:** four ranks share ten images. They get
# (a) 3, 3, 2 and 2, (b) 3 each, two images twice, (c) 2 each, two left out.

# %%
# %%px
sampler = DistributedSampler(range(10), shuffle=True)
for epoch in (0, 1):
    sampler.set_epoch(epoch)
    print(f"rank {rank}, epoch {epoch}: {list(sampler)}")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (b), by default. So all ranks take equally many steps. They must, since every all-reduce needs all ranks.
#
# All ranks shuffle with one seed, and `set_epoch` adds the epoch to it. Without this call, the order never changes.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 4 · Train
#
# Digits and network come from lesson 06.

# %%
# %%px --save 07_ddp.py
torch.set_default_dtype(torch.float64)  # no mistake can hide behind rounding; slow on GPUs

digits = np.load(Path(__file__).with_name("data") / "digits.npz")  # __file__: what the cell is saved to
images = torch.from_numpy(digits["train_images"] / 16)
labels = torch.from_numpy(digits["train_labels"]).long()
new_images = torch.from_numpy(digits["test_images"] / 16)
new_labels = torch.from_numpy(digits["test_labels"]).long()


def network():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


# %% tags=["exercise: 07.1"]

# %% [markdown] tags=["notes"]
# Five minutes up to here, six for the exercise. The usual slip is the third place: batch_size=120 on each rank runs and
# learns, with a global batch of 480.

# %% [markdown] tags=["subslide"]
# All ranks end with the same weights, so rank 0 alone tests and saves. It calls `model`: the replica's forward may wait for other ranks (section 5).


# %%
# %%px --save 07_ddp.py
def main(batch_size=120):
    torch.manual_seed(rank)
    model = network()
    train(model, TensorDataset(images, labels), batch_size, epochs=5)
    if rank == 0:
        with torch.no_grad():
            outputs = model.eval()(new_images)
        loss = F.cross_entropy(outputs, new_labels)
        right = (outputs.argmax(1) == new_labels).double().mean()
        print(f"ranks: {size}, images per step: {batch_size}, loss {loss:.6f}, {right:.1%} right")
        torch.save(model.state_dict(), Path(__file__).with_suffix(".pt"))


if __name__ == "__main__":
    main(int(os.environ.get("IMAGES", 120)))

# %% [markdown] tags=["slide"]
# ## 5 · Is it the same network?
#
# **Batch norm** rescales each pixel by its mean and spread in *this rank's* batch, here 30 images. For tests, it keeps running means. These **buffers** get no gradient.
# **Vote:** after an epoch, a pixel's running mean is (a) the same on all ranks, (b) different on each, (c) on rank 0 only.

# %%
# %%px
model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10))
train(model, TensorDataset(images, labels), 120, epochs=1)
print(f"pixel 20: running mean {model[1].running_mean[20]:.6f}, weight {model[2].weight[0, 20]:.6f}")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (b), but only since the last step. Before each forward, DDP copies rank 0's buffers to all ranks. Then each rank updates them from its own shard. So rank 0 saves means that never
# saw the other shards. On GPUs, `nn.SyncBatchNorm.convert_sync_batchnorm(model)` uses all shards.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 6 · Do ranks cost accuracy?
#
# Jakovac and Pichler (2025) trained a CNN on MNIST. One rank got 99.1 % right, eight got 98.7 %.
#
# Our ranks together take 120 images per step. **Vote:** on more ranks, is our loss (a) higher, (b) lower, (c) the same?

# %%
# !mpiexec -n 1 python code/07_ddp.py
# !mpiexec -n 3 python code/07_ddp.py
# !torchrun --standalone --nproc-per-node 2 code/07_ddp.py

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (c). Together they take the same 120 images, so the average gradient is the same. (With batch norm, it would not be. And 8 ranks cannot share 1,500 images equally.)
#
# </details>
#
# Perhaps each of *their* ranks took a full batch. Let each of ours take 120.

# %%
# %%px
main(batch_size=120 * size)

# %% [markdown]
# Now we lose accuracy, too. Who is guilty: four ranks, or 480 images? **Change one number** to find out.

# %%
RANKS, IMAGES = 4, 480
# !IMAGES={IMAGES} mpiexec -n {RANKS} python code/07_ddp.py

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# With `RANKS = 1`, the loss is 1.714463 again, so the ranks are innocent. Five epochs are 65 steps of 120 images, but only 20 steps of 480: too few at this learning rate. A common first try is four times the rate, with a warm-up.
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# | | with 64 GPUs |
# |---|---|
# | start | `torchrun --nnodes 8 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29400 FILE`, on each machine |
# | backend | `"nccl"`; first `torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))`, all tensors on that GPU |

# %% [markdown] tags=["slide"]
# ## Key points
#
# - DDP broadcasts weights when it wraps a model, and averages gradients in `backward`.
# - Your job: shards, `set_epoch`, learning rate, batch norm, testing, saving.
# - When you compare numbers of ranks, keep the global batch.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# You have eight GPUs for one night. (a) They share one GPU's batch: an epoch is twice as fast. (b) Each takes such a batch: an epoch is seven times as fast. Which do you choose?
#
# <details><summary>What to listen for</summary>The time to equal accuracy counts. (b) loses if it needs more than 3.5 times as many epochs.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# ### Which mistakes raise no error?

# %% tags=["exercise: 07.q6"]

# %% tags=["exercise: 07.q1"]

# %% tags=["exercise: 07.q4"]

# %% tags=["exercise: 07.2"]

# %% [markdown]
# ### What does a step send?
#
# We cut a batch that is too large for memory into four micro-batches. Each rank adds up their gradients, then takes one step. Inside `with replica.no_sync()`, forward and backward add
# to the rank's own gradients, and DDP sends nothing. **Vote:** which micro-batches belong inside `no_sync`: (a) all four, (b) all but the last, (c) all but the first?
#
# **Predict:** the gradients of one micro-batch take 76,880 bytes. Without `no_sync`, how many bytes does each rank pass to all-reduces per step?
#
# A **communication hook** counts these bytes. DDP calls the hook in place of its own all-reduce, once per **bucket** (gradients that are sent together).

# %%
# %%px
from contextlib import nullcontext

from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

BATCH = np.arange(480).reshape(4, size, -1)  # four micro-batches, each with a shard per rank
SILENT = {"none": (), "(a)": (0, 1, 2, 3), "(b)": (0, 1, 2), "(c)": (1, 2, 3)}


def count(sent, bucket):
    sent.append(bucket.buffer().nbytes)
    return allreduce_hook(None, bucket)  # what DDP does by itself


def accumulate(silent):
    """Add up the micro-batches' gradients; the bytes sent, and the norm of the last layer's gradient."""
    torch.manual_seed(0)
    replica, sent = DistributedDataParallel(network()), []
    replica.register_comm_hook(sent, count)
    for part, shards in enumerate(BATCH):
        mine = shards[rank]
        with replica.no_sync() if part in silent else nullcontext():
            loss = F.cross_entropy(replica(images[mine]), labels[mine])
            (loss / len(BATCH)).backward()
    return sum(sent), replica.module[-1].weight.grad.norm()


# %%
# %%px
for name, silent in SILENT.items():
    nbytes, norm = accumulate(silent)
    if rank < 2:
        print(f"{name:4} {nbytes:6} bytes, norm of the last gradient {norm:.6f}")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (b). The line `none` is the run without `no_sync`. It passes on 4 × 76,880 = 307,520 bytes, because every `backward` all-reduces. (b) passes on a quarter of that. Its gradient is
# the same, because the last `backward` all-reduces what all four have added up.
#
# In (a) nothing is averaged, and in (c) only the first micro-batch. So the ranks hold different gradients, and the replicas drift apart. Nothing raises an error.
#
# </details>
#
# **And what does a step wait for?** Rank 1 sleeps 200 ms before its step. A **profiler** records when three things run: forward, the computing of backward, and the
# all-reduces (`sum`). **Predict:** in which of rank 0's three lines do the 200 ms appear?

# %%
# %%px
import time

from torch.profiler import ProfilerActivity, profile

SPANS = {"forward": "DistributedDataParallel.forward", "backward": "autograd::", "sum": "gloo:all_reduce"}
middle = [layer for _ in range(2) for layer in (nn.Linear(256, 256), nn.ReLU())]
layers = nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), *middle, nn.Linear(256, 10)
replica = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=0.25)  # several buckets


def step():
    F.cross_entropy(replica(images[:100]), labels[:100]).backward()


for _ in range(2):
    step()  # DDP arranges its buckets in the first
with profile(activities=[ProfilerActivity.CPU]) as profiler:
    time.sleep(0.2 * (rank == 1))
    step()

# %% tags=["nbval-ignore-output"]
# %%px
zero = min(event.time_range.start for event in profiler.events())
report = ""
for name, prefix in SPANS.items():
    found = [event.time_range for event in profiler.events() if event.name.startswith(prefix)]
    began, ended = min(one.start for one in found) - zero, max(one.end for one in found) - zero
    report += f"{name:8} {began / 1000:5.1f} to {ended / 1000:5.1f} ms\n"
if rank == 0:
    print(report)

# %% [markdown]
# A colleague sees these lines, and orders faster links. Would they help? **Vote:** on rank 1, the sums take (a) longer than on rank 0, (b) as long,
# (c) far less.

# %% tags=["nbval-ignore-output"]
print(cluster["report"][1])

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (c). On rank 0 the sums take some 200 ms, because they cannot end before rank 1 joins. Rank 1 arrives last, and waits for nobody. The difference is **waiting**. Faster links
# would not shorten it, but a punctual rank 1 would. The trace of rank 0 alone does not show that.
# (The trace of rank 1 has its 0 after the sleep. So compare durations, not moments.)
#
# Look also at when the sums *begin*: before backward ends. DDP sends the first bucket while backward still computes the next gradients.
# `profiler.export_chrome_trace("trace.json")` saves the trace, and [Perfetto](https://ui.perfetto.dev) draws it.
#
# </details>

# %% tags=["exercise: 07.q2"]

# %% [markdown]
# ### What did the study measure?
#
# Jakovac and Pichler compared three programs on a laptop with eight cores: one process, their own loop over MPI, and DDP over Gloo. We repeated the study on two cores, with
# real MNIST, models as large as theirs, a global batch of 128, five epochs and three seeds.
#
# **Does accuracy fall with the ranks?** We trained the CNN by two rules, both at the same learning rate. The first rule keeps the global batch of 128, on up to four ranks. The second gives
# each rank 128 images, on up to eight ranks. The figure shows *errors*: the mean of three seeds, with the best and the worst. **Predict:** which of our two lines is flat?
# Do the published points follow the flat line?

# %%
from statistics import fmean

from course.lessons.l07_ddp_on_mnist.study_published import TABLE
from course.lessons.l07_ddp_on_mnist.study_results import load
from course.lessons.l07_ddp_on_mnist.study_tables import finals, timings

study = load()
RULES = {"global": "same global batch", "local": "128 per rank"}


def wrong(accuracies, ranks, batch, kind="measured"):
    """A row: per cent of the test images that are read wrong, over several seeds."""
    errors = [100 * (1 - one) for one in accuracies]
    ends = {"value": fmean(errors), "low": min(errors), "high": max(errors)}
    return {"labels": {"ranks": ranks, "batch": batch}, "unit": "%", "kind": kind, **ends}


# %% tags=["nbval-ignore-output"]
ours = [one for one in finals(study.rows) if one.model == "cnn" and one.rate_rule == "fixed"]
alone = next(one for one in ours if one.ranks == 1)
errors = [wrong(one.accuracies, one.ranks, RULES[one.batch_rule]) for one in ours]
errors += [wrong(alone.accuracies, 1, RULES["local"])]  # on one rank, both rules are the same
theirs = [one for one in TABLE if one.accuracy and one.engine != "ddp-gloo"]
errors += [wrong([one.accuracy], one.ranks, "Jakovac & Pichler", "published") for one in theirs]
show(errors, x="ranks", y="test images read wrong", by="batch")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# With the same global batch, four ranks make as many errors as one. With 128 images per rank, the errors rise. The published points rise, too: by 0.4 points at eight ranks. (Their DDP has the same error there as their ranks by hand.)
# A larger global batch would explain the rise. The number of ranks alone does not: it leaves our first line flat.
#
# </details>
#
# **Do ranks beat threads?** On the authors' eight cores they did. Eight threads had a speed-up of 2.2, eight ranks over MPI 3.4, and eight ranks of DDP over Gloo 3.9.
# **Vote:** on our two cores, are two ranks (a) faster than two threads, (b) as fast, (c) slower?

# %% tags=["nbval-ignore-output"]
WAYS = {"sequential": "threads", "mpi": "ranks, by hand", "ddp-gloo": "DDP over Gloo"}
gains = [
    {"labels": {"two threads or ranks": WAYS[one.engine]}, "value": one.speedup, "unit": "times"}
    for one in timings(study.rows)
    if (one.model, one.label, one.ranks * one.threads) == ("cnn", "measured", 2) and one.engine in WAYS
]
show(gains, x="two threads or ranks", y="speed-up of the CNN")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (c): here two *threads* are faster. So ranks do not always beat threads. Threads split each operation: 128 images are enough work for two threads, but may be
# too little for eight. Ranks split the batch, and must communicate.
#
# The site's page *The study* has all models and learning curves. `.venv/bin/course study --quick` measures a small study on *your* machine.
#
# </details>

# %% tags=["exercise: 07.q5"]

# %% [markdown]
# ### Where to go from here
#
# `code/train_mnist_ddp.py` is the long form of your program, with real MNIST, checkpoints that survive a failure, GPUs and `spawn`. Lesson 14 starts it on several machines.
# [PyTorch's distributed package on one page](../docs/torch-distributed.md) has what is not in this lesson: other ways for processes to meet, messages and groups, and
# other backends.
#
# ## References
#
# - S. Li and others, [PyTorch Distributed](https://arxiv.org/abs/2006.15704), 2020: how DDP works, and why.
# - M. Jakovac and E. Pichler, *MPI in Distributed Training*, 2025: the study behind the published figures.
# - P. Goyal and others, [Accurate, large minibatch SGD](https://arxiv.org/abs/1706.02677), 2017: larger batches with a warm-up.
# - PyTorch, [DistributedDataParallel](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html)
#   and [DistributedSampler](https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler).
