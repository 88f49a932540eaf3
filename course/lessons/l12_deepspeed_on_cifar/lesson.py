# ---
# title: DeepSpeed on CIFAR
# goal: Hand lesson 11 to a library, and find out which stage to take.
# able:
#   - train with DeepSpeed's engine and JSON file
#   - compute micro-batches
#   - choose a stage by what fits and what is sent
# more:
#   - save from all ranks, and repair a training loop
# before: >-
#   {11}, the core · {07}
# minutes: {core: 20, more: 13}
# ranks: 4
# warm-up:
#   - ask: ZeRO has three stages. What does each shard?
#     answer: Stage 1 shards the optimizer state, stage 2 also the gradients, stage 3 also the weights.
#   - ask: A batch of 64 images is computed in micro-batches of 16. What happens to their gradients?
#     answer: They are added up. The update comes after the last of them.
#   - ask: Which two collectives make up an all-reduce? How much does a rank send in each?
#     answer: >-
#       A reduce-scatter and an all-gather. In each, a rank sends (N − 1)/N numbers per parameter. In the
#       all-reduce it sends twice that.
# ---

# %% [markdown] tags=["slide"]
# ## 1 · One program, one file
#
# The library **DeepSpeed** has all stages of ZeRO. You select one in a JSON file. `torch_adam` takes PyTorch's AdamW, which needs no compiler. So many gradients as
# `reduce_bucket_size` says travel together. (The default, 500 million, takes 2 GB in stages 1 to 3.)

# %%
from pathlib import Path

_ = Path("code/ds_config.json").write_text("""\
{"optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "torch_adam": true}},
 "gradient_clipping": 1.0, "zero_optimization": {"stage": 0, "reduce_bucket_size": 2000000}}""")

# %% [markdown]
# We train on images of drawn shapes, as large as CIFAR-10's:

# %%
# %%px --save 12_train.py
"""DeepSpeed trains as ds_config.json says, on data/shapes.npz.

mpiexec -n 4 python code/12_train.py
deepspeed --num_gpus 4 code/12_train.py
sbatch -n 8 --wrap "mpiexec python code/12_train.py"
"""

import json
import os
import warnings
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

warnings.filterwarnings("ignore", category=FutureWarning)  # old names that DeepSpeed calls
here = Path(__file__).parent  # the folder of code/12_train.py, to which `--save` copies this cell

# %%
# %%px --save 12_train.py
os.environ.setdefault("DS_ACCELERATOR", "cuda" if torch.cuda.is_available() else "cpu")
import deepspeed

deepspeed.ops.__compatible_ops__ = {}  # no kernel for shared memory: it needs a compiler
if "RANK" not in os.environ and not (torch.cuda.is_available() or dist.is_initialized()):
    import torch_mpi4py  # by mpiexec, on CPUs: messages go through MPI

    torch_mpi4py.init_process_group()
os.environ.setdefault("LOCAL_RANK", os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", "0"))
deepspeed.init_distributed(verbose=False)

rank, size = dist.get_rank(), dist.get_world_size()
torch.set_num_threads(1)  # one thread per rank
images, labels = map(torch.from_numpy, np.load(here / "data" / "shapes.npz").values())
config = json.loads((here / "ds_config.json").read_text())

# %% [markdown] tags=["subslide"]
# The network has 14 layers and 33 million parameters:


# %%
# %%px --save 12_train.py
class Block(nn.Linear):
    def forward(self, x):
        return x + super().forward(x).relu()


def network(width):
    layers = [nn.Linear(3072, width), *(Block(width, width) for _ in range(12)), nn.Linear(width, 10)]
    return nn.Sequential(nn.Flatten(), *layers)


# %% [markdown]
# Each update uses 48 images, the **global batch**. A rank computes **micro-batches** of at most 24 images, and adds up their gradients. In DeepSpeed's keys, "gpu" means rank.

# %% tags=["exercise: 12.1"]

# %% [markdown] tags=["notes"]
# Four minutes up to here, five for the exercise. A wrong answer trains with another global batch: the next cell shows it.

# %% [markdown] tags=["subslide"]
# DeepSpeed's **engine** holds model and optimizer. It averages the gradients over the micro-batches of all ranks:


# %%
# %%px --timeout 200 --save 12_train.py
def train(config, steps=3, width=1536):
    """Train on one batch; yield its size and its loss in each step."""
    torch.manual_seed(0)
    engine, *_ = deepspeed.initialize(model=network(width), config=config | batch_keys(48, size, room=24))
    batch, device = engine.train_batch_size(), engine.device
    for _ in range(steps):
        total = torch.zeros(1, device=device)
        for part in torch.arange(rank, batch, size).split(engine.train_micro_batch_size_per_gpu()):
            inputs = images[part].to(device) / 8 - 1  # pixels are 0 to 15; the network gets -1 to 0.9
            loss = F.cross_entropy(engine(inputs), labels[part].to(device))
            engine.backward(loss)
            engine.step()  # an update after the last micro-batch
            total += loss.detach() * len(part) / batch
        dist.all_reduce(total)
        yield batch, total.item()


if __name__ == "__main__":
    for batch, loss in train(config):
        if rank == 0:
            print(f"DeepSpeed {deepspeed.__version__}, images per update: {batch}, loss {loss:.3f}")

# %% [markdown]
# Now *one* process trains alone. **Vote:** how many of the three decimals stay the same?

# %%
# !mpiexec -n 1 python code/12_train.py

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# All three. If yours differ, compare the images per update.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 2 · What fits?
#
# A weight, its gradient and Adam's two averages take 4 bytes each. For all parameters, that makes 504 MiB. We allow each of *two* ranks 600 MiB on top of what Python and its libraries hold. **Vote:** does stage 0 train?

# %%
from course_lib.effects import runs_within


def trains(mib, ranks=2, **zero):
    """Whether the ranks train with `mib` MiB each; `zero` replaces keys."""
    tiny = "list(train(config | {'zero_optimization': {}}, width=8))"  # first, without a limit
    large = f"config['zero_optimization'] |= {zero}; list(train(config))"
    return runs_within(mib, ranks, "code/12_train.py", large, first=tiny)


trains(600)

# %% [markdown]
# One character selects stage 1. **Vote:** does it train?

# %%
# !sed -i 's/"stage": 0/"stage": 1/' code/ds_config.json && cat code/ds_config.json
trains(600)

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# Stage 0 copies all gradients before it sends them. With this copy, it needs 20 bytes per parameter, or 630 MiB. In stage 1, each rank keeps only half of the averages.
#
# </details>
#
# From stage 1 on, each rank updates its part of the weights in a copy of its own. On N ranks, these are the bytes per parameter:
#
# | | weights | gradients | averages | copy |
# |---|---|---|---|---|
# | stage 1 | 4 | 4 | 8/N | 4/N |
# | stage 2 | 4 | 4/N | 8/N | 4/N |
# | stage 3 | 4/N | 4/N | 8/N | 4/N |
#
# Add a row, and about 4 bytes for buffers that live shortly. Does the sum stay below 19 bytes (600 MiB) or 13 (420 MiB)? **Predict** the next four answers:

# %%
for ranks, mib, stage in (2, 600, 2), (2, 600, 3), (4, 420, 1), (4, 420, 2):
    print(f"{ranks} ranks, {mib} MiB, stage {stage}: {trains(mib, ranks, stage=stage)}")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# Stage 3 fails, although its sum is the smallest. It gathers weights before it needs them, and by default it may keep a billion (`stage3_max_live_parameters`). Our model has 33 million, so every
# rank holds all of them again.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 3 · What is sent?
#
# In lesson 11, stages 0 to 2 sent 2 numbers per parameter, and stage 3 sent 3. (We leave out the factor (N − 1)/N.) Does DeepSpeed send as many by default? `slow_collectives` counts what a rank sends:

# %%
continue_with("12.1")
predict("How many numbers per parameter does stage 1 send?", None)


# %%
# %%px --timeout 300
from course_lib.effects import slow_collectives

parameters = sum(map(torch.numel, network(512).parameters()))


def third_step(**zero):
    """Numbers per parameter that a rank sends in step three."""
    steps = train(config | {"zero_optimization": zero}, width=512)
    next(steps), next(steps)
    with slow_collectives(mb_per_s=1e6) as sent:  # fast enough not to wait
        _, loss = next(steps)
    numbers = {name: round(n / parameters, 1) for name, n in sent.items() if n > 999}
    if rank == 0:
        print(f"{zero}\n    loss {loss:.3f}, {numbers}")
    return numbers


stages = [third_step(stage=stage) for stage in range(4)]

# %%
outcome("How many numbers per parameter does stage 1 send?", sum(cluster["stages"][0][1].values()))

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# Stages 1 and 2 send 3. By default, they all-reduce the gradients (2), although a rank needs only its quarter. Then they gather the new weights (1). Stage 3 gathers only once, because the weights stay gathered until
# backward. This holds for one micro-batch per update: stages 2 and 3 send more with each further one.
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# - If each of 64 GPUs keeps its micro-batch, the global batch grows. Tune the learning rate again, or accumulate less.
# - Add `"torch_autocast": {"enabled": true, "dtype": "bfloat16"}`, and start with `deepspeed --hostfile hosts code/12_train.py`.

# %% [markdown] tags=["slide"]
# ## Key points
#
# - Global batch = micro-batch × accumulation steps × ranks.
# - With equal shares, every stage trains like one process, up to rounding, batch norm and dropout.
# - Take the lowest stage that fits. But the stage alone decides neither what fits nor what is sent: measure both.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# With longer texts, stage 0 runs out of memory. Do you first try (a) stage 2, (b) smaller micro-batches?
#
# <details><summary>What to listen for</summary>(b), if a micro-batch has several texts. The activations grow, and no stage shards them.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# ### Must stages 1 and 2 send 3?
#
# Stages 1 and 2 sent 3 numbers per parameter, because they all-reduce all gradients. **Vote:** what makes stage 1 send less: (a) smaller buckets (`reduce_bucket_size`), (b) `use_multi_rank_bucket_allreduce` off?

# %%
# %%px --timeout 200
for key in {"reduce_bucket_size": 2_000_000}, {"use_multi_rank_bucket_allreduce": False}:
    third_step(stage=1, **key)

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (b). Each summed gradient goes only to its owner: 1 number instead of 2, but in more messages. With many ranks, these can cost more than they save. (With k micro-batches per update, stage 2 sums k times, and stage 3 gathers k times.)
#
# </details>
#
# ### Is stage 3 as cheap for a large model?

# %% tags=["exercise: 12.q4"]

# %% [markdown]
# ### Whose files are these?
#
# First the JSON file. What happens when a colleague reuses it?

# %% tags=["exercise: 12.q5"]

# %% [markdown]
# Next, a checkpoint. From stage 1 on, no rank has all of the optimizer state. Which files hold it? All ranks call `save_checkpoint`:

# %%
# %%px --timeout 200
import tempfile

from mpi_classroom.launch import job_folder

torch.manual_seed(0)
more = batch_keys(48, size, room=24) | {"zero_optimization": {"stage": 2}}
engine, *_ = deepspeed.initialize(model=network(256), config=config | more)
group = [tempfile.mkdtemp(dir=job_folder()) if rank == 0 else None]
dist.broadcast_object_list(group)
engine.save_checkpoint(group[0], tag="first")
dist.barrier()
if rank == 0:
    print(*sorted(each.name for each in Path(group[0], "first").iterdir()), sep="\n")

# %% tags=["exercise: 12.q3"]

# %% [markdown]
# Beside the folder `first`, DeepSpeed puts the program `zero_to_fp32.py`. It joins the ranks' shards into the full weights, in 32 bits. To resume on a different number of ranks,
# run `ds_to_universal`. It rewrites the files as a **universal checkpoint**, with one folder per parameter, for a config with `"checkpoint": {"load_universal": true}`. A checkpoint's files are pickles. A pickle can run any code when it is loaded, so load only your own.
#
# ### As others write it
#
# A report (Kolly, see References) ends with a DeepSpeed script for CIFAR-10. The next training loop has three bugs. Two of them are in the report:

# %% tags=["exercise: 12.3"]

# %% [markdown]
# A longer program, `code/train_cifar_deepspeed.py`, trains on CIFAR-10 itself, with a sampler, a scheduler and checkpoints. `code/run_ds.sh` starts it with
# DeepSpeed's launcher. The launcher reads the machines of a job from a **hostfile**. [On a GPU machine](../docs/on_a_gpu_machine.md) says what was run where.
#
# Does no stage fit? **ZeRO-Offload** keeps gradients and optimizer state in the CPU's memory, and updates the weights there. **ZeRO-Infinity** moves weights, too, even to disks.

# %% [markdown]
# ## References
#
# - J. Rasley and others, [DeepSpeed](https://doi.org/10.1145/3394486.3406703), KDD 2020; its
#   [configuration](https://www.deepspeed.ai/docs/config-json/) and [launcher](https://www.deepspeed.ai/getting-started/).
# - S. Rajbhandari and others, [ZeRO](https://arxiv.org/abs/1910.02054), 2020.
# - J. Ren and others, [ZeRO-Offload](https://arxiv.org/abs/2101.06840), 2021; S. Rajbhandari and others,
#   [ZeRO-Infinity](https://arxiv.org/abs/2104.07857), 2021.
# - F. Kolly, *Data Parallelism in PyTorch*, 2022: the script of 12.3.
# - A. Krizhevsky, *Learning Multiple Layers of Features from Tiny Images*, 2009: CIFAR-10.
