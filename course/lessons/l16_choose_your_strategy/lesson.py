# ---
# title: Choose your strategy
# goal: Decide which plan runs on which machine, with one page of arithmetic.
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
# You train a Transformer of 7 billion parameters on eight GPUs. Which plan fits, and which is fastest? A page of arithmetic answers before you pay.
#
# A **plan** says what the GPUs divide:
#
# - *data*: the batch
# - *ZeRO-3*: the batch and the model states
# - *pipeline*: the list of blocks, four per GPU
# - *tensor*: every block, an eighth per GPU

# %%
# %%px --save 16_plan.py
"""What a plan needs on each GPU, and how long a step takes."""

from mpi4py import MPI

rank = MPI.COMM_WORLD.rank
job = {"params": 6.9e9, "depth": 32, "width": 4096, "seq": 2048, "batch": 64}  # seq: tokens per sequence
node = {"gpus": 8, "room": 72e9, "rate": 218e12, "link": 235e9}  # A100: usable bytes, real flop/s, bytes/s
plans = {"data": {"data": 8}, "ZeRO-3": {"data": 8, "zero": 3}}
plans |= {"pipeline": {"pipeline": 8}, "tensor": {"tensor": 8}}

# %% [markdown]
# What does a GPU keep? First, 16 bytes of model states per parameter. Second, activations, until backward uses them. With FlashAttention (which stores no scores), a block keeps about 16 · `width` numbers of 2 bytes per token. Tensor ranks divide 12 of these 16, and each keeps the other 4 whole.


# %%
# %%px --save 16_plan.py
def memory(params, depth, width, seq, batch, data=1, zero=0, pipeline=1, tensor=1, microbatches=1, **_):
    """Return all numbers in a dict: bytes on the fullest GPU. `zero` is the ZeRO stage: 0, 1 or 3."""
    mine = params / pipeline / tensor
    weights = 2 * mine / (data if zero == 3 else 1)
    gradients = weights
    optimizer = 12 * mine / (data if zero else 1)
    tokens = seq * batch / data / microbatches
    held = min(pipeline, microbatches)  # micro-batches that the first stage keeps at once (1F1B)
    activations = held * tokens * depth / pipeline * 2 * width * (4 + 12 / tensor)
    total = weights + gradients + optimizer + activations
    return locals()


# %% [markdown] tags=["subslide"]
# The states take 110 GB, so *data* cannot fit. The other plans divide them by eight. Activations take 8.6 GB per sequence. ZeRO-3 ranks compute 8 sequences each, pipeline and tensor ranks all 64, and for now nobody cuts the batch into micro-batches. **Vote:** how many plans fit into 72 GB? (a) One, (b) three, (c) none.


# %%
# %%px
def needs(microbatches):
    for name, plan in plans.items():
        page = memory(**job, **plan, microbatches=microbatches)
        total, kept = page["total"] / 1e9, page["activations"] / 1e9
        print(f"{name:9}{total:6.1f} GB, of which {kept:5.1f} GB are activations")


if rank == 0:
    needs(microbatches=1)

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (c). An eighth of the states is only 14 GB. But the activations of eight sequences take 69 GB, and so do four blocks of all 64 sequences. Tensor ranks keep more: they divide only 12 of 16 numbers.
#
# </details>
#
# So we cut each share into eight micro-batches. **Vote:** besides *data*, which plan still does not fit? (a) ZeRO-3, (b) pipeline, (c) tensor.

# %%
# %%px
if rank == 0:
    needs(microbatches=8)

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (b). ZeRO-3 and tensor keep one micro-batch at a time. But a pipeline's first stage starts all eight before the first gradient returns, and keeps them. With 64 micro-batches, it keeps eight smaller ones, and fits. Which of the three is fastest?
#
# </details>

# %% [markdown] tags=["slide"]
# ## 2 · What hides?
#
# A message costs time only if a GPU waits for it. Data ranks need not: while one layer's gradients travel, they compute the next layer's. Such messages **hide** behind computing. ZeRO-3's hide, too, if ranks gather weights early.

# %% tags=["exercise: 16.7"]

# %% [markdown] tags=["notes"]
# Seven minutes up to here, six for the exercise. If somebody also hides `tensor_messages`, ask: which product could run before the sum that it needs?

# %% [markdown] tags=["subslide"]
# All three compute for 3.35 s per step. ZeRO-3 also sends for 1.23 s, tensor for 1.02 s. With 64 micro-batches, the pipeline idles for 0.37 s. **Predict** the order, fastest first.

# %%
# %%px --save 16_plan.py
if __name__ == "__main__" and rank == 0:
    for name, microbatches in {"ZeRO-3": 8, "pipeline": 64, "tensor": 8}.items():
        asked = job | node | plans[name] | {"microbatches": microbatches}
        print(f"{name:9}{memory(**asked)['total'] / 1e9:5.1f} GB {step(**asked)['total']:5.2f} s")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# ZeRO-3 sends longest and wins, because all its messages hide. Is that luck?
#
# Per micro-batch it sends for about 6 · `params` / `link` seconds, and computes for 6 · `params` · tokens / `rate`. In the ratio, `params` drops out. So in any dense model, messages can hide if a data rank's micro-batch has more tokens than `rate` / `link`, where `link` is the slowest that data ranks cross. On NVLink that is 928, and ours has 2,048. What if the link is slower?
#
# </details>

# %% [markdown] tags=["slide"]
# ## 3 · Three customers
#
# Three customers order 10,000 steps each. `chat` is our job. `cards` runs it on cheap GPUs: smaller, half as fast, on a link 23 times slower. `genome` trains on one long sequence per step.

# %%
# %%px
cards = {"room": 28.8e9, "rate": 115e12, "link": 10e9}
genome = {"seq": 16384, "batch": 1}
customers = {"chat": job | node, "cards": job | node | cards, "genome": job | node | genome}


def hours(name, data=1, zero=0, pipeline=1, tensor=1, microbatches=1):
    asked = customers[name] | locals()  # the customer's numbers and the plan's
    needed, seconds = memory(**asked)["total"], step(**asked)
    assert data * pipeline * tensor == 8, "use all eight GPUs"
    assert asked["batch"] % (data * microbatches) == 0, "the batch does not divide evenly"
    parts = {part: round(seconds[part], 2) for part in ("computing", "idle", "tensor_messages", "exposed")}
    print(f"{name:7}{needed / 1e9:5.1f} GB", parts)
    return 10_000 * seconds["total"] / 3600 if needed <= asked["room"] else 100


# %% [markdown]
# A famous rule says: *keep tensor parallelism inside a node*. Each customer has one node, so all `bets` start with tensor. For `chat`, computing costs 9.3 hours and messages 2.8. How many hours will `cards` pay?

# %%
predict("Hours that cards pays with tensor parallelism?", None)

# %%
# %%px
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
# Now change `bets` for a bill below 32 hours. What does each customer wait for? A plan that does not fit costs 100.
#
# <details><summary>Open when you have won, or given up</summary>
#
# The best bill is 31.0 hours. `chat` takes ZeRO-3 (or ZeRO-1), whose messages hide. For `cards` they cannot: `rate` / `link` is 11,500 tokens, and memory allows only 2,048 per micro-batch. A pipeline of 64 micro-batches sends least, and wins. `genome` keeps tensor: with one micro-batch, a pipeline idles.
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# | | what changes |
# |---|---|
# | 512 GPUs | Our 64 sequences feed at most 64 data ranks. Raise the batch if the loss allows, or [split the model](https://huggingface.co/spaces/nanotron/ultrascale-playbook). More data ranks leave each pipeline fewer micro-batches, so it idles for a larger part of the step. |
# | 2,048 GPUs | A ring's latency grows with its ranks, and the slow link should not carry all weights per micro-batch. So use ZeRO-3 inside groups of nodes, and all-reduce between them. |


# %% [markdown] tags=["slide"]
# ## Key points
#
# - Count activations beside states, above all on a pipeline's first stage.
# - Gradients and ZeRO-3's messages can hide if a GPU has more tokens per micro-batch than rate / link.
# - No plan wins everywhere. Compute all, then measure the best two.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# Your training fits on one GPU. On two nodes of eight, do you begin with (a) ZeRO-3, (b) tensor and a pipeline, or (c) data parallelism? What would change your mind?
#
# <details><summary>What to listen for</summary>(c), if its gradients hide. The others save memory that you have. Try tensor 2 if the batch is too small for 16 data ranks.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# ### Who wins one long sequence on cheap GPUs?
#
# `cards` needed a pipeline, and `genome` needed tensor parallelism. Now a customer needs both: `genome`'s long sequence, on `cards`' GPUs and link. Which plan wins? **Vote:** (a) tensor, (b) pipeline, (c) a mixture.
#
# The next cell runs your own program for every even way to divide eight GPUs. The fastest plan that fits comes first. Choose 16,384 tokens, 1 sequence, 10 GB/s and *28.8 GB, 115 Tflop/s*. Click on a total to see the lines of `16_plan.py` behind it.

# %%
from course.lessons.l16_choose_your_strategy.figures import explore

explore("code/16_plan.py", cluster["job"][0] | cluster["node"][0])

# %% [markdown]
# <details><summary>Open after you have voted and looked</summary>
#
# (c), says this page. The two pure plans fail for different reasons. Eight tensor ranks do not fit, because each keeps a quarter of the activations whole. A pipeline of eight fits, but with one micro-batch each stage idles seven eighths of the time. Pipeline 4 × tensor 2 fits, and only four stages wait for each other.
#
# Now find the row of pipeline 2 × tensor 4. It would be faster, but it needs 0.03 GB too much. Do you reject it? The page's own error is larger: for example, it leaves out embeddings and logits. So measure that plan before you reject it.
#
# You can also change what a GPU keeps. Try *recomputing* (lesson 08) first: a GPU keeps fewer activations, and runs forward twice. Or let the tensor ranks use *sequence parallelism* (lesson 09). Then they divide all 16 · width numbers, and eight of them fit, and win. *Context parallelism* cuts the sequence itself, and is not on this page.
#
# </details>
#
# The page has another gap: it knows only one link. A cluster has two, a fast one inside nodes and a slow one between them. So ask of each plan: which bytes cross which link, and how often per step?

# %% tags=["exercise: 16.q6"]

# %% [markdown]
# ### Should you believe one page of arithmetic?
#
# You have just chosen plans without running one. Who could object? There are two witnesses: the machine in front of you, and people who measured such plans on real GPUs.
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
# In the run shown, four ranks share two cores. With data parallelism all four compute at once, so each has half a core. In the pipeline only one stage computes at a time, and it has a whole core. That alone halves the factor, from four to two.
#
# Two smaller costs lower the factor further, because only data ranks pay them. They wait for their all-reduce. And each computes on fewer samples, so its matrices are smaller, which is less efficient. With one core per rank, you measure more, up to four.
#
# So step times on a laptop say little about plans on a cluster, because here ranks are not devices. Bytes sent are the same there, and so are losses, up to rounding.
#
# </details>
#
# #### Do published runs agree?
#
# The second witness is better placed. Three published sources compare plans on eight A100s. Some of their runs recompute, which our page does not know. So we let a longer program predict them: a **planner** (`course/lessons/l16_choose_your_strategy/planner`), which does this arithmetic layer by layer. We chose the three sources before the planner could hide messages, so they were not picked to flatter it.
#
# Begin with one source. DLRover trained Llama 2 with 7 billion parameters by four plans. The planner sorts the four plans by speed twice: once with every message hidden that can hide (full **overlap** with computing), and once with none. **Predict:** when is the planner's order DLRover's? (a) Only if messages hide, (b) only if nothing hides, (c) in both cases.

# %%
from course.lessons.l16_choose_your_strategy.published import COMPARISONS, rows, same_order

flagperf, dlrover, megatron = COMPARISONS
for one in COMPARISONS:
    print(f"{one['name']}: order right with overlap {same_order(one)}, without {same_order(one, 0.0)}")
show(rows(dlrover), x="plan", y="throughput", by="how")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (a). If nothing hides, ZeRO-3 pays for all its messages, and the planner wrongly puts it behind two others.
#
# The other two sources say less. Megatron-LM compared two plans without data ranks, so our planner has nothing to hide, and its order is right both ways. For FlagPerf it is wrong both ways: two plans are 2 % apart, and the planner swaps them.
#
# Now look at the bars. The sizes are worse than the order. For tensor 2 × data 4, DLRover measured 22 % less throughput than for ZeRO-3, and the planner says 4 % less. One likely cause: it does not know that tensor ranks have smaller matrix products, which run at a lower rate. Whole runs also
# report less than 218 Tflop/s, the rate of large matrix products alone.
#
# And memory? Where the settings are known, the planner is better: 2 to 13 % too small for FlagPerf. For DLRover it is up to 73 % off. We had to guess the sequence length, and DLRover recomputes block by block, but our planner a whole stage at once.
#
# </details>
#
# You can also test a planner at home. We drew 24 small Transformers with six plans each, and committed the list. We predicted all 144 plans, and only then ran them on two cores. For 143 of them, the predicted memory was right within 15 %, and the last was off by 15.2 %. The
# median error of seconds was 8 %. For 22 of the 24 models, the planner chose the fastest plan that fits, or one at most 10 % slower. But nothing overlaps on two cores, so this proves nothing about GPUs.
#
# So believe the page when plans are far apart, and measure when two are close. Section 3 had two such pairs:
#
# - For `chat`, ZeRO-1 is as fast as ZeRO-3. It needs 46.5 GB with eight micro-batches, but sends only a twelfth. On a worse link, try it first.
# - For `cards`, ZeRO-1 on 2 × pipeline 4 is only 2 % behind the pipeline of 8.
#
# Always measure the memory, too: one step is enough. The page leaves out four things:
#
# - embeddings, logits and the blocks that ZeRO-3 has just gathered
# - what a pipeline sends: per sequence of 2,048 tokens and boundary, 17 MB each way
# - the part of a GPU that NCCL uses, so that computing slows a little while it hides messages
# - gradients in 32 bits: with them, as Megatron-LM offers, the states take 18 bytes per parameter
#
# Before you read on: one of the three sources seems to contradict the famous rule of section 3. Does it?

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
