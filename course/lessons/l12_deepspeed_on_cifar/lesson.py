# ---
# title: DeepSpeed on CIFAR
# goal: Hand lesson 11 to a library, and find out which stage you need.
# able:
#   - train with DeepSpeed's engine and JSON file
#   - compute micro-batches
#   - choose a stage by what fits and what is sent
# more:
#   - save from all ranks, and repair a training loop
# before: >-
#   {11}, the core · {07}
# minutes: {core: 20, more: 18}
# ranks: 4
# warm-up:
#   - ask: ZeRO has three stages. What does each shard?
#     answer: Stage 1 shards the optimizer state, stage 2 also the gradients, stage 3 also the weights.
#   - ask: A batch of 64 images is split into micro-batches of 16. What happens to their gradients?
#     answer: They are added up for one update of the weights.
#   - ask: Which two collectives make up an all-reduce?
#     answer: A reduce-scatter and an all-gather.
# ---

# %% [markdown] tags=["slide"]
# ## 1 · One program, one file
#
# The library **DeepSpeed** implements ZeRO. One digit of a JSON file selects the stage.

# %%
from pathlib import Path

_ = Path("code/ds_config.json").write_text("""\
{"optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "torch_adam": true}},
 "gradient_clipping": 1.0,
 "zero_optimization": {"stage": 0, "reduce_bucket_size": 2000000}}\n""")

# %% [markdown]
# ```
# stage                 0 is plain data parallelism
# gradient_clipping     scales gradients down if their norm is above 1
# reduce_bucket_size    stages 1 to 3 collect up to 2 million gradients in a buffer
#                       (on GPUs, delete it: default 500 million)
# torch_adam            uses PyTorch's AdamW: DeepSpeed's own must be compiled
# ```
#
# Skim the next two cells:

# %%
# %%px --save 12_train.py
"""Train as ds_config.json says, 48 images per update.

mpiexec -n 4 python code/12_train.py
deepspeed --num_gpus 4 code/12_train.py
sbatch -N 2 --ntasks-per-node 4 --gpus-per-node 4 --wrap "mpiexec python code/12_train.py"
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

warnings.filterwarnings("ignore", category=FutureWarning)
here = Path(__file__).parent  # the folder code

# %%
# %%px --save 12_train.py
if not torch.cuda.is_available():  # CPUs only
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    os.environ.setdefault("LOCAL_RANK", os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", "0"))
    import deepspeed.ops

    deepspeed.ops.__compatible_ops__ = {}  # compile nothing
    if "RANK" not in os.environ and not dist.is_initialized():  # started by mpiexec
        import torch_mpi4py  # the course's backend

        torch_mpi4py.init_process_group()
import deepspeed

deepspeed.init_distributed(verbose=False)
rank, size = dist.get_rank(), dist.get_world_size()
torch.set_num_threads(1)

# %% [markdown] tags=["subslide"]
# Our images are drawn shapes of CIFAR-10's size, pixels 0 to 15. The network has 33 million parameters:

# %%
# %%px --save 12_train.py
config = json.loads((here / "ds_config.json").read_text())
data = np.load(here / "data" / "shapes.npz")
images, labels = torch.from_numpy(data["images"]), torch.from_numpy(data["labels"])


class Block(nn.Linear):
    def forward(self, x):
        return x + super().forward(x).relu()


def network(width):
    layers = [nn.Linear(3072, width), *(Block(width, width) for _ in range(12)), nn.Linear(width, 10)]
    return nn.Sequential(nn.Flatten(), *layers)


# %% [markdown]
# Each update uses 48 images, the **global batch**. Each rank processes an equal share in one or more **micro-batches**.

# %% tags=["exercise: 12.1"]

# %% [markdown] tags=["notes"]
# Four minutes so far, five for the exercise.

# %% [markdown] tags=["subslide"]
# DeepSpeed's **engine** holds model and optimizer. It averages gradients over micro-batches and ranks, so `backward` gets one micro-batch's mean loss:


# %%
# %%px --timeout 200 --save 12_train.py
def train(config, steps=3, width=1536, room=24):
    """For `steps` updates, yield image count and mean loss."""
    torch.manual_seed(0)
    engine, *_ = deepspeed.initialize(model=network(width), config=config | batch_keys(48, size, room))
    batch, micro = engine.train_batch_size(), engine.train_micro_batch_size_per_gpu()
    for _ in range(steps):
        total = 0.0
        for part in torch.arange(rank, batch, size).split(micro):  # each update: the same 48 images
            x, y = images[part].to(engine.device), labels[part].to(engine.device)
            loss = F.cross_entropy(engine(x / 8 - 1), y)
            engine.backward(loss)
            engine.step()  # acts after the last micro-batch: updates, zeroes gradients
            total += loss.detach() * micro / batch  # summed over ranks: the batch's mean
        dist.all_reduce(total)
        yield batch, total.item()


if __name__ == "__main__":
    for batch, loss in train(config):
        if rank == 0:
            print(f"DeepSpeed {deepspeed.__version__}, images per update: {batch}, loss {loss:.3f}")

# %% [markdown]
# *One* process trains on all 48, in two micro-batches. **Vote:** do the losses change?

# %%
# !mpiexec -n 1 python code/12_train.py

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# Only by rounding: both jobs average gradients of the same 48 images.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 2 · What fits?
#
# *Two* ranks train in stage 0, with 600 MiB each:
#
# ```
#                                                                    bytes per parameter
# needed      weight 4  +  gradient 4  +  Adam's two averages 8    =   16
# available   600 MiB / 33 million parameters                      =   19
#
# The limit (Linux only) excludes Python and libraries. Activations take a few MiB.
# ```
#
# **Vote:** are 600 MiB enough?

# %%
from course_lib.effects import runs_within


def trains(mib, ranks=2, **zero):  # `zero` replaces keys of the file
    tiny = "list(train(config | {'zero_optimization': {}}, width=8))"  # unlimited: loads libraries
    job = f"config['zero_optimization'] |= {zero}; list(train(config, steps=2))"  # `list` runs `train`
    return runs_within(mib, ranks, "code/12_train.py", job, first=tiny)


print("2 ranks, stage 0 trains:", trains(600, stage=0))

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# No. Stage 0 copies up to 500 million gradients into a buffer, here all: 16 + 4 = 20 bytes per parameter.
#
# </details>
#
# Change one digit. Stage 1 shards Adam's averages and obeys `reduce_bucket_size`:

# %%
digit = 1  # choose
# !perl -pi -e 's/"stage": \d/"stage": {digit}/' code/ds_config.json && cat code/ds_config.json
print(f"2 ranks, stage {digit} trains:", trains(600))

# %% [markdown]
# Each of N ranks keeps:
#
# ```
#            bytes per parameter                              on 2 ranks    on 4 ranks
#           weights   gradients   averages and copy
#
# stage 0     4     +    4      +        8           =            16            16
# stage 1     4     +    4      +       12/N         =            14            11
# stage 2     4     +    4/N    +       12/N         =            12             8
# stage 3     4/N   +    4/N    +       12/N         =            10             5
#
# copy      from stage 1 on: a 32-bit copy of the rank's weight shard, even of 32-bit weights
# ```
#
# Buffers come on top. **Vote:** which jobs train?
#
# ```
#        ranks    stage     MiB        bytes per parameter
#                         per rank      keeps     limit
# (a)      2        3       600           10        19
# (b)      4        2       420            8        13
# ```

# %%
print("(a)", trains(600, stage=3), "(b)", trains(420, ranks=4, stage=2))

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# Only (b). In (a), gathered weights and buffers exceed the 9 bytes left.
#
# </details>
#
# **Contest:** make (a) train with one of these keys:
#
# ```
#                                 default
# reduce_bucket_size              500 million (ours: 2 million)  gradients per buffer
# stage3_prefetch_bucket_size     50 million                     weights gathered ahead
# stage3_max_reuse_distance       1 billion                      a layer's weights stay gathered until
#                                                                backward if fewer others are used meanwhile
# ```

# %%
trains(600, stage=3, reduce_bucket_size=1_000_000)  # change the key

# %% [markdown]
# <details><summary>Open after your runs</summary>
#
# `stage3_prefetch_bucket_size=0`. The default gathers nearly all our weights ahead. The recorded peak:
#
# ```
# kept 10  +  full weights 4  +  a buffer to gather them 3.4  +  other buffers 2.7  =  20.1 bytes per parameter
#
# large models can afford the default: 0.2 GB in 16 bits
# ```
#
# At 0, each layer waits for its weights.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 3 · The race
#
# A higher stage keeps less. Is it slower? ZeRO's paper counts what a rank sends, with one micro-batch per update:
#
# ```
# stage                    0    1    2    3
# numbers per parameter    2    2    2    3      (times (N − 1)/N)
#
# on a ring, an all-reduce sends 2, a reduce-scatter or all-gather 1
# ```
#
# Each stage trains a smaller network over an imitated 50 MB/s link. Each rank has room for 3 of its 12 images: four micro-batches. ZeRO's other keys have their defaults.

# %%
predict("How many numbers per parameter does stage 2 send?", None)

# %%
# %%px --timeout 300
from time import perf_counter

from course_lib.effects import slow_collectives
from course_lib.rows import Row  # labels, value, low, high


def third_step(stage, room=3, **keys):
    """Time update 3; print numbers sent per parameter (norm and loss aside)."""
    steps = train(config | {"zero_optimization": {"stage": stage, **keys}}, width=512, room=room)
    next(steps), next(steps)  # stage 3 learns the layers' order
    start = perf_counter()
    with slow_collectives(mb_per_s=50) as sent:  # sleeps: nothing overlaps; counts omit (N − 1)/N
        _, loss = next(steps)
    took = perf_counter() - start
    numbers = {name: round(n / 4.73e6) for name, n in sent.items() if n > 999}  # per parameter
    total = sum(numbers.values())
    if rank == 0:
        print(f"stage {stage}, loss {loss:.3f}: {total} = {numbers} {keys or ''}")
    return Row({"stage": f"{stage}, room {room}{', key' * bool(keys)}", "sent": total}, took, took, took)


rows = [third_step(stage) for stage in range(4)]

# %%
outcome("How many numbers per parameter does stage 2 send?", cluster[0]["rows"][2]["sent"], word="counted")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# Nine. In stages 2 and 3, a rank keeps only its gradient shard, so it sends gradients after each micro-batch:
#
# ```
#            gradients   weights
# stage 0        2                  =   2    all-reduce
# stage 1        2     +     1      =   3    all-reduce (paper: reduce-scatter, 1), all-gather
# stage 2      4 · 2   +     1      =   9    all-reduces, all-gather
# stage 3      4 · 1   +   4 · 1    =   8    reduce-scatter, all-gather (our few weights stay gathered until backward)
# ```
#
# </details>
#
# **Contest:** find two runs that send 2: stage 1 as in the paper, and stage 3 with more room:
#
# ```
# stage 1    reduce_bucket_size=2_000_000                gradients per buffer (default: 500 million)
#            use_multi_rank_bucket_allreduce=False       a message per owning rank (default: per buffer)
# stage 3    room                                        6 or 12 images (now 3)
# ```

# %%
# %%px --timeout 200
rows[4:] = [third_step(1, reduce_bucket_size=2_000_000), third_step(3, room=6)]  # change both

# %% tags=["nbval-ignore-output"]
show(cluster[0]["rows"], x="stage", y="time of the third update")

# %% [markdown]
# <details><summary>Open after your runs</summary>
#
# Stage 1: `use_multi_rank_bucket_allreduce=False` (More says why). Stage 3: `room=12`, one micro-batch (models of many billions send 3). One number per parameter takes 18.9 MB / 50 MB/s = 0.38 s, plus computing.
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# 64 GPUs of 80 GB train 7 billion parameters, with four micro-batches per update. **Vote:** which stage do you try first?
#
# <details><summary>Open after your vote</summary>
#
# Stage 1, if activations, CUDA and NCCL fit into 50 GB:
#
# ```
#            GB per GPU, with 16-bit weights          numbers sent per parameter and update
#            and gradients (lesson 11)                1 micro-batch       4 micro-batches
#
# stage 0        112                                        2                    2
# stage 1         29                                        3                    3
# stage 2         16                                        3                    9
# stage 3          1.8                                      3                   12 = 4 · 1 + 4 · 2
#
# 4 · 2             stage 3 gathers most layers twice: their backward comes over a billion weights later
# also in memory    activations; a bucket, 1 GB; in stage 3, up to 2 GB of gathered weights
# counted           DeepSpeed's defaults on a ring, one rank per GPU, without latency
# overlap           only stage 3, by default (stages 1, 2: set overlap_comm, 1 GB more)
# ```
#
# </details>

# %% [markdown] tags=["slide"]
# ## Key points
#
# - Global batch = micro-batch × accumulation steps × data-parallel ranks.
# - With Adam and equal micro-batches (text: equally many tokens in the loss), every stage trains like one process, up to rounding. Exceptions: batch norm, dropout.
# - Take stage 0 or 1 if the micro-batches that fit keep a GPU busy. Stages 2 and 3 allow larger ones, but communicate for each one: time both.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# With longer texts, stage 0 runs out of memory. Do you first try (a) stage 1, (b) stage 2, (c) smaller micro-batches?
#
# <details><summary>What to listen for</summary>Longer texts enlarge activations, which no stage shards. Try (c) if fewer texts keep the GPU busy. Otherwise recompute activations or try (a).</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# ### Why did stage 1 lose?
#
# By default, stage 1 sends 3 numbers per parameter. Stage 0 and our own stage 1 (lesson 11, More) send 2. Each rank owns a quarter of the optimizer state, so it needs only a quarter of the summed gradients. An all-reduce
# also brings it the other three quarters. With `use_multi_rank_bucket_allreduce=False`, ranks send each owner's gradients to this owner alone.
#
# **Predict:** how many numbers does stage 2 send with this key, in four micro-batches?

# %%
# %%px --timeout 200
_ = third_step(2, use_multi_rank_bucket_allreduce=False)

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# 4 · 1 + 1 = 5. `reduce` sums each shard on its owner: on a ring, every other rank sends this shard once. Smaller buckets alone change nothing: by default, DeepSpeed all-reduces even a bucket with one owner.
# The default sends fewer messages, one per bucket instead of one per owner. On many ranks, it can be faster.
#
# </details>
#
# Stage 3 allows larger micro-batches than stage 1. Which one sends less?

# %% tags=["exercise: 12.q4"]

# %% [markdown]
# Time depends on more than the numbers sent. We timed a small Transformer over Gloo on two CPU ranks. With one sequence per rank, stage 3 took 70 % longer than stage 1 (1.04 against 0.61 s per step); with eight sequences, 33 % longer (2.8 against 2.1 s). With larger micro-batches, ranks compute more per byte sent.
#
# In stage 3 on many nodes of eight GPUs, try `"zero_hpz_partition_size": 8`: each node keeps all weights (7 billion in 16 bits: 1.8 GB more per GPU), and backward gathers them inside the node.
#
# **Remember:** the stage decides what a rank keeps. Other keys and the number of micro-batches also decide what it sends.
#
# ### Can you resume from this folder?
#
# A colleague leaves you a training run: a checkpoint, a JSON file and a script.
#
# **The checkpoint.** In lesson 07, rank 0 saved for everybody. **Vote:** in stage 2, who must call `save_checkpoint`: (a) rank 0, (b) all ranks?

# %%
# %%px --timeout 200
import tempfile

from mpi_classroom.launch import job_folder

more = batch_keys(48, size, room=24) | {"zero_optimization": {"stage": 2}}
engine, *_ = deepspeed.initialize(model=network(256), config=config | more)
folder = [tempfile.mkdtemp(dir=job_folder()) if rank == 0 else None]  # deleted with the job
dist.broadcast_object_list(folder)
engine.save_checkpoint(folder[0], tag="first")
dist.barrier()
if rank == 0:
    print(*sorted(each.name for each in Path(folder[0], "first").iterdir()), sep="\n")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (b). Each rank writes its shard of the optimizer state. By default, all nodes must see this folder. In any stage, a call on rank 0 alone hangs at a barrier.
#
# </details>

# %% tags=["exercise: 12.q3"]

# %% [markdown]
# DeepSpeed puts a script, `zero_to_fp32.py`, beside `first`. It joins all shards into full 32-bit weights. To resume, all ranks call `engine.load_checkpoint(folder[0], tag="first")`.
#
# For a different number of ranks, make a **universal checkpoint**, with
# one folder per parameter. In `folder[0]`, run `python -m deepspeed.checkpoint.ds_to_universal --input_folder first --output_folder universal --inject_missing_state`. Then set `"checkpoint": {"load_universal": true}` and load `tag="universal"`. (Load only trusted checkpoints: loading can run any code.)
#
# **The JSON file.** Does it suit your number of ranks?

# %% tags=["exercise: 12.q5"]

# %% [markdown]
# **The script.** A published script for CIFAR-10 (Kolly 2022) freezes its network with `net.requires_grad_(False)`, so nothing trains. It also has two of the three bugs below:

# %% tags=["exercise: 12.3"]

# %% [markdown]
# **Remember:** to resume, let every rank load its shard, and keep the global batch.
#
# `code/train_cifar_deepspeed.py` is a complete script for CIFAR-10; `code/run_ds.sh` starts it. `deepspeed --hostfile hosts code/12_train.py` reads the machines from a **hostfile** and reaches them with `pdsh` over SSH.
#
# If GPU memory is too small, **ZeRO-Offload** keeps gradients and optimizer state in the CPU's memory, and updates weights there. **ZeRO-Infinity** also moves weights, and can use disks.
# [On a GPU machine](../docs/on_a_gpu_machine.md) explains their keys, 16-bit weights and `zero.Init`. Without `zero.Init`, each rank first builds the full model, even in stage 3.

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
