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
#   - ask: A batch of 64 images is computed in micro-batches of 16. What happens to their gradients?
#     answer: They are added up. The weights are updated once, after the last micro-batch.
#   - ask: Which two collectives make up an all-reduce? How much does a rank send in each?
#     answer: >-
#       A reduce-scatter and an all-gather. On a ring of N ranks, each rank sends (N − 1)/N numbers per parameter
#       in each, so twice that in the all-reduce.
# ---

# %% [markdown] tags=["slide"]
# ## 1 · One program, one file
#
# In lesson 11 you wrote ZeRO. In the library **DeepSpeed**, one digit of a JSON file selects the stage. Which digit do you need?

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
# reduce_bucket_size    stages 1 to 3 send gradients in buckets of up to 2 million numbers (8 MB, to
#                       save memory); a larger matrix is sent alone
# torch_adam            uses PyTorch's AdamW, because DeepSpeed's own must be compiled
#
# On GPUs, delete reduce_bucket_size (default: 500 million). If you have the CUDA compiler, nvcc,
# delete torch_adam, too.
# ```
#
# Three cells start DeepSpeed. Skim them:

# %%
# %%px --save 12_train.py
"""Train as ds_config.json says, on 48 images. The number of ranks must divide 48.

mpiexec -n 4 python code/12_train.py
deepspeed --num_gpus 4 code/12_train.py
sbatch -n 8 --gpus 8 --wrap "mpiexec python code/12_train.py"
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
if not torch.cuda.is_available():  # only CPUs need this block
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    os.environ.setdefault("LOCAL_RANK", os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", "0"))
    import deepspeed.ops

    deepspeed.ops.__compatible_ops__ = {}  # compile nothing
    if "RANK" not in os.environ and not dist.is_initialized():  # started by mpiexec
        import torch_mpi4py

        torch_mpi4py.init_process_group()  # messages go through MPI

# %%
# %%px --save 12_train.py
import deepspeed

deepspeed.init_distributed(verbose=False)  # from here on, all is the same on GPUs
rank, size = dist.get_rank(), dist.get_world_size()
torch.set_num_threads(1)  # one thread per rank
images, labels = map(torch.from_numpy, np.load(here / "data" / "shapes.npz").values())  # drawn shapes
config = json.loads((here / "ds_config.json").read_text())

# %% [markdown] tags=["subslide"]
# Our images are drawn shapes of CIFAR-10's size. The network has 33 million parameters:


# %%
# %%px --save 12_train.py
class Block(nn.Linear):
    def forward(self, x):
        return x + super().forward(x).relu()


def network(width):
    layers = [nn.Linear(3072, width), *(Block(width, width) for _ in range(12)), nn.Linear(width, 10)]
    return nn.Sequential(nn.Flatten(), *layers)


# %% [markdown]
# Each update uses 48 images, the **global batch**. Every rank computes an equal share in **micro-batches**: one if memory allows, otherwise several.

# %% tags=["exercise: 12.1"]

# %% [markdown] tags=["notes"]
# Four minutes so far, five for the exercise.

# %% [markdown] tags=["subslide"]
# DeepSpeed's **engine** holds model and optimizer. It averages gradients over micro-batches and ranks, so our loss is a plain mean:


# %%
# %%px --timeout 200 --save 12_train.py
def train(config, steps=3, width=1536, room=24):
    """Yield the images per update, and their mean loss."""
    torch.manual_seed(0)
    engine, *_ = deepspeed.initialize(model=network(width), config=config | batch_keys(48, size, room))
    batch, micro = engine.train_batch_size(), engine.train_micro_batch_size_per_gpu()
    for _ in range(steps):
        total = 0.0
        for part in torch.arange(rank, batch, size).split(micro):  # every size-th image, in micro-batches
            x, y = images[part].to(engine.device), labels[part].to(engine.device)
            loss = F.cross_entropy(engine(x / 8 - 1), y)  # pixels 0 … 15 become -1 … 0.9
            engine.backward(loss)
            engine.step()  # updates after the last micro-batch
            total += loss.detach() * micro / batch  # all totals add up to the batch's mean
        dist.all_reduce(total)
        yield batch, total.item()


if __name__ == "__main__":
    for batch, loss in train(config):
        if rank == 0:
            print(f"DeepSpeed {deepspeed.__version__}, images per update: {batch}, loss {loss:.3f}")

# %% [markdown]
# Now *one* process computes all 48 images, in two micro-batches of 24. **Vote:** do the losses change?

# %%
# !mpiexec -n 1 python code/12_train.py

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# No: either way, each update takes the mean over the same 48 images.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 2 · What fits?
#
# Give each of *two* ranks 600 MiB, and stage 0:
#
# ```
#                                                                    bytes per parameter
# it needs    weight 4  +  gradient 4  +  Adam's two averages 8    =   16
# it has      600 MiB / 33 million parameters                      =   19
#
# Python and its libraries do not count. Activations take a few MiB.
# ```
#
# **Vote:** does it train?

# %%
from course_lib.effects import runs_within


def trains(mib, ranks=2, **zero):  # with `mib` MiB per rank; `zero` replaces keys of the file
    tiny = "list(train(config | {'zero_optimization': {}}, width=8))"  # what libraries allocate once
    job = f"config['zero_optimization'] |= {zero}; list(train(config, steps=2))"
    return runs_within(mib, ranks, "code/12_train.py", job, first=tiny)


print("2 ranks, stage 0 trains:", trains(600))

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# No. Before stage 0 sends gradients, it copies up to 500 million of them into one buffer, so all our 33 million at once:
#
# ```
# 16  +  copies of all gradients 4  =  20 bytes per parameter
#
# The error, which `trains` hides: you tried to allocate 132261928 bytes      (33 million times 4)
# ```
#
# </details>
#
# In stage 1, each rank keeps Adam's averages for only half of the weights. One character selects it:

# %%
# !sed -i 's/"stage": 0/"stage": 1/' code/ds_config.json && cat code/ds_config.json
print("2 ranks, stage 1 trains:", trains(600))

# %% [markdown]
# Could you have known? On N ranks:
#
# ```
#            bytes per parameter
#           weights   gradients   averages and copy   buffers
#
# stage 0     4     +    4      +        8          +    4
# stage 1     4     +    4      +       12/N        +    4
# stage 2     4     +    4/N    +       12/N        +    4
# stage 3     4/N   +    4/N    +       12/N        +    4
#
# copy       from stage 1 on, each rank keeps a second 32-bit copy of its slice of the weights
# buffers    exist only during a step: in stage 0, copied gradients (at most 2 GB); for stages 1 to 3,
#            we assume 4 bytes
# ```

# %%
from course.lessons.l12_deepspeed_on_cifar.figures import draw_needs

draw_needs(ranks=2, room=19)

# %% [markdown]
# **Vote:** which of these three jobs train? By the sum, all do.
#
# ```
#        ranks    stage     MiB        bytes per parameter
#                         per rank      needs      room
# (a)      2        2       600           16        19
# (b)      2        3       600           14        19
# (c)      4        2       420           12        13
# ```

# %%
for n, mib, stage in (2, 600, 2), (2, 600, 3), (4, 420, 2):
    print(f"{n} ranks, stage {stage}, {mib} MiB:", trains(mib, n, stage=stage))

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# Job (b) fails. In stage 3, DeepSpeed gathers full weights ahead, up to 50 million numbers. So nearly all of ours arrive in one buffer.
# DeepSpeed copies them out before it frees the buffer. For a moment, they exist twice:
#
# ```
# shards 2 + 2 + 6  +  full weights 4  +  their buffer 3.4  +  other buffers  =  20, measured
# ```
#
# </details>

# %% [markdown] tags=["slide"]
# ## 3 · What is sent?
#
# A higher stage keeps less. Does it send more? ZeRO's paper counts, with one micro-batch per update:
#
# ```
# stage                    0    1    2    3
# numbers per parameter    2    2    2    3      times (N − 1)/N, which we leave out
#
# an all-reduce sends 2, a reduce-scatter or an all-gather 1
# ```
#
# In a smaller network, each rank has room for 3 of its 12 images: four micro-batches per update. ZeRO's keys have their defaults.

# %%
predict("How many numbers per parameter and update does stage 2 send?", None)

# %%
# %%px --timeout 300
from course_lib.effects import slow_collectives


def third_step(stage, room=3, **keys):
    """Print and return the numbers per parameter that a rank sends (without the few for clipping)."""
    steps = train(config | {"zero_optimization": {"stage": stage, **keys}}, width=512, room=room)
    next(steps), next(steps)  # stage 3 learns in which order layers run
    with slow_collectives(mb_per_s=1e6) as sent:  # so fast that it only counts
        _, loss = next(steps)
    numbers = {name: round(n / 4.73e6) for name, n in sent.items() if n > 999}  # 4.73 million parameters
    if rank == 0:
        print(f"stage {stage}, loss {loss:.3f}: {sum(numbers.values())} = {numbers} {keys or ''}")
    return sum(numbers.values())


totals = [third_step(stage) for stage in range(4)]

# %%
outcome("How many numbers per parameter and update does stage 2 send?", cluster["totals"][0][2])

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# Nine. In stages 0 and 1, a rank adds up gradients over its micro-batches, and sends once. In stages 2 and 3, it keeps only its shard of the gradients, so it must send in
# each micro-batch:
#
# ```
#            gradients   weights
# stage 0        2                  =   2    all-reduce, once per update
# stage 1        2     +     1      =   3    the same, then gather the new weights
# stage 2      4 · 2   +     1      =   9    all-reduce in each micro-batch
# stage 3      4 · 1   +   4 · 1    =   8    reduce-scatter and gather in each micro-batch
# ```
#
# By default, a bucket mixes gradients of several owners, so stages 1 and 2 all-reduce it.
#
# Lesson 11's stage 3 gathered weights twice. DeepSpeed keeps a layer's weights until backward if fewer than a billion are used in between.
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# 64 GPUs of 80 GB train 7 billion parameters, with four micro-batches per update. **Vote:** does stage 3 still send less than stage 2?
#
# <details><summary>Open after your vote</summary>
#
# No. For most weights, the next use is now too far away. DeepSpeed frees them, and gathers them again: 4 · 1 + 4 · 2 = 12.
#
# ```
#            GB per GPU, with 16-bit weights          numbers sent per parameter and update
#            (lesson 11's sum)                        1 micro-batch       4 micro-batches
#
# stage 0        112                                        2                    2
# stage 1         29                                        3                    3
# stage 2         16                                        3                    9
# stage 3          1.8                                      3                   12
#
# on top: activations; a bucket, 1 GB; in stage 3, up to a billion gathered weights, 2 GB
# sent: on a ring, one rank per GPU; by default (`overlap_comm`), only stage 3 sends while it computes
# ```
#
# Take stage 1, if the activations fit into the other 50 GB.
#
# </details>

# %% [markdown] tags=["slide"]
# ## Key points
#
# - Global batch = micro-batch × accumulation steps × data-parallel ranks.
# - With equal shares, every stage trains as one process does, up to rounding, batch norm and dropout.
# - Take the lowest stage that fits. Stages 2 and 3 send in every micro-batch, but may need fewer of them.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# Your model reads longer texts, and stage 0 runs out of memory. Do you first try (a) stage 1, (b) stage 2, (c) smaller micro-batches?
#
# <details><summary>What to listen for</summary>(c), if a micro-batch has several texts: activations grow with length, and no stage shards them. Otherwise (a), which never sends
# more than (b).</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# In the core, stage 3 did not train on two ranks with 600 MiB. **Vote:** which of these keys makes it train?
#
# ```
# (a)  reduce_bucket_size            1 million instead of 2: smaller buckets of gradients
# (b)  stage3_max_reuse_distance     0 instead of a billion: keep no full weights for their next use
# (c)  stage3_prefetch_bucket_size   0 instead of 50 million: gather no weights before their layer needs them
# ```

# %%
keys = {"reduce_bucket_size": 10**6, "stage3_max_reuse_distance": 0, "stage3_prefetch_bucket_size": 0}
for key, value in keys.items():
    print(f"{key} {value}:", trains(600, stage=3, **{key: value}))

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (c). Gathering ahead is called **prefetch**. From the second micro-batch on (here, step 2), DeepSpeed knows the order of the layers. While layer 1 computes, it gathers the weights of all later layers into one buffer, 28 million,
# because up to 50 million are allowed. It copies each weight out of the buffer, and until it has freed the buffer, these weights exist twice.
#
# (b) comes too late: DeepSpeed makes the buffer before layer 1 is done. (a) saves memory, too, but only a few MiB.
#
# Why does DeepSpeed prefetch at all? Without it, each layer waits for its weights.
#
# </details>
#
# Now to the messages of section 3.
#
# ### Must stage 1 send 3?
#
# In stage 1, DeepSpeed sent 3 numbers per parameter, and our own code (lesson 11, More) sent 2. The difference is in the gradients. A rank needs only its quarter of their sum, but the all-reduce sent it the full sum.
# Can a key of the JSON file change that?
#
# Two keys decide how gradients travel:
#
# - `reduce_bucket_size` you know. `third_step` used its default, 500 million, so all gradients of that network fitted into one bucket.
# - `use_multi_rank_bucket_allreduce` lets a bucket mix gradients that belong to different owners. It is on by default.
#
# **Vote:** which change makes stage 1 send less, (a) smaller buckets, which mix fewer owners, (b) buckets that are not mixed, (c) either?

# %%
# %%px --timeout 200
for key in {"reduce_bucket_size": 2_000_000}, {"use_multi_rank_bucket_allreduce": False}:
    third_step(1, **key)

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (b). Smaller buckets carry the same numbers in more messages. DeepSpeed all-reduces every bucket, even one with a single owner, so stage 1 still sends 3.
#
# Without mixed buckets, DeepSpeed sums the gradients of each owner separately. Only the owner needs this sum, so a `reduce` is enough, and a `reduce` sends 1. With the gathered weights, that makes 2, as in lesson 11.
#
# What does it cost? DeepSpeed then needs a `reduce` for every owner. With many ranks, these are many small messages, and they can take longer than the all-reduce.
#
# You will also meet files that say `"reduce_scatter": true`. This line changes nothing. It is the default, and stages 1 and 2 still all-reduce mixed buckets.
#
# </details>
#
# In the core, stage 3 sent far more than stage 1, because each update had four micro-batches. But stage 3 also frees memory, so an update may need fewer micro-batches. Is stage 1 still
# the right choice?

# %% tags=["exercise: 12.q4"]

# %% [markdown]
# We have no 7 billion parameters to try it with. But two keys make DeepSpeed free the weights of our small network after each use, as it frees most weights of a large model. Each update now has one
# micro-batch, first with the default keys, then with these two:

# %%
# %%px --timeout 200
for keys in {}, {"stage3_max_live_parameters": 0, "stage3_max_reuse_distance": 0}:
    third_step(3, room=12, **keys)

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# With the default keys, our small network sends 2. With the two keys, weights are gathered for forward and again for backward, and stage 3 sends 3, as stage 1 does. So count the micro-batches
# that each stage needs before you choose.
#
# Equal numbers are not yet equal seconds. Stage 3 waits for weights before each layer, unless they arrive while the layer before computes.
#
# </details>

# %% [markdown]
# ### Whose files are these?
#
# A project rarely begins with an empty folder. You inherit a JSON file, a checkpoint and a script. What can go wrong with each?
#
# **The JSON file.** Some keys must agree with the program. One of them is `"bf16": {"enabled": true}`, which keeps weights and gradients in 16 bits. The inputs must then have 16 bits, too: here,
# `engine((x / 8 - 1).bfloat16())`. Otherwise, PyTorch stops at the first layer and reports two different types. (`"torch_autocast": {"enabled": true, "dtype": "bfloat16"}` keeps the weights in 32 bits, and our program runs unchanged.)
#
# Does `bf16` save model states? In stage 0, it does not: weight, gradient, copy and averages take 2 + 2 + 12 = 16 bytes per parameter, as in 32 bits. From stage 1 on, the ranks share the 12.
#
# Other keys depend on the number of ranks, and these are easy to overlook:

# %% tags=["exercise: 12.q5"]

# %% [markdown]
# **The checkpoint.** In lesson 07, rank 0 saved for everybody, since all ranks had the same weights. In DeepSpeed, *all* ranks must call `save_checkpoint`, whatever the stage.
# If rank 0 calls it alone, it waits for the others at a barrier, and the job hangs.
#
# From stage 1 on, no rank has the full optimizer state. Which files do the ranks write?

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
# Do you only want the weights, for example to give the model to somebody who has no DeepSpeed? Beside the folder `first`, DeepSpeed puts the program `zero_to_fp32.py`. It joins the shards of all ranks
# into the full weights, in 32 bits.
#
# Do you resume on a different number of ranks? Then there are too many shards, or too few. `python -m deepspeed.checkpoint.ds_to_universal --inject_missing_state` (stage 3 needs no flag) rewrites them as a **universal checkpoint**, with one folder per parameter.
# A config with `"checkpoint": {"load_universal": true}` loads it on any number of ranks.
#
# Did a stranger send you the checkpoint? Do not load it: its files are pickles, and a pickle can run any code.
#
# **The script.** A report (Kolly, see References) ends with a DeepSpeed script for CIFAR-10. It freezes the network with `net.requires_grad_(False)`, so nothing trains.
#
# The next training loop has three bugs, and two of them are in that script, too. Find them before they cost you a night of computing:

# %% tags=["exercise: 12.3"]

# %% [markdown]
# A complete script is in `code/train_cifar_deepspeed.py`. It trains on CIFAR-10 itself, with a sampler, a scheduler and checkpoints, and `code/run_ds.sh` starts it with
# DeepSpeed's launcher. For several machines, the launcher reads a **hostfile**, a list of the machines and of the ranks that each may run: `deepspeed --hostfile hosts code/12_train.py`.
# [On a GPU machine](../docs/on_a_gpu_machine.md) says what we ran where, and what we could not run.
#
# What if a model is still too large? Even in stage 3, every rank first builds the full model, in the CPU's memory. If that is too much, let each rank build only its part:
#
# ```
# with deepspeed.zero.Init(config_dict_or_path=config | batch_keys(48, size, room=24)):
#     model = network(width)
# ```
#
# And if the shards do not fit? **ZeRO-Offload** keeps gradients and optimizer state in the CPU's memory, and updates the weights there (`"offload_optimizer": {"device": "cpu"}` in `zero_optimization`).
# **ZeRO-Infinity** moves the weights as well, and can use disks.

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
