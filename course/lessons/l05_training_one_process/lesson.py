# ---
# title: Training in one process
# goal: Cut a batch so that the network does not notice.
# able:
#   - compute a batch's gradient from pieces of any size
#   - choose a rate for a larger batch
# more:
#   - recognize what may not be cut
#   - check a gradient
#   - decide between threads and ranks
#   - estimate the memory of a training step
# before: >-
#   {00}; a training loop in PyTorch. Helpful: {04}
# minutes: {core: 20, more: 20}
# ranks: 4
# warm-up:
#   - ask: Where does a cell that begins with `%%px` run, and where does one without it?
#     answer: The first runs on all ranks, the second in the notebook's process.
#   - ask: Every rank draws 100 numbers with `default_rng(0)`. How many different numbers are there?
#     answer: 100. Equal seeds draw equal numbers.
#   - ask: What does every rank hold after `allgather`?
#     answer: A list with one object from each rank, in the order of the ranks.
# ---

# %% [markdown] tags=["slide"]
# ## 1 · A batch in pieces
#
# A training step computes on a **mini-batch**, say 128 images. What if the batch does not fit into your GPU's memory?
#
# Cut it into pieces, the **micro-batches**, and run them one by one. `backward()` adds each gradient to those
# already there. After the last piece, the optimizer takes one step. This is **gradient accumulation**.
#
# Does the network notice the cut? We train on 1,500 digits and test on 297 new ones:

# %%
# %%px --save 05_train.py
"""Train on data/digits.npz with batches cut in four ways."""

from pathlib import Path

import numpy as np
import torch
from mpi4py import MPI
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(1)  # one thread per rank
torch.set_default_dtype(torch.float64)  # rounding stays far below six decimals

comm = MPI.COMM_WORLD
digits = np.load(Path(__file__).with_name("data") / "digits.npz")
images = torch.from_numpy(digits["train_images"] / 16).flatten(1)
labels = torch.from_numpy(digits["train_labels"]).long()
new_images = torch.from_numpy(digits["test_images"] / 16).flatten(1)
new_labels = torch.from_numpy(digits["test_labels"]).long()

# %% [markdown] tags=["subslide"]
# Each rank trains its own network, with the same first weights and the same batches:


# %%
# %%px --save 05_train.py
def network(seed=0):
    torch.manual_seed(seed)
    hidden = nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh()
    model = nn.Sequential(*hidden, nn.Linear(128, 10))
    for weights in model.parameters():
        weights.data *= 3  # our choice, so that 8 epochs suffice
    return model


# %% [markdown] tags=["subslide"]
# An **epoch** is one pass over the images. For each batch, `train` calls `accumulate`, which we write next:


# %%
# %%px --save 05_train.py
def train(model, size, piece, rate=0.4, warm_up=1):
    """Train on batches of `size`, `piece` images at once; return how many are right after each epoch."""
    right = []
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / warm_up, total_iters=warm_up)  # 1: none
    for _ in range(8):
        model.train()
        for batch in torch.randperm(len(images)).split(size)[:-1]:  # without the last, short one
            accumulate(model, images[batch], labels[batch], piece)
            optimizer.step()
            schedule.step()
        with torch.no_grad():
            outputs = model.eval()(new_images)
        right.append((outputs.argmax(1) == new_labels).sum().item())
    loss = F.cross_entropy(outputs, new_labels).item()
    print(f"{size} images, {piece} at once, rate {rate}: loss {loss:.6f}, {right[-1]} of 297 right")
    return right


CUTS = 128, 64, 100, 127  # images at once, on ranks 0 to 3

# %% [markdown]
# Rank 0 keeps its batches whole. The others cut them: 64 + 64, 100 + 28 and 127 + 1.
#
# `cross_entropy` returns the *mean* loss of a piece. We divide it by the number of pieces.
#
# **Vote:** which cuts end with rank 0's loss, to six decimals? (a) All, (b) only 64 + 64, (c) none. Then bet on the worst cut.


# %% tags=["nbval-ignore-output"]
# %%px
def accumulate(model, inputs, targets, piece):
    model.zero_grad()
    pieces = inputs.split(piece)
    for x, y in zip(pieces, targets.split(piece), strict=True):
        loss = F.cross_entropy(model(x), y) / len(pieces)
        loss.backward()  # adds to the gradients that are there


_ = train(network(), 128, CUTS[comm.rank])

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (b). 127 + 1 ends worst: its network is no better than guessing.
#
# But 100 + 28 is more dangerous. All its gradients were wrong, yet it misreads only one more digit. Would you have noticed?
#
# </details>

# %% [markdown] tags=["slide"]
# ## 2 · One line
#
# `accumulate` contains one wrong line. Find it and repair it.

# %% tags=["exercise: 05.1"]

# %% [markdown] tags=["subslide"]
# Does your line work, here and then as a program?


# %%
# %%px --save 05_train.py
if __name__ == "__main__" and comm.rank == 0:  # one process
    for piece in CUTS:
        train(network(), 128, piece)

# %%
# !mpiexec -n 1 python code/05_train.py

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# All four losses are 0.324401. The old line took a **mean of means**: in 127 + 1, one image weighed as much as 127.
#
# A sum does not depend on where we cut. So **sum the losses, and divide by the whole batch's size**:
# `F.cross_entropy(model(x), y, reduction="sum") / len(inputs)`.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 3 · A batch for sixteen GPUs
#
# Pieces can also run at the same time. Sixteen GPUs with 16 images each make a batch of 256, and 5 steps per epoch. One GPU with batches of 16 takes 93 steps.
#
# Should the few steps be longer, with a larger **learning rate**? Compare sixteen small steps with one large one:
#
# ```
# sixteen steps   w − 0.05 · g₁ − 0.05 · g₂ − … − 0.05 · g₁₆
# one step        w − rate · (g₁ + g₂ + … + g₁₆) / 16
# g₁, g₂, …       gradients of 16 images, each at the weights of its step
# ```
#
# If gradients hardly change from step to step, both give nearly the same weights at a rate of 16 · 0.05 = 0.8.
# This is the **linear scaling rule** for **stochastic gradient descent** (SGD): for k times the batch, and as many epochs, take k times the rate, while batches are small.

# %%
predict("How many of 297 are right with 256 images at rate 0.8?", None)

# %% tags=["nbval-ignore-output"]
# %%px
size, rate = [(16, 0.05), (256, 0.05), (256, 0.4), (256, 0.8)][comm.rank]
right = train(network(), size, size, rate)

# %%
from course.lessons.l05_training_one_process.figures import draw_right

outcome("How many of 297 are right with 256 images at rate 0.8?", cluster["right"][3][-1], word="counted")
draw_right(cluster["right"], cluster["size"], cluster["rate"], of=297)

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# Longer steps help: at 0.4, 40 steps reach 268, as rank 0's 744 do, with 14 % fewer images.
#
# But at 0.8, the network never learns. The rule assumes similar gradients in all sixteen steps. In a new network they often differ
# a lot. A **warm-up** raises the rate step by step.
#
# </details>
#
# Each rank now starts from its own weights. **Bet:** how many of the four networks read more than 200 digits after a warm-up of 10 steps, of 15, of 20?

# %% tags=["nbval-ignore-output"]
# %%px
warmed = [train(network(comm.rank), 256, 256, rate=0.8, warm_up=steps)[-1] for steps in (10, 15, 20)]

# %%
for steps, right in zip((10, 15, 20), zip(*cluster["warmed"])):
    print(f"warm-up of {steps} steps: {right} of 297 right")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# One, three and four. A single run would have told you nothing, so try several seeds before you trust a rate. (At 0.4, 268 are right without any warm-up.)
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# A language model's loss is a mean over **tokens**. Texts differ in length, so micro-batches are unequal.
# Divide by the number of tokens with a label in the *whole* batch, counted over all ranks that share it.
#
# DDP sums gradients after every `backward()`; `no_sync` (lesson 07) waits for the last micro-batch. With Adam, try √k times the rate for k times the batch.

# %% [markdown] tags=["slide"]
# ## Key points
#
# - Sum the losses, divide by the whole batch's size, and *add* the gradients (in float32). Then any cut gives the same training, up to rounding,
#   unless an image's loss depends on other images (batch norm, see More) or on random numbers (dropout).
# - With SGD and k times the batch, keep the epochs. Try k times the rate with a warm-up, then smaller rates. Near the **critical batch
#   size**, no rate makes up for all missing steps.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# Your run on 64 GPUs is 2 points less accurate than on 4. Epochs, rate and images per GPU are the same. Do you try
# (a) a larger rate with warm-up or (b) a sixteenth of the images per GPU? Which result would prove you wrong?
#
# <details><summary>What to listen for</summary>(a) takes as long as the last run. If the *training* loss is as low as on
# 4 GPUs, optimization is not the problem. (b) restores the old batch (except for batch norm), with little work per GPU. If accuracy stays low without batch norm, the
# batch is not to blame.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# Does the repaired line work for every network? We insert one layer, a **batch norm**. In training, it normalizes each feature with the mean and variance over the images of one forward pass.
# The ranks take 128, 64, 16 and 4 images at once.
#
# **Vote:** how many more digits does the smallest piece misread, with the repaired line? (a) Fewer than 5, (b) 5 to 30, (c) more.

# %%
# %%px
model = network()
model.insert(1, nn.BatchNorm1d(128))
_ = train(model, 128, [128, 64, 16, 4][comm.rank])

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (a). An image's output now depends on the other images in its piece, so the losses differ, and no division repairs that. Our small network hardly suffers. A ResNet-50 with 2 images
# per GPU makes about eleven points more errors than with 32 ([Wu and He](https://arxiv.org/abs/1803.08494), 2018).
#
# What repairs it? Put a layer norm (`nn.LayerNorm`) in place of the batch norm. It looks at one image at a time, so all losses agree again. If the cut runs between ranks,
# PyTorch's `SyncBatchNorm` helps, too: it takes mean and variance over all ranks of a group, on GPUs. It does not help with micro-batches, because they run one after the other.
#
# </details>
#
# **Which libraries take the mean of means over micro-batches?** Keras, DeepSpeed (lesson 12) and, by default, Megatron-LM. With equal micro-batches, their result is right.
#
# **How does a rank learn the tokens of the whole batch?** Each rank counts the tokens with a label in all its micro-batches. Before the first backward, one all-reduce adds up these counts.
# Then each rank divides its summed losses by the total. DDP (lesson 07) would divide once more, because it averages the ranks' gradients. So with DDP, multiply each loss by the number of ranks that it averages over.
#
# **Was section 3 luck?** We ran it again with the seeds 1, 2 and 3. At 0.8 without a warm-up, every training failed: at most 33 digits were right.
#
# What else changes when a batch is cut? And what do you do when the scaled rate fails? Two questions:

# %% tags=["exercise: 05.q4"]

# %% tags=["exercise: 05.q5"]

# %% [markdown]
# ### How do you know that a gradient is right?
#
# In section 2 we had something to compare with: the uncut batch. Often there is nothing. Suppose you wrote a backward pass by hand and trust only the forward pass. How can the forward pass
# tell you whether the gradient is right?
#
# It can, because of what a gradient means: for each weight, it says how fast the loss grows when that weight grows. So we try it out. We make one weight larger by a small `STEP` (0.00001) and compute the loss,
# then we make it smaller by as much and compute the loss again. The difference of the two losses, divided by the difference of the two weights, is a **central difference**:

# %% tags=["source: course_lib.training.gradient_check:central_difference"]
# %%px

# %% [markdown]
# Now we compare one entry of `.grad` with its central difference. Each rank runs the repaired `accumulate` with its own cut, once in float64, where numbers have about 16 digits, and once in float32, where they have about 7.
#
# **Predict:** do the two agree to 8 digits in float64, and to 5 digits in float32?


# %%
# %%px
def disagreement(dtype):
    """How far one gradient is from its central difference, relative to it."""
    model, x, y = network().to(dtype), images[:128].to(dtype), labels[:128]
    accumulate(model, x, y, CUTS[comm.rank])
    weights = model[0].weight
    numbers = weights.detach().numpy()  # shares the memory of weights
    slope = central_difference(lambda: F.cross_entropy(model(x), y).item(), numbers, (3, 20))
    return abs(weights.grad[3, 20].item() / slope - 1)


fine, coarse = disagreement(torch.float64), disagreement(torch.float32)
print(f"agree to 8 digits in float64: {fine < 1e-8}; to 5 digits in float32: {coarse < 1e-5}")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# In float64 they agree to 8 digits, but in float32 not even to 5. The reason is the subtraction `above - below`. The two losses are almost equal, because the step is tiny, so their leading digits cancel.
# Only the last digits carry the answer. A float32 number has too few digits to spare for that, while a float64 number has enough. So a **gradient check** like this one computes in
# float64, also for a network that will later train in float32.
#
# With the old line, ranks 2 and 3 do not agree in float64 either: the check catches 100 + 28 before the first step. The test images did not show it: 270 right instead of 271 worries nobody. In your own code, check a few weights of every layer,
# because a mistake may sit in one layer alone. Skip gradients near zero, where rounding hides the answer.
#
# </details>

# %% tags=["exercise: 05.q3"]

# %% [markdown]
# ### How far does one process get?
#
# One process can use all cores of its machine without sending a single message: PyTorch splits the work inside an operation among **threads**, which share the memory of their process. So why would
# anybody train with ranks?
#
# We time forward and backward of a small convolutional network (CNN) on 128 images. One process does all the work, first with one thread, then with one thread per core (at most 4).

# %%
predict("Speed-up of the CNN with one thread per core (at most 4)?", None)

# %%
# %%px --timeout 100
from course_lib.comm.timing import available_cores, one_rank_per_core
from course_lib.measure import measure
from course_lib.parallel.data_parallel import sum_gradients
from course_lib.training.models import build

cores = min(4, available_cores())
cnn = build("cnn", seed=0).float()
pictures, classes = torch.rand(128, 1, 28, 28, dtype=torch.float32), torch.arange(128) % 10


def step(count, threads=1):
    torch.set_num_threads(threads)
    cnn.zero_grad()
    (F.cross_entropy(cnn(pictures[:count]), classes[:count], reduction="sum") / 128).backward()
    torch.set_num_threads(1)


ways = {f"{n} thread{'s' * (n > 1)}": lambda n=n: step(128, n) for n in (1, cores)}
speed = measure(MPI.COMM_SELF, ways) if comm.rank == 0 else []

# %% [markdown]
# Now we use ranks instead of threads: one rank per core, with one thread each. Each rank takes its share of the 128 images, and then the ranks add up their gradients.
# (Lesson 06 explains how.)

# %%
# %%px --timeout 100
team = one_rank_per_core(comm, cores)
if team != MPI.COMM_NULL:
    ways = {f"{cores} ranks": lambda: (step(128 // cores), sum_gradients(team, cnn))}
    speed += measure(team, ways)

# %% tags=["nbval-ignore-output"]
one, threads = [row.value for row in cluster["speed"][0]][:2]
outcome("Speed-up of the CNN with one thread per core (at most 4)?", one / threads)
show(cluster["speed"], x="way", y="time of a step")

# %% [markdown]
# Each bar shows the median of ten steps, and the thin line reaches from the fastest step to the slowest. Which way won on your machine? Where thin lines overlap, one run does not decide.
# If one thread beats several, other programs probably use your cores. The threads of an operation wait for the slowest of them, so one busy core holds up all.
#
# What would more cores change? Jakovac and Pichler (see References) had eight. An epoch took 65 s with one thread and 30 s with eight threads. Eight ranks took 17 s when Gloo
# (PyTorch's own messages between CPUs) carried their sums, and 19 s when MPI did.
#
# Eight threads are only about twice as fast as one. Why so little?
#
# Perhaps they cannot share all of the work. Suppose they share *b* seconds of an epoch, and cannot share the other *a* seconds. Then *n* threads need *a* + *b*/*n* seconds.
# The published times for 1 and for 8 threads give us *a* and *b*. The time for 4 threads, which we did not use, tests the formula.

# %%
from course_lib.rows import predicted, published

epoch = {1: 65, 4: 37, 8: 30}  # published seconds, by threads
b = (epoch[1] - epoch[8]) / (1 - 1 / 8)
a = epoch[1] - b
print(f"{a:.0f} s + {b:.0f} s / threads; on 4 threads {a + b / 4:.0f} s")

source = "slides, 2025"
theirs = [published(s, source=source, workers=n, way="threads") for n, s in epoch.items()]
theirs += [published(17, source=source, workers=8, way="ranks, Gloo")]
theirs += [published(19, source=source, workers=8, way="ranks, MPI")]
theirs += [predicted(a + b / n, workers=n, way="threads") for n in (1, 2, 4, 8, 16, 64)]

# %%
show(theirs, x="workers", y="an epoch of the CNN", by="way")

# %% [markdown]
# The formula (Amdahl's law, lesson 02) predicts 35 s for 4 threads. The slides report 37 s, so the formula fits roughly. It says that threads do not share 25 of the 65 s: probably operations that are too small
# to split, and the Python code between them. If the formula is right, no number of threads gets below 25 s.
#
# Yet eight ranks did. Threads divide an operation, if it is large enough. Ranks divide the *images*. So on each rank, every operation has only an eighth of them to work on, even an
# operation that threads cannot split.
#
# This comparison is fair only if all ranks *together* took 128 images per step, and the slides do not say so. If *each* rank took 128, eight ranks made an eighth of the steps. That is a
# different training (lesson 07 tests both cases).
#
# In practice, something simpler often decides: threads cannot use a second machine, and ranks can. With GPUs, one process per GPU is the rule, even inside one machine: PyTorch itself advises
# against its `DataParallel`, in which the threads of one process drive several GPUs.

# %% [markdown]
# #### And how large an image?
#
# When a batch was too large, we cut it into pieces, but the smallest piece is one image. How many pixels may this image have?
#
# To compute gradients, backward needs the outputs of layers, the **activations**, so forward has to keep them. We count their bytes for a network that you can also work out on paper.
# It reads an image of 3 colours and has three convolutions, each with 16 output maps and followed by a relu. All numbers are float32, so they take 4 bytes. A convolution keeps its input, and a
# relu keeps its output. Where both are the same tensor, it is kept only once.
#
# PyTorch can tell us what it keeps: it calls a function of ours, `keep`, for every tensor that forward sets aside for backward. All that `keep` does is note the tensor's bytes.

# %%
predict("Bytes per pixel that backward needs?", None)

# %%
# %%px --timeout 100
import resource


def needed_by_backward(model, x):
    """The output, and the bytes of all tensors that forward keeps, each counted once."""
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        return model(x), sum(kept.values())


convolutions = [layer for maps in (3, 16, 16) for layer in (nn.Conv2d(maps, 16, 3, padding=1), nn.ReLU())]
convnet = nn.Sequential(*convolutions, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)).float()
edge = (512, 640, 768, 1024)[comm.rank]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
output, counted = needed_by_backward(convnet, torch.rand(1, 3, edge, edge, dtype=torch.float32))
output.sum().backward()
grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)  # KiB; on macOS bytes

# %%
outcome("Bytes per pixel that backward needs?", cluster["counted"][3] // 1024**2, word="counted")

# %% [markdown]
# Did you count as PyTorch does? A process may need more than what we counted, so next to the count we draw how much the *peak* memory of each process grew during its step.
# The operating system reports a process's peak since its start, so if you run the cell a second time, the growth is near 0.
# (For a GPU, call `torch.cuda.max_memory_allocated()`, after `torch.cuda.reset_peak_memory_stats()`.)

# %% tags=["nbval-ignore-output"]
memory = [
    {"labels": {"edge of the image": edge, "what": what}, "value": nbytes, "unit": "bytes", "kind": kind}
    for what, name, kind in (
        ("kept for backward", "counted", "counted"),
        ("growth of the process", "grown", "measured"),
    )
    for edge, nbytes in zip(cluster["edge"], cluster[name], strict=True)
]
show(memory, x="edge of the image", y="memory", by="what")

# %% [markdown]
# Per pixel, forward keeps 3 colours and 3 times 16 maps. These 51 numbers take 4 bytes each, so 204 bytes. (The few weights add almost nothing.)
#
# Now add a fourth convolution: write `(3, 16, 16, 16)`. How many bytes per pixel do you expect? Run the two cells below your prediction again.
#
# <details><summary>Open after the run</summary>268: another 16 maps of 4 bytes each.</details>
#
# By this count, an image with twice the
# edge needs four times the memory.
#
# But the *process* with the largest image grew by about twice the count. What did we leave out?
#
# - While backward runs, it also holds the gradients of activations, two or three of them at once.
# - A convolution needs workspace of its own.
# - The allocator keeps freed memory for later use instead of giving it back.
#
# So the count is a lower bound: measure before you buy a GPU.
#
# By the count, a GPU of 80 GB holds one image of at most 19,800 × 19,800 pixels. If the memory is twice the count, it holds half as many pixels, about 14,000 × 14,000. A scanned tissue
# slide has 100,000 × 100,000 pixels, and would need 2 TB by the count alone.
#
# What helps? You can recompute activations in backward instead of keeping them (activation checkpointing), and compute in bf16, with 2 bytes per number. For this slide, both together are not enough: the 16 maps
# of a single layer take 320 GB. So the image itself must be cut, as lesson 10 does.

# %% [markdown]
# ## References
#
# - P. Goyal and others, [Accurate, large minibatch SGD](https://arxiv.org/abs/1706.02677), 2017: linear scaling, warm-up, and which loss to divide by what. For ResNet-50, the rule
#   works up to about 8,000 images per batch.
# - C. Shallue and others, [Measuring the effects of data parallelism on neural network training](https://arxiv.org/abs/1811.03600), 2019: where larger
#   batches stop saving steps, for many networks.
# - S. Malladi and others, [On the SDEs and scaling rules for adaptive gradient algorithms](https://arxiv.org/abs/2205.10287), 2022: for Adam, take √k times
#   the rate, and adjust β₁, β₂ and ε.
# - Hugging Face, [Fixing gradient accumulation](https://huggingface.co/blog/gradient_accumulation), 2024: the mean of means in a library that many use.
# - M. Jakovac and E. Pichler, *MPI in Distributed Training*, 2025: the CNN, and the times called published.
