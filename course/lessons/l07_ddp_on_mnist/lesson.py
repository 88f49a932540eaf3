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
# minutes: {core: 20, more: 17}
# ranks: 4
# warm-up:
#   - ask: In data parallelism, what do the ranks send in every step?
#     answer: Their gradients. The weights are sent only once, before the first step.
#   - ask: Four ranks train on 64 images each per step. How large is the global batch?
#     answer: >-
#       256, the images of all ranks together.
#   - ask: Every rank draws its own first weights, and nobody broadcasts rank 0's. What goes wrong?
#     answer: >-
#       The replicas start with different weights. Every rank then adds the same update, so they
#       stay different. Nothing raises an error.
# ---

# %% [markdown] tags=["slide"]
# ## 1 · A process group
#
# Five lines made lesson 06's loop data-parallel:
#
# ```
# 1  broadcast_weights(team, model)                 all ranks begin with rank 0's weights
# 2  np.array_split(batch, team.size)[team.rank]    this rank's shard of the batch
# 3  share_of_loss(outputs, targets, batch_size)    the sum over its shard ÷ the size of the whole batch
# 4  sum_gradients(team, model)                     the gradients of all ranks are added
# 5  team.allreduce(loss.item())                    their losses are added, too
# ```
#
# PyTorch's **DistributedDataParallel** (**DDP**) does some of these. Which are still yours?
#
# DDP needs a **process group**, PyTorch's communicator. Skim the second cell, which makes one (`torchrun` is PyTorch's launcher).

# %%
# %%px --save 07_ddp.py
"""DDP: trains a network on data/digits.npz, and saves it as 07_ddp.pt.

    mpiexec -n 4 python code/07_ddp.py
    torchrun --standalone --nproc-per-node 4 code/07_ddp.py
    Slurm: sbatch -n 4 --wrap "mpiexec python code/07_ddp.py"

Environment: IMAGES (the global batch), LR, EPOCHS.
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

torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)  # no mistake can hide behind rounding

# %%
# %%px --save 07_ddp.py
if "RANK" not in os.environ:  # not torchrun
    from mpi4py import MPI

    comm, host = MPI.COMM_WORLD, socket.gethostname()
    with socket.create_server(("", 0)) as free:  # 0: any free port
        address, port = comm.bcast((host, free.getsockname()[1]))
    os.environ |= {"RANK": str(comm.rank), "WORLD_SIZE": str(comm.size), "MASTER_PORT": str(port)}
    os.environ["MASTER_ADDR"] = "localhost" if address == host else address
    os.environ["LOCAL_RANK"] = str(comm.Split_type(MPI.COMM_TYPE_SHARED).rank)  # on this machine
if not dist.is_initialized():
    dist.init_process_group("gloo")
    atexit.register(dist.destroy_process_group)
rank, size = dist.get_rank(), dist.get_world_size()

# %% [markdown] tags=["slide"]
# ## 2 · Wrap the model
#
# Each rank draws a model of one weight, and wraps it in DDP. What happens to the weight?

# %%
# %%px
torch.manual_seed(rank)
line = nn.Linear(1, 1, bias=False)
before = line.weight.item()
replica = DistributedDataParallel(line)
print(f"rank {rank}: weight {before:+.3f} before, {line.weight.item():+.3f} after")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# Every rank now has rank 0's weight: DDP does line 1.
#
# </details>
#
# Does DDP also do line 4, the sum of the gradients? The output is weight times input, so a rank's own gradient is its input: 4, 40, 400 or 4000.

# %%
predict("Gradient on rank 2 after backward?", None)

# %%
# %%px
replica.zero_grad()  # for a second run
replica(torch.tensor([[4 * 10.0**rank]])).backward()
gradient = line.weight.grad.item()

# %%
outcome("Gradient on rank 2 after backward?", cluster["gradient"][2], because="(4 + 40 + 400 + 4000) / 4")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# DDP **averages** the gradients, with all-reduces inside `backward` (in large models, while `backward` still computes).
#
# Lesson 06 *added* them. So line 3 must take the mean over the shard. With equal shards, without batch norm, the average is the whole batch's gradient.
#
# </details>
#
# A colleague calls `line`, the model inside, not `replica`. **Vote:** (a) also 1111, (b) four different gradients, (c) an error.

# %%
# %%px
line.zero_grad()
line(torch.tensor([[4 * 10.0**rank]])).backward()
print(f"rank {rank}: {line.weight.grad.item():.0f}")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (b), without an error: the replica's `forward` prepares the all-reduce.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 3 · A shard for each rank
#
# DDP leaves line 2 to you: without a sampler, each rank reads all images. A **DistributedSampler** lists the indices of this rank's images.
#
# **Vote:** of ten images, do four ranks get (a) 3, 3, 2 and 2, (b) 3 each, two images twice, (c) 2 each, two left out? (Remember: every step all-reduces.)

# %%
# %%px
sampler = DistributedSampler(range(10), shuffle=True)
for epoch in (0, 1):
    sampler.set_epoch(epoch)
    print(f"rank {rank}, epoch {epoch}: {list(sampler)}")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (b) is the default, and `drop_last=True` gives (c). With (a) and one image per step, only ranks 0 and 1 would start a third all-reduce, and wait.
#
# All ranks shuffle with one seed. Each takes every fourth image:
#
# ```
# order of epoch 0   4 1 7 5   3 9 0 8   6 2 4 1   (4 and 1 again)
# rank 0             4         3         6
# rank 1               1         9         2
# ```
#
# `set_epoch` adds the epoch to the seed. Delete the call and run again: the epochs are equal.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 4 · Train
#
# DDP does lines 1 and 4. Lines 2 and 3 are yours.
#
# We train lesson 06's network on its 1,500 digits.

# %%
# %%px --save 07_ddp.py
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
# All ranks end with equal weights (batch norm's averages differ: see More). So only rank 0 saves and tests. (The others wait, with NCCL at most ten minutes by default: shard a long test.)


# %%
# %%px --save 07_ddp.py
def main(batch_size, lr, epochs):
    assert batch_size % size == 0, f"{size} ranks cannot share {batch_size} images equally"
    torch.manual_seed(rank)  # as in section 2
    model = network()
    train(model, TensorDataset(images, labels), batch_size, epochs, lr)
    if rank == 0:
        outputs = model.eval()(new_images).detach()  # a replica's forward may wait for all ranks
        loss = F.cross_entropy(outputs, new_labels)
        right = (outputs.argmax(1) == new_labels).double().mean()
        print(f"ranks: {size}, images per step: {batch_size}, loss {loss:.6f}, {right:.1%} right")
        torch.save(model.state_dict(), Path(__file__).with_suffix(".pt"))


if __name__ == "__main__":
    get = os.environ.get
    main(int(get("IMAGES", 120)), float(get("LR", 0.05)), int(get("EPOCHS", 5)))
    dist.barrier()  # no rank leaves while others still exchange

# %% [markdown] tags=["slide"]
# ## 5 · Do ranks cost accuracy?
#
# Four ranks reached a loss of 0.467652. **Predict:** which of one, three and eight ranks repeat all six decimals?

# %%
# !mpiexec -n 1 python code/07_ddp.py
# !mpiexec -n 3 python code/07_ddp.py
# !torchrun --standalone --nproc-per-node 8 code/07_ddp.py

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# One and three: each step averages over the same images as on four. Eight cannot share 1,500 equally, so the sampler repeats four images. (Batch norm, dropout or float32 makes runs differ.)
#
# </details>
#
# Many programs set the batch *per rank*. With 120 each, four ranks have a *global* batch of 480.
#
# **Vote:** after five epochs, is the loss (a) still about 0.47, (b) up to twice that, (c) more?

# %%
# %%px
main(480, lr=0.05, epochs=5)

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (c). Each gradient is *more* exact, but there are fewer steps:
#
# ```
# 1,500 images in batches of 120:  5 epochs × 13 steps = 65 steps
# 1,500 images in batches of 480:  5 epochs ×  4 steps = 20 steps
# ```
#
# </details>
#
# For SGD and moderate batches, the **linear scaling rule** (lesson 05) says: four times the batch, four times the rate, after a warm-up. **Contest:** in three runs per batch size, find the rate
# with the lowest loss.

# %%
# %%px
main(480, lr=0.2, epochs=5)
main(120, lr=0.2, epochs=5)

# %% [markdown]
# <details><summary>Open after your runs</summary>
#
# ```
# learning rate   0.05    0.1     0.2     0.3     0.4
# 480 images      1.714   1.043   0.596   0.502   0.588
# 120 images      0.468   0.376   0.385   0.480   0.575
# ```
#
# The best rate is 0.1 for 120 images and 0.3 for 480 (the rule: 0.4). Tune *both* rates before you compare, on validation images.
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# ```
# # on each of 8 machines with 8 GPUs; HOST is one of them; IMAGES is a multiple of 64
# IMAGES=128 torchrun --nnodes 8 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29400 FILE
#
# # in FILE; delete the line with float64
# torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))  # first: this process's GPU
# dist.init_process_group("nccl")                       # in place of "gloo"
# model = network().cuda()                              # before it is wrapped
# images, labels = images.float().cuda(), labels.cuda() # the test's, too (if too large: each batch)
# ```
#
# Two images per GPU only test the launch.
#
# The **backend** moves the bytes: Gloo between CPUs, NCCL between NVIDIA's GPUs.

# %% [markdown] tags=["slide"]
# ## Key points
#
# - DDP broadcasts the weights when it wraps a model, and averages the gradients inside `backward`.
# - The rest is yours: shards, `set_epoch`, learning rate, saving, and tests.
# - Compare runs on different numbers of ranks at one global batch. If it grows, count steps and tune the rate.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# You have eight GPUs for one night. (a) They split one GPU's batch: an epoch's speed-up is 2. (b) Each takes a full batch: the speed-up is 7. Which do you choose?
#
# <details><summary>What to listen for</summary>The time to equal accuracy counts. (b) loses if it needs more than 7 / 2 = 3.5 times as
# many epochs as (a).</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# ### Does accuracy fall with the ranks?
#
# Jakovac and Pichler (2025) trained a CNN on MNIST. On eight ranks, its test error was 1.3 % instead of 0.9 %, with their own MPI loop and with DDP. Do ranks cost accuracy after all?
#
# They do not say whether their batch of 128 images is per rank or in total. We repeated the study both ways: five epochs, three seeds, the same rate. (With 128 in total, we ran up to four ranks; eight should train as one, up to rounding, as this CNN has no batch norm or dropout.)
#
# **Predict:** with 128 images per rank, by what factor do our errors grow from one rank to eight?

# %% tags=["nbval-ignore-output"]
from course.lessons.l07_ddp_on_mnist.figures.errors import draw_errors
from course.lessons.l07_ddp_on_mnist.study_published import TABLE
from course.lessons.l07_ddp_on_mnist.study_results import load
from course.lessons.l07_ddp_on_mnist.study_tables import finals

ours = [one for one in finals(load().rows) if one.model == "cnn" and one.rate_rule == "fixed"]
draw_errors(
    {one.ranks: one.accuracies for one in ours if one.batch_rule == "global"},
    {one.ranks: one.accuracies for one in ours if one.batch_rule == "local" or one.ranks == 1},
    {one.ranks: one.accuracy for one in TABLE if one.accuracy},
)

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# 2.2 times: 1.84 % instead of 0.85 % (means; bars: best and worst seed). With 128 images per rank, eight ranks take 295 steps instead of 2,345. With 128 in total, four ranks err as often as one.
#
# So a growing batch could explain the published rise. But this is no proof: we do not know their global batch, and on eight ranks, their 1.3 % is less than our 1.84 %.
#
# </details>
#
# Can runs with equal global batches differ? **Batch norm** normalizes with the mean and variance of a rank's own images. For tests, it keeps running averages of both in **buffers**: tensors of the model without gradients.
# By default, DDP overwrites all buffers with rank 0's before a forward (unless the previous one ran inside `no_sync` or `no_grad`). So the saved averages come from rank 0's images only.

# %% tags=["exercise: 07.q6"]

# %% [markdown]
# Does each rank read the images that you expect?

# %% tags=["exercise: 07.2"]

# %% [markdown]
# The study also compares times:

# %% tags=["exercise: 07.q5"]

# %% [markdown]
# **Remember:** report the global batch beside each accuracy. (The page *The study* of the course's site has all models, times and curves; `.venv/bin/course study --quick` repeats them.)
#
# ### What does a step send, and wait for?
#
# With four micro-batches per step (lesson 05), DDP all-reduces in *every* `backward`. Inside `with replica.no_sync():`, DDP sends nothing: gradients add up on each rank.
#
# **Vote:** which micro-batches belong inside: (a) all four, (b) all but the last, (c) all but the first?
#
# We count the bytes of gradients with a **communication hook**: a function that DDP calls with each **bucket** (gradients sent together), in place of its own all-reduce:

# %%
# %%px
from contextlib import nullcontext

from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook


def count(sizes, bucket):
    sizes.append(bucket.buffer().nbytes)
    return allreduce_hook(None, bucket)  # what DDP does by itself


for name, silent in {"none": (), "(a)": (0, 1, 2, 3), "(b)": (0, 1, 2), "(c)": (1, 2, 3)}.items():
    torch.manual_seed(0)
    replica, sizes = DistributedDataParallel(network()), []
    replica.register_comm_hook(sizes, count)
    for part, mine in enumerate(np.arange(480).reshape(size, 4, -1)[rank]):
        with replica.no_sync() if part in silent else nullcontext():
            (F.cross_entropy(replica(images[mine]), labels[mine]) / 4).backward()
    if rank < 2:
        print(f"{name:4} {sum(sizes):6} bytes, norm {replica.module[-1].weight.grad.norm():.6f}")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (b). DDP all-reduces 9,610 gradients of 8 bytes once instead of four times. The last layer's gradient has the same norm as with "none". (In a ring of four, each rank sends 1.5 times the bytes shown.) In (a) and (c), norms differ between ranks: replicas would drift apart without an error. The forward must be inside `no_sync`, too.
#
# </details>
#
# And what does a step wait for? In the third step, rank 1 first sleeps for 200 ms. A deeper network has three buckets, and a **profiler** records how long each all-reduce takes.
#
# **Vote:** in how many of rank 0's three all-reduces do you see the 200 ms: (a) one, (b) more?

# %% tags=["nbval-ignore-output"]
# %%px
import time

from torch.profiler import profile

middle = [layer for _ in range(2) for layer in (nn.Linear(256, 256), nn.ReLU())]
layers = nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), *middle, nn.Linear(256, 10)
replica = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=0.25)
for late in (0, 0, 0.2):  # the first step rearranges DDP's buckets
    with profile() as profiler:
        time.sleep(late * (rank == 1))
        F.cross_entropy(replica(images[:100]), labels[:100]).backward()
for event in profiler.events():
    if rank < 2 and event.name.startswith("gloo:all_reduce"):
        print(f"rank {rank}: an all-reduce takes {event.time_range.elapsed_us() / 1000:.1f} ms")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (b), two. Rank 0 requests all three while rank 1 sleeps, but Gloo works on two at a time here. These two wait during the *same* 200 ms. (NCCL runs a process group's all-reduces one after another: there, only the first waits.)
#
# This is **waiting**: no all-reduce ends before rank 1 arrives. On rank 1, the same two are much shorter. The rank whose all-reduces are shortest in *many* steps is the late one. (On GPUs, compare the times of NCCL's kernels: its calls return at once.)
#
# </details>

# %% tags=["exercise: 07.q2"]

# %% [markdown]
# **Remember:** with DDP, all-reduce once per step, and look for the late rank before you buy faster links.
#
# `code/train_mnist_ddp.py` is the long form of your program: real MNIST, checkpoints, GPUs. [PyTorch's distributed package on one page](../docs/torch-distributed.md) has messages, groups and other backends.
#
# ## References
#
# - S. Li and others, [PyTorch Distributed](https://arxiv.org/abs/2006.15704), 2020: how DDP works, and why.
# - M. Jakovac and E. Pichler, *MPI in Distributed Training*, 2025: the study behind the published figures.
# - P. Goyal and others, [Accurate, large minibatch SGD](https://arxiv.org/abs/1706.02677), 2017: larger batches with a warm-up.
# - PyTorch, [DistributedDataParallel](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html)
#   and [DistributedSampler](https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler).
