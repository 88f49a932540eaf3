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
# minutes: {core: 20, more: 14}
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
# A training step computes on a **mini-batch**, say 128 images. What if it does not fit into your GPU's memory?
#
# Cut it into **micro-batches**, and run them one by one. `backward()` adds each gradient to those already there (**gradient accumulation**). After the last piece, the optimizer takes one step.
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

torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)  # rounding stays far below six decimals

comm = MPI.COMM_WORLD
digits = np.load(Path(__file__).with_name("data") / "digits.npz")
images = torch.from_numpy(digits["train_images"] / 16).flatten(1)
labels = torch.from_numpy(digits["train_labels"]).long()
new_images = torch.from_numpy(digits["test_images"] / 16).flatten(1)
new_labels = torch.from_numpy(digits["test_labels"]).long()

# %% [markdown] tags=["subslide"]
# Each rank trains its own network, with the same first weights and batches:


# %%
# %%px --save 05_train.py
def network(seed=0):
    torch.manual_seed(seed)  # fixes weights and batches
    hidden = nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh()
    model = nn.Sequential(*hidden, nn.Linear(128, 10))
    for weights in model.parameters():
        weights.data *= 3  # learns faster
    return model


# %% [markdown] tags=["subslide"]
# An **epoch** is one pass over the images, in full batches. For each batch, `train` calls `accumulate`, which we write next:


# %%
# %%px --save 05_train.py
def train(model, size, piece, rate=0.4, warm_up=1):
    """Train on full batches of `size`, `piece` at once; return how many are right after each epoch."""
    right = []
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / warm_up, total_iters=warm_up)
    for _ in range(8):
        model.train()
        for batch in torch.randperm(len(images)).split(size)[: len(images) // size]:
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
# Rank 0 does not cut its batches. The others do: 64 + 64, 100 + 28 and 127 + 1.
#
# `cross_entropy` returns the *mean* loss of a piece, so we divide it by the number of pieces.
#
# **Vote:** which cuts end with rank 0's loss, to six decimals? (a) All, (b) only 64 + 64, (c) none. Then bet on the worst cut.


# %% tags=["nbval-ignore-output"]
# %%px
def accumulate(model, inputs, targets, piece):
    model.zero_grad()
    pieces = inputs.split(piece)
    for x, y in zip(pieces, targets.split(piece), strict=True):
        loss = F.cross_entropy(model(x), y) / len(pieces)
        loss.backward()


_ = train(network(), 128, CUTS[comm.rank])

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (b). 127 + 1 ends worst, no better than guessing.
#
# 100 + 28 is more dangerous. Rank 2's gradients were wrong, yet its network misreads only one more digit. 90 + 38 even reads 274! Who would notice?
#
# </details>

# %% [markdown] tags=["slide"]
# ## 2 · One line
#
# `accumulate` contains one wrong line. Repair it.

# %% tags=["exercise: 05.1"]

# %% [markdown] tags=["subslide"]
# Does your line work, here and as a program?


# %%
# %%px --save 05_train.py
if __name__ == "__main__" and comm.rank == 0:
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
# Pieces can also run at the same time. One GPU with batches of 16 takes 93 steps per epoch. Sixteen GPUs share batches of 256, and take 5.
#
# Should these steps be longer, with a larger **learning rate**?
#
# ```
# sixteen steps   w − 0.05 · g₁ − 0.05 · g₂ − … − 0.05 · g₁₆
# one step        w − rate · (g₁ + g₂ + … + g₁₆) / 16
# g₁, g₂, …       mean gradients of 16 images; sixteen steps change the weights in between
# ```
#
# If sixteen steps hardly change each batch's gradient, both lines end nearly alike at rate 16 · 0.05 = 0.8. This is the **linear scaling rule** for **stochastic gradient descent** (SGD): for k times the batch, with the same epochs, take k times the rate, up to some batch size.

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
# Longer steps help: at 0.4, 40 steps read about as many digits as rank 0's 744.
#
# But at 0.8, the network never learns. In an untrained network, gradients often change a lot in sixteen steps. So a **warm-up** raises the rate over the first steps.
#
# </details>
#
# **Contest:** each rank now has its own seed, and the *worst* network counts. Find the best rate and warm-up in five runs.

# %% tags=["nbval-ignore-output"]
# %%px
rate, warm_up = 0.8, 10  # yours (of 40 steps)
mine = train(network(comm.rank), 256, 256, rate, warm_up)[-1]

# %%
print(f"the worst of four networks reads {min(cluster['mine'])} of 297 digits")

# %% [markdown]
# <details><summary>Open after your runs</summary>
#
# | rate | 0.8 | 0.8 | 0.6 | 0.4 |
# |---|---|---|---|---|
# | steps of warm-up | 10 | 20 | 20 | none |
# | the worst reads | 31 | 237 | 266 | 263 |
#
# A warm-up lets larger rates learn, but the scaling rule's 0.8 is not the best. Try several seeds before you trust a rate, and score it on unused images.
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# A language model's loss is a mean over **tokens**. Texts differ in length, so micro-batches are often unequal. Divide summed losses by the number of labelled tokens in the *whole* batch. The ranks
# add their counts before the first backward.
#
# PyTorch's DDP (lesson 07) *averages* gradients over its group of ranks: multiply this loss by their number. With Adam, try √k times the rate for k times the batch.

# %% [markdown] tags=["slide"]
# ## Key points
#
# - Sum the losses, divide by the whole batch's size, and *add* the gradients (in float32). Then any cut gives the same training, up to rounding (which grows in long runs),
#   unless an image's loss depends on other images (batch norm, see More) or on random numbers (dropout).
# - With SGD, for k times the batch and the same epochs, try k times the rate with a warm-up, then smaller rates. Beyond the **critical batch
#   size**, a larger batch saves hardly any steps, whatever the rate.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# Your run on 64 GPUs is 2 points less accurate than on 4, with the same epochs, rate and images per GPU. All gradients are averaged correctly. Do you try
# (a) a larger rate with warm-up or (b) a sixteenth of the images per GPU? Which result would prove you wrong?
#
# <details><summary>What to listen for</summary>First compare the *training* loss. If it is higher than on
# 4 GPUs, try (a); otherwise (a) may not help. (b) restores the old batch, but leaves each GPU little work. If (b) stays less accurate, the
# batch is not to blame, unless the network has batch norm.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# Does the repaired line work for every network? We insert a **batch norm**. In training, it normalizes each feature with the mean and variance over the images of one forward pass.
# The ranks take 128, 64, 16 and 4 images at once.
#
# **Vote:** which pieces end with rank 0's loss? (a) All, (b) only 64, (c) none.

# %%
# %%px
model = network()
model.insert(1, nn.BatchNorm1d(128))
_ = train(model, 128, [128, 64, 16, 4][comm.rank])

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (c). An image's output now depends on the other images in its piece, and no division repairs that. It hardly matters here: all networks read 270 to 272. With 2 images per GPU, the error of a ResNet-50
# is about eleven points higher than with 32 ([Wu and He](https://arxiv.org/abs/1803.08494), 2018).
#
# A layer norm (`nn.LayerNorm`) looks at one image at a time, so with it all losses agree. If the cut runs between GPUs, PyTorch's `SyncBatchNorm` uses the images of all ranks, with messages in every such layer. It cannot join
# micro-batches: they run one by one.
#
# </details>
#
# Which convention of the loss does your library have?
#
# | who | the gradient of a cut batch |
# |---|---|
# | this course | sums of losses, divided by the whole batch's size; gradients added |
# | Keras, DeepSpeed (lesson 12), Megatron-LM by default | mean of means over micro-batches: right if all have equally many images (or tokens) |
# | DDP (lesson 07) | mean over the ranks: multiply each loss by the number of ranks if you divided by the whole batch's size |

# %% tags=["exercise: 05.q4"]

# %% [markdown]
# What if you have no uncut batch? A **gradient check** tests a gradient by its meaning: how fast does the loss grow with a weight? Compute the loss with one weight
# a little larger, then a little smaller. The difference of the losses, divided by that of the weights, is a **central difference**. **Predict:** with the repaired line, in how many
# decimals does it equal `.grad`?


# %%
# %%px
from course_lib.training.gradient_check import central_difference

model, x, y = network(), images[:128], labels[:128]
accumulate(model, x, y, CUTS[comm.rank])
weights = model[0].weight  # .numpy() shares memory
slope = central_difference(lambda: F.cross_entropy(model(x), y).item(), weights.detach().numpy(), (3, 20))
print(f".grad: {weights.grad[3, 20].item():.9f}, central difference: {slope:.9f}")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# In all nine, for every cut. With the old line, ranks 2 and 3 differ: the check finds the bug of 100 + 28 before the first step.
#
# Always check in float64. The two losses are almost equal, so their leading digits cancel, and float32 has too few digits left. Check a few weights of every layer, and skip a weight only if *both* numbers are near zero.
#
# </details>
#
# **Remember:** a network that learns may still have wrong gradients. Compare them with the uncut batch, or with central differences.

# %% tags=["exercise: 05.q3"]

# %% [markdown]
# Was section 3 bad luck? No: with the seeds 1, 2 and 3, training at 0.8 without a warm-up failed, too, with at most 33 digits right. Without `weights.data *= 3`, at most 102 were.

# %% tags=["exercise: 05.q5"]

# %% [markdown]
# ### How far does one process get?
#
# One process can use all cores without a single message: PyTorch splits the work inside an operation among **threads**, which share the memory of their process. So why would anybody train with ranks?
#
# Jakovac and Pichler (see References) trained a small convolutional network (CNN). An epoch took 65 s with one thread and 30 s with eight. Eight *ranks* took 17 s over Gloo and 19 s over MPI.
#
# Why are eight threads only about twice as fast as one? Suppose that threads can divide *b* seconds of an epoch, but not the other *a* seconds. Then *n* threads need *a* + *b*/*n* seconds.

# %%
predict("Seconds per epoch with a thousand threads?", None)

# %%
epoch = {1: 65, 4: 37, 8: 30}  # published seconds, by threads
b = (epoch[1] - epoch[8]) / (1 - 1 / 8)
a = epoch[1] - b
print(f"{a:.0f} s + {b:.0f} s / threads; with 4 threads {a + b / 4:.0f} s, published {epoch[4]} s")
outcome("Seconds per epoch with a thousand threads?", a + b / 1000, word="computed")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# By this formula (Amdahl's law, lesson 02), threads cannot divide 25 of the 65 s: probably operations that are too small to split, and the Python code between them. The time with 4 threads, which we did not use, fits roughly.
#
# Yet eight ranks needed less than 25 s. Threads divide only large operations. Ranks divide the *images*: they run even small operations at the same time, each on its own images. Was the
# comparison fair? Only if all ranks *together* took as many images per step as one process. The source does not say. If each rank took a full batch, they made fewer steps (lesson 07 tests both).
#
# </details>
#
# Try it: time a step on 128 images with one thread, one thread per core (at most 4), and one rank per core. (Lesson 06 explains how ranks add their gradients.)

# %%
# %%px --timeout 100
from course_lib.comm.timing import one_rank_per_core
from course_lib.measure import measure
from course_lib.parallel.data_parallel import sum_gradients
from course_lib.training.models import build

cnn, pictures = build("cnn", seed=0).float(), torch.rand(128, 1, 28, 28, dtype=torch.float32)
team = one_rank_per_core(comm)


def step(count, threads=1):
    torch.set_num_threads(threads)
    cnn.zero_grad()
    cnn(pictures[:count]).sum().backward()
    torch.set_num_threads(1)


ways = {"one thread": lambda: step(128), "threads": lambda: step(128, team.size)}
speed = measure(MPI.COMM_SELF, ways) if comm.rank == 0 else []

# %%
# %%px --timeout 100
if team != MPI.COMM_NULL:
    speed += measure(team, {"ranks": lambda: (step(128 // team.size), sum_gradients(team, cnn))})

# %% tags=["nbval-ignore-output"]
show(cluster["speed"], x="way", y="time of a step")

# %% [markdown]
# A bar is the median of ten steps, and the thin line goes from the fastest to the slowest. Where lines overlap, one run does not decide. If several
# threads lose to one, other programs probably use your cores: the threads of an operation wait for the slowest.
#
# **Remember:** threads divide operations, ranks here divide images, and only ranks reach a second machine. (PyTorch also advises against `DataParallel`, which drives the GPUs of one machine by threads.)
#
# #### And how large an image?
#
# A process can cut its batch, but not below one image. How many pixels may this image have?
#
# Backward needs the outputs of layers, the **activations**, so forward keeps them. Take an image of 3 colours, and three convolutions with 16 output maps each, each followed by a relu. A convolution keeps its
# input, and a relu keeps its output. A tensor that is both is kept once. A number takes 4 bytes.

# %%
predict("Bytes per pixel that backward needs?", None)

# %% tags=["nbval-ignore-output"]
# %%px --timeout 100
import resource

kept = {}


def keep(tensor):  # PyTorch calls it for every tensor that forward keeps
    kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    return tensor


convolutions = [layer for maps in (3, 16, 16) for layer in (nn.Conv2d(maps, 16, 3, padding=1), nn.ReLU())]
convnet = nn.Sequential(*convolutions, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)).float()
edge = (512, 640, 768, 1024)[comm.rank]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
    output = convnet(torch.rand(1, 3, edge, edge, dtype=torch.float32))
output.sum().backward()
grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024  # MiB; on macOS KiB
counted = sum(kept.values())
print(f"{edge} × {edge}: kept {counted / 2**20:.0f} MiB, peak of the process grew by {grown:.0f} MiB")

# %%
outcome("Bytes per pixel that backward needs?", cluster["counted"][3] // 1024**2, word="counted")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# 204: 3 colours and 3 times 16 maps are 51 numbers of 4 bytes. (The weights add almost nothing.) Twice the edge takes four times the memory.
#
# The *process* with the largest image grew by about twice the count. What is not counted? Backward also holds gradients of activations, two or three at once. A convolution needs
# workspace. The allocator keeps freed memory. So the count is a lower bound (without recomputing): before you buy a GPU, measure `torch.cuda.max_memory_reserved()` on one. (The peak is the process's
# largest so far: a second run adds about 0.)
#
# </details>
#
# Now add a fourth convolution: write `(3, 16, 16, 16)`. **Predict** the bytes per pixel, and run the two cells again.
#
# <details><summary>Open after the run</summary>
#
# 268: another 16 maps of 4 bytes each.
#
# </details>
#
# With three convolutions, an 80 GB GPU holds an image of 19,800 × 19,800 pixels by the count, and of 14,000 × 14,000 if the memory is twice the count. A scanned tissue slide has 100,000 × 100,000 pixels: 2 TB
# by the count. You can recompute activations instead of keeping them, and compute in bf16, with 2 bytes per number. Even then, the 16 maps of a single layer take 320 GB.
#
# **Remember:** cut batches down to one image. If that is too large, cut the image (lesson 10).

# %% [markdown]
# ## References
#
# - P. Goyal and others, [Accurate, large minibatch SGD](https://arxiv.org/abs/1706.02677), 2017: linear scaling, warm-up, and how to normalize the loss. For ResNet-50, the rule
#   works up to about 8,000 images per batch.
# - C. Shallue and others, [Measuring the effects of data parallelism on neural network training](https://arxiv.org/abs/1811.03600), 2019: where larger
#   batches stop saving steps, for many networks.
# - S. Malladi and others, [On the SDEs and scaling rules for adaptive gradient algorithms](https://arxiv.org/abs/2205.10287), 2022: for Adam, take √k times
#   the rate, and adjust β₁, β₂ and ε.
# - Hugging Face, [Fixing gradient accumulation](https://huggingface.co/blog/gradient_accumulation), 2024: the mean of means in a library that many use.
# - M. Jakovac and E. Pichler, *MPI in Distributed Training*, 2025: the CNN, and the times called published.
