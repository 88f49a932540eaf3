# ---
# title: DeepSpeed on CIFAR
# goal: >-
#   Hand the work of lesson 11 to a library, train with it on small colour images, and know what each ZeRO stage
#   costs.
# able:
#   - train with DeepSpeed's engine on CPUs
#   - write its JSON file, and compute the global batch from it
#   - choose a stage by the bytes it holds, the bytes it sends, and its time
# more:
#   - save from all ranks, resume on another number of ranks, and start a script with a launcher
# before: >-
#   {11}, the core · {07}
# minutes: {core: 20, more: 38}
# ranks: 4
# warm-up:
#   - ask: ZeRO has three stages. What does each of them shard?
#     answer: Stage 1 shards the optimizer state, stage 2 the gradients as well, stage 3 the weights as well.
#   - ask: A batch of 64 samples is computed in micro-batches of 16. What happens to their gradients?
#     answer: They are added up. The update comes after the last of them.
#   - ask: >-
#       A model has a million float32 parameters. How many bytes of gradients does each of two ranks hold in stage
#       0, and in stage 2?
#     answer: 4 million in stage 0; 2 million in stage 2, where each rank keeps its shard only.
# ---

# %%
# %%px --setup
import torch
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size

# %% [markdown] tags=["slide"]
# ## 1 · An engine
#
# In lesson 11 we wrote ZeRO ourselves. **DeepSpeed** is the library that ZeRO's authors wrote. It was made for many GPUs, but it also
# runs on CPUs; here it sends over MPI.
#
# Our images are those of CIFAR-10: 32 × 32 pixels, in colour, ten classes. If the data set is not on this machine, the course draws shapes itself.

# %% tags=["nbval-ignore-output"]
# %%px --timeout 300
from course_lib.data.cifar10 import load_cifar10
from course_lib.parallel.deepspeed_engine import start_deepspeed

deepspeed = start_deepspeed(comm)
data = load_cifar10(train=10_000, test=1_000)
if rank == 0:
    print(data.source)

# %% [markdown]
# `deepspeed.initialize` takes a model and a configuration, and returns an **engine**: the model, its optimizer and all communication in one
# object.

# %% tags=["source: course_lib.parallel.deepspeed_engine:start_engine"]
# %%px

# %% [markdown]
# A step is three calls. `engine(…)` is the forward pass; `engine.backward` replaces `loss.backward`; `engine.step` replaces the
# optimizer's step. DeepSpeed averages the gradients over the ranks, so each rank's loss is a mean over its own samples.
#
# We train `deep_net`, twelve equal blocks of 36 928 parameters, in stage 2: each rank has eight images of its own, and takes all ten steps on them.

# %% tags=["nbval-ignore-output"]
# %%px --timeout 200
from torch.nn import functional as F

from course.lessons.l12_deepspeed_on_cifar.nets import deep_net
from course.lessons.l12_deepspeed_on_cifar.runs import rank_batches
from course_lib.parallel.deepspeed_config import stage_config
from course_lib.parallel.deepspeed_engine import end_engine

torch.manual_seed(0)
engine = start_engine(deep_net(), stage_config(2, size, micro_batch=8))
batch = next(rank_batches(data, 32, rank=rank, size=size, seed=0))
for step in range(10):
    loss = F.cross_entropy(engine(batch.inputs), batch.targets)
    engine.backward(loss)
    engine.step()
    if rank == 0 and step % 3 == 0:
        print(f"step {step}: loss on rank 0's images {loss.item():.2f}")
end_engine(engine)

# %% [markdown]
# The loss falls. The three calls name neither ranks nor stage: the stage is in the configuration, and the ranks are those of
# `start_deepspeed(comm)`.

# %% [markdown] tags=["notes"]
# Three minutes. Ask which line of the loop communicates: backward (the gradients) and step (the new weights). Whoever knows DDP asks why the
# loss has to go through the engine: because the engine divides it when gradients accumulate.

# %% [markdown] tags=["slide"]
# ## 2 · One JSON file
#
# The configuration is a file of **JSON**, usually called `ds_config.json`. Here is the one that we just used. You can copy it: save it, and
# pass its name as `config=`.

# %%
import json

from course_lib.parallel.deepspeed_config import explained, stage_config

print(json.dumps(stage_config(2, ranks=4, micro_batch=8), indent=2))

# %% tags=["nbval-ignore-output"]
from course.lessons.l12_deepspeed_on_cifar.figures import json_effects

json_effects(explained(stage_config(2, ranks=4, micro_batch=8)))

# %% [markdown]
# Three keys are about batches, and DeepSpeed checks that they agree:
#
# **global batch = micro-batch × accumulation steps × ranks**
#
# The micro-batch is what a rank computes at a time; it sets the memory for activations, the outputs of layers that backward needs. The global batch
# is what one update is computed from; it affects how well the net learns. If you omit one of the three keys, DeepSpeed computes it from the others.

# %% tags=["exercise: 12.q1"]

# %% tags=["exercise: 12.1"]

# %% [markdown] tags=["notes"]
# Seven minutes. The usual slip in 12.1 is to forget the ranks: micro-batch × steps is then the whole global batch on every rank.

# %% [markdown] tags=["slide"]
# ## 3 · Train
#
# Now a real training, one rank per core. A small network with batch-norm learns faster than our deep one. Images are shifted and mirrored at
# random, and the learning rate first climbs, then falls to 0. Your `batch_keys` makes global batches of 120 images.

# %%
continue_with("12.1")

# %% tags=["nbval-ignore-output"]
# %%px --timeout 600
from course.lessons.l12_deepspeed_on_cifar.runs import train_and_test
from course_lib.comm.timing import one_rank_per_core

team, learned, epochs = one_rank_per_core(comm), None, 3
if team != MPI.COMM_NULL:
    start_deepspeed(team)
    updates = epochs * (len(data.train_labels) // 120)
    rate = {"learning_rate": 5e-3, "warmup_steps": updates // 4, "total_steps": updates}
    config = stage_config(2, team.size, **rate) | batch_keys(120, team.size, room=64)
    curve = train_and_test(team, "convnet", config, data, epochs=epochs, augment=True)
    learned = (data.name, team.size, 120, curve.losses, curve.accuracies, updates)

# %% tags=["nbval-ignore-output"]
from course.lessons.l12_deepspeed_on_cifar.curves import (
    Training,
    explain_lines,
    learning_curves,
    long_trainings,
)

today, earlier = Training(*cluster["learned"][0]), long_trainings()
print(explain_lines(earlier))
learning_curves(today, earlier)

# %% [markdown]
# Batch-norm scales each layer's numbers by their mean and variance over the batch. Each rank computes these from its own images, so two ranks and
# one process do not train exactly alike here. Section 5, in More, compares them without batch-norm.

# %% [markdown] tags=["notes"]
# Five minutes, one of them waiting. While it runs, let the room guess the accuracy: guessing gives 10 %. If the data are drawn shapes, say that they
# are easier than photos.

# %% [markdown] tags=["slide"]
# ## 4 · Stages compared
#
# One number in the file chooses the stage. What does each stage cost? We take the deep net again, without accumulation, on four ranks. In each
# stage we count two things: the most bytes of weights, gradients and optimizer state that a rank holds during backward, without activations; and
# the bytes that it sends per step. `bucket=40_000` sets `reduce_bucket_size` to little more than a block's 36 928 parameters, so from stage 1 on
# the gradients are sent block by block.
#
# In lesson 11, each of N ranks held 8 + 8/N bytes per parameter in stage 1. How many does each of four ranks hold in DeepSpeed's stage 1?

# %%
predict("Bytes per parameter, stage 1 on four ranks?", None)

# %% [markdown]
# For the time we take one rank per core. Is a step of stage 3 faster or slower than one of stage 0?

# %%
predict("Stage 3: how many times as long as stage 0?", None)

# %%
# %%px --timeout 400
from course.lessons.l12_deepspeed_on_cifar.runs import run_stage


def all_stages(ranks, steps):
    """Bytes and seconds of a step in each stage."""
    start_deepspeed(ranks)
    configs = [stage_config(stage, ranks.size, micro_batch=8, bucket=40_000) for stage in range(4)]
    return {stage: run_stage(ranks, deep_net(), data, configs[stage], steps=steps) for stage in range(4)}


counted = all_stages(comm, steps=2)
timed = all_stages(team, steps=10) if team != MPI.COMM_NULL else None

# %% [markdown]
# First the memory of stage 1:

# %%
from course.lessons.l12_deepspeed_on_cifar.figures import (
    compare_stages,
    explain_times,
    held_per_parameter,
    stage_bars,
    stage_table,
    times_as,
)
from mpi_classroom.launch import available_cores

counted, timed = cluster["counted"][0], cluster["timed"][0]
each = held_per_parameter(counted[1])
why = "Lesson 11 had 10. DeepSpeed's optimizer works on a float32 copy of its shard: 4/4 more."
outcome("Bytes per parameter, stage 1 on four ranks?", round(each, 1), word="counted", because=why)

# %% [markdown]
# Then all stages, and the time:

# %% tags=["nbval-ignore-output"]
outcome("Stage 3: how many times as long as stage 0?", times_as(timed, 3), because=explain_times(timed))
print(stage_table(counted, timed), compare_stages(timed), sep="\n\n")
stage_bars(counted, timed, cores=available_cores())

# %% [markdown]
# As in lesson 11, stages 0, 1 and 2 move equally many bytes, and stage 3 moves 1.5 times as many. From stage 1 on, each rank holds 4/N bytes per
# parameter more than in lesson 11, for the float32 copy: 8 + 12/N, 4 + 16/N and 20/N, so 11, 8 and 5 on four ranks. In stages 2 and 3 our count is a
# little higher, because it includes the bucket and one unsharded block (see More).
#
# Equal bytes need not take equal time. Stage 0 sends its gradients in large pieces; stages 1 and 2 send them block by block, to one owner after another;
# stage 3 also gathers every layer twice.
#
# A higher stage never sends less, and with accumulation often more (section 5, in More). So take the lowest stage that fits.

# %% [markdown] tags=["notes"]
# Five minutes. Collect guesses for both predictions before the cell runs. 10 is the right answer to the first from lesson 11's formula: praise it, and
# ask what a library might keep in addition. On a busy machine the times mean little; the bytes never change.

# %% [markdown] tags=["slide"]
# ## Key points
#
# - An engine is model, optimizer and communication; a step is `engine(…)`, `engine.backward(loss)`, `engine.step()`.
# - Global batch = micro-batch × accumulation steps × ranks.
# - Without accumulation, stages 0 to 2 send equally many bytes, and stage 3 sends 1.5 times as many.
# - In every stage, forward and backward compute as much on each rank as in stage 0; only the update is divided. The weights come out equal up to
#   rounding (section 5 in More checks it).
# - Memory decides: take the lowest stage that fits.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# A model needs 28 GB for weights, gradients and optimizer state in stage 0 (AdamW, float32). You have four machines with 24 GB each. Activations need
# 2 GB. Vote, talk to your neighbour, vote again: (a) stage 3, (b) stage 1, (c) smaller micro-batches.
#
# <details><summary>What to listen for</summary>(b): on four ranks, DeepSpeed's stage 1 holds 11 of 16 bytes per parameter, so 19 GB. DeepSpeed's
# default bucket of 500 million numbers takes 2 GB more. About 3 GB are left for activations, and (c) makes these smaller. (a) leaves more room and
# sends more.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# ### 5 · The check, and accumulation
#
# First, what section 4 counted. In stages 2 and 3, its count of held bytes includes the bucket. Stage 1 has one too, but fills it only after
# backward, so our count leaves it out. Stage 2 also keeps full gradients of the blocks that two shards share, and stage 3 the weights of the block
# that is running. Activations are not counted: no stage shards them.
#
# Now the check that section 3 left open: are the weights in every stage those of one process? The training loop of this course uses the following
# step. It also takes batches of several micro-batches. Our loss is divided by the *global* batch. DeepSpeed divides again, by the number of ranks
# and of micro-batches, so `deepspeed_step` first multiplies the loss by both numbers.

# %% tags=["source: course_lib.parallel.deepspeed_engine:deepspeed_step"]
# %%px

# %% [markdown]
# Four steps of SGD in one process, then the same steps on four ranks in each stage, with two micro-batches per step:

# %%
# %%px --timeout 200
from course_lib.training.flat import flatten
from course_lib.training.loop import make_step, summed_cross_entropy
from course_lib.training.models import build

model = build("cifar", seed=0)
step = make_step(model, summed_cross_entropy, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
for batch in rank_batches(data, 48, rank=0, size=1, seed=0, steps=4):
    step(batch)
alone = flatten(list(model.parameters()))

# %%
# %%px --timeout 200
from course_lib.parallel.deepspeed_engine import gathered_weights

start_deepspeed(comm)
sgd = {"optimizer": "SGD", "learning_rate": 0.05, "momentum": 0.9}
for stage in (0, 1, 2, 3):
    config = stage_config(stage, size, micro_batch=6, accumulation=2, **sgd)
    engine = start_engine(build("cifar", seed=0), config)
    step = deepspeed_step(engine, summed_cross_entropy)
    for batch in rank_batches(data, 48, rank=rank, size=size, seed=0, steps=4):
        step(batch)
    same = bool((gathered_weights(engine) - alone).norm() < 1e-5 * alone.norm())
    end_engine(engine)
    if rank == 0:
        print(f"stage {stage}: the weights of one process, to 1e-5: {same}")

# %% [markdown]
# Accumulation saves memory for activations. Does it change how many bytes a rank sends? We split the same 16 samples per rank into four micro-batches
# of 4 and count the bytes that a rank sends per update.

# %%
predict("Stage 2, bytes sent with 4 micro-batches instead of 1: how many times as many?", None)

# %%
# %%px --timeout 200
sent = {}
for accumulation in (1, 4):
    for stage in (1, 2, 3):
        config = stage_config(stage, size, micro_batch=16 // accumulation, accumulation=accumulation)
        sent[stage, accumulation] = run_stage(comm, build("cifar", seed=0), data, config, steps=1).sent

# %%
sent = cluster["sent"][0]
times = {stage: sent[stage, 4] / sent[stage, 1] for stage in (1, 2, 3)}
outcome(
    "Stage 2, bytes sent with 4 micro-batches instead of 1: how many times as many?",
    round(times[2], 2),
    word="counted",
    because="Each rank sends its gradients four times and the new weights once: 4 + 1 instead of 1 + 1.",
)
for stage in (1, 2, 3):
    print(f"stage {stage}: {times[stage]:.1f} times the bytes with 4 micro-batches")

# %% [markdown]
# Stage 1 holds its gradients until the last micro-batch and sends them once. Stage 2 holds only its shard, so it must send after every micro-batch.
# Stage 3 also gathers its weights every time. So with accumulation, stages 2 and 3 cost even more: a second reason to take the lowest stage that fits.

# %% tags=["exercise: 12.q2"]

# %% [markdown]
# ### 6 · A file for a larger model
#
# With AdamW in float32, DeepSpeed holds these bytes per parameter on *n* ranks:
#
# | stage | weight | gradient | copy and two moments |
# |---|---|---|---|
# | 0 | 4 | 4 | 8, no copy |
# | 1 | 4 | 4 | 12 / n |
# | 2 | 4 | 4 / n | 12 / n |
# | 3 | 4 / n | 4 / n | 12 / n |

# %% tags=["exercise: 12.2"]

# %% [markdown]
# The file can do more. `bf16` computes and sends in 16 bits and keeps the optimizer in 32. `gradient_clipping` bounds the norm of the gradient
# of all ranks. A `scheduler` changes the learning rate, as in section 3.

# %%
# %%px --timeout 200
plain = stage_config(2, size, micro_batch=8, bucket=40_000)
more = {"bf16": True, "clip": 1.0, "warmup_steps": 5, "total_steps": 20}
richer = stage_config(2, size, micro_batch=8, bucket=40_000, **more)
pair = {"plain": run_stage(comm, deep_net(), data, plain, steps=2)}
pair["with bf16"] = run_stage(comm, deep_net(), data, richer, steps=2)

# %%
for name, run in sorted(cluster["pair"][0].items()):
    held, sent = run.held.total / run.parameters, run.sent / run.parameters
    print(f"{name:9}: {held:.1f} bytes per parameter held, {sent:.1f} sent per step")

# %% [markdown]
# Half the bytes are sent. The bytes held fall less, because the copy and the two moments keep their 32 bits. The three keys in the file:

# %%
richer = stage_config(2, 4, micro_batch=8, bf16=True, clip=1.0, warmup_steps=5, total_steps=20)
print(json.dumps({key: richer[key] for key in ("bf16", "gradient_clipping", "scheduler")}, indent=2))

# %% [markdown]
# In stage 3 no rank holds the full model, but every rank first builds all of it. With `zero.Init`, DeepSpeed shards each layer as soon as it exists:

# %%
# %%px
config = stage_config(3, size, micro_batch=8)
with deepspeed.zero.Init(config_dict_or_path=config):
    sharded = deep_net()
here = sum(weight.ds_tensor.nbytes for weight in sharded.parameters())
engine = start_engine(sharded, config)
full = gathered_weights(engine).nbytes
end_engine(engine)
print(f"rank {rank}: {here} of {full} bytes right after deep_net()")

# %% [markdown]
# A quarter of the bytes, plus padding so that four shards are equal.
#
# You will meet two more things in other people's files:
#
# - **`"auto"`** as a value is for the program that reads the file: it must put in a number before DeepSpeed sees it, as Hugging Face's Trainer does
#   (lesson 13). Given to DeepSpeed itself, an `"auto"` batch size ends in a `TypeError`.
# - **`"overlap_comm": true`** sends gradients on a second stream of the GPU while backward goes on. A CPU has no streams, so nothing overlaps
#   here. In stages 1 and 2 the key still costs a second bucket, so our files leave it out. In stage 3 it is on by default.

# %% [markdown]
# ### 7 · Everybody saves
#
# From stage 1 on, the optimizer state is sharded. So all ranks call `save_checkpoint`, and each writes its own shard. We take two steps, save,
# and take two more, to have something to compare with.

# %%
# %%px --timeout 200
import tempfile
from pathlib import Path

from mpi_classroom.launch import job_folder


def two_steps(engine, ranks):
    """Two steps on a fixed batch of 32 images; the loss of each, over all `ranks`."""
    batch = next(rank_batches(data, 32, rank=ranks.rank, size=ranks.size, seed=1))
    step = deepspeed_step(engine, summed_cross_entropy)
    return [round(ranks.allreduce(step(batch)), 4) for _ in range(2)]


folder = comm.bcast(tempfile.mkdtemp(dir=job_folder()) if rank == 0 else None)  # removed with the cluster
torch.manual_seed(0)
engine = start_engine(deep_net(), stage_config(2, size, micro_batch=8))
two_steps(engine, comm)
engine.save_checkpoint(folder, tag="first")
went_on = two_steps(engine, comm)
end_engine(engine)
if rank == 0:
    print("\n".join(sorted(path.name for path in Path(folder, "first").iterdir())))

# %% tags=["exercise: 12.q3"]

# %% [markdown]
# For inference you want one file of weights, without DeepSpeed. DeepSpeed puts the program `zero_to_fp32.py` beside every checkpoint of stages 1 to 3.
# It combines the shards in one process. Here is the function it calls:

# %%
# %%px --timeout 200
import contextlib
import io

from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

if rank == 0:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        weights = get_fp32_state_dict_from_zero_checkpoint(folder)
    complete = deep_net()
    print(complete.load_state_dict(weights), sum(weight.numel() for weight in weights.values()), "weights")

# %% [markdown]
# To *resume*, `engine.load_checkpoint` wants as many ranks as have saved. For another number, a program of DeepSpeed rewrites the files as a **universal
# checkpoint**: one folder per parameter. It works on files alone, so we run it from the notebook. Then two ranks go on where four stopped.

# %%
import sys

from course.lessons.shared.programs import output_of
from mpi_classroom.launch import rank_environment

folder = cluster["folder"][0]
convert = [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--inject_missing_state"]
convert += ["--input_folder", f"{folder}/first", "--output_folder", f"{folder}/universal"]
environment = rank_environment(2) | {"DS_ACCELERATOR": "cpu"}
_ = output_of(["sh", "-c", '"$@" 2>&1', "sh", *convert], environment, timeout=300)

# %%
# %%px --timeout 200
import logging

two = comm.Split(0 if rank < 2 else MPI.UNDEFINED, rank)
if two != MPI.COMM_NULL:
    start_deepspeed(two)
    deepspeed.utils.logger.setLevel(logging.ERROR)
    config = stage_config(2, two.size, micro_batch=16) | {"checkpoint": {"load_universal": True}}
    engine = start_engine(deep_net(), config)
    engine.load_checkpoint(folder, tag="universal")
    resumed = two_steps(engine, two)
    end_engine(engine)
    if rank == 0:
        near = all(abs(one - other) < 1e-3 for one, other in zip(went_on, resumed, strict=True))
        print(f"2 ranks go on with the losses of 4, to 0.001: {near}")

# %% [markdown]
# DeepSpeed reads checkpoints as pickles, which can run any code: load only what you have written. And it writes them in place: a kill at the wrong moment
# damages them. So save each time under a new `tag`, and delete the old one afterwards.

# %% [markdown]
# ### 8 · As a script
#
# A report (Kolly, see References) ends with a DeepSpeed script for CIFAR-10. Here is the heart of its training loop, as a function:

# %% tags=["exercise: 12.3"]

# %% [markdown]
# The rest of that script has more to repair:
#
# | there | in the course's script |
# |---|---|
# | a DataLoader that is overwritten two lines later | one, with a sampler, `set_epoch`, and the batch size of the file |
# | rank 0 of the *world* downloads | the first rank of every machine downloads |
# | no configuration file | `ds_config.json`, with an optimizer that needs no compiler |
# | "ZeRO is 3 to 5 times faster", "64 times less memory" | a stage is not faster; 64 holds in stage 3 on 64 ranks, with 16-bit weights and without activations; with the float32 of section 6 it is 51 |
#
# The course's script is `notebooks/code/train_cifar_deepspeed.py`. Its middle part:

# %%
from course.paths import NOTEBOOKS

code = NOTEBOOKS / "code"
text = (code / "train_cifar_deepspeed.py").read_text()
print(text[text.index("    config = json.loads") : text.index("    weights = deepspeed_engine")].rstrip())

# %% [markdown]
# DeepSpeed has its own launcher. It starts the processes and gives each its rank; `run_ds.sh` calls it. Under the launcher the script sends over Gloo, under
# `mpiexec` over MPI. Do both end with the same weights? A few steps on 512 images are enough to compare; in a terminal and without options, the script
# trains on all images. Each run prints a hash of its weights.

# %%
from mpi_classroom.launch import mpiexec_command

options = ["--samples", "512", "--epochs", "1"]
environment = rank_environment(2) | {"PYTHON": sys.executable}


def weights_of(command):
    """What the script says about ranks and weights; the accuracy after so few steps is left out."""
    return output_of(command, environment, timeout=110).splitlines()[-1].rpartition(", ")[0]


# %% tags=["nbval-ignore-output"]
script = str(code / "train_cifar_deepspeed.py")
print(weights_of(mpiexec_command(2, [sys.executable, "-m", "mpi4py", script, *options])))

# %% tags=["nbval-ignore-output"]
print(weights_of(["sh", str(code / "run_ds.sh"), "2", *options]))

# %% [markdown]
# With equal hashes, the weights are equal to the last bit, whichever library moved the bytes. For several machines the launcher reads a **hostfile** and starts a
# launcher on each of them by ssh:

# %%
print((code / "hostfile").read_text())

# %% [markdown]
# Without ssh, start the launcher by hand on every machine, with the machine's number; `run_ds.sh` shows how. In a job of Slurm, `mpiexec` starts all
# ranks, and you need neither launcher nor hostfile: lesson 14 and [Several machines](../docs/several-machines.md#from-your-laptop-to-a-cluster) show each way.

# %% [markdown]
# ## On GPUs
#
# The keys and the three calls stay. Take NCCL as the backend, leave out `"torch_adam"` so that DeepSpeed compiles its own Adam, add `"overlap_comm": true`,
# and let buckets and prefetching be large again: `stage_config` makes them small to save memory. The script takes `--device cuda`.
# [On a GPU machine](../docs/on_a_gpu_machine.md) says how, and what was run where.

# %% [markdown]
# ## Pitfalls
#
# - A file without `"gradient_clipping"`: DeepSpeed clips to a norm of 1 since the middle of 2026; versions before that do not clip. Write the value that
#   you want, 0.0 for none.
# - A file without `"train_batch_size"`: changing the number of ranks silently changes the global batch.
# - A bucket as large as the model: it takes the memory that stage 2 saves, and no gradient is freed before the end of backward.
# - One layer with most of the parameters: in stage 2, its whole gradient stays on every rank that owns a part of it.
# - DeepSpeed's own optimizers, and offloading: they compile C++ for minutes, and fail without a compiler.
# - DeepSpeed's own DataLoader: it forks workers and never calls `set_epoch`.
# - `if rank == 0:` around a call of the engine: starting, stepping, gathering and saving are collectives.

# %% [markdown]
# ## References
#
# - J. Rasley and others, [DeepSpeed](https://doi.org/10.1145/3394486.3406703), KDD 2020; its
#   [configuration](https://www.deepspeed.ai/docs/config-json/), [launcher](https://www.deepspeed.ai/getting-started/), and
#   [universal checkpoints](https://www.deepspeed.ai/tutorials/universal-checkpointing/).
# - S. Rajbhandari and others, [ZeRO](https://arxiv.org/abs/1910.02054), 2020.
# - F. Kolly, *Data Parallelism in PyTorch*, 2022: the script that section 8 corrects.
# - A. Krizhevsky, *Learning Multiple Layers of Features from Tiny Images*, 2009: CIFAR-10.

# %% [markdown]
# ## Stretch
#
# Count section 4 again with `bucket=500_000`, more than the deep net has parameters. Predict first in which stages our count rises, and by how much.
