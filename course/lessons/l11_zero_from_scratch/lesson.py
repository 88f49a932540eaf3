# ---
# title: ZeRO from scratch
# goal: Train with less memory per rank, and end with the weights that one process would have.
# able:
#   - say who owns what in each of ZeRO's three stages, and what stays on every rank
#   - predict how many bytes a rank holds, and say why the peak of a step falls less
#   - write the collectives of each stage, and say how many bytes they move
# more:
#   - clip sharded gradients
#   - save a training on four ranks and resume it on two
# before: >-
#   {06}
# minutes: {core: 20, more: 40}
# ranks: 4
# warm-up:
#   - ask: Which two collectives make an all-reduce?
#     answer: >-
#       A reduce-scatter, after which each rank has one chunk of the sum, and an all-gather, which sends all
#       chunks to every rank.
#   - ask: You train with Adam in float32. How many bytes does that take per parameter, without activations?
#     answer: >-
#       16: the weight, its gradient and Adam's two averages, 4 bytes each.
#   - ask: In data parallelism, how do the weights of two ranks differ after a step?
#     answer: >-
#       Not at all: the ranks start equal, and all take the same step.
# ---

# %%
# %%px --setup
import copy

import numpy as np
import torch
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
torch.set_num_threads(1)

# %% [markdown] tags=["slide"]
# ## 1 · A model that does not fit
#
# Here is a model that is too large: 16 layers with 4 MiB of weights each, 64 MiB in all. With gradients and Adam's two averages,
# training takes four times as much: 256 MiB. On top of Python and its libraries, no process may allocate more than 192 MiB.
#
# We try to train one step in three ways: on one rank; on four ranks with data parallelism; on four ranks with ZeRO, the method of this lesson. How
# many of the three have enough memory?

# %%
predict("Of the three runs, how many have enough memory?", None)

# %% tags=["nbval-ignore-output"]
from course.lessons.l11_zero_from_scratch.memory_limit import three_tries

if tries := three_tries():
    trained = sum(found.trained for found in tries.values())
    outcome("Of the three runs, how many have enough memory?", trained, word="counted")

# %% [markdown]
# Data parallelism does not save memory: each rank holds a full copy of everything. The run with ZeRO used its last stage,
# which keeps everything once, distributed over the ranks: 64 of the 256 MiB on each. Let us build it.

# %% [markdown] tags=["notes"]
# Four minutes. Many say 2: they add up the memory of four ranks. Ask them what exactly would lie where. The limit holds in
# processes that are started for this, not in the ranks of the notebook, and only on Linux, where it should end
# with "no memory left", "no memory left" and "trained a step".

# %% [markdown] tags=["slide"]
# ## 2 · Four copies
#
# With Adam in float32, training takes 16 bytes per parameter. Data parallelism on four ranks takes 64 in all, and 48 of them are
# copies. **ZeRO**, the *Zero Redundancy Optimizer*, removes them in three stages.
#
# All stages put parameters into a flat buffer, one after the other, and cut the buffer into one shard per rank. The rank
# that keeps and updates a shard is its **owner**. Here are the four parameters of a small network:

# %%
# %%px
from course_lib.training.transformer import FeedForward

sizes = [(name, p.numel()) for name, p in FeedForward(8).named_parameters()]

# %% tags=["nbval-ignore-output"]
from course.lessons.shared.figures.zero import slice_owners

slice_owners(dict(cluster["sizes"][0]), ranks=4)

# %% [markdown]
# A shard may end in the middle of a parameter. Adam does not mind, because it updates every number by itself.

# %% [markdown] tags=["slide"]
# ## 3 · Stage 1: shard the optimizer state
#
# In data parallelism, an all-reduce brings the sum of every gradient to every rank, because every rank updates every number. In ZeRO only the owner
# updates a number, so only the owner needs that sum. An all-reduce is a reduce-scatter followed by an all-gather. We take it apart and update in
# between. To keep it short, we use NumPy, and SGD with momentum in place of Adam:


# %%
# %%px
def zero1_step(comm, weights, gradients, momentum, lr=0.1):
    """Update all `weights` in place; `momentum` is this rank's shard of the optimizer state."""
    parts = np.array_split(weights, comm.size)
    counts = [len(part) for part in parts]
    summed = np.zeros(counts[comm.rank])
    comm.Reduce_scatter(gradients, summed, counts)  # the sums of my shard
    momentum[:] = 0.9 * momentum + summed
    new = parts[comm.rank] - lr * momentum
    comm.Allgatherv(new, [weights, counts])  # everybody's new shards


# %% [markdown]
# A test with six weights and a learning rate of 0.1. Every gradient on rank r is 10^r, so each sum is 1111:

# %%
# %%px
weights, momentum = np.zeros(6), np.zeros([2, 2, 1, 1][rank])
zero1_step(comm, weights, np.full(6, 10.0**rank), momentum)
print(f"rank {rank}: momentum {momentum}, weights {weights}")

# %% [markdown]
# Every rank has all new weights, but each kept only its shard of the momentum. The two collectives move as many bytes as
# the all-reduce, because they are its two halves.

# %% [markdown] tags=["slide"]
# ## 4 · Stage 2: shard the gradients
#
# In stage 1, each rank still holds a full buffer of gradients, although it needs only its shard of their sums. Can we avoid it?
#
# Backward computes gradients from the last layer to the first. We collect them in buckets. As soon as a bucket is full, a
# reduce-scatter sums it, each rank keeps its shard, and the bucket is freed. Each bucket is a flat buffer of its own and is cut the
# same way, so every rank owns a shard of every bucket.

# %% tags=["exercise: 11.1"]

# %%
continue_with("11.1")

# %% [markdown] tags=["notes"]
# Six minutes. Two things go wrong: the shard's length (it is in `counts`), and an all-reduce followed by slicing,
# which gives the right numbers in a view that keeps the full bucket alive. The check says so.

# %% [markdown] tags=["slide"]
# ## 5 · Stage 3: shard the weights
#
# In stage 2, every rank still holds all weights. A layer needs all of *its* weights, but only while it runs. Now each layer is one flat
# buffer, and every rank owns a shard of every layer. So in stage 3 the ranks gather a layer just before it runs, and free it right after:
#
# ```
# forward    gather 0 · run 0 · free 0    gather 1 · run 1 · free 1    …
# backward   …    gather 1 · backward 1 · reduce-scatter its gradients · free 1    gather 0 · …
# ```
#
# Every rank still runs the full model on its own samples. ZeRO distributes what is *kept*, not what is computed.
#
# Now we train a Transformer for 40 steps in each stage; stage 0 is plain data parallelism. In stage 2, `shard_gradients` sums the buckets.
# **Predict:** how many bytes per parameter does a rank hold between two steps of stage 2?

# %%
predict("Bytes per parameter that each of four ranks holds in stage 2?", None)

# %%
# %%px --timeout 300
from course.lessons.l11_zero_from_scratch.runs import text_batches, train
from course_lib.training.transformer import build_transformer

model = build_transformer(length=32, width=64, layers=4, seed=0)
parameters = sum(p.numel() for p in model.parameters())
batches = list(text_batches(comm, steps=40))
runs = [train(comm, model, batches, stage, shard_gradients=shard_gradients) for stage in (0, 1, 2, 3)]

# %% tags=["nbval-ignore-output"]
from course.lessons.l11_zero_from_scratch.pictures import bytes_held, held_picture, loss_picture

runs, parameters = cluster["runs"], cluster["parameters"][0]
why = "4 for the weight, and a quarter of the other 12."
each = bytes_held(runs, stage=2) / parameters
outcome("Bytes per parameter that each of four ranks holds in stage 2?", each, word="counted", because=why)
held_picture(runs, parameters)

# %% [markdown]
# We counted the bytes of every tensor that a rank keeps between two steps. The dashed lines are the formula: on N ranks,
# 16, 8 + 8/N, 4 + 12/N and 16/N bytes per parameter in stages 0 to 3.
#
# Do the stages also train alike?

# %% tags=["nbval-ignore-output"]
loss_picture(runs[0])

# %% [markdown]
# The four curves coincide: all stages add the same gradients, up to rounding.

# %% [markdown] tags=["slide"]
# ## 6 · The price in bytes
#
# Stages 1 and 2 gather the weights once per step, after the update. How many times as many
# bytes does a rank receive in stage 3 as in stage 2?

# %%
predict("How many times as many bytes does a rank receive in stage 3 as in stage 2?", None)

# %%
received = [sum(run[stage].received for run in runs) / 4e6 for stage in (0, 1, 2, 3)]
print("MB per rank and step, in stages 0 to 3:", *(f"{mb:.2f}" for mb in received))
why = "One reduce-scatter and two all-gathers, before forward and before backward."
ratio = received[3] / received[2]
outcome(
    "How many times as many bytes does a rank receive in stage 3 as in stage 2?",
    ratio,
    word="counted",
    because=why,
)

# %% [markdown]
# For Ψ parameters on N ranks, a rank receives (N−1)/N of 2Ψ numbers in stages 0 to 2, and of 3Ψ in stage 3.

# %% [markdown] tags=["slide"]
# ## 7 · Within a step
#
# So far we counted *between* two steps. But a training fails when its **peak**, the most memory that it needs at any moment of a step, is above the
# limit. `look_into_step` adds up all tensors that exist, after each operation of one step. From stage 0 to stage 3, held memory falls by 75 %. By how
# much does the peak fall?

# %%
predict("By how many percent does the peak of a step fall, from stage 0 to stage 3?", None)

# %%
# %%px --timeout 200
from course.lessons.l11_zero_from_scratch.runs import look_into_step

looks = [look_into_step(comm, model, batches[0], stage) for stage in (0, 1, 2, 3)]

# %% tags=["nbval-ignore-output"]
from course.lessons.l11_zero_from_scratch.pictures import peak_picture
from course.lessons.l11_zero_from_scratch.words import compare_last_stages, explain_peak, memory_table

looks = cluster["looks"][0]
fall, why = 100 * (1 - looks[3].peak / looks[0].peak), explain_peak(looks)
outcome("By how many percent does the peak of a step fall, from stage 0 to stage 3?", fall, "%", why)
print(memory_table(looks), compare_last_stages(looks), sep="\n")
peak_picture(looks)

# %% [markdown]
# Forward piles up activations and backward frees them, on every rank, as without ZeRO. In stage 3, a layer's gathered weights and full
# gradients are also allocated and freed. Parameters outside the layers (embedding, final norm, head) stay gathered throughout forward and backward. So plan with
# the peak, not with the formula for what is held.

# %% tags=["exercise: 11.q2"]

# %% [markdown] tags=["notes"]
# Five minutes for sections 6 and 7. Almost everybody says 75 % or nearly so. Let one person name everything that is in memory when backward
# begins. What helps against activations is in lesson 08 (recompute them) and in a smaller batch, not in a higher stage.

# %% [markdown] tags=["slide"]
# ## Key points
#
# - Data parallelism holds everything on every rank. ZeRO shards the optimizer state (stage 1), the gradients (2) and the weights (3).
# - With Adam in float32 on N ranks, a rank holds 16, 8 + 8/N, 4 + 12/N or 16/N bytes per parameter, in stages 0 to 3.
# - Stages 0, 1 and 2 move equally many bytes. Stage 3 moves 1.5 times as many.
# - ZeRO shards neither the computation nor the activations, so the peak falls by less than the held memory.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# Each of your 8 GPUs has 10 GB to spare. A model twice as large would need 30 GB more on each. (a) Stage 1, (b) stage 3, (c) a smaller batch:
# which do you try first, and what must you know to choose? Vote, talk to your neighbour, vote again.
#
# <details><summary>What to listen for</summary>No letter is right before you know what fills the memory at the peak. If it is the optimizer state,
# stage 1 may be enough, and it moves no more bytes. If it is activations, no stage makes them smaller; (c) or recomputation does. If it is something
# else that ZeRO shards, take the lowest stage that fits.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# ### Two questions, two exercises

# %% tags=["exercise: 11.q1"]

# %% tags=["exercise: 11.q3"]

# %% tags=["exercise: 11.2"]

# %% tags=["exercise: 11.3"]

# %% [markdown]
# The library has all stages in one file, `course_lib/parallel/zero.py`, for any PyTorch model. Its stage 1 is `zero1_step` for buckets of parameters.
# `update` lets the optimizer change the shards that this rank owns:

# %% tags=["source: course_lib.parallel.zero:Zero1"]
# %%px

# %% [markdown]
# ### Save on four ranks, resume on two
#
# In stage 3 no rank can write the model to a file, because none holds it. Every rank saves its own shards, and for each shard the
# parameter and the position where it begins. A rank that resumes collects the numbers that it owns from all files. So the number of ranks may change.
#
# This training saves every four steps. When it starts, it looks for a checkpoint:

# %% tags=["source: course.lessons.l11_zero_from_scratch.resumable:train_resumable"]
# %%px

# %% [markdown]
# First, our four ranks train 14 steps undisturbed. Then a job of four other ranks does the same in another folder. After ten steps its last
# rank gets SIGKILL, the signal of `kill -9`. A third job goes on in that folder, on two ranks. All three divide the same global batches among their
# ranks. How many steps do the second and the third job both take?

# %%
predict("How many steps do the killed and the resumed job both take?", None)

# %%
# %%px --timeout 300
import tempfile
from pathlib import Path

from mpi_classroom.launch import job_folder

folder = comm.bcast(tempfile.mkdtemp(dir=job_folder()) if rank == 0 else None)  # removed with the cluster
losses = dict(train_resumable(comm, Path(folder), steps=14))

# %% tags=["nbval-ignore-output"]
import tempfile
from pathlib import Path

from course.lessons.l11_zero_from_scratch.resume_jobs import largest_difference, run_job, side_by_side

with tempfile.TemporaryDirectory() as name:
    killed = run_job(4, Path(name), steps=14, kill_after=10)
    resumed = run_job(2, Path(name), steps=14)
undisturbed = cluster["losses"][0]
twice = len(killed.keys() & resumed.keys())
why = f"The last checkpoint was saved after step {min(resumed) - 1}."
outcome("How many steps do the killed and the resumed job both take?", twice, word="counted", because=why)
print(side_by_side({"4 ranks": undisturbed, "4, killed": killed, "2, resumed": resumed}))

# %% [markdown]
# The last column adds its gradients over two ranks, the first over four. Do their losses agree?

# %%
same = largest_difference(undisturbed, resumed) < 1e-9
print(f"resumed on 2 ranks in step {min(resumed)}, with the losses of 4 ranks to 1e-9: {same}")

# %% [markdown]
# The steps after the last checkpoint are lost, and taken again. A kill may also come while a checkpoint is being written. `save_training`
# therefore writes into a hidden folder, waits until every byte is on the disk, and only then gives the folder its name. From the first save on, there is a complete
# checkpoint at every moment. It also contains Adam's averages, the number of steps and the random-number state. With the weights alone, the training would go
# on differently.
#
# ### Clipping
#
# A step along a very large gradient can ruin a training. So gradients are often *clipped*: when their norm, taken over all parameters, is above a limit, all gradients
# are multiplied by the same factor, which brings the norm down to the limit.

# %% tags=["exercise: 11.4"]

# %% [markdown]
# ### Fewer bytes: 16 bits, files, tiles
#
# **16 bits.** In mixed precision, weights and gradients have 2 bytes each. The owner of a shard also keeps it in float32, its *master* copy, because many updates are
# too small for 16 bits. With Adam's averages that makes 2 + 2 + 12 bytes: 16 as before, but stages 1 and 2 shard more of them. The formulas become
# 16, 4 + 12/N, 2 + 14/N and 16/N; the ZeRO paper has these.

# %%
# %%px --timeout 200
half = [train(comm, copy.deepcopy(model).bfloat16(), batches[:2], stage) for stage in (0, 1, 2, 3)]

# %%
from course_lib.theory.memory import ADAM_MIXED, bytes_per_parameter

print("stage   bytes per parameter   by the formula")
for stage in (0, 1, 2, 3):
    counted = sum(run[stage].held.total for run in cluster["half"]) / 4 / parameters
    print(f"{stage:5}{counted:22.2f}{bytes_per_parameter(stage, 4, ADAM_MIXED):17.2f}")

# %% [markdown]
# With float16, small gradients become zero. So the loss is first multiplied by a large factor (`LossScaler`), and when the gradients of any rank
# overflow, all ranks skip the step.
#
# **Files.** If a shard of the optimizer state is still too large, **offload** it: from a GPU to the host's memory, or to a disk. Our library keeps Adam's two averages in files,
# which the operating system caches as long as it has memory. The optimizer does not notice, because a tensor in a file is a tensor:

# %% tags=["source: course_lib.parallel.zero:in_file"]
# %%px

# %%
# %%px --timeout 200
from course.lessons.l11_zero_from_scratch.runs import start, text_loss
from course_lib.parallel.zero import offload_state

mine = copy.deepcopy(model)
zero = start(comm, mine, 2, lambda shards: torch.optim.AdamW(shards, lr=3e-3))
with tempfile.TemporaryDirectory() as name:
    in_files = offload_state(zero.optimizer, Path(name), rank)
    for tokens in batches[:3]:
        loss = text_loss(comm, mine, tokens)
        loss.backward()
        zero.step()
        zero.zero_grad()
    offloaded = comm.allreduce(loss.item())
    del zero

# %%
same = abs(cluster["offloaded"][0] - runs[0][2].losses[2]) < 1e-4
print("the loss of step 2 equals that with the state in memory:", same)
print("bytes in the files of all ranks, per parameter:", sum(cluster["in_files"]) / parameters)

# %% [markdown]
# **Tiles.** In stage 3 the peak includes all weights of the layer that runs, so a large layer makes a high peak. *Memory-centric tiling* cuts a linear
# layer into tiles of its outputs, and gathers one tile at a time:

# %%
# %%px
from course.lessons.l11_zero_from_scratch.runs import gathered_bytes
from course_lib.parallel.zero import TiledLinear
from course_lib.training.memory_use import LiveBytes


def peak_of(tiles):
    """The most bytes of gathered weights, for a linear layer in so many tiles."""
    layer, seen = TiledLinear(torch.nn.Linear(256, 1024), tiles), []
    zero = start(comm, layer, 3, layers=layer.tiles)
    with LiveBytes(look=lambda: seen.append(gathered_bytes(zero))):
        layer(torch.ones(2, 256)).sum().backward()
    return max(seen)


peaks = {tiles: peak_of(tiles) for tiles in (1, 4, 16)}

# %%
for tiles, nbytes in cluster["peaks"][0].items():
    print(f"{tiles:2} tile{'s' * (tiles > 1):1}: at most {nbytes / 1000:6.1f} kB of weights gathered")

# %% [markdown]
# Awan and others call a model *out-of-core* when its training does not fit into one device's memory. (Elsewhere the word means "kept on slower storage", as in our files.)
# Pipelines (lesson 08) and ZeRO are two ways to train such a model on several devices.
#
# ### Stage 3 in time, and in PyTorch
#
# Stage 3 receives 1.5 times as many bytes as stage 2. How long is a step, on one rank per core?

# %%
predict("How many times as long is a stage-3 step as a stage-2 step?", None)

# %%
# %%px --timeout 200
from course_lib.comm.timing import one_rank_per_core, seconds_on


def step_seconds(team, stage):
    """Seconds of a step on the ranks of `team`."""
    mine = build_transformer(length=32, width=128, layers=4, seed=0)
    zero = start(team, mine, stage, layers=mine.blocks)

    def step():
        text_loss(team, mine, batches[0]).backward()
        zero.step()
        zero.zero_grad()

    return seconds_on(team, step, repetitions=10)


team, seconds = one_rank_per_core(comm), []
if team != MPI.COMM_NULL:
    seconds = [step_seconds(team, stage) for stage in (0, 1, 2, 3)]

# %% tags=["nbval-ignore-output"]
from course.lessons.l11_zero_from_scratch.words import explain_seconds
from mpi_classroom.launch import available_cores

seconds, ranks = cluster["seconds"][0], min(available_cores(), 4)
outcome("How many times as long is a stage-3 step as a stage-2 step?", seconds[3] / seconds[2])
print(explain_seconds(seconds, ranks))

# %% [markdown]
# **Prefetch.** While a layer's weights are on their way, the rank waits. `course_lib/fast/zero.py` has a stage 3 that gathers the next layer while this one runs. It waits less, and
# has two layers gathered at once.
#
# **FSDP** (*Fully Sharded Data Parallel*) is stage 3 in PyTorch. It shards each parameter by its rows and gathers all parameters of a layer in one collective. It averages gradients; we
# ask for sums. Three steps, over the course's MPI backend:

# %%
# %%px --timeout 200
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from course_lib.parallel.ddp import start_group

start_group(comm, "mpi4py")


def fsdp(mesh):
    """Three steps with FSDP on a mesh of ranks; the last loss, and how many numbers this rank keeps."""
    mine = copy.deepcopy(model)
    for part in (*mine.blocks, mine):
        fully_shard(part, mesh=mesh).set_gradient_divide_factor(1.0)
    adam = torch.optim.AdamW(mine.parameters(), lr=3e-3)
    for tokens in batches[:3]:
        loss = text_loss(comm, mine, tokens)
        loss.backward()
        adam.step()
        adam.zero_grad()
    return comm.allreduce(loss.item()), sum(p.to_local().numel() for p in mine.parameters())


# %% [markdown]
# Between machines, gathering every layer twice is expensive. **HSDP** (*Hybrid Sharded Data Parallel*) shards inside each machine and keeps one copy per machine, so that only an all-reduce of
# gradient shards crosses the network. For FSDP that is a mesh with two axes; here two "machines" of two ranks:

# %%
# %%px --timeout 200
sharded = fsdp(init_device_mesh("cpu", (4,)))
hybrid = fsdp(init_device_mesh("cpu", (2, 2), mesh_dim_names=("machines", "ranks")))

# %%
for name in ("sharded", "hybrid"):
    loss, numbers = cluster[name][0]
    same = abs(loss - runs[0][3].losses[2]) < 1e-4
    print(f"{name:8} loss of our stage 3: {same}; rank 0 keeps {numbers} of {parameters} numbers")

# %% [markdown]
# **ZeRO++** has the same aim. The ranks of each machine together keep a copy of the weights, from which backward gathers. What still crosses the
# network is packed: weights in 8 bits, gradients in 4.
#
# **On the reference machine.** `python -m benchmarks.zero` times our stages beside those of FSDP and of DeepSpeed, which lesson 12 uses:

# %% tags=["nbval-ignore-output"]
from course.lessons.l11_zero_from_scratch.words import benchmark_table

print(benchmark_table(here=seconds[3] / seconds[2]))

# %% [markdown]
# ## On GPUs
#
# The bytes are the same. Inside a machine, links are fast, and stage 3 can hide its gathers behind computing. Between machines the gathers may take
# longer than the computing; then stage 2, HSDP or ZeRO++ is often faster. If activations fill the memory, recompute them (lesson 08).

# %% [markdown]
# ## Pitfalls
#
# - A shard that is a view: the full buffer stays in memory.
# - Stage 3 without `layers`: the full model is one layer, and stays gathered throughout.
# - Code that looks at all gradients or at a whole matrix, such as an optimizer with one rate per layer: it sees shards.
# - A model that is built in full on every rank before it is sharded. It needs that memory once; lesson 12 names the remedy.
#
# *Published, and corrected here.* Kolly's report (see References) says that ZeRO, sharding weights, gradients and optimizer state, claims 64 times less memory and retains the communication volume of data parallelism.
# The first is true of held memory on 64 ranks, the second of stages 1 and 2 only: stage 3 moves 1.5 times as many bytes. The ZeRO paper says so.

# %% [markdown]
# ## References
#
# - S. Rajbhandari and others, [ZeRO](https://arxiv.org/abs/1910.02054), 2020: the three stages, and the formulas for mixed precision.
# - J. Ren and others, [ZeRO-Offload](https://arxiv.org/abs/2101.06840), 2021; S. Rajbhandari and others,
#   [ZeRO-Infinity](https://arxiv.org/abs/2104.07857), 2021: offloading, and tiles.
# - G. Wang and others, [ZeRO++](https://arxiv.org/abs/2306.10209), 2023.
# - Y. Zhao and others, [PyTorch FSDP](https://arxiv.org/abs/2304.11277), 2023: also hybrid sharding.
# - F. Kolly, *Data Parallelism in PyTorch*, 2022: the report that is corrected above.
# - A. Awan and others, *OC-DNN*, HiPC 2018: out-of-core models.
# - PyTorch, [fully_shard](https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html).

# %% [markdown]
# ## Stretch
#
# Stage 3 frees the last layer after forward and gathers it again at once for backward. Keep it gathered in between: what do you save, and what does it
# cost? (In PyTorch this is `reshard_after_forward=False`.)
