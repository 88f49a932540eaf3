# %% [markdown]
# # 07 · DDP on MNIST
#
# *Let PyTorch do what lesson 06 did by hand, and know what it leaves to you.*
#
# | | |
# |---|---|
# | **You will be able to** | say what DDP does and what it leaves to you; deal images so that every epoch is whole and shuffled; tell waiting from transfer; read a scaling study |
# | **Before this** | [06 · Data parallelism by hand](06_data_parallel_by_hand.ipynb) |
# | **Time** | core 20 min · more 40 min |
# | **Ranks** | 4 |
#
# [← 06 · Data parallelism by hand](06_data_parallel_by_hand.ipynb) · [Course map](00_start_here.ipynb) ·
# [08 · Pipeline parallelism →](08_pipeline_parallelism.ipynb)

# %% [markdown]
# ## Warm-up
#
# Answer from memory, then open the answer.
#
# 1. Four ranks train one network. What do they send each other in every step?
#    <details><summary>Answer</summary>Their gradients, which are added up. Weights travel once, at the start; images never.</details>
# 2. By what is the loss divided, so that gradients only have to be added?
#    <details><summary>Answer</summary>By the global batch, once: then shards may differ in size.</details>
# 3. A rank waits long at the sum. Is the network slow?
#    <details><summary>Answer</summary>Not for that: it waits for the rank that comes last.</details>

# %% [markdown]
# ## Setup

# %% tags=["nbval-ignore-output"]
from mpi_classroom.cluster import start_cluster

cluster = start_cluster(n=4)

# %%
# %%px --setup
import torch
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size

# %% [markdown]
# ## 1 · A wrapper
#
# **DistributedDataParallel** (DDP) is lesson 06 as a wrapper around your model:
#
# | phase | by hand | DDP |
# |---|---|---|
# | broadcast | `broadcast_weights` | when it wraps the model |
# | shard | `shard` | **you** |
# | sum | `bucket.sum(comm)` | during backward, in buckets |
#
# The ranks first form a **process group**, with a **backend** that moves the bytes: Gloo, or MPI by way of `"mpi4py"`,
# a backend of this course. Below, every rank draws weights of its own; DDP makes them equal.

# %% tags=["nbval-ignore-output"]
# %%px --timeout 200
from torch.nn.parallel import DistributedDataParallel

from course_lib.parallel.data_parallel import weight_hash
from course_lib.parallel.ddp import process_group
from course_lib.training.models import build

model = build("cnn", seed=rank)
with process_group(comm, "gloo"):
    DistributedDataParallel(model)
print(f"rank {rank}: weights {weight_hash(model)}")

# %% [markdown]
# ## 2 · It averages, we add
#
# DDP divides the sum of the gradients by the ranks: right for means of equally many images. Our loss is divided by the
# global batch already, so gradients have to be *added*. A **communication hook** says so:

# %% tags=["source: course_lib.parallel.ddp:sum_bucket"]
# %%px

# %% [markdown]
# `summing_ddp(model)` is DDP with this hook. The rest is the loop that you know; `dealt_batches` gives each rank its
# part of every global batch. The last of 650 images, 128 at a time, are 10, for four ranks.

# %% tags=["nbval-ignore-output"]
# %%px --timeout 200
from course_lib.data.mnist import load_mnist

data = load_mnist()
if rank == 0:
    print(data.source)

# %%
# %%px
import numpy as np

from course_lib.parallel.data_parallel import flatten
from course_lib.parallel.ddp import dealt_batches, summing_ddp
from course_lib.training.loop import image_batch, make_step, summed_cross_entropy


def train(group, backend):
    """Train a new CNN on the ranks of `group`: all its weights, in a row."""
    model = build("cnn", seed=group.rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    with process_group(group, backend):
        step = make_step(summing_ddp(model), summed_cross_entropy, optimizer)
        for mine, global_size in dealt_batches(np.arange(650), 128, rank=group.rank, size=group.size):
            step(image_batch(data.train_images, data.train_labels, mine, global_size))
    return flatten(list(model.parameters()))


# %% [markdown]
# In a group of one rank, this is training in one process. Do four ranks end with its weights?

# %%
# %%px --timeout 200
alone = train(MPI.COMM_SELF, "mpi4py")
for backend in ("gloo", "mpi4py"):
    same = bool((train(comm, backend) - alone).norm() < 1e-5 * alone.norm())
    if rank == 0:
        print(f"4 ranks over {backend} end with the weights of one process, to 1e-5: {same}")

# %% [markdown]
# ## 3 · The sampler deals
#
# What DDP never does is divide a batch: each rank trains on what *it* hands to the model. PyTorch leaves the dealing
# to a **DistributedSampler**. Ten images, four ranks, two epochs:

# %%
# %%px
from torch.utils.data import DistributedSampler

sampler, dealt = DistributedSampler(range(10), size, rank, shuffle=True, seed=0), {}
for epoch in (0, 1):
    sampler.set_epoch(epoch)
    dealt[f"epoch {epoch}"] = list(sampler)

# %% tags=["nbval-ignore-output"]
from course.lessons.l07_ddp_on_mnist.figures.ddp import sampler_dealing

sampler_dealing(cluster["dealt"])

# %% [markdown]
# All ranks shuffle alike, from `seed + epoch`, and take every fourth card. Without `set_epoch`, the second row would
# be the first again. Two images are dealt twice: a rank with a step less would leave the others waiting in their sum.

# %% tags=["exercise: 07.1"]

# %% [markdown]
# ## 4 · Waiting is not transfer
#
# We time a step over both backends, a rank for every core; backward waits for each sum, so that none
# hides. Until the last rank arrives at a sum, the others are **waiting**; what follows is **transfer**.

# %%
predict("Percent of the time in the sum that is waiting?", None)

# %%
# %%px --timeout 200
from course.lessons.l07_ddp_on_mnist.runs import trace_ddp_step
from course_lib.comm.timing import one_rank_a_core

team = one_rank_a_core(comm)
steps = {b: trace_ddp_step(team, b, model, data, batch_size=128) for b in ("gloo", "mpi4py")}

# %% tags=["nbval-ignore-output"]
from course.lessons.l07_ddp_on_mnist.figures.ddp import step_bars, waiting_share
from mpi_classroom.launch import available_cores

steps = cluster["steps"][0]
outcome("Percent of the time in the sum that is waiting?", 100 * waiting_share(steps["gloo"]), "%")
step_bars(steps, cores=available_cores())

# %% [markdown]
# A faster network shortens transfer alone. Against waiting, only equal work on equal cores helps. "Time in all-reduce"
# mixes the two.

# %% [markdown]
# ## 5 · Read a study
#
# Jakovac and Pichler saw accuracy fall from 99.1 % on one rank to 98.7 % on eight. Our repetition of their study has
# one change: some runs keep the *global* batch, others that of *each rank*, as theirs did. How many points do four ranks
# lose when the global batch stays?

# %%
predict("Points of accuracy that four ranks lose?", None)

# %% tags=["nbval-ignore-output"]
from course.lessons.l07_ddp_on_mnist.figures.study_summary import (
    explain_study,
    points_lost,
    study_summary,
    summarise,
)
from course.lessons.l07_ddp_on_mnist.study_results import load

study = summarise(load().rows, "cnn")
outcome("Points of accuracy that four ranks lose?", points_lost(study), "points")
study_summary(study)

# %% tags=["nbval-ignore-output"]
print(explain_study(study))

# %% [markdown]
# Look for the batch when accuracy falls, and for the resource that ran out when the speed-up bends: cores first.

# %% [markdown]
# ## Key points
#
# - DDP broadcasts when it wraps the model, and sums gradients during backward. It never divides a batch.
# - The sampler deals: the same seed on every rank, `set_epoch` in every epoch, and some images twice.
# - DDP averages over ranks. Where parts differ in size, divide by the global batch and add.
# - Time in a sum is waiting plus transfer. Backends differ in the second.
# - Compare runs with the same global batch; otherwise you compare batches.

# %% [markdown]
# ## Discuss
#
# Your run on two nodes is hardly faster than on one. The log says "70 % in all-reduce". What do you do first? Vote, talk to
# your neighbour for two minutes, vote again: (a) buy a faster network, (b) measure waiting apart from transfer, (c)
# compress the gradients.
#
# <details><summary>What to listen for</summary>(b): 70 % may be waiting for one slow rank, which neither a network nor
# compression cures. (a) and (c) shorten transfer; do them when it is transfer.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# ### Three questions
#
# Write your letter between the quotes, and run the cell.

# %% tags=["exercise: 07.q1"]

# %% tags=["exercise: 07.q2"]

# %% tags=["exercise: 07.q3"]

# %% [markdown]
# ### A process group, and its end
#
# `process_group` is two calls of torch around a cell. `dist.init_process_group` wants to know who takes part and
# where they meet; `dist.destroy_process_group` belongs at the end, or Gloo's threads may crash the program
# when it exits. `end_group` calls it.

# %% tags=["source: course_lib.parallel.ddp:start_group"]
# %%px

# %% [markdown]
# And this is `summing_ddp`, which gives DDP its hook:

# %% tags=["source: course_lib.parallel.ddp:summing_ddp"]
# %%px

# %% [markdown]
# The group offers messages and smaller groups, too, in torch's words for what you know from MPI. *All* ranks make
# *every* group, also those that they are not in.

# %%
# %%px
import torch.distributed as dist

with process_group(comm, "mpi4py"):
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    number = torch.tensor([10**rank])
    if rank == 0:
        dist.send(torch.tensor([43523]), dst=1)
    if rank == 1:
        dist.recv(number, src=0)
    dist.all_reduce(number, group=pairs[rank // 2])
print(f"rank {rank}: {number.item()}")

# %% [markdown]
# ### Epochs alike
#
# The same picture without `set_epoch`:

# %%
# %%px
careless = DistributedSampler(range(10), size, rank, shuffle=True, seed=0)
dealt = {"epoch 0": list(careless), "epoch 1": list(careless)}

# %% tags=["nbval-ignore-output"]
sampler_dealing(cluster["dealt"])

# %% [markdown]
# Every epoch is cut into the same global batches, in the same order. Nothing fails, and a short run may not even
# show it in its accuracy.

# %% tags=["exercise: 07.2"]

# %% [markdown]
# ### Parts that are not equal
#
# 60 000 images rarely divide. There are four ways out:
#
# | way | what it costs |
# |---|---|
# | repeat some images (DistributedSampler) | they count twice; wrong for a *test* accuracy |
# | drop some (`drop_last=True`) | nobody sees them in this epoch |
# | deal unequal parts, divide by the global batch, add | a hook, as in section 2; an empty part is a step, too |
# | let ranks that run out leave: `Join` | they answer the others' sums with zeros |
#
# The last one, for 9 images in global batches of 8: only rank 0 has a second step.

# %%
# %%px
from torch.distributed.algorithms.join import Join

from course_lib.parallel.data_parallel import replicas_agree

model = build("mlp", seed=rank)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
parts = [part for part in dealt_batches(np.arange(9), 8, rank=rank, size=size) if len(part[0])]
with process_group(comm, "gloo"):
    replica = summing_ddp(model)
    step = make_step(replica, summed_cross_entropy, optimizer)
    with Join([replica]):
        for mine, global_size in parts:
            step(image_batch(data.train_images, data.train_labels, mine, global_size))
agree = replicas_agree(comm, model)
print(f"rank {rank}: steps {len(parts)}, replicas agree: {agree}")

# %% [markdown]
# Without `Join`, rank 0 would be alone in its second sum: it waits, or is told that the others have left. Try it.

# %% tags=["exercise: 07.3"]

# %% [markdown]
# ### As a script
#
# Long trainings are programs, not cells. A report on parallel training (Kolly, see References) ends with a DDP script for
# MNIST. It does not run, and what it teaches is partly wrong:
#
# | there | here |
# |---|---|
# | every rank downloads MNIST | rank 0 first, then the others |
# | `shuffle=False`, no `set_epoch` | shuffled, and every epoch anew |
# | "splits the input across the devices" | the sampler does; DDP never divides |
# | `.cuda(rank)` before `set_device`; as many ranks as GPUs, so none on a CPU | ranks on CPUs, as many as you say |
# | port 12355 | any free port, or a file |
# | no test; the sampler would have some images counted twice | every test image by one rank |
#
# This is the corrected one, `notebooks/code/train_mnist_ddp.py`; its middle part:

# %%
from course.paths import NOTEBOOKS

script = NOTEBOOKS / "code" / "train_mnist_ddp.py"
text = script.read_text()
print(text[text.index("def train(") : text.index("def tensors(")].rstrip())

# %% [markdown]
# It runs under three launchers. `torchrun` starts the ranks and tells each its number in the environment; `mpiexec`
# does so over MPI; `spawn` starts them from Python.

# %%
import sys

from course.lessons.shared.programs import output_of
from mpi_classroom.launch import mpiexec_command, rank_environment

options = [script, "--samples", "512", "--epochs", "1"]
python, torchrun = sys.executable, ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
commands = {
    "torchrun": [python, *torchrun, *options],
    "mpiexec": mpiexec_command(2, [python, "-m", "mpi4py", *map(str, options)]),
    "spawn": [python, *options, "--spawn", "2", "--meet", "tcp"],
}

# %% tags=["nbval-ignore-output"]
environment = rank_environment(2) | {"GLOO_SOCKET_IFNAME": "lo"}
for name, command in commands.items():
    print(f"{name:9}", output_of([str(word) for word in command], environment, timeout=120))

# %% [markdown]
# One hash: the same training to the last bit, over two backends. (Two ranks add two numbers, in either order. With
# four, the order of the sum may differ, and with it the last digits.)
#
# | where ranks meet | what it needs | good for |
# |---|---|---|
# | `env://` | MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE in the environment | `torchrun` sets all of them |
# | `tcp://host:port` | a port that nobody uses; rank and size as arguments | starting by hand |
# | `file:///path` | a new file that all can lock; rank and size as arguments | one machine, no ports |
# | MPI | nothing | `mpiexec`, on one machine or many |

# %% [markdown]
# ### One step, operator by operator
#
# `torch.profiler` notes every operator of a step. Here is rank 0 of the team; where DDP comes into it, the names say so.

# %%
# %%px --timeout 200
from course.lessons.l07_ddp_on_mnist.runs import profile_step

profile = None
if team != MPI.COMM_NULL:
    model = build("cnn", seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    part = np.arange(team.rank, 128, team.size)
    batch = image_batch(data.train_images, data.train_labels, part, 128)
    with process_group(team, "gloo"):
        step = make_step(summing_ddp(model), summed_cross_entropy, optimizer)
        profile = profile_step(lambda: step(batch))

# %% tags=["nbval-ignore-output"]
from course.lessons.l07_ddp_on_mnist.figures.ddp import profile_table

print(profile_table(cluster["profile"][0]))

# %% [markdown]
# Look for the convolutions, forward and backward, and for `allreduce`. In an operator's own time, waiting
# for other ranks looks like work: that is why section 4 measured it apart. (The profiler also writes a
# trace for a viewer: `profiler.export_chrome_trace("step.json")`.)

# %% [markdown]
# ### Threads against ranks
#
# There are two ways to use several cores for one batch: threads inside each operator, which need no message at all; or
# ranks with a thread each. And a third, **replicas in threads** of one process, is what `torch.nn.DataParallel` does:

# %% tags=["source: course.lessons.l07_ddp_on_mnist.threaded:threaded_gradients"]
# %%px

# %% [markdown]
# The same 128 images each way:

# %%
# %%px --timeout 200
from course.lessons.l07_ddp_on_mnist.runs import time_threads_and_ranks

whole = image_batch(data.train_images, data.train_labels, np.arange(128), 128)
seconds = time_threads_and_ranks(comm, build("cnn", seed=0), whole, replicas=threaded_gradients)

# %% tags=["nbval-ignore-output"]
from course.lessons.l07_ddp_on_mnist.figures.ddp import compare_times

print(compare_times(cluster["seconds"][0]))

# %% [markdown]
# Why not DataParallel? It copies the model in every step, one Python serves all its threads, and it ends at the edge of the
# machine. PyTorch's documentation advises against it. It needs GPUs, too: on a CPU it calls your model
# as if it were not there.

# %% [markdown]
# ### A synthetic benchmark
#
# Horovod's `pytorch_synthetic_benchmark.py` asks how many images a second ranks can train on, without reading any: the
# same random batch again and again, and each rank has as many images as one alone (weak scaling). Ten batches warm
# up; then a reading every ten batches. **Published**: ResNet-50 on one V100 334.0 images/s, on two 632.8 in all, 1.89
# times. Ours is a small ResNet for images of 32 × 32.

# %%
# %%px --timeout 200
from course.lessons.l07_ddp_on_mnist.runs import images_per_second, random_images

one, rates = one_rank_a_core(comm, cores=1), {}
for group in (one, team):
    if group == MPI.COMM_NULL or group.size in rates:
        continue
    model, images = build("resnet", seed=0), random_images(8, global_size=8 * group.size, seed=rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with process_group(group, "mpi4py"):
        step = make_step(summing_ddp(model), summed_cross_entropy, optimizer)
        rates[group.size] = images_per_second(group, step, images, iterations=5)

# %% tags=["nbval-ignore-output"]
from course.lessons.l07_ddp_on_mnist.figures.ddp import synthetic_report

readings = {n: [mine[n] for mine in cluster["rates"] if n in mine] for n in cluster["rates"][0]}
print(synthetic_report(readings))

# %% [markdown]
# ± is 1.96 standard deviations of the readings. Ranks that have a core each still share memory and its bandwidth, so even
# weak scaling can fall short of 2.

# %% [markdown]
# ### More of the study, and yours
#
# What one pays for is seconds. The same study, accuracy and loss against the time that was spent, with the global batch
# kept: the ranks walk along one curve, at different speeds.

# %% tags=["nbval-ignore-output"]
from course.lessons.l07_ddp_on_mnist.study_pictures import curve_picture, thread_picture

curve_picture(load(), "cnn")

# %% [markdown]
# Ranks *and* threads: as soon as all of them together are more than the cores, nothing is gained any more.

# %% tags=["nbval-ignore-output"]
thread_picture(load())

# %% [markdown]
# In a terminal, `.venv/bin/course study --quick` measures a small study on your machine in a few minutes, and writes a report
# beside the published figures to `build/study-quick`. Without `--quick` it is the whole one, and takes hours; stop it
# whenever you like, and it goes on where it was. Keep the machine quiet meanwhile.

# %% [markdown]
# ### Why PyTorch has no MPI
#
# PyTorch has a backend `mpi` in its sources, and the wheels that pip installs leave it out: it has to be compiled against
# *your* MPI library. From a checkout of PyTorch, with `mpicc` on the path, `USE_MPI=1 pip install --no-build-isolation .`
# does it, in an hour or more of a good machine. The `mpi4py` backend of this course is a process group in Python, on the
# stock wheel: see [its page](../packages/torch_mpi4py/README.md), with the table of what works where.
#
# NCCL is the backend for NVIDIA's GPUs, and comes with the CUDA wheels. `dist.init_process_group("nccl")` is the only line that
# changes; each rank then takes one GPU, `torch.cuda.set_device(local_rank)`, *before* it moves anything there. Its
# all-reduce is not only a ring: it also knows trees, and picks by size.

# %% [markdown]
# ## On GPUs
#
# Everything here holds: the sampler, the average, `set_epoch`. Write `"nccl"`, and the model to `cuda` before DDP wraps it.
# Computing is much faster there, so waiting and transfer weigh more, and the overlap of buckets with backward matters.

# %% [markdown]
# ## Pitfalls
#
# - No sampler: every rank trains on the same images.
# - A seed of its own for every rank's sampler: some images are seen by several ranks, others by none.
# - Test accuracy through a padded sampler.
# - A fixed port on a machine that thirty people share.
# - `state_dict()` of the wrapper: its names begin with `module.`; save `replica.module`.

# %% [markdown]
# ## References
#
# - S. Li and others, [PyTorch Distributed](https://arxiv.org/abs/2006.15704), 2020: how DDP works, and why.
# - M. Jakovac and E. Pichler, *MPI in Distributed Training*, 2025: the study, and the figures called published.
# - F. Kolly, *Data Parallelism in PyTorch*, 2022: the script that the section "As a script" corrects.
# - PyTorch, [DistributedDataParallel](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html)
#   and [DistributedSampler](https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler).
# - A. Sergeev and M. Del Balso, [Horovod](https://arxiv.org/abs/1802.05799), 2018.

# %% [markdown]
# ## Stretch
#
# Give rank 0 twice as many images as the others, and look at section 4 again. Who waits now? Then find a dealing
# that makes all ranks wait as little as possible when one core is half as fast.

# %% [markdown]
# ## Teardown

# %%
cluster.stop()
