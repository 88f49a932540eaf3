# %% [markdown]
# # 12 · DeepSpeed on CIFAR
#
# *Let DeepSpeed do what lesson 11 did by hand, say what you want in one JSON file, and know what each key costs.*
#
# | | |
# |---|---|
# | **You will be able to** | train with DeepSpeed's engine on the CPU of a laptop; write its JSON file, and compute the global batch from it; choose a stage by the bytes it keeps, the bytes it sends, and its time; start a script with a launcher and a hostfile, and save from all ranks |
# | **Before this** | [11 · ZeRO from scratch](11_zero_from_scratch.ipynb), the core · [07 · DDP on MNIST](07_ddp_on_mnist.ipynb) |
# | **Time** | core 20 min · more 30 min |
# | **Ranks** | 4 |
#
# [← 11 · ZeRO from scratch](11_zero_from_scratch.ipynb) · [Course map](00_start_here.ipynb#6-·-The-course) ·
# [13 · DeepSpeed summarization →](13_deepspeed_summarization.ipynb)

# %% [markdown]
# ## Warm-up
#
# Answer from memory, then open the answer.
#
# 1. What does a rank keep for itself alone in ZeRO-1, in ZeRO-2 and in ZeRO-3?
#    <details><summary>Answer</summary>Its slice of the optimizer; of the gradients, too; of the weights, too.</details>
# 2. A batch of 64 is computed in micro-batches of 16. What has to be done with their gradients?
#    <details><summary>Answer</summary>They are added up. Only then comes the update.</details>
# 3. DDP averages the gradients of the ranks. Our loss is divided by the global batch already. What is wrong then?
#    <details><summary>Answer</summary>Gradients come out too small, by the number of ranks. A hook that sums, or the loss times the ranks, repairs it.</details>

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
# ## 1 · An engine
#
# **DeepSpeed** is a library for training large models on many GPUs. It needs none of them: here it runs on CPUs, over
# MPI, and compiles nothing. We train the small net of its CIFAR-10 example on colour images of ten classes.

# %% tags=["nbval-ignore-output"]
# %%px --timeout 200
from course_lib.data.cifar10 import load_cifar10
from course_lib.parallel.deepspeed_engine import start_deepspeed

deepspeed = start_deepspeed(comm)
data = load_cifar10(train=4000, test=1000)
if rank == 0:
    print(data.source)

# %% [markdown]
# `deepspeed.initialize` takes a model and a configuration, and returns an **engine**: the model, its optimizer and all
# communication in one object.

# %% tags=["source: course_lib.parallel.deepspeed_engine:start_engine"]
# %%px

# %% [markdown]
# A step is three calls. `engine.backward` replaces `loss.backward`, and `engine.step` the optimizer's step. DeepSpeed
# averages over the ranks, so a mean over this rank's samples is the right loss.

# %% tags=["nbval-ignore-output"]
# %%px --timeout 200
from torch.nn import functional as F

from course.lessons.l12_deepspeed_on_cifar.runs import rank_batches
from course_lib.parallel.deepspeed_config import stage_config
from course_lib.training.models import build

config = stage_config(2, size, micro_batch=8, learning_rate=2e-3)
engine = start_engine(build("cifar", seed=rank), config)
for number, batch in enumerate(rank_batches(data, 32, rank=rank, size=size, seed=0, steps=121)):
    loss = F.cross_entropy(engine(batch.inputs), batch.targets)
    engine.backward(loss)
    engine.step()
    if number % 40 == 0:
        mean = comm.allreduce(loss.item()) / size
        if rank == 0:
            print(f"step {number:3}: loss {mean:.2f}")

# %% [markdown]
# That was ZeRO-2 on four ranks. It says so nowhere in the loop.

# %% [markdown]
# ## 2 · One JSON file
#
# Everything else stands in a file of **JSON**, by custom called `ds_config.json`: batch, optimizer, stage. `stage_config`
# writes one for CPUs, as a dictionary:

# %% tags=["nbval-ignore-output"]
from course.lessons.l12_deepspeed_on_cifar.figures import json_effects
from course_lib.parallel.deepspeed_config import explained, stage_config

config = stage_config(2, ranks=4, micro_batch=8, accumulation=2)
json_effects(explained(config))

# %% [markdown]
# Three keys speak of batches, and DeepSpeed insists that they agree:
#
# **global batch = micro-batch × accumulation steps × ranks**
#
# The micro-batch is what a rank computes at a time: it decides about memory. The global batch is what an update is made
# from: it decides about learning. Left out, one of the three is computed from the others.

# %% tags=["exercise: 12.1"]

# %% [markdown]
# ## 3 · Stages compared
#
# One number in the file chooses the stage. Is a higher one faster? We train the same net with the same batches in each
# stage, on a rank for every core.

# %%
predict("A step in stage 3, in steps of stage 0?", None)

# %%
# %%px --timeout 200
from course.lessons.l12_deepspeed_on_cifar.runs import run_stage
from course_lib.comm.timing import one_rank_per_core

team, runs = one_rank_per_core(comm), {}
if team != MPI.COMM_NULL:
    start_deepspeed(team)
    for stage in (0, 1, 2, 3):
        config = stage_config(stage, team.size, micro_batch=16, accumulation=2)
        runs[stage] = run_stage(team, data, config, steps=20, test=1000)

# %% tags=["nbval-ignore-output"]
from course.lessons.l12_deepspeed_on_cifar.figures import explain_stages, stage_bars, stage_table, times_as
from mpi_classroom.launch import available_cores

runs = cluster["runs"][0]
outcome("A step in stage 3, in steps of stage 0?", times_as(runs, 3))
stage_bars(runs, cores=available_cores())

# %% [markdown]
# And what does it say?

# %% tags=["nbval-ignore-output"]
print(stage_table(runs), explain_stages(runs), sep="\n\n")

# %% [markdown]
# All bytes are counted: read off the tensors, and off DeepSpeed's own list of its messages. So take the lowest stage that
# fits. Two things to look at again: even in float32, DeepSpeed's optimizer works on a copy of its slice, so that from stage
# 1 on a parameter has 20 bytes to share instead of 16. And a parameter that lies in two slices has its gradient on both
# ranks: with a net this small, you see it.

# %% tags=["exercise: 12.q1"]

# %% [markdown]
# ## Key points
#
# - An engine is model, optimizer and communication; a step is `engine(…)`, `engine.backward(loss)`, `engine.step()`.
# - Global batch = micro-batch × accumulation steps × ranks.
# - A stage is chosen by memory. A higher one is not faster: it computes as much, and sends as much or more.
# - Starting, stepping, gathering and saving are collectives: all ranks, or none.

# %% [markdown]
# ## Discuss
#
# A model needs 30 GB for weights, gradients and optimizer, and you have four machines with 24 GB each. Vote, talk to your
# neighbour for two minutes, vote again: (a) stage 3, to be safe, (b) stage 1, (c) smaller micro-batches.
#
# <details><summary>What to listen for</summary>(b): with AdamW in float32, stage 1 leaves 11 of 16 bytes on four ranks, 21 GB.
# Then look at activations, which is where (c) helps. (a) works too, and sends more.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# ### Three questions
#
# Write your letter between the quotes, and run the cell.

# %% tags=["exercise: 12.q2"]

# %% tags=["exercise: 12.q3"]

# %% [markdown]
# ### The same weights in every stage
#
# In lesson 11, ZeRO changed where numbers are, and none of the numbers. Here is the step that our training loop uses: it
# takes micro-batches of a batch that may be larger, and multiplies our share of the loss by all that DeepSpeed divides
# it by.

# %% tags=["source: course_lib.parallel.deepspeed_engine:deepspeed_step"]
# %%px

# %% [markdown]
# First four steps of SGD in one process, then the same steps on four ranks in each stage:

# %%
# %%px --timeout 200
from course_lib.training.flat import flatten
from course_lib.training.loop import make_step, summed_cross_entropy

model = build("cifar", seed=0)
step = make_step(model, summed_cross_entropy, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
for batch in rank_batches(data, 48, rank=0, size=1, seed=0, steps=4):
    step(batch)
alone = flatten(list(model.parameters()))

# %%
# %%px --timeout 200
from course_lib.parallel.deepspeed_engine import end_engine, gathered_weights

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
# ### A file that fits
#
# The bytes of a parameter, with AdamW in float32, and *n* ranks:
#
# | stage | weight | gradient | copy and two moments |
# |---|---|---|---|
# | 0 | 4 | 4 | 8, no copy |
# | 1 | 4 | 4 | 12 / n |
# | 2 | 4 | 4 / n | 12 / n |
# | 3 | 4 / n | 4 / n | 12 / n |

# %% tags=["exercise: 12.2"]

# %% [markdown]
# ### 16 bits, clipping, and a rate that climbs
#
# Three more things that the file does for you: `bf16` computes and sends in 16 bits and keeps the optimizer in 32;
# `gradient_clipping` bounds the norm of the gradient of all ranks; a `scheduler` changes the learning rate. The net without
# them, the net with all three, and a small ResNet:

# %%
# %%px --timeout 200
plain = stage_config(2, size, micro_batch=8)
more = stage_config(2, size, micro_batch=8, bf16=True, clip=1.0, warmup_steps=5, total_steps=20)
pair = {}
for name, model, config in (("plain", "cifar", plain), ("more", "cifar", more), ("resnet", "resnet", plain)):
    pair[name] = run_stage(comm, data, config, model=model, steps=15)

# %% tags=["nbval-ignore-output"]
json_effects(
    explained(stage_config(2, 4, micro_batch=8, bf16=True, clip=1.0, warmup_steps=5, total_steps=20))
)

# %%
for name, run in cluster["pair"][0].items():
    print(f"{name:6} keeps {run.held.total} bytes per rank, sends {run.sent:.0f} in a step")

# %% [markdown]
# Beware of the key that is *not* there: this DeepSpeed clips to a norm of 1 unless the file says
# `"gradient_clipping": 0.0`. The ResNet's batch-norm is that of each rank alone, as in DDP; and on CPUs it cannot be
# had in bf16, for its statistics stay in 32 bits.
#
# ### What accumulation sends
#
# Micro-batches save memory. Do they save messages, too? Bytes that a rank sends for an update of 64 samples:

# %%
# %%px --timeout 200
sent = {}
for accumulation in (1, 4):
    for stage in (1, 2, 3):
        config = stage_config(stage, size, micro_batch=16 // accumulation, accumulation=accumulation)
        sent[stage, accumulation] = run_stage(comm, data, config, steps=1).sent

# %%
sent = cluster["sent"][0]
for stage in (1, 2, 3):
    print(f"stage {stage}: {sent[stage, 4] / sent[stage, 1]:.1f} times the bytes in 4 micro-batches")

# %% [markdown]
# Stage 1 keeps its gradients until the last micro-batch, and sends them once. Stage 2 does not keep them: it sends them
# every time; and stage 3 gathers its weights every time as well. That is a second reason for the lowest stage that fits.
#
# ### Everybody saves
#
# From stage 1 on, no rank has the whole optimizer. So all ranks save, each its own part:

# %%
# %%px --timeout 200
import tempfile
from pathlib import Path

folder = comm.bcast(tempfile.mkdtemp() if rank == 0 else None)
engine = start_engine(build("cifar", seed=0), stage_config(2, size, micro_batch=8))
engine.save_checkpoint(folder, tag="first")
end_engine(engine)
if rank == 0:
    print("\n".join(sorted(path.name for path in Path(folder, "first").iterdir())))

# %% [markdown]
# One file of weights, and one of the optimizer for each rank. `engine.load_checkpoint(folder)` reads them again, on as many
# ranks, or on others after a conversion. It unpickles them, which can run any code: load only what you have written.
#
# ### As a script
#
# A guide to parallel training (Kolly, see References) ends with a DeepSpeed script for CIFAR-10. It cannot train:
#
# | there | here |
# |---|---|
# | `net.requires_grad_(False)` | weights that want gradients |
# | `.to(local_rank)`, under Gloo | the images stay in the CPU's memory |
# | a DataLoader, which DeepSpeed's own one then overwrites | one, with a sampler and `set_epoch`, of the size in the file |
# | all of the step below `if fp16:` | the step for every precision |
# | rank 0 of the *world* downloads | the first rank of every machine |
# | no configuration file | `ds_config.json`, with the optimizer that compiles nothing |
# | "ZeRO is 3 to 5 times faster", "64 times less" | a stage is not faster; 64 holds for stage 3 on 64 ranks |

# %% tags=["exercise: 12.3"]

# %% [markdown]
# The corrected script is `notebooks/code/train_cifar_deepspeed.py`; its middle part:

# %%
from course.paths import NOTEBOOKS

code = NOTEBOOKS / "code"
text = (code / "train_cifar_deepspeed.py").read_text()
print(text[text.index("    config = json.loads") : text.index("    weights = deepspeed_engine")].rstrip())

# %% [markdown]
# DeepSpeed has a launcher of its own. It starts the ranks, here with `run_ds.sh`, and gives each its number. Under it the
# script uses Gloo, under `mpiexec` MPI:

# %%
import sys

from course.lessons.shared.programs import output_of
from mpi_classroom.launch import mpiexec_command, rank_environment

options = ["--samples", "512", "--epochs", "1"]
script = str(code / "train_cifar_deepspeed.py")
commands = {
    "mpiexec": mpiexec_command(2, [sys.executable, "-m", "mpi4py", script, *options]),
    "deepspeed": ["sh", str(code / "run_ds.sh"), "2", *options],
}

# %% tags=["nbval-ignore-output"]
environment = rank_environment(2) | {"PYTHON": sys.executable}
for name, command in commands.items():
    print(f"{name:9}", output_of(command, environment, timeout=120).splitlines()[-1])

# %% [markdown]
# One hash: the same weights to the last bit. For several machines the launcher reads a **hostfile**, and starts a launcher
# on each of them by ssh:

# %%
print((code / "hostfile").read_text())

# %% [markdown]
# Without ssh, start it by hand once on every machine, with its number; `run_ds.sh` says how. On a cluster, `srun` or
# `mpiexec` starts all ranks by itself, and nothing of this is needed.

# %% [markdown]
# ## On GPUs
#
# Everything here holds, and pays: the keys are the same. Leave out `"torch_adam"`, so that DeepSpeed compiles its own Adam
# once; take NCCL; and let buckets and prefetching be large again, because `stage_config` makes them small to save memory.

# %% [markdown]
# ## Pitfalls
#
# - A file without `"gradient_clipping"` clips.
# - Another number of ranks with the same file is another global batch, if `"train_batch_size"` is left out.
# - An optimizer of DeepSpeed's own, or offloading, compiles C++ for minutes where there is a compiler, and fails where not.
# - DeepSpeed's own DataLoader forks workers and never calls `set_epoch`.

# %% [markdown]
# ## References
#
# - J. Rasley and others, [DeepSpeed](https://doi.org/10.1145/3394486.3406703), KDD 2020; its
#   [configuration](https://www.deepspeed.ai/docs/config-json/) and its
#   [launcher](https://www.deepspeed.ai/getting-started/).
# - S. Rajbhandari and others, [ZeRO](https://arxiv.org/abs/1910.02054), 2020.
# - F. Kolly, a guide to data parallelism in PyTorch, 2022: the script that "As a script" corrects.
# - A. Krizhevsky, *Learning Multiple Layers of Features from Tiny Images*, 2009: CIFAR-10.

# %% [markdown]
# ## Stretch
#
# Find the largest number of blocks with which a Transformer of width 256 trains on your machine in stage 0, and in stage 3 on
# four ranks. Predict both from the table above first.

# %% [markdown]
# ## Teardown

# %%
cluster.stop()
