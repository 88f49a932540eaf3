# ---
# title: DeepSpeed on CIFAR
# goal: Hand lesson 11 to a library, and find out which stage is worth its messages.
# able:
#   - train with DeepSpeed's engine and its JSON file, on any launcher
#   - compute its batch keys
#   - choose a stage by what fits, and by what is sent
# more:
#   - save from all ranks, and say what offloading moves
# before: >-
#   {11}, the core · {07}
# minutes: {core: 20, more: 10}
# ranks: 4
# warm-up:
#   - ask: ZeRO has three stages. What does each of them cut?
#     answer: Stage 1 cuts the optimizer state, stage 2 the gradients as well, stage 3 the weights as well.
#   - ask: A batch of 64 images is computed in micro-batches of 16. What happens to their gradients?
#     answer: They are added up. The update comes after the last of them.
#   - ask: Which two collectives make an all-reduce, and what does each send?
#     answer: >-
#       A reduce-scatter and an all-gather. Each sends (N − 1)/N numbers per parameter, so the all-reduce sends
#       twice that.
# ---

# %% [markdown] tags=["slide"]
# ## 1 · One program, one file
#
# **DeepSpeed** is by ZeRO's authors. Its **engine** holds model, optimizer and communication; a JSON file says how to train:

# %%
import json
from pathlib import Path

file = Path("code/ds_config.json")
_ = file.write_text("""
{"optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "torch_adam": true}},
 "gradient_clipping": 1.0,
 "zero_optimization": {"stage": 0, "reduce_bucket_size": 2000000}}""")

# %% [markdown]
# `torch_adam` takes PyTorch's, which needs no compiler. From stage 1 on, gradients travel in buckets of 2,000,000 numbers, larger layers alone. We drew shapes in CIFAR-10's size.

# %%
# %%px --save 12_train.py
"""DeepSpeed trains as ds_config.json says, on data/shapes.npz.

Start it with one of these:

    mpiexec -n 4 python code/12_train.py
    deepspeed --num_gpus 4 code/12_train.py                   (on CPUs, too)
    sbatch -n 8 --wrap "mpiexec python code/12_train.py"      (Slurm)
"""

import atexit
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

deepspeed.utils.logger.setLevel("ERROR")
deepspeed.ops.__compatible_ops__ = {}  # else it compiles C++ at every start
# `deepspeed` sets RANK, and in a notebook's cluster the ranks are connected: then there is nothing to do.
if "RANK" not in os.environ and not (torch.cuda.is_available() or dist.is_initialized()):
    import torch_mpi4py  # by mpiexec, on CPUs: messages go through MPI

    torch_mpi4py.init_process_group()
# By mpiexec, on GPUs: DeepSpeed asks MPI for the ranks, and Open MPI says which GPU each takes.
os.environ.setdefault("LOCAL_RANK", os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", "0"))
deepspeed.init_distributed(verbose=False)
atexit.register(dist.destroy_process_group)

rank, size = dist.get_rank(), dist.get_world_size()
torch.set_num_threads(1)  # one thread per rank
images, labels = map(torch.from_numpy, np.load(here / "data" / "shapes.npz").values())
config = json.loads((here / "ds_config.json").read_text())

# %% [markdown] tags=["subslide"]
# The network has 33 million parameters in 14 layers:


# %%
# %%px --save 12_train.py
class Block(nn.Linear):
    def forward(self, x):
        return x + super().forward(x).relu()


def network(width):
    layers = [nn.Linear(3072, width), *(Block(width, width) for _ in range(12)), nn.Linear(width, 10)]
    return nn.Sequential(nn.Flatten(), *layers)


# %% [markdown]
# Each update uses 48 images, the **global batch**. A rank computes at most 12 at a time, a **micro-batch**, and may add up the gradients of several. Two keys set the size and number of micro-batches ("gpu" means rank).

# %% tags=["exercise: 12.1"]

# %% [markdown] tags=["notes"]
# Four minutes up to here, five for the exercise. A wrong answer trains with another global batch: the next cell shows it.

# %% [markdown] tags=["subslide"]
# Each micro-batch is three calls: `engine(…)`, `engine.backward`, `engine.step`. DeepSpeed averages over micro-batches and ranks.


# %%
# %%px --timeout 200 --save 12_train.py
def train(config, steps=3, width=1536):
    """Train as `config` says, always on the same images; yield their number and the loss of all ranks."""
    assert 48 % size == 0, f"{size} ranks cannot share 48 images equally"
    torch.manual_seed(0)
    engine, *_ = deepspeed.initialize(model=network(width), config=config | batch_keys(48, size, room=12))
    batch, device = engine.train_batch_size(), engine.device
    for _ in range(steps):
        total = torch.zeros(1, device=device)
        for part in torch.arange(rank, batch, size).split(engine.train_micro_batch_size_per_gpu()):
            # Pixels are 0 to 15; the network gets -1 to 0.9.
            loss = F.cross_entropy(engine(images[part].to(device) / 8 - 1), labels[part].to(device))
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
# **Vote:** how many of these losses' decimals will *one* process repeat? (a) None, (b) one, (c) all three.

# %%
# !mpiexec -n 1 python code/12_train.py

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# All three: one process adds up four micro-batches, four ranks have one each. Yours differ? Compare the images per update.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 2 · A real limit
#
# Each of the 33 million parameters takes 16 bytes: 504 MiB of weights, gradients and Adam's two averages. Each rank may allocate 560 MiB beyond what a tiny network takes (Linux only). **Vote:** stage 0 (a) trains, (b) fails.

# %%
from course_lib.effects import runs_within


def trains(mib, **zero):
    """Write these keys, if any, into ds_config.json; whether four ranks then train with `mib` MiB each."""
    if zero:
        keys = {"zero_optimization": {"reduce_bucket_size": 2_000_000} | zero}
        file.write_text(json.dumps(json.loads(file.read_text()) | keys))
    tiny = "list(train(config | {'zero_optimization': {}}, width=8))"
    return runs_within(mib, 4, "code/12_train.py", "list(train(config))", first=tiny)


trains(560)

# %% [markdown]
# One character in the file:

# %%
# !sed -i 's/"stage": ./"stage": 1/' code/ds_config.json
trains(560)

# %% [markdown]
# <details><summary>Open after you have run the cells</summary>
#
# (b): stage 0 copies all gradients into one bucket: 20 bytes. In stage 1, a rank keeps a quarter of the averages.
#
# </details>
#
# Now 420 MiB, 13 bytes per parameter. **Predict:** which of stages 1, 2 and 3 train?

# %%
[trains(420, stage=stage) for stage in (1, 2, 3)]

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# Only stage 2. A rank holds, in bytes per parameter (even in 32 bits, DeepSpeed copies the weights that it updates):
#
# | | weights | gradients | averages | copy | sum |
# |---|---|---|---|---|---|
# | stage 1 | 4 | 4 | 8/4 | 4/4 | 11 |
# | stage 2 | 4 | 4/4 | 8/4 | 4/4 | 8 |
#
# Buckets and scratch come on top: stage 2's 8 leave room in 13, stage 1's 11 do not. Do 3 more, 95 MiB, rescue stage 1? Try `trains(515, stage=1)`.
#
# Stage 3 should hold least. Why did it die? What it sends will tell.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 3 · What does it send?
#
# ZeRO's paper: stages 0, 1 and 2 send 2 numbers per parameter. Stage 3 sends 3: it gathers weights in forward and in backward. (We omit (N − 1)/N.) We count what DeepSpeed gives to our backend, torch_mpi4py.

# %%
predict("How many numbers per parameter does stage 1 send?", None)


# %%
# %%px
from collections import Counter
from unittest.mock import patch

from torch.utils._pytree import tree_leaves

from torch_mpi4py import MPIGroup

sent, through, parameters = Counter(), MPIGroup._run, sum(map(torch.numel, network(512).parameters()))


def listen(group, operation, options, *given):
    """Count the numbers of the longest tensor, for an all-reduce twice; then do what was asked."""
    longest = max((each.numel() for each in tree_leaves(given) if torch.is_tensor(each)), default=0)
    sent[operation.__name__] += longest * (2 if operation.__name__ == "all_reduce" else 1)
    return through(group, operation, options, *given)


# %% [markdown]
# We count the third step, one micro-batch, of a smaller network, with ZeRO's defaults. `continue_with` brings our keys if yours fail.

# %%
continue_with("12.1")


# %%
# %%px --timeout 200
def per_parameter(**zero):
    """The loss of the third step, and what a rank sends in it, by the name of the collective."""
    steps = train(config | {"zero_optimization": zero}, width=512)
    next(steps), next(steps), sent.clear()
    with patch.object(MPIGroup, "_run", listen):
        _, loss = next(steps)
    return round(loss, 3), {name: round(n / parameters, 1) for name, n in sent.items() if n > 999}


counted = [per_parameter(stage=stage) for stage in range(4)]

# %%
outcome("How many numbers per parameter does stage 1 send?", sum(cluster["counted"][0][1][1].values()))
cluster["counted"][0]  # of rank 0, in stages 0, 1, 2, 3

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# Equal losses. But stage 1 sends 3? By default, `use_multi_rank_bucket_allreduce` is on: each rank gets the sums of whole buckets, not only of its slice: fewer messages, twice the numbers. New weights follow.
#
# Stage 3 gathers weights once: those needed again within a billion numbers stay. So a rank holds all of ours *and* its slice. Did that kill it?
#
# </details>
#
# Rescue stage 3 at 420 MiB: set one key to 0. `max_reuse_distance`: no weight stays until backward. `max_live_parameters`: none is gathered ahead of its layer. **Vote:** who rescues it? (a) The first, (b) the second, (c) both.

# %%
for key in ("max_reuse_distance", "max_live_parameters"):
    print(key, trains(420, **{"stage": 3, f"stage3_{key}": 0}))

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# (b). Quarters of weights, gradients, averages and copy are 5 bytes per parameter. With the first key, up to 50 million are still gathered ahead, all our weights: 4, their buffer 4. That makes 13, plus scratch.
#
# </details>
#
# **Vote:** what does the rescued stage 3 send: 2 or 3? And stage 1, when its key is off?

# %%
# %%px --timeout 200
live = per_parameter(stage=3, stage3_max_live_parameters=0)
reduced = per_parameter(stage=1, use_multi_rank_bucket_allreduce=False)

# %%
cluster["live"][0], cluster["reduced"][0]

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# Still 2: weights stay until backward (5 + 4 bytes fit). Stage 1 sends the paper's 2.
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# | | with 64 GPUs |
# |---|---|
# | start | `deepspeed --hostfile hosts code/12_train.py`, or `mpiexec` in Slurm (lesson 14); 48 images are too few |
# | buckets | 500 million numbers by default: 1 GB in 16 bits |
# | `overlap_comm` | from stage 1 on, default in 3: sends during backward; 1 and 2 take a second bucket |

# %% tags=["exercise: 12.q4", "subslide"]

# %% [markdown] tags=["slide"]
# ## Key points
#
# - Global batch = micro-batch × accumulation steps × ranks.
# - With equal shares, every stage trains like one process, up to rounding, batch norm, dropout.
# - Take the lowest stage that fits, and measure: no number promises memory or bytes sent.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# A model fits in stage 0, 2 GB to spare. A colleague wants stage 2 "to be safe for longer texts". What do you try? (a) Stage 2, (b) stage 0 with
# smaller micro-batches, (c) stage 1.
#
# <details><summary>What to listen for</summary>Longer texts need activations, which no stage cuts: (b). Stage 0 sends once per update, stage 2 per micro-batch. At micro-batch 1: (c).</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# ### Whose files are these?
#
# First the JSON file: a colleague takes it along.

# %% tags=["exercise: 12.q5"]

# %% [markdown]
# From stage 1 on, no rank has all of the optimizer state. Who writes it? All ranks call `save_checkpoint`:

# %%
# %%px --timeout 200
import tempfile

from mpi_classroom.launch import job_folder

torch.manual_seed(0)
more = batch_keys(48, size, room=12) | {"zero_optimization": {"stage": 2}}
engine, *_ = deepspeed.initialize(model=network(256), config=config | more)
group = [tempfile.mkdtemp(dir=job_folder()) if rank == 0 else None]
dist.broadcast_object_list(group)
engine.save_checkpoint(group[0], tag="first")
dist.barrier()
if rank == 0:
    print(*sorted(each.name for each in Path(group[0], "first").iterdir()), sep="\n")

# %% tags=["exercise: 12.q3"]

# %% [markdown]
# The program `zero_to_fp32.py`, which DeepSpeed puts beside the folder `first`, joins the weights in 32 bits. To resume on another number of ranks,
# `ds_to_universal` rewrites the files as a **universal checkpoint**: one folder per parameter. All are pickles, which can run any code: load only your own.
#
# ### What if no stage fits?
#
# **ZeRO-Offload** moves gradients and optimizer state to the host's memory, and updates there, on the CPU: per 16-bit parameter of a rank's slice, 2 bytes of gradient go down and 2 bytes of weight come back. **ZeRO-Infinity** moves the weights as well, and all three on to a disk (NVMe) if need be, piece by piece. The keys are `offload_optimizer` and
# `offload_param`. We run neither: without a GPU, host and device are the same memory, and DeepSpeed's own CPU Adam needs a compiler.
#
# ### As others write it
#
# A report (Kolly, see References) ends with a DeepSpeed script for CIFAR-10. Two of the bugs in this loop are the report's own:

# %% tags=["exercise: 12.3"]

# %% [markdown]
# A longer program, `code/train_cifar_deepspeed.py`, trains on CIFAR-10 itself, with a sampler, a scheduler and checkpoints; `code/run_ds.sh` starts it with
# DeepSpeed's launcher, which reads the machines of a job from a **hostfile**. [On a GPU machine](../docs/on_a_gpu_machine.md) says what was run where.

# %% [markdown]
# ## References
#
# - J. Rasley and others, [DeepSpeed](https://doi.org/10.1145/3394486.3406703), KDD 2020; its
#   [configuration](https://www.deepspeed.ai/docs/config-json/) and [launcher](https://www.deepspeed.ai/getting-started/).
# - S. Rajbhandari and others, [ZeRO](https://arxiv.org/abs/1910.02054), 2020.
# - J. Ren and others, [ZeRO-Offload](https://arxiv.org/abs/2101.06840), 2021; S. Rajbhandari and others,
#   [ZeRO-Infinity](https://arxiv.org/abs/2104.07857), 2021.
# - F. Kolly, *Data Parallelism in PyTorch*, 2022: the script of 12.3. It also says that ZeRO needs 64 times less memory: true of stage 3 on 64 ranks, for
#   the model states.
# - A. Krizhevsky, *Learning Multiple Layers of Features from Tiny Images*, 2009: CIFAR-10.
