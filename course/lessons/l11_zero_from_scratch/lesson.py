# %% [markdown]
# # 11 · ZeRO from scratch
#
# *Train on as many ranks as before, and let no two of them keep the same bytes.*
#
# | | |
# |---|---|
# | **You will be able to** | say who owns what in each of three stages, and what stays on every rank; count the bytes that a rank holds, and predict them; write the collectives of each stage, and say what they move; clip gradients of which every rank has a slice |
# | **Before this** | [06 · Data parallelism by hand](06_data_parallel_by_hand.ipynb) |
# | **Time** | core 20 min · more 50 min |
# | **Ranks** | 4 |
#
# [← 10 · Spatial and hybrid](10_spatial_and_hybrid.ipynb) · [Course map](00_start_here.ipynb#6-·-The-course) · [12 · DeepSpeed on CIFAR →](12_deepspeed_on_cifar.ipynb)

# %% [markdown]
# ## Warm-up
#
# Answer from memory, then open the answer.
#
# 1. Of which two collectives is an all-reduce made?
#    <details><summary>Answer</summary>Of a reduce-scatter, after which each rank has the sum of its part, and an all-gather, which gives all parts to everyone.</details>
# 2. You train with Adam, in float32. How many bytes does a parameter take, before the first activation?
#    <details><summary>Answer</summary>16: the weight, its gradient, and Adam's two averages, 4 bytes each.</details>
# 3. In data parallelism, in which bits do the ranks' weights differ after a step?
#    <details><summary>Answer</summary>In none. All ranks start equal and take the same step.</details>

# %% [markdown]
# ## Setup

# %% tags=["nbval-ignore-output"]
from mpi_classroom.cluster import start_cluster

cluster = start_cluster(n=4)

# %%
# %%px --setup
import copy

import numpy as np
import torch
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
torch.set_num_threads(1)

# %% [markdown]
# ## 1 · Four times the same
#
# In data parallelism every rank keeps all weights, all gradients and all of the optimizer's state: with Adam, 16 bytes per
# parameter. On four ranks that makes 64, and 48 of them are copies. **ZeRO** (*zero redundancy optimizer*) keeps each number
# once. Put all parameters into one flat buffer and cut it into slices, one per rank: its **optimizer shard**.

# %%
# %%px
from course_lib.training.transformer import FeedForward

sizes = [(name, p.numel()) for name, p in FeedForward(8).named_parameters()]

# %% tags=["nbval-ignore-output"]
from course.lessons.shared.figures.zero import slice_owners

slice_owners(dict(cluster["sizes"][0]), ranks=4)

# %% [markdown]
# A slice need not end where a parameter ends: Adam treats every number by itself.
#
# ## 2 · Stage 1: the optimizer's state
#
# Who needs the *sum* of a gradient? Its owner, for nobody else updates that number. So take the all-reduce apart, and put
# the update between its halves. With SGD and its momentum, on flat NumPy arrays:


# %%
# %%px
def zero1_step(comm, weights, gradients, momentum, lr=0.1):
    """Update all `weights`, in place; of `momentum`, each rank has its slice only."""
    parts = np.array_split(weights, comm.size)
    counts = [len(part) for part in parts]
    summed = np.zeros(counts[comm.rank])
    comm.Reduce_scatter(gradients, summed, counts)  # the sums of my slice
    momentum[:] = 0.9 * momentum + summed
    new = parts[comm.rank] - lr * momentum
    comm.Allgatherv(new, [weights, counts])  # everybody's new slices


# %%
# %%px
weights, momentum = np.zeros(6), np.zeros([2, 2, 1, 1][rank])
for _ in range(2):
    zero1_step(comm, weights, np.full(6, 10.0**rank), momentum)
print(f"rank {rank}: {len(momentum)} of 6 momenta, weights {weights.round(2)}")

# %% [markdown]
# All ranks have the new weights, and nobody had the whole state. The two halves send what the all-reduce sent: stage 1 sends
# no more bytes.
#
# ## 3 · Stage 2: gradients, too
#
# After its reduce-scatter, a rank needs its slice of the gradients only. So do not wait for all of them: backward makes
# gradients from the last layer to the first, bucket by bucket. Sum a bucket as soon as it is full, keep your slice, and
# free the bucket.

# %% tags=["exercise: 11.1"]

# %% [markdown]
# ## 4 · Stage 3: weights, too
#
# A layer needs all its weights, but only while it runs. So gather them just before, and free them right after:
#
# ```
# forward    gather 0 · run 0 · free 0 · gather 1 · run 1 · free 1 · …
# backward   … gather 1 · back through 1 · sum its gradients, free 1 · gather 0 · …
# ```
#
# The library has all stages for any PyTorch model; stage 0 is data parallelism. `train` takes three steps of a
# Transformer, and counts the memory behind all that a rank keeps between steps.

# %%
predict("Bytes per parameter on each of four ranks, with stage 2?", None)

# %%
# %%px --timeout 120
from course.lessons.l11_zero_from_scratch.runs import train
from course_lib.training.transformer import build_transformer

model = build_transformer(vocabulary=64, length=32, width=64, layers=4, seed=0)
tokens = torch.randint(64, (2, 33), generator=torch.manual_seed(rank))
runs = [train(comm, model, tokens, stage) for stage in (0, 1, 2, 3)]
parameters = sum(p.numel() for p in model.parameters())

# %% tags=["nbval-ignore-output"]
from course.lessons.shared.figures.zero import held_bars
from course_lib.theory.memory import ADAM_FP32

runs, parameters = cluster["runs"], cluster["parameters"][0]
held = [[run[stage]["held"] for run in runs] for stage in range(4)]
each = sum(state.total for state in held[2]) / 4 / parameters
why = "4 for the weight, and a quarter of the other 12."
outcome("Bytes per parameter on each of four ranks, with stage 2?", each, word="counted", because=why)
held_bars(held, parameters, ADAM_FP32)

# %% [markdown]
# Less memory, and the training is the same:

# %%
losses = [run["loss"] for run in runs[0]]
print("the same loss in every stage, to 1e-5:", max(losses) - min(losses) < 1e-5)

# %% [markdown]
# ## 5 · What it costs
#
# Each rank took its own texts through *all* layers: **computation is not split, and neither are activations.** What changes is
# what is sent. Stage 2 gathers the weights once in a step, after the update. How many bytes does stage 3 move?

# %%
predict("Bytes moved in stage 3, for each byte in stage 2?", None)

# %%
moved = [sum(run[stage]["moved"] for run in runs) for stage in range(4)]
why = "It gathers twice, before forward and before backward, and sums once."
outcome("Bytes moved in stage 3, for each byte in stage 2?", moved[3] / moved[2], word="counted", because=why)

# %% [markdown]
# For Ψ parameters on N ranks, a rank sends (N−1)/N of 2Ψ in stages 0 to 2, and of 3Ψ in stage 3. You pay with bytes sent, and can
# train a model N times as large.

# %% tags=["exercise: 11.q2"]

# %% [markdown]
# ## Key points
#
# - Data parallelism keeps everything on every rank. ZeRO shards the optimizer's state (stage 1), gradients (2), weights (3).
# - In float32 with Adam, on N ranks: 16, 8 + 8/N, 4 + 12/N and 16/N bytes per parameter.
# - An all-reduce taken apart, with the update in between: stages 1 and 2 move what data parallelism moves, stage 3 half as
#   much again.
# - Computation and activations are not split: every rank takes its own samples through the whole model.
# - What needs *all* gradients, such as a norm, needs one number from every rank.

# %% [markdown]
# ## Discuss
#
# Your model trains on 8 GPUs with 10 GB to spare on each, and you want twice as many parameters, which takes 30 GB more on each.
# Vote, talk to your neighbour for two minutes, vote again: (a) stage 1; (b) stage 3; (c) it depends on what fills the memory.
#
# <details><summary>What to listen for</summary>(c): if the optimizer's state fills it, stage 1 may do, and sends no more bytes. If
# activations do, no stage helps; smaller batches or recomputation do. Who says "the lowest stage that fits" has it.</details>

# %% [markdown]
# **Stop here in a short workshop.** More looks into a step, at what the system says, at norms, files and PyTorch's version.

# %% [markdown] tags=["more"]
# ## More
#
# ### Three questions
#
# Write your letter between the quotes, and run the cell.

# %% tags=["exercise: 11.q1"]

# %% tags=["exercise: 11.q3"]

# %% tags=["exercise: 11.2"]

# %% [markdown]
# ### A stage in the library
#
# The library has all stages in one file, `course_lib/parallel/zero.py`. This is its stage 1. A bucket is a flat buffer of PyTorch
# parameters, and `update` lets the optimizer update the shards that this rank owns:

# %% tags=["source: course_lib.parallel.zero:Zero1"]
# %%px

# %% [markdown]
# ### Within a step
#
# So far we counted *between* steps. Within a step, activations and buffers come and go. `LiveBytes` looks at every operation
# of torch and adds up the memory of all tensors that exist. And the activations alone: how many of them does stage 3 save?

# %%
predict("Percent of the activations that stage 3 saves?", None)

# %%
# %%px --timeout 120
from course.lessons.l11_zero_from_scratch.runs import (
    held_state,
    kept_activations,
    start,
    tensors_of,
    text_loss,
)
from course_lib.training.memory_use import LiveBytes


def look_into(stage):
    """A second step of training: live bytes by operation, bytes held, bytes of activations."""
    mine = copy.deepcopy(model)
    zero = start(comm, mine, stage, layers=mine.blocks, bucket_bytes=200_000)
    activations = kept_activations(zero, mine, lambda: text_loss(comm, mine, tokens))
    zero.step()
    with LiveBytes(tensors_of(zero, mine)) as memory:
        text_loss(comm, mine, tokens).backward()
        zero.step()
    return memory.history, held_state(zero, mine).total, activations


looks = [look_into(stage) for stage in (0, 1, 2, 3)]

# %% tags=["nbval-ignore-output"]
from course.lessons.shared.figures.zero import live_lines

looks = cluster["looks"][0]
kept = [activations for _, _, activations in looks]
why = "Every rank keeps those of its own texts, as before."
outcome("Percent of the activations that stage 3 saves?", 100 * (1 - kept[3] / kept[0]), "%", because=why)
live_lines(
    {f"stage {stage}": history for stage, (history, _, _) in enumerate(looks)},
    {f"stage {stage}": held for stage, (_, held, _) in enumerate(looks)},
)

# %% [markdown]
# The lines begin where the bars ended. Forward, activations pile up, and backward frees them: the same hill in every stage.
# Stages 0 and 1 keep memory for all gradients throughout. Stage 3 climbs in steps: it gathers a layer's weights, then frees them.
#
# ### The next layer, early
#
# While a layer's weights are on their way, the rank waits. The library's fast stage 3 (`course_lib/fast/zero.py`) gathers ahead:
# with `prefetch`, the next layer is on its way while this one runs. Less waiting, but two layers are gathered at once.

# %%
# %%px
from course.lessons.l11_zero_from_scratch.runs import gathered_bytes
from course_lib.fast.zero import Zero3


def peak(prefetch):
    """The most bytes of full weights in a forward and a backward pass."""
    mine, seen = copy.deepcopy(model), []
    zero = Zero3(comm, mine, layers=mine.blocks, prefetch=prefetch)
    with LiveBytes(look=lambda: seen.append(gathered_bytes(zero))):
        text_loss(comm, mine, tokens).backward()
    return max(seen)


gathered = {prefetch: peak(prefetch) for prefetch in (False, True)}
layer = sum(p.nbytes for p in model.blocks[0].parameters())

# %%
for prefetch, nbytes in cluster["gathered"][0].items():
    print(f"prefetch {prefetch!s:5}: {nbytes / 1000:4.0f} kB of weights gathered, at most")
print(f"a layer has {cluster['layer'][0] / 1000:.0f} kB")

# %% [markdown]
# Parameters outside `layers` (embedding, final norm, head) stay gathered throughout. So pass your `layers` to stage 3: without
# them, the whole model stays gathered.

# %% tags=["exercise: 11.3"]

# %% [markdown]
# ### What the system says
#
# We added up tensors. The operating system counts pages of memory that a process really has: **resident** memory. Here is a
# larger model. The formula, what is behind the tensors, and by how much the resident memory grew:

# %%
# %%px --timeout 120
from course.lessons.shared.resident import resident_bytes


def three_counts(stage):
    """Bytes that are held, and by which the resident memory of this rank grew."""
    before = resident_bytes()
    mine = build_transformer(vocabulary=64, length=32, width=256, layers=4, seed=0)
    zero = start(comm, mine, stage, layers=mine.blocks)
    text_loss(comm, mine, tokens).backward()
    zero.step()
    return sum(p.numel() for p in mine.parameters()), held_state(zero, mine).total, resident_bytes() - before


counts = [three_counts(stage) for stage in (0, 1, 2, 3)]

# %% tags=["nbval-ignore-output"]
from course_lib.theory.memory import bytes_per_parameter

large = cluster["counts"][0][0][0]
print("MB on rank 0   formula   held   resident")
for stage, (_, held_bytes, resident) in enumerate(cluster["counts"][0]):
    formula = large * bytes_per_parameter(stage, 4, ADAM_FP32)
    print(f"stage {stage}        {formula / 1e6:7.1f}{held_bytes / 1e6:7.1f}{resident / 1e6:11.1f}")

# %% [markdown]
# The first two agree. The third is what fails in the end, when it reaches the limit; it also has buffers of MPI,
# and memory that was freed but not returned to the system.
#
# ### Is stage 3 slower?
#
# It sends half as much again. How long does a step take, on as many ranks as you have cores?

# %%
predict("Times as long, a step of stage 3 compared with stage 2?", None)

# %%
# %%px --timeout 120
from course_lib.comm.timing import one_rank_per_core, seconds_on


def step_seconds(team, stage, **settings):
    """Seconds of a step on the ranks of `team`."""
    mine = build_transformer(vocabulary=64, length=32, width=128, layers=4, seed=0)
    zero = start(team, mine, stage, layers=mine.blocks, **settings)

    def step():
        text_loss(team, mine, tokens).backward()
        zero.step()
        zero.zero_grad()

    return seconds_on(team, step, repetitions=10)


team, seconds = one_rank_per_core(comm), []
if team != MPI.COMM_NULL:
    seconds = [step_seconds(team, stage) for stage in (0, 1, 2, 3)]

# %% tags=["nbval-ignore-output"]
from mpi_classroom.launch import available_cores

seconds, cores = cluster["seconds"][0], available_cores()
longer = seconds[3] / seconds[2]
why = (
    "It moves half as much again, and layer by layer, in many small messages."
    if longer > 1.05
    else "Between ranks of one machine, messages are cheap; or the machine is busy."
)
outcome("Times as long, a step of stage 3 compared with stage 2?", longer, because=why)
for stage, spent in enumerate(seconds):
    print(f"stage {stage}: {1e3 * spent:5.1f} ms per step ({min(cores, 4)} ranks on {cores} cores)")

# %% [markdown]
# ### The norm to clip by
#
# Large gradients are often *clipped*: when the norm of all gradients together is above a limit, they are all scaled down by
# the same factor. But now no rank has all gradients.

# %% tags=["exercise: 11.4"]

# %% [markdown]
# The library's, which the stages call when they have a `max_norm`:

# %% tags=["source: course_lib.parallel.zero:clip_gradients"]
# %%px

# %% [markdown]
# ### 16 bits, and a master
#
# In *mixed precision*, weights and gradients have 16 bits. An update is often too small for 16 bits, so the owner of a slice also
# keeps it in float32, its **master**: 2 + 2 + 12 bytes. That is 16 as before, and the lower stages shard more of it:

# %%
# %%px
half = [train(comm, copy.deepcopy(model).bfloat16(), tokens, stage) for stage in (0, 1, 2, 3)]

# %%
from course_lib.theory.memory import ADAM_MIXED

halves = cluster["half"]
for stage in range(4):
    counted = sum(run[stage]["held"].total for run in halves) / 4 / parameters
    print(
        f"stage {stage}: {counted:.2f} bytes per parameter, {bytes_per_parameter(stage, 4, ADAM_MIXED):.2f} by the formula"
    )

# %% [markdown]
# With float16, small gradients vanish: there the loss is multiplied by a large factor first (`LossScaler`), and all ranks skip
# a step in which any of them overflows.
#
# ### State in a file
#
# If the slice of the state is still too large, **offload** it: to the memory of the host, if you train on a GPU, or to a disk. Here
# the two averages live in files, which the system keeps in memory as long as there is enough. A tensor in a file is a tensor:

# %% tags=["source: course_lib.parallel.zero:in_file"]
# %%px

# %%
# %%px
import tempfile
from pathlib import Path

from course_lib.parallel.zero import offload_state

mine = copy.deepcopy(model)
zero = start(comm, mine, 2)
with tempfile.TemporaryDirectory() as folder:
    in_files = offload_state(zero.optimizer, Path(folder), rank)
    for _ in range(3):
        loss = text_loss(comm, mine, tokens)
        loss.backward()
        zero.step()
        zero.zero_grad()
    offloaded = comm.allreduce(loss.item())
    del zero

# %%
print("the same loss as with the state in memory:", abs(cluster["offloaded"][0] - losses[2]) < 1e-5)
print("bytes in the files of all ranks, per parameter:", sum(cluster["in_files"]) / parameters)

# %% [markdown]
# ### A layer that is too large
#
# In stage 3, the largest layer sets the peak. Cut a linear layer into **tiles** of its outputs, each gathered by itself
# (*memory-centric tiling*), and it is the largest tile:

# %%
# %%px
from course_lib.parallel.zero import TiledLinear


def peak_of(tiles):
    """The most bytes of full weights, for a linear layer in so many tiles."""
    layer, seen = TiledLinear(torch.nn.Linear(256, 1024), tiles), []
    zero = start(comm, layer, 3, layers=layer.tiles)
    with LiveBytes(look=lambda: seen.append(gathered_bytes(zero))):
        layer(torch.ones(2, 256)).sum().backward()
    return max(seen)


peaks = {tiles: peak_of(tiles) for tiles in (1, 4, 16)}

# %%
for tiles, nbytes in cluster["peaks"][0].items():
    print(f"{tiles:2} tiles: {nbytes / 1000:7.1f} kB gathered")

# %% [markdown]
# ### A model that one rank cannot train
#
# Now all of it at once. 16 layers of 4 MiB need 256 MiB with gradients and Adam's state, and every process may use
# 192 MiB. As in lesson 08, they are started for this, and the ranks of this notebook have no limit. (Linux only.)

# %%
from course.lessons.l11_zero_from_scratch.memory_limit import fits

stories = []
try:
    for ranks in (1, 4):
        found = fits(ranks)
        stories.append(found.story)
        print(f"{ranks} rank{'s' * (ranks > 1)} of {found.limit_mib} MiB: trained = {found.trained}")
except OSError as error:
    print(error)

# %% tags=["nbval-ignore-output"]
print("\n".join(stories))

# %% [markdown]
# A model whose training does not fit into one device is called **out-of-core** there. In lesson 08 stages of a pipeline were the way
# out; here every rank still trains the whole model.
#
# ### PyTorch's own
#
# **FSDP** (*fully sharded data parallel*) is stage 3 in PyTorch. It shards each parameter by its rows, and gathers a layer's in one
# message. It averages gradients; we ask it for sums. Three steps, over the course's backend for MPI:

# %%
# %%px --timeout 120
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from course_lib.parallel.ddp import start_group

start_group(comm, "mpi4py")
mesh, mine = init_device_mesh("cpu", (size,)), copy.deepcopy(model)
for part in (*mine.blocks, mine):
    fully_shard(part, mesh=mesh).set_gradient_divide_factor(1.0)
adam = torch.optim.AdamW(mine.parameters())
for _ in range(3):
    loss = text_loss(comm, mine, tokens)
    loss.backward()
    adam.step()
    adam.zero_grad()
theirs = comm.allreduce(loss.item())
local = sum(p.to_local().numel() for p in mine.parameters())

# %%


print("FSDP has the same loss as stage 3, to 1e-5:", abs(cluster["theirs"][0] - losses[3]) < 1e-5)
print("numbers in the ranks' shards:", cluster["local"], "of", parameters)

# %% [markdown]
# ### Your machine beside the reference
#
# `python -m benchmarks.zero` times our stages beside PyTorch's. These are the figures of the **reference machine**.

# %% tags=["nbval-ignore-output"]
import json

from course.paths import ROOT

results = ROOT / "benchmarks" / "results" / "zero.json"
rows = json.loads(results.read_text()) if results.exists() else []
for row in rows:
    print(
        f"{row['case'][:52]:52} {row['ours']:8.1f} {row['unit']:3} {row['peer_name'][:24]:24} {row['peer']:8.1f}"
    )
print(f"{len(rows)} rows in {results.name}" if rows else "not measured yet")

# %% [markdown]
# ## On GPUs
#
# Nothing changes but the cost. Inside a machine, links are fast and stage 3 hides its gathers behind computing; between
# machines it may not, and then stage 2, or stage 3 inside each machine and copies between them, is often better. What does not
# fit after stage 3 are activations: recompute them (lesson 08).

# %% [markdown]
# ## Pitfalls
#
# - Keeping a shard that is a view: the full buffer stays in memory.
# - Clipping by the norm of a rank's own slice.
# - Stage 3 without `layers`: the whole model stays gathered while it runs.
# - An optimizer that looks at whole matrices, or at the norm of a layer: its slices are something else.
# - Expecting that a 64th of the memory is enough on 64 ranks: activations, and one layer's full weights, come on top.

# %% [markdown]
# ## References
#
# - S. Rajbhandari and others, [ZeRO](https://arxiv.org/abs/1910.02054), 2020: the three stages, and the formulas.
# - J. Ren and others, [ZeRO-Offload](https://arxiv.org/abs/2101.06840), 2021; S. Rajbhandari and others,
#   [ZeRO-Infinity](https://arxiv.org/abs/2104.07857), 2021: state elsewhere, and tiles.
# - Y. Zhao and others, [PyTorch FSDP](https://arxiv.org/abs/2304.11277), 2023.
# - V. Korthikanti and others, [Reducing activation recomputation](https://arxiv.org/abs/2205.05198), 2022: the bytes of activations.
# - PyTorch, [fully_shard](https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html).

# %% [markdown]
# ## Stretch
#
# Stage 3 gathers the last layer for forward, frees it, and gathers it again at once for backward. Keep it gathered in between: what do you
# save, and what does it cost? (PyTorch calls it `reshard_after_forward`.)

# %% [markdown]
# ## Teardown

# %%
cluster.stop()
