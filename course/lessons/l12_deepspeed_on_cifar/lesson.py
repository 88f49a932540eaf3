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
# **DeepSpeed** is the library of ZeRO's authors. Its **engine** holds model, optimizer and communication. How it
# trains is written in a JSON file:

# %%
import json
from pathlib import Path

keys = {
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "torch_adam": True}},
    "gradient_clipping": 1.0,
    "zero_optimization": {"stage": 0, "reduce_bucket_size": 2_000_000},
}
Path("code/ds_config.json").write_text(json.dumps(keys, indent=2))
# !cat code/ds_config.json

# %% [markdown]
# `torch_adam` takes PyTorch's AdamW, which needs no compiler. From stage 1 on, gradients travel in buckets of up to 2,000,000 numbers, larger layers alone.
# The images look like CIFAR-10's, but we drew them.

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
if "RANK" not in os.environ and not (torch.cuda.is_available() or dist.is_initialized()):
    import torch_mpi4py  # no launcher of DeepSpeed's: MPI, as a backend of torch

    torch_mpi4py.init_process_group()
os.environ.setdefault("LOCAL_RANK", os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", "0"))
deepspeed.init_distributed(verbose=False)
atexit.register(dist.destroy_process_group)

rank, size = dist.get_rank(), dist.get_world_size()
torch.set_num_threads(1)  # one thread per rank
images, labels = map(torch.from_numpy, np.load(here / "data" / "shapes.npz").values())

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
# Each update uses 48 images, the **global batch**. A rank computes at most 12 at a time, a **micro-batch**. It may add up the gradients of several
# micro-batches before an update. Two keys give their size and number ("gpu" means rank).

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
            loss = F.cross_entropy(engine(images[part].to(device) / 8 - 1), labels[part].to(device))
            engine.backward(loss)
            engine.step()  # an update after the last micro-batch
            total += loss.detach() * len(part) / batch
        dist.all_reduce(total)
        yield batch, total.item()
    engine.destroy()


if __name__ == "__main__":
    config = json.loads((here / "ds_config.json").read_text())
    for batch, loss in train(config):
        if rank == 0:
            print(f"images per update: {batch}, loss {loss:.3f}")

# %% [markdown]
# Four ranks took three steps. **Vote:** how many decimals of these losses will *one* process repeat? (a) None, (b) one, (c) all three.

# %%
# !mpiexec -n 1 python code/12_train.py

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# All three: one process adds up four micro-batches, four ranks have one each. If not, look at the images per update.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 2 · A real limit
#
# Each of the 33 million parameters takes 16 bytes: 504 MiB of weights, gradients and Adam's two averages. Each rank may
# allocate 560 MiB more than a tiny network took. (Linux only.) **Vote:** stage 0 (a) trains, (b) fails.

# %%
from course_lib.effects import runs_within


def trains(mib, **zero):
    """Whether four ranks train with these keys of `zero_optimization` when each may allocate `mib` MiB."""
    given = keys | {"zero_optimization": keys["zero_optimization"] | zero}
    tiny, large = f"list(train({keys}, width=8))", f"list(train({given}))"
    return runs_within(mib, 4, "code/12_train.py", large, first=tiny)


trains(560, stage=0)

# %% [markdown]
# In the JSON, one character:

# %%
trains(560, stage=1)

# %% [markdown]
# <details><summary>Open after you have run the cells</summary>
#
# (b): stage 0 copies the gradients, here into one bucket: 4 bytes more per parameter. In stage 1, a rank keeps a quarter of the averages.
#
# </details>
#
# Now 420 MiB. **Predict:** which of stages 1, 2 and 3 train?

# %%
[trains(420, stage=stage) for stage in (1, 2, 3)]

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# Only stage 2: stage 1 keeps all gradients, and copies of its slice. But stage 3 should keep least! What it sends will tell.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 3 · What does it send?
#
# ZeRO's paper: stages 0, 1 and 2 send 2 numbers per parameter. Stage 3 sends 3, gathering weights in forward and again in backward. (All times
# (N − 1)/N.) We leave that out. We count what DeepSpeed, with its defaults, gives to our backend, torch_mpi4py, through `_run`.

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
# We count the third step of a smaller network; two warm up. `continue_with` brings our keys if yours fail.

# %%
continue_with("12.1")


# %%
# %%px --timeout 200
def per_parameter(**zero):
    """What a rank sends in the third step, by the name of the collective."""
    steps = train(config | {"zero_optimization": zero}, width=512)
    next(steps), next(steps), sent.clear()
    with patch.object(MPIGroup, "_run", listen):
        next(steps)
    return {name: round(numbers / parameters, 1) for name, numbers in sent.items() if numbers > 999}


counted = [per_parameter(stage=stage) for stage in range(4)]

# %%
outcome("How many numbers per parameter does stage 1 send?", sum(cluster["counted"][0][1].values()))
cluster["counted"][0]  # of rank 0, in stages 0, 1, 2, 3

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# Stage 1 needs each gradient's sum on one rank only. But `use_multi_rank_bucket_allreduce` is true by default: DeepSpeed all-reduces whole buckets, fewer messages but
# twice the numbers. Then it gathers the new weights.
#
# Stage 3 gathers weights once: they stay for backward, and a rank holds all *and* its slice. Two keys allow it to keep a
# billion numbers each; the network that died has 33 million.
#
# </details>
#
# Now each sum goes to one rank, buckets shrink, and stage 3 keeps nothing gathered. **Vote:** stage 3 now sends (a) 1, (b) 2, (c) 3. And does it survive 420 MiB?

# %%
# %%px --timeout 200
sparing = {"reduce_bucket_size": 300_000, "use_multi_rank_bucket_allreduce": False}
sparing |= {"stage3_max_live_parameters": 0, "stage3_max_reuse_distance": 0}
again = [per_parameter(stage=stage, **sparing) for stage in (1, 2, 3)]

# %%
cluster["again"][0]

# %%
trains(420, stage=3, **cluster["sparing"][0])

# %% [markdown]
# <details><summary>Open after you have run the cells</summary>
#
# (c), and yes: the paper's numbers. DeepSpeed's defaults spend memory to save bytes in stage 3, bytes to save messages in stages 1 and 2. Stages 2 and 3 send gradients per micro-batch, 0 and 1 per update.
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# | | with 64 GPUs |
# |---|---|
# | start | `deepspeed --hostfile hosts code/12_train.py`, or `mpiexec` in a Slurm job (lesson 14); the same JSON, but more than 48 images |
# | buckets | 500 million numbers by default: 1 GB in 16 bits |
# | `overlap_comm` | from stage 1 on, default in 3: sends during backward, with a second bucket |
# | 32-bit copy | from stage 1 on, a copy of each rank's slice, even of 32-bit weights |

# %% tags=["exercise: 12.q4", "subslide"]

# %% [markdown] tags=["slide"]
# ## Key points
#
# - Global batch = micro-batch × accumulation steps × ranks.
# - Every stage should train like one process, up to rounding, batch norm, dropout.
# - Take the lowest stage that fits, and measure: its number promises neither memory nor bytes sent.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# Your model fits in stage 0 with 2 GB to spare. A colleague wants stage 2 "to be safe for longer texts". What do you try? (a) Stage 2, (b) stage 0 with
# smaller micro-batches, (c) stage 1.
#
# <details><summary>What to listen for</summary>Longer texts need activations, which no stage cuts: (b), it sends nothing more. At micro-batch 1: (c) frees room.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# ### Whose files are these?
#
# First, a file that a colleague takes along.

# %% tags=["exercise: 12.q5"]

# %% [markdown]
# From stage 1 on, no rank has all of the optimizer state. Who writes it? All ranks call `save_checkpoint`:

# %%
# %%px --timeout 200
import tempfile

from mpi_classroom.launch import job_folder

torch.manual_seed(0)
more = batch_keys(48, size, room=12) | {"zero_optimization": {"stage": 2} | sparing}
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
# **ZeRO-Offload** moves gradients and optimizer state to the host's memory, and updates there, on the CPU: per 16-bit parameter, 2 bytes of gradient go down and 2
# bytes of weight come back. **ZeRO-Infinity** moves weights too, and all of it to a disk (NVMe) if need be, piece by piece. The keys are `offload_optimizer` and
# `offload_param`. We run neither: without a GPU, host and device are the same memory, and DeepSpeed's own CPU Adam needs a compiler.
#
# ### As others write it
#
# A report (Kolly, see References) ends with a DeepSpeed script for CIFAR-10. Here is the heart of its loop:

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
