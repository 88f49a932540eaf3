# ---
# title: Choose your strategy
# goal: Decide which plan runs on which machine, with one page of arithmetic.
# able:
#   - compute what a plan needs on each GPU
#   - say which messages hide behind computing, and which cannot
#   - choose a plan for a machine and a job, and defend it
# more:
#   - tell what a laptop can and cannot say about a cluster
#   - hold a prediction against what others published
# before: >-
#   {08}, {09} and {11}, the cores. Helpful: {06}
# minutes: {core: 20, more: 10}
# ranks: 4
# warm-up:
#   - ask: Adam trains in 16 bits. How many bytes of model states does a parameter have?
#     answer: 2 for the weight, 2 for the gradient, 12 for the optimizer, in all 16.
#   - ask: A pipeline has 4 equal stages and 8 micro-batches. How long is a stage idle, if it computes for 8 seconds?
#     answer: 3 seconds, 8 · (4 − 1) / 8. The formula is computing · (p − 1) / m.
#   - ask: How many all-reduces does a Transformer block need in tensor parallelism, forward and backward together?
#     answer: Four, two forward and two backward. Each sums the activations of all tokens.
# ---

# %% [markdown] tags=["slide"]
# ## 1 · What fits?
#
# You get a node of eight GPUs and a Transformer of 7 billion parameters. Which **plan** do you take: who divides what? *Data* parallelism and ZeRO divide
# the batch, a *pipeline* the list of blocks, *tensor* parallelism every block. We compute before we start anything.

# %%
# %%px --save 16_plan.py
"""Which plan, on which machine? One page of arithmetic; it needs no GPU, and runs without MPI, too."""

try:
    from mpi4py import MPI

    rank = MPI.COMM_WORLD.rank
except ImportError:
    rank = 0

job = {"params": 6.9e9, "depth": 32, "width": 4096, "seq": 2048, "batch": 64}  # tokens, sequences
node = {"gpus": 8, "room": 72e9, "rate": 218e12, "link": 235e9}  # bytes, flop/s, bytes/s

# %% [markdown]
# These are A100s: 80 GB, of which a framework keeps a tenth, and 70 % of the data sheet's flop/s. The bytes on one GPU:


# %%
# %%px --save 16_plan.py
def memory(params, depth, width, seq, batch, data=1, zero=0, pipeline=1, tensor=1, microbatches=1, **_):
    """The bytes on the fullest GPU, every number by its name."""
    mine = params / pipeline / tensor
    weights = 2 * mine / (data if zero == 3 else 1)
    gradients = 2 * mine / (data if zero >= 2 else 1)
    optimizer = 12 * mine / (data if zero >= 1 else 1)
    sequences = batch / data / microbatches
    held = min(pipeline, microbatches)  # micro-batches that wait for backward on the first stage (1F1B)
    activations = held * sequences * seq * depth / pipeline * 2 * width * (4 + 12 / tensor)
    total = weights + gradients + optimizer + activations
    return locals()


# %% [markdown]
# (For backward, a block keeps about 16 · width numbers per token; tensor ranks divide 12 of these 16.)

# %% [markdown] tags=["subslide"]
# Four plans. **Vote:** how many fit into 72 GB? (a) one, (b) three, (c) none.

# %%
# %%px
four = {
    "data": {"data": 8},
    "ZeRO-3": {"data": 8, "zero": 3},
    "pipeline": {"pipeline": 8},
    "tensor": {"tensor": 8},
}


def needs(**more):
    for name, plan in four.items():
        page = memory(**job, **plan, **more)
        total, kept = page["total"] / 1e9, page["activations"] / 1e9
        print(f"{name:9}states {total - kept:5.1f} GB + activations {kept:5.1f} GB = {total:5.1f} GB")


if rank == 0:
    needs()

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# None. Three of them divide the model states well, and then the activations of 64 sequences arrive.
#
# </details>
#
# So we cut each GPU's part of the batch into eight micro-batches. **Vote:** besides data parallelism, which one still does *not* fit?

# %%
# %%px
if rank == 0:
    needs(microbatches=8)

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# The pipeline. Its first stage has started eight micro-batches before the first gradient comes back, so it holds all eight. Of 64 it holds eight, too,
# and these are small.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 2 · What hides?
#
# Now the seconds: 6 flop per parameter and token, and bytes divided by the link's rate. Some messages travel *while* a GPU computes: gradients during
# backward, and ZeRO-3's weights, which FSDP fetches a layer ahead. Which ones cannot?

# %% tags=["exercise: 16.7"]

# %% [markdown] tags=["notes"]
# Eight minutes up to here, six for the exercise. Whoever hides `inside`, too: ask which product could run before the sum of the one before it is there.

# %% [markdown] tags=["subslide"]
# If nothing hides, ZeRO-3 takes 4.34 s, the pipeline with 64 micro-batches 3.45, tensor parallelism 4.13. **Predict** the order with your `step`.

# %%
# %%px --save 16_plan.py
if __name__ == "__main__" and rank == 0:
    for name, plan in (
        ("ZeRO-3", {"data": 8, "zero": 3, "microbatches": 8}),
        ("pipeline", {"pipeline": 8, "microbatches": 64}),
        ("tensor", {"tensor": 8, "microbatches": 8}),
    ):
        gigabytes, seconds = memory(**job, **plan)["total"] / 1e9, step(**job, **node, **plan)["total"]
        print(f"{name:9}{gigabytes:5.1f} GB {seconds:5.2f} s")

# %%
# !python code/16_plan.py

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# The last is first. ZeRO-3 sends for 1.23 s, more than anybody, and all of it hides. A block of a tensor group waits for its sum, and an idle stage has
# nothing to do.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 3 · Three customers
#
# You rent out GPUs for 10,000 steps per customer, and the month has 32 hours left. One customer has our job, one has it on gaming cards without NVLink, one
# has a genome: a single sequence of 16,384 letters per step. A plan that does not fit, or cannot divide GPUs and batch evenly, costs three hours, and the
# customer leaves. `bets` has the rule that everybody knows: *tensor parallelism inside a node*. Change it until all are served in time. How many
# attempts do you need?

# %%
# %%px
cards = {"gpus": 8, "room": 28.8e9, "rate": 115e12, "link": 10e9}
customers = {
    "chat": job | node,
    "chat on cards": job | cards,
    "genome": job | node | {"seq": 16384, "batch": 1},
}


def play(hours=32.0):
    won = True
    for name, customer in customers.items():
        bet = customer | bets[name]
        data, pipeline, tensor, pieces = (
            bet.get(n, 1) for n in ("data", "pipeline", "tensor", "microbatches")
        )
        whole = data * pipeline * tensor == bet["gpus"] and bet["batch"] % (data * pieces) == 0
        served = whole and memory(**bet)["total"] <= bet["room"]
        hours -= 10_000 * step(**bet)["total"] / 3600 if served else 3
        won = won and served and hours >= 0
        print(f"{name:15}{'served' if served else 'left':8}{hours:6.1f} hours to go")
    print("You have won." if won else "You are broke.")


# %%
# %%px
bets = {
    "chat": {"tensor": 8, "microbatches": 8},
    "chat on cards": {"tensor": 8, "microbatches": 8},
    "genome": {"tensor": 8},
}

if rank == 0:
    play()

# %% [markdown]
# <details><summary>Open when you have won, or given up</summary>
#
# Three customers, three winners. On NVLink, ZeRO hides what it sends, in any stage that fits. On cards, only long pipelines send little
# enough, with as many micro-batches as there are sequences. One sequence leaves data ranks and micro-batches nothing to divide: tensor. Any single favourite loses.
#
# </details>
#
# Was there anything better? Here is *every* way to divide eight GPUs, in its best form. Open a customer, then a number: it shows the line of *your*
# program that computed it. (Add a customer of your own in the cell above, with another batch or link.)

# %%
from course.lessons.l16_choose_your_strategy.figures import explore

explore("code/16_plan.py", cluster["customers"][0])

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# | | what changes |
# |---|---|
# | two nodes | a slower link between them: compute each group of ranks with its own link |
# | network ports | a node with eight lets eight groups cross at once |
# | 2,048 GPUs | the batch feeds no more data ranks, so pipeline and tensor ranks join; sums run in trees (lesson 14) |
# | accumulating | FSDP's `no_sync`: gradients summed once per step, and kept in full |
# | ranks per device | one; where ranks share a core, idle time is cheap (More) |

# %% tags=["exercise: 16.q6", "subslide"]

# %% [markdown] tags=["slide"]
# ## Key points
#
# - A plan fits with its activations or not at all; micro-batches decide.
# - Messages of data ranks hide behind computing if the link is fast enough. Those of tensor ranks, and idle stages, do not.
# - The winner changes with link and batch: compute again, then measure the best two.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# Your model fits on one GPU. You get 16, in two nodes. (a) ZeRO-3 on all, (b) tensor in the nodes and a pipeline between them, (c) data parallelism.
# What would change your mind?
#
# <details><summary>What to listen for</summary>(c): its sums hide. A batch too small for 16, or a link so slow that sums outlast backward. (a) and (b) save memory that
# nobody needs.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# ### Would this laptop choose the same plan?
#
# On four devices, a pipeline of 4 with a single micro-batch takes four times as long as data parallelism: one stage computes, three wait. We train a small Transformer
# both ways on the four ranks here.

# %%
predict("How many times as long as data parallelism does the pipeline take here?", None)

# %% tags=["nbval-ignore-output"]
# %%px --timeout 100
import torch
from mpi4py import MPI

from course_lib.measure import measure
from course_lib.parallel.planned import grid_of, prepare
from course_lib.theory.planner.models import TransformerShape
from course_lib.theory.planner.plan import Plan

torch.set_num_threads(1)
comm = MPI.COMM_WORLD
small = TransformerShape(blocks=4, width=128, length=64, vocabulary=64, heads=4)
plans = {"data": Plan(data=4), "pipeline": Plan(pipeline=4)}
steps = {name: prepare(grid_of(comm, plan), small, 16, plan).step for name, plan in plans.items()}
rows = measure(comm, steps, repeat=5)

# %% tags=["nbval-ignore-output"]
rows = cluster["rows"][0]
times = rows[1].value / rows[0].value
outcome("How many times as long as data parallelism does the pipeline take here?", times)
show(rows, x="way", y="time of a step")

# %% [markdown]
# <details><summary>Open after you have run the cells</summary>
#
# On two cores it is far from four. Four data ranks share two cores, so each gets half of one; the only stage that computes has a core to itself. Idle time is cheap where
# ranks share cores. With one rank per core you would see about four. Times of ranks that share cores say little about plans; bytes and losses are right.
#
# </details>
#
# ### Who has measured it?
#
# Three groups published such comparisons for eight A100s. We named them before our planner could overlap: `course_lib/theory/planner` does this page layer by layer.
# DLRover trained Llama 2 with 7 billion parameters in four ways. **Predict:** does the planner find their order (a) with overlap only, (b) without only, (c) both ways?

# %%
from course.lessons.l16_choose_your_strategy.published import COMPARISONS, rows, same_order

flagperf, dlrover, megatron = COMPARISONS
for one in COMPARISONS:
    print(f"{one['name']}: order right with overlap {same_order(one)}, without {same_order(one, 0.0)}")
show(rows(dlrover), x="plan", y="throughput", by="how")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# With overlap only. But look at the sizes: tensor parallelism lost 22 % there, and the planner says 4 %. It knows neither that smaller products are slower nor that a sum
# must wait for the slowest GPU. FlagPerf's last two plans, 2 % apart, come out the other way round. Its memory is 2 to 13 % too small for FlagPerf; for DLRover it misses by up to 73 %: their
# pipeline recomputes block by block and ours a stage at once, and the length of their sequences, which we had to guess, is not given.
#
# </details>
#
# So believe the order of plans that are far apart, measure those that are near, and leave a tenth of the memory free. `python -m benchmarks.planner_validation` holds the
# planner against *your* machine: 144 plans that were drawn before it predicted any, and it says where it is wrong.

# %% tags=["exercise: 16.q4"]

# %% tags=["exercise: 16.q2"]

# %% [markdown]
# ### What do others advise?
#
# Here is the list of the guide that this course grew out of, beside what we found:
#
# | | the guide's list | here |
# |---|---|---|
# | one GPU | it fits: no parallelism | yes |
# | | it does not: ZeRO with CPU offload | 12 of 16 bytes per parameter leave the GPU, and pass PCI Express in every step; micro-batches and recomputing help first, if activations are the trouble |
# | | the largest layer does not: memory-centric tiling | yes; `TiledLinear` of lesson 11 |
# | one node | it fits: data parallelism or ZeRO | yes: stage 1 sends no more and keeps less |
# | | it does not: pipeline, ZeRO or tensor | which one, the link and the batch decide: section 3 |
# | | the largest layer does not: ZeRO or tensor | tensor, or ZeRO-3 with tiles: ZeRO-3 alone gathers the whole layer |
# | nodes | ZeRO (simplest), or all three combined | HSDP first; combine when the batch gives no more data ranks |
#
# ## What you can do now
#
# You came with one process. Now you write programs whose [ranks talk](01_mpi_basics.ipynb) and know what [a collective costs](04_collectives.ipynb); you can divide
# [a batch](06_data_parallel_by_hand.ipynb), [a list of layers](08_pipeline_parallelism.ipynb), [a layer](09_tensor_parallelism.ipynb), [an image](10_spatial_and_hybrid.ipynb)
# and [the model states](11_zero_from_scratch.ipynb), and prove that it is the same training. You know [who is to blame](15_when_things_fail.ipynb) when it stops, what
# [a slow link](14_scaling_out.ipynb) does, and which plan to take. Your programs lie in `code/`. They run on any cluster with MPI; take them along.
#
# `course progress` in a terminal shows which exercises you have passed. Two books go on from here: [The Ultra-Scale Playbook](https://huggingface.co/spaces/nanotron/ultrascale-playbook), with thousands of
# measured plans on GPUs, and [How to Scale Your Model](https://jax-ml.github.io/scaling-book/). And [TorchTitan](https://github.com/pytorch/torchtitan) or
# [Megatron-LM](https://github.com/NVIDIA/Megatron-LM) train by such plans: look for the numbers of a plan in their configuration files. You know all of them.
#
# ## References
#
# - FlagPerf, [LLaMA-7B with PaddlePaddle](https://github.com/FlagOpen/FlagPerf/blob/20ce265be254527ca4e8e99bd34c3087e11880ab/training/nvidia/llama1_7B-paddle/README.md), 2023.
# - DLRover, ATorch, [Llama 2: performance](https://github.com/intelligent-machine-learning/dlrover/blob/d39a369cb6bb3ae2031bea17ff17246428aca110/atorch/examples/llama2/README.md), 2023.
# - Megatron-LM, [issue 258](https://github.com/NVIDIA/Megatron-LM/issues/258), 2022: a pipeline of 8 faster than 8 tensor ranks inside one node.
# - V. Korthikanti and others, [Reducing activation recomputation](https://arxiv.org/abs/2205.05198), 2022: what a block keeps.
# - D. Narayanan and others, [Efficient large-scale language model training](https://arxiv.org/abs/2104.04473), 2021: tensor inside a node, pipeline between nodes.
# - S. Rajbhandari and others, [ZeRO](https://arxiv.org/abs/1910.02054), 2020.
