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
#   - ask: Adam trains in 16 bits. How many bytes of model states does each parameter need?
#     answer: 2 for the weight, 2 for the gradient, 12 for the optimizer, in all 16.
#   - ask: A pipeline has 4 equal stages and 8 micro-batches. A stage computes for 8 seconds. How long is it idle?
#     answer: 3 seconds, 8 · (4 − 1) / 8. The formula is computing · (p − 1) / m.
#   - ask: How many all-reduces does a Transformer block need in tensor parallelism, forward and backward together?
#     answer: Four, two forward and two backward. Each sums the activations of all tokens.
# ---

# %% [markdown] tags=["slide"]
# ## 1 · What fits?
#
# You want to train a Transformer of 7 billion parameters on eight GPUs. A **plan** says how they divide the work, and we compare four. Which ones fit? Which is fastest? Trying costs GPU hours. So we compute first, on one page.

# %%
# %%px --save 16_plan.py
"""What a plan needs on each GPU, and how long a step takes."""

from mpi4py import MPI

rank = MPI.COMM_WORLD.rank
job = {"params": 6.9e9, "depth": 32, "width": 4096, "seq": 2048, "batch": 64}  # seq: tokens per sequence
# usable of an A100's 80 GB, 312 Tflop/s, and NVLink's 300 GB/s
node = {"gpus": 8, "room": 72e9, "rate": 218e12, "link": 235e9}
plans = {"data": {"data": 8}}  # an eighth of the batch per GPU
plans["ZeRO-3"] = {"data": 8, "zero": 3}  # and of the model states
plans["pipeline"] = {"pipeline": 8}  # four of the 32 blocks
plans["tensor"] = {"tensor": 8}  # an eighth of every block

# %% [markdown]
# What must a GPU hold? First the model states, 16 bytes per parameter. Then the activations, until backward needs them. Per token, a block keeps about [16 vectors](https://arxiv.org/abs/2205.05198) of `width` 2-byte numbers. Tensor ranks divide 12 of them. Each keeps four whole.


# %%
# %%px --save 16_plan.py
def memory(params, depth, width, seq, batch, data=1, zero=0, pipeline=1, tensor=1, microbatches=1, **_):
    """Return a dict of bytes on the fullest GPU. `zero` is the ZeRO stage: 0, 1 or 3."""
    mine = params / pipeline / tensor
    weights = 2 * mine / (data if zero == 3 else 1)
    gradients = weights
    optimizer = 12 * mine / (data if zero else 1)
    tokens = seq * batch / data / microbatches
    held = min(pipeline, microbatches)  # micro-batches that a first stage keeps (1F1B)
    # 16 vectors per token and block: with FlashAttention, without dropout
    activations = held * tokens * depth / pipeline * 2 * width * (4 + 12 / tensor)
    total = weights + gradients + optimizer + activations
    return locals()


# %% [markdown] tags=["subslide"]
# The states take 110 GB, so *data* cannot fit. The other plans divide them by eight. And activations? One sequence keeps 8.6 GB in all blocks. A ZeRO-3 rank computes 8 sequences at once, pipeline and tensor ranks all 64.
#
# **Vote:** how many plans fit into 72 GB? (a) One, (b) three, (c) none.


# %%
# %%px
def needs(microbatches):
    for name, plan in plans.items():
        page = memory(**job, **plan, microbatches=microbatches)
        print(f"{name:9}{page['total'] / 1e9:6.1f} GB, activations {page['activations'] / 1e9:5.1f} GB")


if rank == 0:
    needs(microbatches=1)

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (c). The activations are too large. Eight sequences keep 69 GB, and so do 64 in an eighth of the blocks. Tensor ranks keep more, because four vectors stay whole.
#
# </details>
#
# So each rank now cuts its sequences into eight micro-batches. **Vote:** besides *data*, which plan still does not fit?

# %%
# %%px
if rank == 0:
    needs(microbatches=8)

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# The pipeline. ZeRO-3 and tensor ranks finish each micro-batch before the next. A pipeline's first stage starts all eight before the first gradient returns, so it keeps eight. Of 64 smaller ones it also keeps eight, and fits. Which plan is fastest?
#
# </details>

# %% [markdown] tags=["slide"]
# ## 2 · What hides?
#
# Does a message always cost time? Only if a GPU waits for it. Data ranks need not: while the gradients of one layer travel, they compute those of the next. The message **hides** behind computing. ZeRO-3's hide, too, if ranks gather weights early. Tensor ranks must wait: their next product needs the sum.

# %% tags=["exercise: 16.7"]

# %% [markdown] tags=["notes"]
# Seven minutes up to here, six for the exercise. If somebody also hides `tensor_messages`, ask: which product could run before the sum that it needs?

# %% [markdown] tags=["subslide"]
# All three compute for 3.35 s per step. ZeRO-3 also sends for 1.23 s, tensor for 1.02 s. The pipeline idles for 0.37 s. **Predict** the order.

# %%
# %%px --save 16_plan.py
if __name__ == "__main__" and rank == 0:
    for name, microbatches in {"ZeRO-3": 8, "pipeline": 64, "tensor": 8}.items():
        asked = job | node | plans[name] | {"microbatches": microbatches}
        print(f"{name:9}{memory(**asked)['total'] / 1e9:5.1f} GB {step(**asked)['total']:5.2f} s")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# ZeRO-3 sends longest and wins, because all its messages hide. Was that luck?
#
# Per micro-batch, it sends 2 bytes per parameter three times: 6 · `params` / `link` seconds. It computes 6 flop per parameter and token: 6 · `params` · tokens / `rate`. The model's size cancels. So in a dense model, messages can hide if a data rank's micro-batch has more tokens than `rate` / `link`.
#
# On NVLink that is 928, and ours has 2,048. What if the link is slower?
#
# </details>

# %% [markdown] tags=["slide"]
# ## 3 · Three customers
#
# Each customer orders 10,000 steps. `chat` is our job. `cards` runs it on cheaper GPUs: less memory, half the flop/s, a link 23 times slower. `genome` trains on one long sequence per step.

# %%
# %%px
cards = {"room": 28.8e9, "rate": 115e12, "link": 10e9}
genome = {"seq": 16384, "batch": 1}
customers = {"chat": job | node, "cards": job | node | cards, "genome": job | node | genome}


def hours(name, data=1, zero=0, pipeline=1, tensor=1, microbatches=1):
    asked = customers[name] | locals()  # with the plan's numbers
    needed, seconds = memory(**asked)["total"], step(**asked)
    assert data * pipeline * tensor == 8, "use all eight GPUs"
    assert asked["batch"] % (data * microbatches) == 0, "the batch does not divide evenly"
    parts = {part: round(seconds[part], 2) for part in ("computing", "idle", "tensor_messages", "exposed")}
    print(f"{name:7}{needed / 1e9:5.1f} GB", parts)
    return 10_000 * seconds["total"] / 3600 if needed <= asked["room"] else 100


# %% [markdown]
# A famous rule says: *keep tensor parallelism [inside a node](https://arxiv.org/abs/2104.04473)*. Each customer has one node, so all first `bets` are tensor. `chat` pays 9.3 hours for computing and 2.8 for messages. How many will `cards` pay?

# %%
predict("Hours that cards pays with tensor parallelism?", None)

# %%
# %%px
# mixed plans count: {"data": 2, "zero": 1, "tensor": 4}
bets = {
    "chat": {"tensor": 8, "microbatches": 8},
    "cards": {"tensor": 8, "microbatches": 64},
    "genome": {"tensor": 8},
}

if rank == 0:
    bill = {name: round(hours(name, **bet), 1) for name, bet in bets.items()}
    print(bill, f"in all {sum(bill.values()):.1f} hours")

# %%
outcome("Hours that cards pays with tensor parallelism?", cluster[0]["bill"]["cards"], word="computed")

# %% [markdown]
# Change `bets` until the bill is below 32 hours. A plan that does not fit costs 100. What does each customer wait for?
#
# <details><summary>Open after your last try</summary>
#
# The best bill is 31.0 hours. `chat` takes ZeRO-3, whose messages hide. For `cards` they cannot: `rate` / `link` is 11,500 tokens, and memory allows 2,048. A pipeline of 64 micro-batches wins. `genome` keeps tensor: one sequence feeds one data rank, and a pipeline would idle.
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# | | what changes |
# |---|---|
# | 64 GPUs | The slowest link that data ranks cross counts. At 25 GB/s per GPU, `rate` / `link` is 8,720 tokens. |
# | 512 GPUs | Our 64 sequences feed at most 64 data ranks. Raise the batch if the loss allows, or [split the model](https://huggingface.co/spaces/nanotron/ultrascale-playbook). |
# | 2,048 GPUs | A ring's latency grows with its ranks. Use ZeRO-3 in groups whose link passes the test, and all-reduce gradients between them. |


# %% [markdown] tags=["slide"]
# ## Key points
#
# - Count activations beside states, above all on a pipeline's first stage.
# - Gradients and ZeRO-3's messages, in 16 bits, can hide if a data rank's micro-batch has more tokens than rate / link.
# - No plan wins everywhere. Compute all, then measure the best two.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# Your training fits on one GPU. On two nodes of eight, what do you try first: (a) ZeRO-3, (b) tensor and pipeline, (c) data parallelism? What would change your mind?
#
# <details><summary>What to listen for</summary>(c), if its gradients hide. The others save memory that you have. Try tensor 2 if the batch cannot feed 16 data ranks.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# ### Who wins one long sequence on cheap GPUs?
#
# `cards` needed a pipeline, and `genome` needed tensor parallelism. What if one customer is both? It trains `genome`'s long sequence on `cards`' GPUs and link. **Vote:** which plan wins? (a) Tensor, (b) pipeline, (c) a mixture.
#
# The next cell makes a table of plans. Each row is one way to divide the eight GPUs, and your own `16_plan.py` computes its memory and its seconds. For each way, the cell tries ZeRO stages 0, 1 and 3 and up to 64 micro-batches. The row shows the fastest form that fits, and the fastest row comes first.
#
# The table assumes what `step` assumes: every link is equally fast, everything runs at full rate, and the messages of data ranks hide where they can.
#
# Choose 16,384 tokens, 1 sequence, 10 GB/s, and the GPU with 28.8 GB. Then click on a total. It opens the lines of your program that computed it.

# %%
from course.lessons.l16_choose_your_strategy.figures import explore

explore("code/16_plan.py", cluster["job"][0] | cluster["node"][0])

# %% [markdown]
# <details><summary>Open after you have voted and looked</summary>
#
# (c), says our page. The two pure plans fail for different reasons:
#
# - Eight tensor ranks do not fit, because each keeps a quarter of the activations whole.
# - A pipeline of eight fits. But with one micro-batch, each stage idles seven eighths of the time.
#
# Pipeline 4 × tensor 2 avoids both. It fits, and only four stages wait for each other.
#
# Now find the row of pipeline 2 × tensor 4. It would be faster, but it needs 0.03 GB too much. Do you reject it? The page is not that exact: it leaves out embeddings and logits, for example. Measure that plan before you reject it.
#
# Could eight tensor ranks fit after all? Yes, if each keeps less. With *recomputing* (lesson 08), a GPU keeps fewer activations, but runs forward twice. With *sequence parallelism* (lesson 09), tensor ranks divide all 16 vectors. Then eight of them fit, and win. *Context parallelism* cuts the sequence itself. Our page does not know it.
#
# </details>
#
# The table has one link for all GPUs. A cluster has a fast link inside nodes and a slow one between them. So ask of each plan: which bytes cross which link, and how often per step?

# %% tags=["exercise: 16.q6"]

# %% [markdown]
# ### Should you believe one page of arithmetic?
#
# You have just chosen plans without running one. Who could check you? First the machine in front of you, then people who ran such plans on real GPUs.
#
# #### Would this laptop choose the same plan?
#
# Take the worst pipeline: four stages and a single micro-batch. While one stage computes, three wait. With one device per stage, our page says, its step takes four times as long as with data parallelism on the same four devices.
#
# The next cell trains a small Transformer both ways on our four ranks. They may have to share cores.

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
# In the run shown, four ranks share two cores. With data parallelism, all four compute at once, so each has half a core. In the pipeline, only one stage computes at a time, and it has a whole core. That alone halves the factor, from four to two.
#
# Two smaller costs lower the factor further, because only data ranks pay them. They wait for their all-reduce. And each computes on fewer samples, so its matrix products are smaller and less efficient. With one core per rank, you measure more, up to four.
#
# So step times on a laptop say little about plans on a cluster, because here ranks are not devices. What you can trust are the bytes sent, which are the same there, and the losses, up to rounding.
#
# </details>
#
# #### Do published runs agree?
#
# DLRover, a training system, published this table. It trained Llama 2 with 7 billion parameters on eight A100s, by four plans:
#
# | plan | sequences per step | Tflop/s per GPU |
# |---|---|---|
# | ZeRO-3 on 8 | 32 | 205 |
# | ZeRO-1 on 4 × pipeline 2 | 2,048 | 190 |
# | ZeRO-1 on 4 × tensor 2 | 2,048 | 159 |
# | ZeRO-1 on 2 × pipeline 2 × tensor 2 | 1,024 | 156 |
#
# All four recompute activations, which our page does not know. So a longer program predicts them: a **planner** (in `course/lessons/l16_choose_your_strategy/planner`), which does the same arithmetic layer by layer. It has the rates of section 1. DLRover does not say how long the sequences are, so we assume 2,048 tokens.
#
# The planner orders the four plans twice. First it hides every message that can hide: full **overlap** with computing. Then it hides none. **Predict:** when does it find DLRover's order? (a) Only with overlap, (b) only without, (c) both times.

# %%
from course.lessons.l16_choose_your_strategy.published import COMPARISONS, rows, same_order

flagperf, dlrover, megatron = COMPARISONS
for overlap in (1, 0):
    print(f"overlap {overlap}: the same order as DLRover? {same_order(dlrover, overlap)}")
show(rows(dlrover), x="plan", y="throughput", by="how")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (a). Each value is a multiple of the first plan's, ZeRO-3. Diamonds are DLRover's runs, and bars are the planner's two predictions.
#
# Without overlap, ZeRO-3 waits for all its messages, and the planner puts it behind two other plans. So overlap decided the order here.
#
# Is the size right, too? No. For the plan with tensor 2 and no pipeline, DLRover measured 22 % less than for ZeRO-3. The planner says 4 % less. One likely cause: tensor ranks have smaller matrix products, which run at a lower rate. The planner gives all products the same rate, 218 Tflop/s. Even ZeRO-3's 205 stay below that, because a whole run is more than large products.
#
# </details>
#
# One source may agree by chance. So we named three, all on eight A100s, before the planner could hide messages. Here are all three, flattering or not.

# %%
for one in COMPARISONS:
    print(f"{one['name']}: same order with overlap? {same_order(one, 1)}. Without? {same_order(one, 0)}")

# %% [markdown]
# Megatron-LM's two plans have no data ranks, so nothing can hide, and the order is right both times. FlagPerf's order is wrong both times: two of its plans are 2 % apart, and the planner swaps them.
#
# **And memory?** For FlagPerf, which says its settings, the planner is 2 to 13 % too low. For DLRover it is up to 73 % off. There we guessed the length, and DLRover recomputes block by block, but our planner a whole stage at once. When all settings are known, such a prediction can be good. We ran 144 plans of small Transformers on our own two cores, and the largest error in memory was 15.2 %.
#
# So when should you believe the page? Believe it when two plans are far apart, and measure when they are close. Section 3 had two close pairs:
#
# - For `chat`, ZeRO-1 is as fast as ZeRO-3. With eight micro-batches it needs 46.5 GB, but sends only a twelfth. On a worse link, try it first.
# - For `cards`, ZeRO-1 on 2 × pipeline 4 is only 2 % behind the pipeline of 8.
#
# Always measure memory as well. One step is enough. The page leaves out:
#
# - embeddings, logits, and the blocks that ZeRO-3 has just gathered
# - gradients in 32 bits: with them, as Megatron-LM offers, the states take 18 bytes per parameter
# - what a pipeline sends: per sequence of 2,048 tokens and boundary, 17 MB each way
# - the part of a GPU that NCCL uses, so computing slows a little while messages hide behind it
#
# One of the three sources seems to contradict the famous rule of section 3. Does it?

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
# - FlagPerf, [LLaMA-7B with PaddlePaddle](https://github.com/FlagOpen/FlagPerf/blob/20ce265be254527ca4e8e99bd34c3087e11880ab/training/nvidia/llama1_7B-paddle/README.md), 2023.
# - DLRover, ATorch, [Llama 2:
# performance](https://github.com/intelligent-machine-learning/dlrover/blob/d39a369cb6bb3ae2031bea17ff17246428aca110/atorch/examples/llama2/README.md), 2023.
# - Megatron-LM, [issue 258](https://github.com/NVIDIA/Megatron-LM/issues/258), 2022: a pipeline of 8 faster than 8 tensor ranks inside one node.
# - NVIDIA, [Distributed optimizer](https://docs.nvidia.com/megatron-core/developer-guide/latest/distrib_optimizer.html), Megatron Core: bytes per parameter with gradients in 16 and 32 bits.
# - V. Korthikanti and others, [Reducing activation recomputation](https://arxiv.org/abs/2205.05198), 2022: what a block keeps.
# - D. Narayanan and others, [Efficient large-scale language model training](https://arxiv.org/abs/2104.04473), 2021: tensor inside a node, pipeline between nodes.
# - Hugging Face, [Efficient training on multiple GPUs](https://huggingface.co/docs/transformers/v4.49.0/perf_train_gpu_many), Transformers 4.49, 2025: a list of which plan to take.
# - A. Chowdhery and others, [PaLM](https://arxiv.org/abs/2204.02311), 2022, appendix B: flop per token, attention's 12 · depth · width · seq among them.
# - S. Rajbhandari and others, [ZeRO](https://arxiv.org/abs/1910.02054), 2020.
