# ---
# title: Training in one process
# goal: Cut a batch into pieces, put one rate beside another, and find out what changes the training.
# able:
#   - compute the gradient of a batch from pieces of any size
#   - tell what may be cut into pieces from what may not
#   - choose a rate, and how it begins, for a larger batch
# more:
#   - check a gradient without a second way to compute it
#   - decide between threads and ranks
#   - estimate the memory of a training step, and know what an estimate leaves out
# before: >-
#   {00}; a training loop in PyTorch. Helpful: {04}
# minutes: {core: 20, more: 14}
# ranks: 4
# warm-up:
#   - ask: Where does a cell that begins with `%%px` run, and where one without it?
#     answer: With it, on all ranks. Without it, in the notebook's process.
#   - ask: Every rank draws 100 numbers with `default_rng(0)`. How many different numbers are there?
#     answer: 100. Equal seeds draw equal numbers.
#   - ask: What does every rank hold after `allgather`?
#     answer: A list with one object from each rank, in the order of the ranks.
# ---

# %% [markdown] tags=["slide"]
# ## 1 · A batch in pieces
#
# If a **mini-batch** (batch for short) does not fit into memory, compute the gradients of its pieces, the **micro-batches**, one after another: `backward()` *adds* to the gradients
# that are there. This is **gradient accumulation**.
#
# Cells marked `--save` also fill a program, `code/05_train.py`; `__file__` is its path. It learns handwritten digits and reads 297 new ones.

# %%
# %%px --save 05_train.py
"""Which trainings are the same? Learns data/digits.npz, which lies beside this file."""

from pathlib import Path

import numpy as np
import torch
from mpi4py import MPI
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(1)  # one thread per rank
torch.set_default_dtype(torch.float64)  # no mistake can hide behind rounding

comm = MPI.COMM_WORLD
digits = np.load(Path(__file__).with_name("data") / "digits.npz")
images, new_images = (
    torch.from_numpy(digits[f"{part}_images"] / 16).flatten(1) for part in ("train", "test")
)
labels, new_labels = (torch.from_numpy(digits[f"{part}_labels"]).long() for part in ("train", "test"))

# %% [markdown]
# One pass over all images is an **epoch**. This function gives its batches:

# %% tags=["source: course_lib.training.loop:shuffled_batches"]
# %%px --save 05_train.py

# %% [markdown] tags=["subslide"]
# The usual loop. New are `piece`, the most images at once, and `warm_up`, for section 4.


# %%
# %%px --save 05_train.py
def network(*after_first):
    torch.manual_seed(0)
    first, second, last = nn.Linear(64, 128), nn.Linear(128, 128), nn.Linear(128, 10)
    model = nn.Sequential(first, *after_first, nn.Tanh(), second, nn.Tanh(), last)
    for weights in model.parameters():
        weights.data *= 3  # PyTorch's first weights are small for tanh
    return model


def train(model, size, piece, rate, warm_up=0):
    """Train for 8 epochs; after each, the loss on the new images, and how many are read correctly."""
    optimizer, steps, scores = torch.optim.SGD(model.parameters(), lr=rate), 0, []
    for epoch in range(8):
        for batch in shuffled_batches(len(images), size, seed=0, epoch=epoch)[: len(images) // size]:
            steps += 1
            optimizer.param_groups[0]["lr"] = rate * min(1, steps / max(1, warm_up))
            accumulate(model, images[batch], labels[batch], piece)
            optimizer.step()
        outputs = model.eval()(new_images)
        loss, right = F.cross_entropy(outputs, new_labels), outputs.argmax(1) == new_labels
        scores.append((loss.item(), right.sum().item()))
        model.train()
    return scores


# %% [markdown] tags=["subslide"]
# Trainings that need nothing from each other are easy work: each rank takes some, and trains alone.


# %%
# %%px --save 05_train.py
def sweep(trainings, *after_first):
    """The scores of all trainings, in their order, on every rank; rank 0 prints how each ends."""
    mine = range(comm.rank, len(trainings), comm.size)
    done = comm.allgather({n: train(network(*after_first), *trainings[n]) for n in mine})
    scores = [done[n % comm.size][n] for n in range(len(trainings))]
    for (size, piece, rate, *_), [*_, (loss, right)] in zip(trainings, scores, strict=True):
        if comm.rank == 0:
            print(f"{size:3} ({piece:3} at once), rate {rate:.2f}: loss {loss:.6f}, {right} of 297 right")
    return scores


CUTS = [(128, piece, 0.4) for piece in (128, 64, 100, 127)]

# %% [markdown]
# `accumulate` is missing. Many tutorials divide each loss by the number of pieces. We cut 128 images into 64 + 64, 100 + 28, and 127 + 1. **Vote** first: which end with the weights of an uncut training? (a) All three, (b) 64 + 64 alone, (c) none.


# %% tags=["nbval-ignore-output"]
# %%px
def accumulate(model, inputs, targets, piece):
    """Leave the gradient of the batch's mean loss in .grad, from at most `piece` images at once."""
    model.zero_grad()
    pieces = inputs.split(piece)
    for x, y in zip(pieces, targets.split(piece), strict=True):
        loss = F.cross_entropy(model(x), y) / len(pieces)
        loss.backward()  # adds to the gradients that are there


scores = sweep(CUTS)

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# (b). With 127 + 1 the network guesses: chance gets 30 right. In the average of two means, one image weighs as much as 127. With 100 + 28 the loss differs, too, but as many digits are right as uncut. Would you notice?
#
# </details>

# %% [markdown] tags=["slide"]
# ## 2 · Repair the line

# %% tags=["exercise: 05.1"]

# %% [markdown] tags=["notes"]
# Eight minutes up to here, six for the exercise. Who multiplies the mean by `len(x) / len(inputs)` is right, too: a sum, divided once.

# %% [markdown] tags=["subslide"]
# One more cell makes a program, and runs it with your function. **Predict:** how many digits of the loss will all four share?


# %%
# %%px --save 05_train.py
def main():
    sweep(CUTS)


if __name__ == "__main__":
    main()

# %%
# !mpiexec -n 3 python code/05_train.py

# %% [markdown]
# <details><summary>Open after you have run the cells</summary>
#
# All, on any number of ranks. A mean over the batch is a *sum*, divided once, and a sum may be cut anywhere. So this course has one convention: **sum the losses, divide by
# the size of the whole batch before backward, add the gradients**. Who computes a piece, and when, does not matter: ranks at the same time (lesson 06), or
# stages of a pipeline (lesson 08).
#
# </details>

# %% [markdown] tags=["slide"]
# ## 3 · One more layer
#
# In training, **batch norm** shifts and scales each feature by its mean and spread over the images at hand. **Predict:** which of 64, 16 and 2
# images at once end like whole batches?

# %%
# %%px
scores = sweep([(128, piece, 0.4) for piece in (128, 64, 16, 2)], nn.BatchNorm1d(128))

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# None. What the network says about an image depends on the others in its piece; no division repairs it. *Layer* norm looks at one image at a time and may be
# cut. **Dropout** switches off random units: pieces in one process can draw the batch's random numbers; ranks with seeds of their own agree
# on average only.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 4 · A batch for sixteen GPUs
#
# Sixteen GPUs with 16 images each make batches of 256, and 16 times fewer steps per epoch. The **linear scaling rule** says: k times the batch, k times the
# **learning rate**. Or the rate grows to that in the first 20 steps, a **warm-up**.

# %%
predict("Right of 297 at 16 times the rate, no warm-up?", None)

# %% tags=["nbval-ignore-output"]
# %%px
trainings = {  # images per batch, at once, rate, steps of warm-up
    "batch 16": (16, 16, 0.05),
    "256, same rate": (256, 256, 0.05),
    "256, 16 × the rate": (256, 256, 0.8),
    "256, 16 × the rate, warm-up": (256, 256, 0.8, 20),
}
rows = [
    {"labels": {"epoch": n, "training": name}, "value": right, "unit": "of 297", "kind": "counted"}
    for name, scores in zip(trainings, sweep([*trainings.values()]), strict=True)
    for n, (_, right) in enumerate(scores, 1)
]

# %% tags=["nbval-ignore-output"]
ends = [row["value"] for row in cluster["rows"][0] if row["labels"]["epoch"] == 8]
outcome("Right of 297 at 16 times the rate, no warm-up?", ends[2], word="counted")
show(cluster["rows"], x="epoch", y="new images read correctly", by="training")

# %% [markdown]
# <details><summary>Open after you have run the cells</summary>
#
# It guesses: long first steps throw the weights to where tanh is flat, and they stay there. The training **diverges**. After short first steps, long
# ones are safe. At the old rate, 5 steps per epoch get less far than 93. Batches of 1 are
# **stochastic gradient descent** proper. There is an end: with batches of 512 and a rate of
# 1.6, this network guesses even after a warm-up.
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# | library | divides | unequal pieces |
# |---|---|---|
# | Keras: `gradient_accumulation_steps` | means, by the number of pieces | wrong |
# | DeepSpeed (lesson 12) | means, by the number of pieces; then by ranks | wrong |
# | DDP (lesson 07), FSDP (lesson 11) | gradients, by ranks | yours to weight |
# | Megatron-LM | like Keras; `--calculate-per-token-loss`: sum, by all tokens | wrong; right |
# | Hugging Face `Trainer` | sum, by all tokens; until October 2024 like Keras | right |
#
# Equal pieces hide it; texts are never equally long.

# %% tags=["exercise: 05.q4", "subslide"]

# %% [markdown] tags=["slide"]
# ## Key points
#
# - Sum the losses, divide once by the whole batch, add the gradients: any cut is the same training, if the network treats
#   each image by itself, without chance. Mistakes raise no error: compare with an uncut run.
# - A larger batch needs a larger rate, and that a warm-up. Beyond some size, neither helps.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# On 64 GPUs your run is 2 percentage points worse than on 4, with 32 images per GPU each time. You may try one thing overnight: (a) a larger rate and
# a warm-up, (b) fewer images per GPU, (c) more epochs. Which, and what would prove you wrong?
#
# <details><summary>What to listen for</summary>(a) costs nothing, and fails if 2,048 is beyond the limit. Then (b), with idle GPUs. (c) gives back the time that 64 GPUs
# saved.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# First a question about section 4.

# %% tags=["exercise: 05.q5"]

# %% [markdown]
# In section 2 an uncut run was the judge. What if there is none, as for a backward pass of your own? The gradient says how fast the loss grows with a
# weight. So change the weight a little, in both directions, and look:

# %% tags=["source: course_lib.training.gradient_check:central_difference"]
# %%px

# %% [markdown]
# Each rank takes pieces of another size. **Predict** how many digits agree in float64, and in float32.


# %%
# %%px
def disagreement(dtype):
    """How far one gradient is from its central difference, relative to it."""
    model, x, y = network().to(dtype), images[:128].to(dtype), labels[:128]
    accumulate(model, x, y, CUTS[comm.rank][1])
    weights = model[0].weight
    numbers = weights.detach().numpy()
    slope = central_difference(lambda: F.cross_entropy(model(x), y).item(), numbers, (3, 20))
    return abs(weights.grad[3, 20].item() / slope - 1)


fine, coarse = disagreement(torch.float64), disagreement(torch.float32)
print(f"right to 1e-6: in float64 {fine < 1e-6}, in float32 {coarse < 1e-6}")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# The two losses differ in their last digits only, and float32 has few digits. So a **gradient check** computes in float64. Without it, the loss of
# 100 + 28 would have convinced everybody.
#
# </details>

# %% tags=["exercise: 05.q3"]

# %% [markdown]
# ### Threads or ranks?
#
# One process can use all cores of a machine without any message: its **threads** share the work inside each operation. So why train with ranks? We measure a step
# of a small CNN on 128 images.

# %%
predict("Speed-up of the CNN with threads?", None)

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
    F.cross_entropy(cnn(pictures[:count]), classes[:count]).backward()
    torch.set_num_threads(1)


ways = {f"{n} threads": lambda n=n: step(128, n) for n in (1, cores)}
speed = measure(MPI.COMM_SELF, ways) if comm.rank == 0 else []

# %% [markdown]
# Now as many ranks, with one thread each. They share the batch and add their gradients, as in lesson 06.

# %%
# %%px --timeout 100
team = one_rank_per_core(comm, cores)
if team != MPI.COMM_NULL:
    ways = {f"{cores} ranks": lambda: (step(128 // cores), sum_gradients(team, cnn))}
    speed += measure(team, ways)

# %% tags=["nbval-ignore-output"]
one, threads, *_ = [row.value for row in cluster["speed"][0]] * 2
outcome("Speed-up of the CNN with threads?", one / threads)
show(cluster["speed"], x="way", y="time of a step")

# %% [markdown]
# On two free cores, threads and ranks end close together. (On busy cores threads lose most: they wait for each other after every operation.) Jakovac and Pichler found something else on eight: there MPI and Gloo beat eight threads clearly. Who
# is right? Say that an epoch takes a seconds that threads do not share, and b seconds that n threads share: a + b/n. Two of the published times give a and b,
# and the third is the test.

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
# On 4 threads a + b/n says 35 s, published are 37: the formula holds. In it, 25 of 65 s are not shared: small operations, and all that runs between them. No number
# of threads gets below 25 s. Eight ranks took 17 and 19 s: what threads do not share runs side by side in ranks, too. So both findings stand. With two
# workers a + b/2 is 45 s, and ranks have less to win than with eight.
#
# One doubt remains. The slides do not say whether 128 images were a batch of all ranks or of each. If of each, eight ranks took eight times fewer steps, and
# trained something else. Their accuracy fell from 99.1 to 98.7 %. Lesson 07 tells the two apart.
#
# What decides in practice: threads end where the machine ends, ranks do not. Large machines run a few threads in each of many ranks.

# %% [markdown]
# ### How large may one image be?
#
# Micro-batches of one image are the end of cutting a batch. How many pixels may that image have? Backward needs what forward computed. PyTorch calls a
# function of ours for each tensor that forward keeps, and so we count the bytes. The network has three convolutions with 16 maps, in float32.
# A relu keeps its output, and the next convolution keeps the same tensor as its input.

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
grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)  # Linux counts in KiB

# %%
outcome("Bytes per pixel that backward needs?", cluster["counted"][3] // 1024**2, word="counted")

# %% [markdown]
# Beside the count we set how much the process grew while it computed:

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
# 3 colours and 3 times 16 maps, of 4 bytes: 204 bytes per pixel, and a few for the weights. Twice the edge is four times the memory. But the *process* of the
# largest image grew by about twice as much. What did we not count? The gradients of activations, two or three of which exist during backward. The
# workspace that a convolution uses inside. Memory that the allocator keeps for later. On a GPU, the CUDA context and the buffers of NCCL. In larger networks,
# the state of the optimizer. So an estimate is a lower bound: measure before you buy.
#
# By the count, a GPU of 80 GB holds one image of 19,800 × 19,800 pixels, by the growth some 14,000 × 14,000. A scanned tissue slide has 100,000 × 100,000: 2 TB. Then
# the image itself must be cut (lesson 10).

# %% [markdown]
# ## References
#
# - P. Goyal and others, [Accurate, large minibatch SGD](https://arxiv.org/abs/1706.02677), 2017: linear scaling, warm-up, and which loss to divide by what.
# - C. Shallue and others, [Measuring the effects of data parallelism on neural network training](https://arxiv.org/abs/1811.03600), 2019: where larger
#   batches stop to save steps, for many networks.
# - Hugging Face, [Fixing gradient accumulation](https://huggingface.co/blog/gradient_accumulation), 2024: the mean of means in a library that many use.
# - M. Jakovac and E. Pichler, *MPI in Distributed Training*, 2025: the CNN, and the times called published.
