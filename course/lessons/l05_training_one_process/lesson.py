# ---
# title: Training in one process
# goal: Find out what may be cut into pieces without changing what a network learns.
# able:
#   - compute a batch's gradient from pieces of any size
#   - tell what may be cut into pieces from what may not
#   - choose a rate for a larger batch
# more:
#   - check a gradient
#   - decide between threads and ranks
#   - estimate the memory of a training step
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
# A **mini-batch** (batch for short) does not fit into your GPU. So you compute on its pieces, the **micro-batches**, one after the other, and only then take a step.
# This works because `backward()` *adds* to the gradients already there. It is called **gradient accumulation**.
#
# Is it still the same training? Cells marked `--save` also fill `code/05_train.py`, their `__file__`.

# %%
# %%px --save 05_train.py
"""Which trainings are the same? Learns data/digits.npz, which lies beside this file."""

from pathlib import Path

import numpy as np
import torch
from mpi4py import MPI
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(1)  # one thread per rank
torch.set_default_dtype(torch.float64)  # no mistake can hide behind rounding

comm = MPI.COMM_WORLD
digits = np.load(Path(__file__).with_name("data") / "digits.npz")
images = torch.from_numpy(digits["train_images"] / 16).flatten(1)
labels = torch.from_numpy(digits["train_labels"]).long()
new_images = torch.from_numpy(digits["test_images"] / 16).flatten(1)
new_labels = torch.from_numpy(digits["test_labels"]).long()

# %% [markdown] tags=["subslide"]
# A small network (`norm` is for section 3):


# %%
# %%px --save 05_train.py
def network(norm=nn.Identity):
    torch.manual_seed(0)
    hidden = nn.Linear(64, 128), norm(128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh()
    model = nn.Sequential(*hidden, nn.Linear(128, 10))
    for weights in model.parameters():
        weights.data *= 3  # section 4 needs it
    return model


# %% [markdown] tags=["subslide"]
# The loop. An **epoch** is a pass over all images. `warm_up` is for section 4.


# %%
# %%px --save 05_train.py
def train(size, piece, rate=0.4, warm_up=1, norm=nn.Identity):
    """Train for 8 epochs; how many new images are right after each."""
    model, right = network(norm), []
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / warm_up, total_iters=warm_up)
    for _ in range(8):
        model.train()
        for batch in torch.randperm(len(images)).split(size)[:-1]:  # the last one is short
            accumulate(model, images[batch], labels[batch], piece)
            optimizer.step()
            schedule.step()
        outputs = model.eval()(new_images)
        right.append((outputs.argmax(1) == new_labels).sum().item())
    loss = F.cross_entropy(outputs, new_labels).item()
    print(f"{size} images, {piece} at once, rate {rate}: loss {loss:.6f}, {right[-1]} of 297 right")
    return right


CUTS = 128, 64, 100, 127


# %% [markdown]
# Many tutorials divide each loss by the number of pieces. Each rank trains alone, on batches of 128: uncut, 64 + 64, 100 + 28, 127 + 1. **Vote:** which cuts end with the uncut loss, to six decimals? (a) All three, (b) only 64 + 64, (c) none.


# %% tags=["nbval-ignore-output"]
# %%px
def accumulate(model, inputs, targets, piece):
    """Leave the gradient of the batch's mean loss in .grad, from at most `piece` images at once."""
    model.zero_grad()
    pieces = inputs.split(piece)
    for x, y in zip(pieces, targets.split(piece), strict=True):
        loss = F.cross_entropy(model(x), y) / len(pieces)
        loss.backward()  # adds to the gradients that are there


_ = train(128, CUTS[comm.rank])

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# (b). In 127 + 1, one image weighs as much as 127: the network ends up guessing. 100 + 28 is more dangerous: its loss is wrong, yet only one digit fewer is right.
# Would you notice?
#
# </details>

# %% [markdown] tags=["slide"]
# ## 2 · Repair the line

# %% tags=["exercise: 05.1"]

# %% [markdown] tags=["subslide"]
# **Predict:** how many decimals does 127 + 1 now share with the uncut loss?


# %%
# %%px --save 05_train.py
if __name__ == "__main__" and comm.rank == 0:  # one process
    for piece in CUTS:
        train(128, piece)

# %%
# !mpiexec -n 1 python code/05_train.py

# %% [markdown]
# <details><summary>Open after you have run the cells</summary>
#
# All six. A *sum* may be cut anywhere, a mean may not. So **sum the losses, divide by the whole batch before backward, add the gradients**:
# `F.cross_entropy(model(x), y, reduction="sum") / len(inputs)`. Lesson 06 puts the pieces on different ranks.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 3 · One more layer
#
# In training, a layer of **batch norm** shifts and scales each feature by its mean and spread over the images at hand. **Predict:** which pieces, of 64, 16 or
# 2 images, keep the uncut loss?

# %%
# %%px
_ = train(128, [128, 64, 16, 2][comm.rank], norm=nn.BatchNorm1d)

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# None, though 64 and 16 end better here. An image's output now depends on the other images in its piece, and no division repairs that.
#
# *Layer* norm looks at one image at a time and survives any cut. **Dropout** switches off random units: pieces agree only on average.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 4 · A batch for sixteen GPUs
#
# One GPU takes 93 steps of 16 images per epoch; sixteen take 5 steps of 256. Should these be longer?
#
# The **linear scaling rule** for **stochastic gradient descent** (SGD) says: k times the batch, k times the **learning rate**. With a **warm-up**, the rate grows to
# that over the first steps.

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
name, settings = list(trainings.items())[comm.rank]
right = train(*settings)

# %% tags=["nbval-ignore-output"]
from course.lessons.l05_training_one_process.figures import draw_right

right = dict(zip(cluster["name"], cluster["right"], strict=True))
outcome("Right of 297 at 16 times the rate, no warm-up?", right["256, 16 × the rate"][-1], word="counted")
draw_right(right, of=297)

# %% [markdown]
# <details><summary>Open after you have run the cells</summary>
#
# At the old rate, few steps learn little. At 16 times the rate, the first steps throw the weights too far: training **diverges**. After a warm-up, the same rate
# nearly reaches batch 16. At epoch 4, would you have stopped it?
#
# We made this case: our first weights are 3 times PyTorch's. Change the 20 to 10, then to 40.
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# | library | what is divided, by what | unequal pieces |
# |---|---|---|
# | Keras, DeepSpeed (lesson 12), Megatron-LM by default | means of pieces, by their number; then by ranks | wrong |
# | DDP (lesson 07), FSDP (lesson 11) | gradients, by ranks | yours to weight |
# | Hugging Face `Trainer` since July 2025, most models | sum, by all **tokens** (words, parts of words) | right |

# %% tags=["exercise: 05.q4", "subslide"]

# %% [markdown] tags=["slide"]
# ## Key points
#
# - Sum the losses, divide by the whole batch, add the gradients. Any cut is then the same training, up to rounding, if each image is treated by itself,
#   without randomness.
# - For k times the batch, try k times the rate with SGD (√k with Adam), and a warm-up. Beyond some size, no rate helps.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# On 64 GPUs your run is 2 points less accurate than on 4: same rate, same epochs, 32 images per GPU. What do you try tonight? (a) A larger rate and warm-up,
# (b) fewer images per GPU, (c) more epochs. What would prove you wrong?
#
# <details><summary>What to listen for</summary>(a) costs least. You are wrong if the *training* loss is as low as on 4 GPUs, or no rate helps. (b) wastes GPUs, (c) time.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More

# %% tags=["exercise: 05.q5"]

# %% [markdown]
# ### A judge without an uncut run
#
# In section 2 an uncut run was the judge. What if you trust only forward, as with a backward pass of your own? The gradient says how fast the loss grows with a
# weight. So change the weight a little (`STEP`, 0.00001), in both directions, and look:

# %% tags=["source: course_lib.training.gradient_check:central_difference"]
# %%px

# %% [markdown]
# Each rank takes pieces of another size. **Predict** how many decimal digits of gradient and check agree in float64, and in float32.


# %%
# %%px
def disagreement(dtype):
    """How far one gradient is from its central difference, relative to it."""
    model, x, y = network().to(dtype), images[:128].to(dtype), labels[:128]
    accumulate(model, x, y, CUTS[comm.rank])
    weights = model[0].weight
    numbers = weights.detach().numpy()
    slope = central_difference(lambda: F.cross_entropy(model(x), y).item(), numbers, (3, 20))
    return abs(weights.grad[3, 20].item() / slope - 1)


fine, coarse = disagreement(torch.float64), disagreement(torch.float32)
print(f"agree to 8 digits in float64: {fine < 1e-8}; to 5 digits in float32: {coarse < 1e-5}")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# `above` and `below` differ in their last digits only, and float32 has few digits. So a **gradient check** computes in float64. Without any check, the 270 images that 100 + 28 read rightly would have convinced everybody. Check a few weights of every layer; `torch.autograd.gradcheck` checks all inputs of a function.
#
# </details>

# %% tags=["exercise: 05.q3"]

# %% [markdown]
# ### Threads or ranks?
#
# One process can use all cores of a machine without any message: its **threads** share the work inside each operation. So why train with ranks? We measure a step
# of a small convolutional network (CNN) on 128 images.

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
# Now as many ranks, with one thread each. Each takes its share of 128 images, and they add their gradients, as in lesson 06.

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
# On two free cores, threads and ranks may end close together. On busy cores threads tend to lose more: they wait for each other in every operation, ranks once a step. Jakovac and Pichler used eight: there ranks, with MPI or with Gloo (another library for messages), beat eight threads clearly. Who
# is right? Let *a* be the seconds of an epoch that threads do not share, and *b* those that *n* threads share: *a* + *b*/*n*. Two of the published times give *a* and *b*,
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
# On 4 threads a + b/n says 35 s, published are 37: the formula is 2 s off. In it, 25 of 65 s are not shared: probably small operations, and all that runs between them. No number
# of threads gets below 25 s. Eight ranks took 17 and 19 s: in ranks, even what threads do not share runs side by side. Ideal ranks share all of the 65 s. They would beat the formula's threads 45/(65/2) = 1.4 times with two workers, but 30/(65/8) = 3.7 times with eight: two cores may hide what eight show.
#
# One doubt remains. The slides do not say whether 128 images were a batch of all ranks or of each. If of each, eight ranks took eight times fewer steps, and
# trained something else. Their accuracy fell from 99.1 to 98.7 %. Lesson 07 tells the two apart.
#
# What decides in practice: threads end where the machine ends, ranks do not. Programs on clusters run a few threads in each of many ranks.

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
grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)  # KiB; on macOS bytes

# %%
outcome("Bytes per pixel that backward needs?", cluster["counted"][3] // 1024**2, word="counted")

# %% [markdown]
# Beside the count we set how much the *peak* of the process grew (an older, higher peak would hide a part):

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
# 3 colours and 3 times 16 maps, of 4 bytes: 204 bytes per pixel, and a few for the weights. By the count, twice the edge is four times the memory. But the *process* of the
# largest image grew by about twice as much. What did we not count? The gradients of activations, two or three of which exist during backward. The
# workspace that a convolution uses inside. Memory that the allocator keeps for later. On a GPU, the CUDA context and the buffers of NCCL. In larger networks,
# the gradients of the weights and the state of the optimizer. So such a count is a lower bound: measure before you buy.
#
# By the count, a GPU of 80 GB holds one image of 19,800 × 19,800 pixels, and some 14,000 × 14,000 if it grew as this CPU process did. A scanned tissue slide has 100,000 × 100,000: 2 TB. Then
# one recomputes instead of keeping, computes in bf16, or cuts the image itself (lesson 10).

# %% [markdown]
# ## References
#
# - P. Goyal and others, [Accurate, large minibatch SGD](https://arxiv.org/abs/1706.02677), 2017: linear scaling, warm-up, and which loss to divide by what.
# - C. Shallue and others, [Measuring the effects of data parallelism on neural network training](https://arxiv.org/abs/1811.03600), 2019: where larger
#   batches stop to save steps, for many networks.
# - Hugging Face, [Fixing gradient accumulation](https://huggingface.co/blog/gradient_accumulation), 2024: the mean of means in a library that many use.
# - M. Jakovac and E. Pichler, *MPI in Distributed Training*, 2025: the CNN, and the times called published.
