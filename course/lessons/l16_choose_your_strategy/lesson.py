# ---
# title: Choose your strategy
# goal: Decide which plan runs on which machine, with one page of arithmetic.
# able:
#   - compute what a plan needs on each GPU
#   - say which messages hide behind computing, and which cannot
#   - choose a plan for a machine and a job, and defend it
# more:
#   - say what a laptop can and cannot show about a cluster
#   - hold a prediction against what others published
# before: >-
#   {08}, {09} and {11}, the cores. Helpful: {06}
# minutes: {core: 20, more: 6}
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
# Eight GPUs, a Transformer of 7 billion parameters: which **plan** do you take? *Data* parallelism divides the batch, ZeRO the model states, too, a *pipeline* the list of blocks, *tensor* parallelism every block.

# %%
# %%px --save 16_plan.py
"""Which plan, on which machine? One page of arithmetic; it needs no GPU."""

from mpi4py import MPI

rank = MPI.COMM_WORLD.rank
job = {"params": 6.9e9, "depth": 32, "width": 4096, "seq": 2048, "batch": 64}  # seq: in tokens
node = {"gpus": 8, "room": 72e9, "rate": 218e12, "link": 235e9}  # bytes, flop/s, bytes/s

# %% [markdown]
# These are A100s: 80 GB less a tenth for the framework, 70 % of the data sheet's flop/s, 78 % of NVLink's. For backward, a block keeps about 16 · width numbers per
# token. Lesson 09's tensor parallelism divides 12 of these 16.


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


# %% [markdown] tags=["subslide"]
# Data, ZeRO-3, pipeline or tensor on all eight? **Vote:** how many fit into 72 GB? (a) one, (b) three, (c) none.

# %%
# %%px
four = {"data": 8}, {"data": 8, "zero": 3}, {"pipeline": 8}, {"tensor": 8}


def needs(**more):
    for plan in four:
        page = memory(**job, **plan, **more)
        total, kept = page["total"] / 1e9, page["activations"] / 1e9
        print(f"{plan!s:24}states {total - kept:5.1f} GB + activations {kept:5.1f} GB = {total:5.1f} GB")


if rank == 0:
    needs()

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# (c). Three divide the model states by eight. The activations are too many, and tensor ranks leave a quarter of them undivided.
#
# </details>
#
# So we cut each GPU's batch into eight micro-batches. **Vote:** besides data parallelism, which still does *not* fit?

# %%
# %%px
if rank == 0:
    needs(microbatches=8)

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# The pipeline. Its first stage holds all eight before a gradient comes back. Cut into 64, it holds eight smaller ones, and fits.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 2 · What hides?
#
# Now seconds: 6 flop per parameter and token; bytes by the link's rate. (Left out: long sequences' attention flop, pipeline messages.)
#
# What do data ranks send? Without ZeRO and in ZeRO-1, gradients once per step; sums or new weights come back. In ZeRO-2, gradients after every micro-batch. In ZeRO-3, weights, too, before every forward and backward. Some of that travels *while* a GPU computes.

# %% tags=["exercise: 16.7"]

# %% [markdown] tags=["notes"]
# Seven minutes up to here, six for the exercise. Whoever hides `inside`, too: ask which product could run before the sum of the one before it is there.

# %% [markdown] tags=["subslide"]
# If nothing hid: ZeRO-3 4.34 s, pipeline (64 micro-batches) 3.45, tensor 4.13. **Predict** the order if all that can hide does.

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

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# The last is first. ZeRO-3 sends for 1.23 s, and all of it hides. Here, tensor ranks wait for every sum, and an idle stage has nothing to compute.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 3 · Three customers
#
# You rent out GPUs: three customers, 10,000 steps each, 32 hours in all. `chat` is our job, `cards` the same without NVLink, `genome` one long sequence per step. A crash costs 24
# hours. At most a tenth over the record earns a star. `bets` follows a famous rule: *tensor parallelism inside a node*. Guess its stars, run, then change `bets` (arguments of `serve`) until you have three.

# %%
# %%px
cards = {"gpus": 8, "room": 28.8e9, "rate": 115e12, "link": 10e9}  # invented: 32 GB, PCI Express
customers = {"chat": job | node, "cards": job | cards, "genome": job | node | {"seq": 16384, "batch": 1}}
records = {"chat": 8.6, "cards": 18.2, "genome": 1.4}  # hours


def serve(customer, data=1, zero=0, pipeline=1, tensor=1, microbatches=1):
    bet = customer | locals()
    if data * pipeline * tensor != customer["gpus"] or customer["batch"] % (data * microbatches):
        return 24, "crashes: GPUs or batch not divided evenly"
    if (needed := memory(**bet)["total"]) > customer["room"]:
        return 24, f"crashes: needs {needed / 1e9:.1f} of {customer['room'] / 1e9:.1f} GB"
    return 10_000 * step(**bet)["total"] / 3600, "served"


def play(left=32.0, stars=0):
    for name, customer in customers.items():
        hours, how = serve(customer, **bets[name])
        left, late = left - hours, hours - 1.1 * records[name]
        stars += late < 0
        print(f"{name:7}{hours:5.1f} hours, {f'{late:.1f} from a star' if late > 0 else 'a star'}; {how}")
    end = "you win" if left >= 0 else "you are broke"
    print(f"{stars} of 3 stars, {left:.1f} hours left: {end}.")


# %%
# %%px
bets = {
    "chat": {"tensor": 8, "microbatches": 8},
    "cards": {"tensor": 8, "microbatches": 8},
    "genome": {"tensor": 8},
}

if rank == 0:
    play()

# %% [markdown]
# <details><summary>Open when you have won, or given up</summary>
#
# On NVLink, ZeRO hides what it sends. On the cards, a pipeline wins: it sends least. One sequence cannot be cut into batches or micro-batches, so tensor ranks divide the layers.
#
# </details>
#
# **Vote:** who wins `genome` on the cards? (a) tensor, (b) pipeline, (c) a mixture.
#
# Now every way to divide eight GPUs. Choose a customer's fields: does your plan lead? A number opens *your* line of `code/16_plan.py`.

# %% tags=["skip"]
from course.lessons.l16_choose_your_strategy.figures import explore

explore("code/16_plan.py", cluster["job"][0] | cluster["node"][0])

# %% [markdown]
# <details><summary>Open after you have chosen 16,384 tokens, 1 sequence, 10 GB/s, 28.8 GB</summary>
#
# (c). Eight tensor ranks do not fit, a pipeline of eight idles. Pipeline 4 × tensor 2 keeps less than tensor, idles less than pipeline.
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# | | what changes |
# |---|---|
# | memory short | recompute in backward: a block keeps only its input, computing grows by a third |
# | two nodes | give each group of ranks the slowest link it crosses |
# | 2,048 GPUs | data ranks run out of batch: pipeline and tensor ranks join |

# %% tags=["exercise: 16.q6", "subslide"]

# %% [markdown] tags=["slide"]
# ## Key points
#
# - Count activations, too. Micro-batches cut them, but a pipeline's first stage holds several.
# - Data ranks' messages hide behind computing if link and batch allow. On this page, tensor messages do not.
# - The winner changes with link and batch: compute again, then measure the best two.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# Your model fits on one GPU. You get 16, in two nodes. (a) ZeRO-3 on all, (b) tensor in the nodes and a pipeline between them, (c) data parallelism.
# What would change your mind?
#
# <details><summary>What to listen for</summary>(c), unless the batch is too small for 16, or the link so slow that sums outlast backward: try (b). Otherwise, (a) and (b) save memory nobody lacks.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# ### Would this laptop choose the same plan?
#
# By this page, on four devices, a pipeline of 4 with a single micro-batch takes four times as long as data parallelism: one stage computes, three wait. We train a small Transformer
# both ways on the four ranks here.

# %%
predict("How many times as long as data parallelism does the pipeline take here?", None)

# %% tags=["nbval-ignore-output"]
# %%px --timeout 100
import torch
from mpi4py import MPI

from course.lessons.l16_choose_your_strategy.planned import grid_of, prepare
from course.lessons.l16_choose_your_strategy.planner.models import TransformerShape
from course.lessons.l16_choose_your_strategy.planner.plan import Plan
from course_lib.measure import measure

torch.set_num_threads(1)
comm = MPI.COMM_WORLD
small = TransformerShape(blocks=4, width=128, length=64, vocabulary=64, heads=4)
plans = {"data": Plan(data=4), "pipeline": Plan(pipeline=4, microbatches=1)}
batch = 16
steps = {name: prepare(grid_of(comm, plan), small, batch, plan).step for name, plan in plans.items()}
rows = measure(comm, steps, repeat=5)

# %% tags=["nbval-ignore-output"]
rows = cluster["rows"][0]
times = rows[1].value / rows[0].value
outcome("How many times as long as data parallelism does the pipeline take here?", times)
show(rows, x="way", y="time of a step")

# %% [markdown]
# <details><summary>Open after you have run the cells</summary>
#
# On two cores the same arithmetic says two: four data ranks get half a core each, and the only stage that computes has one to itself, if ranks that wait use no core. You measure less, even below one, if the
# data ranks' messages cost more than computing, or when the machine is busy. On four cores or more expect more, at most four. Idle time is cheap where ranks share cores, so
# such times say little
# about plans; bytes and losses are right.
#
# </details>
#
# ### Who has measured it?
#
# Three sources compare plans on eight A100s. Our planner, `course/lessons/l16_choose_your_strategy/planner`, does this page's arithmetic layer by layer. We chose the three before the planner could count what hides (overlap), so none is picked to fit. DLRover trained Llama 2 with 7 billion parameters in four ways. **Predict:** does the planner find their order (a)
# with
# overlap only, (b) without only, (c) both ways?

# %%
from course.lessons.l16_choose_your_strategy.published import COMPARISONS, rows, same_order

flagperf, dlrover, megatron = COMPARISONS
for one in COMPARISONS:
    print(f"{one['name']}: order right with overlap {same_order(one)}, without {same_order(one, 0.0)}")
show(rows(dlrover), x="plan", y="throughput", by="how")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# (a). With overlap only, DLRover's order is right. Megatron's order is right both ways: no data ranks, so nothing to hide. The planner swaps FlagPerf's last two plans, which are only 2 % apart.
#
# But look at the sizes: in DLRover's runs, the plan with tensor parallelism and data ranks is 22 % below ZeRO-3; the planner says 4 %. It knows neither that smaller matrix products run at a lower rate nor that a sum
# must wait for
# the slowest GPU. The memory it predicts is 2 to 13 % too small for FlagPerf, and misses DLRover's by up to 73 %: their pipeline recomputes block by block, ours a stage at once,
# and we had to guess the length of their sequences.
#
# </details>
#
# And on our own machine? Before predicting, we drew and committed 24 small Transformers with six plans each. For 143 of these 144 plans, the predicted memory was right within 15 %. The median error of
# seconds was 8 %.
# In 22 of 24, the planner took the fastest plan that fits, or one within a tenth. The memory that it missed, by 15.2 %, showed a fault, repaired since: ZeRO-2's buckets may be
# full before
# the block's activations are free. All this is one machine with two cores, where nothing overlaps: it proves nothing about GPUs.
#
# Trust the order only of plans that are far apart, measure those that are near, and measure the memory in one step.

# %% tags=["exercise: 16.q4"]

# %% [markdown]
# ## What you can do now
#
# You came with one process. Now you write programs whose [ranks talk](01_mpi_basics.ipynb) and know what [a collective costs](04_collectives.ipynb); you can divide
# [a batch](06_data_parallel_by_hand.ipynb), [a list of layers](08_pipeline_parallelism.ipynb), [a layer](09_tensor_parallelism.ipynb), [an image](10_spatial_and_hybrid.ipynb)
# and [the model states](11_zero_from_scratch.ipynb), and prove that it is the same training. You know [who is to blame](15_when_things_fail.ipynb) when it stops, what
# [a slow link](14_scaling_out.ipynb) does, and which plan to take. Your programs lie in `code/`. They run on a cluster with MPI, mpi4py and PyTorch; take them along.
#
# `course progress` in a terminal shows which exercises you have passed. Two books go on from here: [The Ultra-Scale
# Playbook](https://huggingface.co/spaces/nanotron/ultrascale-playbook), with thousands of
# measured plans on GPUs, and [How to Scale Your Model](https://jax-ml.github.io/scaling-book/). And [TorchTitan](https://github.com/pytorch/torchtitan) or
# [Megatron-LM](https://github.com/NVIDIA/Megatron-LM) train by such plans: look for the numbers of a plan in their configuration files. You know most of them.
#
# ## References
#
# - FlagPerf, [LLaMA-7B with PaddlePaddle](https://github.com/FlagOpen/FlagPerf/blob/20ce265be254527ca4e8e99bd34c3087e11880ab/training/nvidia/llama1_7B-paddle/README.md), 2023.
# - DLRover, ATorch, [Llama 2:
# performance](https://github.com/intelligent-machine-learning/dlrover/blob/d39a369cb6bb3ae2031bea17ff17246428aca110/atorch/examples/llama2/README.md), 2023.
# - Megatron-LM, [issue 258](https://github.com/NVIDIA/Megatron-LM/issues/258), 2022: a pipeline of 8 faster than 8 tensor ranks inside one node.
# - V. Korthikanti and others, [Reducing activation recomputation](https://arxiv.org/abs/2205.05198), 2022: what a block keeps.
# - D. Narayanan and others, [Efficient large-scale language model training](https://arxiv.org/abs/2104.04473), 2021: tensor inside a node, pipeline between nodes.
# - S. Rajbhandari and others, [ZeRO](https://arxiv.org/abs/1910.02054), 2020.
