# ---
# title: Choose your strategy
# goal: Choose a plan for a machine, with one page of arithmetic.
# able:
#   - compute what a plan needs on each GPU
#   - say which messages hide
#   - choose and defend a plan
# more:
#   - say what a laptop cannot show about a cluster
#   - compare a prediction with published runs
# before: >-
#   {08}, {09} and {11}
# minutes: {core: 20, more: 12}
# ranks: 4
# warm-up:
#   - ask: You train with Adam in mixed precision. How many bytes of model states does each parameter need?
#     answer: 2 for the weight, 2 for the gradient, 12 for Adam's 32-bit copy and two moments, in all 16.
#   - ask: A pipeline has 4 equal stages and 8 micro-batches. A stage computes for 8 seconds. How long is it idle?
#     answer: 3 seconds, 8 · (4 − 1) / 8. The formula is computing · (p − 1) / m.
#   - ask: >-
#       A Transformer block has two halves, each cut like lesson 09's MLP. How many all-reduces does it need per step?
#     answer: >-
#       Four: each half needs one forward and one backward. Each all-reduce sums one vector per token.
# ---

# %% [markdown] tags=["slide"]
# ## 1 · What fits?
#
# Eight GPUs train a Transformer of 7 billion parameters. A **plan** says how they divide the work: *data ranks* divide the batch, *tensor ranks* every block. Which of four plans fit, and which is fastest?

# %%
# %%px --save 16_plan.py
"""What a plan needs on each GPU, and how long a step takes."""

from mpi4py import MPI

rank = MPI.COMM_WORLD.rank
job = {"params": 6.9e9, "depth": 32, "width": 4096, "seq": 2048, "batch": 64}  # seq: tokens per sequence
# what we can use of an A100's 80 GB and 312 Tflop/s, and of NVLink's 300 GB/s
node = {"gpus": 8, "room": 72e9, "rate": 218e12, "link": 235e9}
plans = {"data": {"data": 8}}  # an eighth of the batch per GPU
plans["ZeRO-3"] = {"data": 8, "zero": 3}  # an eighth of the batch and of the model states
plans["pipeline"] = {"pipeline": 8}  # four of the 32 blocks
plans["tensor"] = {"tensor": 8}  # an eighth of every block

# %% [markdown]
# A GPU holds model states, 16 bytes per parameter, and the activations that backward needs. Per token, a block keeps about [16 vectors](https://arxiv.org/abs/2205.05198) of `width` 2-byte numbers. Tensor ranks divide 12 of these, and each keeps the other four.


# %%
# %%px --save 16_plan.py
def memory(params, depth, width, seq, batch, data=1, zero=0, pipeline=1, tensor=1, microbatches=1, **_):
    """Return a dict of bytes on a GPU of the first stage. `zero` is the ZeRO stage: 0, 1 or 3."""
    mine = params / pipeline / tensor
    weights = 2 * mine / (data if zero == 3 else 1)
    gradients = weights
    optimizer = 12 * mine / (data if zero else 1)
    tokens = seq * batch / data / microbatches
    held = min(pipeline, microbatches)  # micro-batches that a first stage keeps (1F1B)
    # 16 vectors per token and block: MLP of 4 · width, FlashAttention, no dropout
    activations = held * tokens * depth / pipeline * 2 * width * (4 + 12 / tensor)
    total = weights + gradients + optimizer + activations
    return locals()


# %% [markdown] tags=["subslide"]
# First, without micro-batches:


# %%
# %%px
def print_memory(microbatches):
    for name, plan in plans.items():
        needed = memory(**job, **plan, microbatches=microbatches)
        states = needed["total"] - needed["activations"]
        print(f"{name:9} states {states / 1e9:5.1f} GB, activations {needed['activations'] / 1e9:5.1f} GB")


if rank == 0:
    print_memory(1)

# %% [markdown]
# None fits into 72 GB. So we use eight micro-batches. *Data* is out: its states alone are too large. **Vote:** which other plan still needs more than 72 GB? (a) ZeRO-3, (b) pipeline, (c) tensor.

# %%
# %%px
if rank == 0:
    print_memory(8)

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (b). ZeRO-3 and tensor ranks finish each micro-batch before starting the next. A pipeline's first stage starts all eight, and keeps them, before the first gradient returns. With 64 smaller micro-batches, it still keeps eight, and the plan fits.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 2 · What hides?
#
# A message costs time only if a GPU waits for it. While the gradients of layer 9 travel, a data rank computes those of layer 8: the message **hides** behind computing. ZeRO-3's messages also hide if ranks gather the next layer's weights early (**prefetch**). Lesson 09's tensor ranks must wait: their next product needs the sum.

# %% tags=["exercise: 16.7"]

# %% [markdown] tags=["notes"]
# Seven minutes up to here, six for the exercise. If somebody also hides `tensor_messages`, ask: which product could run before the sum that it needs?

# %% [markdown] tags=["subslide"]
# **Model flop utilization** (MFU) is the part of the peak, 312 Tflop/s, that training uses. **Vote:** the benchmark FlagPerf measured a 7B model with ZeRO-2 on eight A100s. Its MFU? (a) 80 %, (b) 60 %, (c) 30 %.

# %%
# %%px --save 16_plan.py
if __name__ == "__main__" and rank == 0:
    for name, microbatches in {"ZeRO-3": 8, "pipeline": 64, "tensor": 8}.items():
        part = step(**job | node | plans[name] | {"microbatches": microbatches})
        mfu = part["computing"] / part["total"] * node["rate"] / 312e12
        print(f"{name:9}{part['total']:5.2f} s, MFU {mfu:.0%}")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (b): about 60 %. When all hides, our formulas always say 70 %, `rate` over peak. Real steps do more than large matrix products.
#
# </details>
#
# Tensor ranks wait 4.38 − 3.35 = 1.0 s. ZeRO-3's messages take 1.2 s, and our formulas hide them. With ZeRO-3, a model ten times as large sends ten times as much. **Vote:** how much hides, if memory allows it? (a) All, (b) a part, (c) nothing.

# %%
# %%px
if rank == 0:
    large = {"params": 69e9, "depth": 80, "width": 8192, "microbatches": 8}
    part = step(**job | node | plans["ZeRO-3"] | large)
    print({name: round(part[name], 2) for name in ("computing", "data_messages", "exposed")})

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (a). Per micro-batch, a rank sends 6 bytes per parameter, and computes 6 flop per parameter *and token*. The 6 and the parameters cancel. Tokens remain:
#
# **In a dense model (no experts) in 16 bits, a ring's messages can hide if a data rank's micro-batch has more tokens than `rate` / `link`.**
#
# On NVLink, that is 928 tokens. Our micro-batch has 2,048. We left out latency.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 3 · Three customers
#
# Each customer orders 10,000 steps. `chat` is our job. `cards` has GPUs of 32 GB, half the rate and a link of 10 GB/s. `genome` trains on four long sequences per step.

# %%
# %%px
cards = {"room": 28.8e9, "rate": 115e12, "link": 10e9}
genome = {"seq": 16384, "batch": 4}
customers = {"chat": job | node, "cards": job | node | cards, "genome": job | node | genome}


def hours(name, data=1, zero=0, pipeline=1, tensor=1, microbatches=1):
    asked = customers[name] | locals()  # the job, the node, and this call's arguments
    needed, seconds = memory(**asked)["total"], step(**asked)
    assert data * pipeline * tensor == 8, "use all eight GPUs"
    assert asked["batch"] % (data * microbatches) == 0, "the batch does not divide evenly"
    marks = zip("█·TD", ("computing", "idle", "tensor_messages", "exposed"))  # a mark is half a second
    bar = "".join(mark * round(2 * seconds[part]) for mark, part in marks)
    print(f"{name:7}{needed / 1e9:5.1f} GB", bar)
    return 10_000 * seconds["total"] / 3600 if needed <= asked["room"] else 100  # does not fit


# %% [markdown]
# A famous rule says: *keep tensor parallelism [inside a node](https://arxiv.org/abs/2104.04473)*. Each customer has one node, so our first `bets` are tensor. (`chat` then pays 12.2 hours.)

# %%
predict("Hours that cards pays with tensor parallelism?", None)

# %%
# %%px
# mixed plans count: {"data": 2, "zero": 1, "tensor": 4}
bets = {
    "chat": {"tensor": 8, "microbatches": 8},
    "cards": {"tensor": 8, "microbatches": 64},
    "genome": {"tensor": 8, "microbatches": 4},
}

if rank == 0:
    bill = {name: round(hours(name, **bet), 1) for name, bet in bets.items()}
    print(bill, f"in all {sum(bill.values()):.1f} hours")

# %%
outcome("Hours that cards pays with tensor parallelism?", cluster[0]["bill"]["cards"], word="computed")

# %% [markdown]
# Change `bets` until the bill is below 37 hours. A plan that does not fit costs 100. What do each customer's GPUs wait for? (T and D: messages of tensor and data ranks.)
#
# <details><summary>Open after your last try</summary>
#
# By our formulas, the best bill is 36.1 hours.
#
# - `chat` takes ZeRO-3 or ZeRO-1: messages hide.
# - `cards` takes a pipeline of 64 micro-batches. To hide ZeRO-3's messages, it needs 11,500 tokens, and memory allows 2,048 (without recomputing).
# - `genome` takes data 4 (ZeRO-1 or 3) × tensor 2. Each of four data ranks gets one sequence. Its 16,384 tokens hide the messages. Two tensor ranks wait 0.07 s per step, eight 0.51 s.
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# | | what changes |
# |---|---|
# | 64 GPUs | Rings leave the node. If they share its eight 25 GB/s network cards, `link` is 200 GB/s: a micro-batch needs 1,090 tokens. |
# | 512 GPUs | Our 64 sequences feed at most 64 data ranks. Raise the batch, if the loss allows, or use [tensor groups](https://huggingface.co/spaces/nanotron/ultrascale-playbook) inside nodes. |
# | 2,048 GPUs | A ring's latency grows with its ranks. Use ZeRO-3 in small groups, and all-reduce gradients between them once per step (hybrid sharding, HSDP). |


# %% [markdown] tags=["slide"]
# ## Key points
#
# - Count activations, above all on a pipeline's first stage.
# - In 16 bits, a dense model's data messages can hide if a micro-batch has more tokens than rate / link.
# - Compute all plans, then measure the best two.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# Your training fits on one GPU. On two nodes of eight, what do you try first: (a) ZeRO-3, (b) tensor and pipeline, (c) data parallelism?
#
# <details><summary>What to listen for</summary>(c). (a) and (b) save memory, and you have enough. If gradients do not hide, take larger micro-batches first.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# ### Who wins one long sequence on cheap GPUs?
#
# `cards` needed a pipeline, and `genome` a mixture of data and tensor ranks. What if a customer trains on *one* long sequence per step, with `cards`' GPUs and link? **Vote:** which plan wins? (a) Tensor, (b) pipeline, (c) a mixture.
#
# The next cell makes a table of plans. Each row is one way to divide the eight GPUs. For each way, the cell tries ZeRO stages 0, 1 and 3 and up to 64 micro-batches. Your own `16_plan.py` computes memory and seconds, and the row shows the fastest plan that fits.
#
# The table assumes what `step` assumes: every link is equally fast, everything runs at full rate, and the messages of data ranks hide where they can.
#
# Choose 16,384 tokens, 1 sequence, 10 GB/s, and the GPU with 28.8 GB. A click on a total opens the lines of your program that computed it.

# %%
from course.lessons.l16_choose_your_strategy.figures import explore

explore("code/16_plan.py", cluster["job"][0] | cluster["node"][0])

# %% [markdown]
# <details><summary>Open after you have voted and looked</summary>
#
# (c), by our formulas. The two pure plans fail for different reasons:
#
# - Eight tensor ranks do not fit, because each keeps four of the 16 vectors in full.
# - A pipeline of eight fits. But with one micro-batch, each stage idles seven eighths of the time.
#
# Pipeline 4 × tensor 2 lies between them. It fits, and a stage idles three quarters of the time.
#
# Find the row of pipeline 2 × tensor 4. It would be faster, but it misses by 0.03 GB (both numbers round to 28.8). We only guess that 28.8 of 32 GB are usable, so measure this plan.
#
# Could eight tensor ranks fit after all? Yes, if each keeps less. With *sequence parallelism* (lesson 09), tensor ranks divide all 16 vectors. Then eight tensor ranks fit, and win. With *recomputing* (lesson 08), a GPU keeps fewer activations, but runs forward twice. *Context parallelism* divides a sequence's tokens in all layers. Our formulas include none of the three.
#
# </details>
#
# The table has one link for all GPUs. A cluster has fast links inside nodes and slow ones between nodes. So ask of each plan: which bytes cross which link, and how often per step?

# %% tags=["exercise: 16.q6"]

# %% [markdown]
# ### Should you believe one page of arithmetic?
#
# You have just chosen plans without running one. Two tests follow: a run on your own machine, and runs that others published.
#
# #### Would this laptop choose the same plan?
#
# Take the worst pipeline: four stages and a single micro-batch. While one stage computes, the other three wait. On four devices, our page says, this pipeline's step takes four times as long as data parallelism's, if gradients hide.
#
# The next cell trains a small Transformer both ways on our four ranks. If you have fewer than four cores, the ranks share them.

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
# <details><summary>Open after the run</summary>
#
# In the run shown, four ranks share two cores. With data parallelism, all four compute at once, so each has half a core. In the pipeline, only one rank computes at a time, and it has a core to itself. That alone halves the factor, from four to two.
#
# Smaller costs of data parallelism lower the factor further. Data ranks wait for their all-reduce. Each updates all parameters, a stage only a quarter. And each computes on fewer samples, so its matrix products are less efficient. With one core per rank, the factor is closer to four.
#
# So step times on a laptop say little about plans on a cluster, because here ranks are not devices. Two things carry over: the bytes sent, if the collectives use the same algorithms, and the losses, up to rounding (without batch norm and dropout).
#
# </details>
#
# #### Do published runs agree?
#
# DLRover is a training system. Here are four of its published runs of Llama 2 (7 billion parameters) on eight A100s, the first with PyTorch's FSDP, the others with DeepSpeed and 64 micro-batches:
#
# | plan | sequences per step | Tflop/s per GPU, recomputing counted |
# |---|---|---|
# | ZeRO-3 on 8 | 32 | 205 |
# | ZeRO-1 on 4 × pipeline 2 | 2,048 | 190 |
# | ZeRO-1 on 4 × tensor 2 | 2,048 | 159 |
# | ZeRO-1 on 2 × pipeline 2 × tensor 2 | 1,024 | 156 |
#
# All four recompute activations, which our page leaves out. So we need a longer program, a **planner** (in `course/lessons/l16_choose_your_strategy/planner`). It does the same arithmetic layer by layer, with the rates of section 1. DLRover does not say how long the sequences are. We assume 2,048 tokens.
#
# The planner orders the four plans twice. First, it hides every message that can hide: full **overlap** with computing. Then it hides none. **Predict:** when does it find DLRover's order? (a) Only with overlap, (b) only without, (c) both times.

# %%
from course.lessons.l16_choose_your_strategy.published import COMPARISONS, rows, same_order

flagperf, dlrover, megatron = COMPARISONS
for overlap in (1, 0):
    print(f"overlap {overlap}: the same order as DLRover? {same_order(dlrover, overlap)}")
show(rows(dlrover), x="plan", y="throughput", by="how")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (a). Bars are the planner's two predictions, and diamonds are DLRover's runs. All are multiples of ZeRO-3's throughput.
#
# Without overlap, ZeRO-3 waits for all its messages, and the planner puts it behind two other plans. So overlap decides the order here.
#
# Are the differences as large as predicted? No. Compare two DeepSpeed runs: with tensor 2, DLRover measured 16 % less than with pipeline 2. The planner says 2 % less. One likely cause: tensor ranks have smaller matrix products, which run at a lower rate. The planner gives all products 218 Tflop/s.
#
# </details>
#
# One source may agree by chance. So we compare two more, also on eight A100s, which we chose before the planner knew overlap. A user of Megatron-LM found one plan over 30 % faster than another (the batch is our guess). FlagPerf ran four plans, two of them only 2 % apart. **Vote:** with overlap, whose order does the planner find? (a) Both, (b) only Megatron-LM's, (c) only FlagPerf's.

# %%
for one in COMPARISONS:
    print(f"{one['name']}: same order with overlap? {same_order(one, 1)}. Without? {same_order(one, 0)}")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (b). The planner swaps FlagPerf's close pair, with and without overlap. DLRover's last two plans are also 2 % apart, and the planner ordered them correctly. Megatron-LM's plans have no data ranks, so overlap changes nothing. The user gave no batch: we assumed 64 micro-batches.
#
# </details>
#
# **And memory?** A prediction is only as good as the settings that you know. FlagPerf publishes its settings, and the planner is 2 to 13 % too low. For DLRover, we had to guess the length of the sequences. DLRover also recomputes block by block, and our planner a whole stage at once. There, the planner is between 43 % too low and 73 % too high.
#
# So believe the page when two plans are far apart, and measure when they are close. Section 3 had two close pairs:
#
# - For `chat`, a step takes as long with ZeRO-1 as with ZeRO-3. With eight micro-batches, ZeRO-1 needs 46.5 GB instead of 22.4, but sends only a twelfth of the bytes. On a slower link, try ZeRO-1 first.
# - For `cards`, ZeRO-1 on 2 × pipeline 4 is only 2 % behind the pipeline of 8.
#
# Measure memory as well, in the second step: Adam's state exists only after the first. The page leaves out:
#
# - embeddings and logits, which make the first and last stage of a pipeline slower
# - the blocks that ZeRO-3 has just gathered
# - gradients in 32 bits: with them, as Megatron-LM offers, the states take 18 bytes per parameter, and plain data ranks need twice the tokens
# - what a pipeline sends: per sequence of 2,048 tokens and boundary, 17 MB each way
# - NCCL's use of the GPU: it slows computing a little while messages travel
#
# That user of Megatron-LM seems to contradict the famous rule of section 3.

# %% tags=["exercise: 16.q4"]

# %% [markdown]
# ## What you can do now
#
# You came with one process. Now your [ranks talk](01_mpi_basics.ipynb), and you know what [a collective costs](04_collectives.ipynb). You can split [a batch](06_data_parallel_by_hand.ipynb),
# [a list of layers](08_pipeline_parallelism.ipynb), [a layer](09_tensor_parallelism.ipynb), [an image](10_spatial_and_hybrid.ipynb) and [the model states](11_zero_from_scratch.ipynb), and you can prove that the training stays
# the same. When a job stops, you find [who is to blame](15_when_things_fail.ipynb). You know what [a slow link](14_scaling_out.ipynb) does, and which plan to try first.
#
# Take your programs with you: they are in `code/`, and they run on any cluster with MPI, mpi4py and PyTorch. To see which exercises you have passed, type `course progress` in a terminal.
#
# Where next? [The Ultra-Scale Playbook](https://huggingface.co/spaces/nanotron/ultrascale-playbook) has thousands of measured plans on GPUs. [How to Scale Your Model](https://jax-ml.github.io/scaling-book/) does this
# lesson's arithmetic for TPUs. [TorchTitan](https://github.com/pytorch/torchtitan) and [Megatron-LM](https://github.com/NVIDIA/Megatron-LM) train by such plans. Open one of their configuration files, and look for
# the numbers of a plan: you will know most of them.
#
# ## References
#
# - FlagPerf, [LLaMA-7B with PaddlePaddle](https://github.com/FlagOpen/FlagPerf/blob/20ce265be254527ca4e8e99bd34c3087e11880ab/training/nvidia/llama1_7B-paddle/README.md), 2023: ZeRO-2 reached 4,267 tokens per second and GPU.
# - DLRover, ATorch, [Llama 2:
# performance](https://github.com/intelligent-machine-learning/dlrover/blob/d39a369cb6bb3ae2031bea17ff17246428aca110/atorch/examples/llama2/README.md), 2023.
# - Megatron-LM, [issue 258](https://github.com/NVIDIA/Megatron-LM/issues/258), 2022: a pipeline of 8 faster than 8 tensor ranks inside one node.
# - NVIDIA, [Distributed optimizer](https://docs.nvidia.com/megatron-core/developer-guide/latest/distrib_optimizer.html), Megatron Core: bytes per parameter with gradients in 16 and 32 bits.
# - V. Korthikanti and others, [Reducing activation recomputation](https://arxiv.org/abs/2205.05198), 2022: what a block keeps.
# - D. Narayanan and others, [Efficient large-scale language model training](https://arxiv.org/abs/2104.04473), 2021: tensor inside a node, pipeline between nodes.
# - Hugging Face, [Efficient training on multiple GPUs](https://huggingface.co/docs/transformers/v4.49.0/perf_train_gpu_many), Transformers 4.49, 2025: a list of which plan to take.
# - A. Chowdhery and others, [PaLM](https://arxiv.org/abs/2204.02311), 2022, appendix B: flop per token, attention's 12 · depth · width · seq among them.
# - S. Rajbhandari and others, [ZeRO](https://arxiv.org/abs/1910.02054), 2020.
