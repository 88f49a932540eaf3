# ---
# title: Training in one process
# goal: Choose a learning rate and a batch size, then split a batch without changing what is learned.
# able:
#   - choose a learning rate from a sweep
#   - say what a larger batch costs in images and in steps
#   - compute the gradient of a batch from micro-batches of any size
# more:
#   - check a backward pass with finite differences
#   - decide between threads and ranks from a measurement
#   - estimate the memory of a training step
# before: >-
#   {02}, {04}; a training loop in PyTorch
# minutes: {core: 20, more: 27}
# ranks: 4
# warm-up:
#   - ask: Which call leaves the sum over all ranks on every rank?
#     answer: <code>Allreduce</code>. <code>Reduce</code> leaves it on the root only.
#   - ask: Where does a cell that begins with `%%px` run, and where one without it?
#     answer: With it, on all ranks. Without it, in the notebook's process.
#   - ask: Three ranks get 43, 43 and 42 of 128 images. Is the mean of their three means the mean of all 128?
#     answer: >-
#       Almost, but no: each of the 42 images weighs a little more than each of the 43.
# ---

# %%
# %%px --setup
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size

# %% [markdown] tags=["slide"]
# ## 1 · One step
#
# In lesson 06, several ranks train one network. First we train it in one process, the notebook's own, so we
# know what they have to reproduce. The network has three layers of weights and classifies handwritten digits. It
# starts from random weights, so at first it only guesses.

# %% tags=["nbval-ignore-output"]
import torch

from course_lib.data.mnist import load_mnist
from course_lib.training.loop import image_batch, shuffled_batches, summed_cross_entropy
from course_lib.training.models import build

torch.set_num_threads(1)  # as on each rank
data = load_mnist()
model = build("mlp", seed=0)
print(data.source)

# %% [markdown]
# One step of **stochastic gradient descent** looks at a few images, the **mini-batch** (batch for short). The **loss**
# says how wrong the network is on them. The **gradient** says, for each weight, how fast the loss grows when that weight
# grows. So we move every weight a little in the opposite direction: w ← w − η · gradient. The factor η is the
# **learning rate**. We sum the loss over the images and divide by their number ourselves; section 4 shows why. `global_size` is for
# lesson 06.

# %% tags=["nbval-ignore-output"]
first = shuffled_batches(len(data.train_labels), 128, seed=0)[0]
batch = image_batch(data.train_images, data.train_labels, first, global_size=128)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    optimizer.zero_grad()
    loss = summed_cross_entropy(model(batch.inputs), batch.targets) / 128  # forward: the mean loss
    loss.backward()  # backward: leaves the gradient in .grad of each parameter
    optimizer.step()  # update: w ← w − η · gradient
    print(f"step {step}: loss {loss.item():.3f}")

# %% [markdown]
# Here the batch is always the same. Real training takes the next one in each step. When every image has been used once, an
# **epoch** is over.

# %% [markdown] tags=["notes"]
# Two minutes. Ask: "What would the loss be if the network only guessed?" (ln 10 = 2.3, where it starts.) People who know
# Keras look for `model.fit`: say that we want to see the four lines, because lesson 06 puts one new line between the last two.

# %% [markdown] tags=["slide"]
# ## 2 · The learning rate
#
# How large should η be? We try eight values from 0.001 to 10. Every training starts from the same weights and sees the same 100
# batches of 128 images. Then we measure the loss on test images, which no training has seen.

# %%
predict("Learning rate with the lowest loss after 100 steps?", None)

# %% [markdown]
# The trainings are independent, so each rank runs two.

# %% tags=["nbval-ignore-output"]
# %%px --timeout 200
from course.lessons.l05_training_one_process.sweeps import learning_rate_sweep, samples_to_reach
from course_lib.data.mnist import load_mnist

data = load_mnist()
rates = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 10.0)
trials = learning_rate_sweep(data, rates[rank::size], batch_size=128, steps=100)

# %% tags=["nbval-ignore-output"]
from course.lessons.l05_training_one_process.figures import explain_rate, loss_against_rate

trials = [trial for of_rank in cluster["trials"] for trial in of_rank]
best = min(trials, key=lambda trial: trial.loss).learning_rate
outcome("Learning rate with the lowest loss after 100 steps?", best, because=explain_rate(trials))
loss_against_rate(trials)

# %% [markdown]
# With too small a rate nothing breaks, but the training gets nowhere. With too large a rate, each step overshoots further than
# the one before, until the numbers leave the range of floats: the training **diverges**. So search by powers of ten first, then
# around the best.

# %% [markdown] tags=["notes"]
# Three minutes. Before the figure, let everybody write a number down. Most guess too small: "small is safe". Ask who would
# notice a rate that is ten times too small in a real project (nobody: the loss falls).

# %% [markdown] tags=["slide"]
# ## 3 · The batch size
#
# A larger batch averages over more images, so its gradient is less noisy. Does the network also learn more *per image*? We
# train until the test loss is 0.6 and count the images, because computing time grows with them.
# To keep it short, the training set has N = 4000 images. Each rank takes one batch size: 1 (stochastic gradient descent, strictly
# speaking), 16, 128, or all N (the full batch, one step per epoch). First, all use the learning rate 0.04.

# %%
predict("At the same rate: how many times the images of batch 16 does batch 128 need?", None)

# %% [markdown]
# `scaled_rate` tries the **linear scaling rule**: when the batch becomes k times as large, make the learning rate k times as
# large. From 0.04 for batches of 16, this gives 0.0025 for 1 and 0.32 for 128. The full batch gets 0.32, too: 10 would diverge
# (section 2).

# %% tags=["nbval-ignore-output"]
# %%px --timeout 200
from dataclasses import replace

few = replace(data, train_images=data.train_images[:4000], train_labels=data.train_labels[:4000])
size_here = (1, 16, 128, 4000)[rank]
same_rate = samples_to_reach(few, size_here, 0.04, target=0.6)
scaled_rate = samples_to_reach(few, size_here, min(0.04 * size_here / 16, 0.32), target=0.6)

# %% tags=["nbval-ignore-output"]
from course.lessons.l05_training_one_process.figures import batch_128, explain_ends, images_against_batch

same, scaled = cluster["same_rate"], cluster["scaled_rate"]
times, why = batch_128(same)
if times:
    outcome(
        "At the same rate: how many times the images of batch 16 does batch 128 need?", times, because=why
    )
else:
    print(why)
print(explain_ends(same, scaled))
images_against_batch({"same rate": same, "scaled rate": scaled})

# %% [markdown]
# Left is what you pay: images. A cross means the training diverged, or did not arrive within 15 000 steps or 600 000 images.
# (Counts may be up to 8 % too large: we test only now and then.)
#
# Right are the steps. If enough ranks share each step, a larger batch takes no longer per step. Then the steps say how long you wait.
#
# At the same rate, a larger batch makes each step only a little better, and the same images make fewer steps. At the scaled rate,
# each step is also longer. That works up to the largest rate the network tolerates. Beyond it, a larger batch hardly saves steps.
#
# In lesson 06, four ranks with 32 images each train with a batch of 128.

# %% tags=["exercise: 05.q1"]

# %% [markdown] tags=["notes"]
# Four minutes. People stumble over the two panels: point at batch 1 in both. Cheapest in images, most expensive in steps.
# Ask: "With 256 GPUs, which panel do you look at? And with one?"

# %% [markdown] tags=["slide"]
# ## 4 · A batch in pieces
#
# What if the batch does not fit into memory? Split it into **micro-batches**. `backward()` *adds* to the gradients already
# there. So we call it for one micro-batch after another, and update the weights once at the end. This is
# **gradient accumulation**. But how much does each micro-batch count?

# %% tags=["exercise: 05.1"]

# %% [markdown]
# Does a batch in pieces train the same network? We take 100 steps with full batches of 128, then 100 with the same batches split
# into 100 and 28. Both times, `accumulate` computes the gradients.

# %%
continue_with("05.1")

# %% tags=["nbval-ignore-output"]
from course.lessons.l05_training_one_process.pieces import parts_of_gradient, train_in_pieces
from course_lib.training.recipes import score_on_tests

full, split = (train_in_pieces(accumulate, data, lengths) for lengths in ([128], [100, 28]))
for name, trained in (("full batches", full), ("in pieces", split)):
    print(f"{name:>12}: {score_on_tests(trained, data).accuracy:.2%} of the test images right")

# %% [markdown]
# Are all the weights equal, up to rounding?

# %%
pairs = zip(full.parameters(), split.parameters(), strict=True)
print("all weights equal to 1e-4:", all(torch.allclose(a, b, atol=1e-4) for a, b in pairs))

# %% [markdown]
# To see why, look at one weight and ten images, split into micro-batches of 6, 3 and 1. The summed loss of each micro-batch is divided
# by ten.

# %% tags=["nbval-ignore-output"]
from course.lessons.l05_training_one_process.figures import microbatch_sum

parts, whole = parts_of_gradient(batch, (6, 3, 1))
microbatch_sum(parts, (6, 3, 1), whole)

# %% [markdown]
# A mean over the batch is a sum over images, divided *once* by the size of the batch. So the pieces of the sum just add up,
# however unequal they are. The mean of the means gives the single image as much weight as the six together.
#
# It does not matter who computes the micro-batches. Different ranks can do it at the same time (lesson 06), or they pass one
# after another through a network spread over ranks (lesson 08).

# %% [markdown] tags=["notes"]
# Eight minutes with the exercise. Whoever divides by the number of micro-batches passes the first case (2 + 2) and fails the
# second (3 + 1): let them explain why to their neighbour.

# %% [markdown] tags=["slide"]
# ## Key points
#
# - Sweep the learning rate by powers of ten. Too small learns little, too large diverges.
# - From some size on, a larger batch at the same learning rate needs more images. A larger rate saves many of them, up to a limit.
# - Divide the *summed* loss by the size of the batch, once; weight a micro-batch's *mean* loss by its share of the batch. Then the gradients
#   add up.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# With 16 times the GPUs and a batch 16 times as large, the final loss is worse. What do you try first? Vote, talk to your
# neighbour, vote again: (a) more epochs, (b) a larger learning rate, (c) a smaller batch.
#
# <details><summary>What to listen for</summary>(b) costs nothing and is often enough. (a) spends the time that the GPUs saved. (c) is right
# beyond the limit.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# ### Is the gradient right?
#
# Later lessons send gradients between ranks, with backward passes of their own. How do you know that one is right? The gradient
# says how fast the loss grows with a weight. So change the weight a little, in both directions, and look at the loss. This is a
# **central difference**.

# %% tags=["source: course_lib.training.gradient_check:central_difference"]

# %% [markdown]
# How large should the change `h` be? If it is too large, the loss is not a straight line over that distance. If it is too small,
# rounding swallows the difference. We try it where we know the answer: the slope of sin at 1 is cos(1).

# %% tags=["nbval-ignore-output"]
import numpy as np


def off_by(kind, h):
    """How far the central difference of sin at 1 is from cos(1)."""
    number = np.array([1.0], kind)
    slope = central_difference(lambda: np.sin(number[0]), number, (0,), kind(h))
    return abs(slope - np.cos(1.0))


for h in (1e-1, 1e-3, 1e-5, 1e-7):
    double, single = off_by(np.float64, h), off_by(np.float32, h)
    print(f"h = {h:g}: off by {double:.0e} in float64, {single:.0e} in float32")

# %% [markdown]
# Read both columns from top to bottom: the error falls, then rises again. In float64 it gets very small in between. In float32 it
# does not. For a network it is worse: one weight hardly changes the loss, and rounding hides the change, so a gradient that is a little wrong
# could pass. So a **gradient check** uses float64. `check_model` compares up to 20 weights of each parameter
# with central differences.

# %%
from course_lib.training.gradient_check import TOLERANCE, check_model

small = image_batch(data.train_images, data.train_labels, first[:3], 3)
small = type(small)(small.inputs.double(), small.targets, 3)
errors = check_model(build("mlp", seed=0).double(), summed_cross_entropy, small, most=20)
print("all gradients of PyTorch right:", max(errors.values()) < TOLERANCE)

# %% [markdown]
# Now a network whose backward pass is *not* PyTorch's. It has an input, a hidden and an output layer; its weights are `w1`, `b1`, `w2` and
# `b2`. The forward pass is in NumPy:

# %% tags=["source: course_lib.training.by_hand:forward"]

# %% tags=["exercise: 05.2"]

# %% [markdown]
# Does it train? We take fifty steps on our batch of 128 images.

# %%
from course_lib.training.by_hand import initial_weights, mean_loss

images, labels = batch.inputs.flatten(1).double().numpy(), batch.targets.numpy()
weights = initial_weights(784, 32, 10, seed=0)
losses = []
for _ in range(50):
    losses.append(mean_loss(weights, images, labels))
    for name, gradient in backward(weights, images, labels).items():
        weights[name] -= 0.05 * gradient
print("the loss falls to less than half:", losses[-1] < losses[0] / 2)

# %% [markdown]
# How many of the four gradients are wrong?

# %%
predict("Wrong gradients among the four?", None)

# %% tags=["nbval-ignore-output"]
from course_lib.training.gradient_check import gradient_errors

weights = initial_weights(784, 32, 10, seed=0)
errors = gradient_errors(
    lambda: mean_loss(weights, images, labels), weights, backward(weights, images, labels)
)
wrong = [name for name, error in errors.items() if error > TOLERANCE]
why = f"Wrong: {', '.join(wrong)}." if wrong else "All four agree with central differences."
outcome("Wrong gradients among the four?", len(wrong), word="counted", because=why)
for name, error in errors.items():
    print(f"{name}: relative error {error:.0e}")

# %% [markdown]
# A falling loss proves little, because many directions lead downhill. A wrong gradient costs accuracy, and nothing reports it.

# %% tags=["exercise: 05.q3"]

# %% [markdown]
# ### Threads or ranks?
#
# One process can use several cores without any message: its threads split the work inside each operation. So why train with
# ranks at all? We measure both, for the course's three networks and batches of 128. First the threads, in the notebook's process: one
# per core, at most four.

# %%
predict("Speed-up of the CNN with threads?", None)

# %% tags=["nbval-ignore-output"]
from course.lessons.l05_training_one_process.baselines import thread_baselines
from mpi_classroom.launch import available_cores

workers = min(4, available_cores())
baselines = thread_baselines(("mlp", "cnn", "lstm"), sorted({1, workers}), repetitions=9)

# %% [markdown]
# Now as many ranks. Each rank takes its part of every batch, on one thread, and one `Allreduce` per step adds
# up the gradients. Lesson 06 builds this step.

# %% tags=["nbval-ignore-output"]
# %%px --timeout 200
from course.lessons.l05_training_one_process.rank_baselines import rank_baselines
from course_lib.comm.timing import one_rank_per_core

team = one_rank_per_core(comm)
of_ranks = rank_baselines(team, ("mlp", "cnn", "lstm"), repetitions=9)

# %% tags=["nbval-ignore-output"]
from course.lessons.l05_training_one_process.figures import explain_threads, speedups, throughput

baselines += [each for each in cluster["of_ranks"][0] if each.ranks > 1]
speedup = [each for way, each in speedups(baselines)["cnn"].items() if "thread" in way][-1]
why = explain_threads(baselines)
outcome("Speed-up of the CNN with threads?", speedup, because=why)
throughput(baselines)

# %% [markdown]
# On one machine, threads and ranks compete for the same cores, and neither always wins. Threads wait for each other after every
# operation, so small operations gain little. Ranks wait for each other once per step, but every rank keeps a copy of the network
# and sends gradients. The reason for ranks is a different one: **threads end where the machine ends, ranks do not.** In practice
# you combine them, with a few threads per rank, and measure which mix is fastest.
#
# Jakovac and Pichler measured threads on a machine of their own (**published**). An epoch of the CNN took 65 s on one thread and
# 30 s on eight. The speed-ups are theirs, as printed.
#
# | published speed-up | 4 threads | 8 threads |
# |---|---|---|
# | MLP | 1.07 | 1.15 |
# | CNN | 1.76 | 2.20 |
# | LSTM | 1.50 | 1.65 |

# %% [markdown]
# ### What a step keeps in memory
#
# A forward pass keeps its intermediate results, the activations, because backward needs them. In a convolutional network they
# usually take far more memory than the weights. (In a large language model, weights, gradients and optimizer state often take more.)
# `step_bytes` adds up all tensors that exist at the worst moment of a step of a small ResNet, with images of 32 × 32 pixels. How much
# of that memory does the same batch need in micro-batches?

# %%
predict("Memory of 128 images in micro-batches of 32, in percent of all at once?", None)

# %% tags=["nbval-ignore-output"]
from course.lessons.l05_training_one_process.memory import step_bytes

at_once, in_pieces, halved = (
    step_bytes(128),
    step_bytes(128, microbatch_size=32),
    step_bytes(128, bfloat16=True),
)
share = 100 * in_pieces / at_once
why = f"{at_once / 1e6:.0f} MB at once, {in_pieces / 1e6:.0f} MB in pieces: "
why += "activations take nearly all of it."
outcome("Memory of 128 images in micro-batches of 32, in percent of all at once?", share, "%", because=why)
print(f"the step with activations in bfloat16: {halved / 1e6:.0f} MB")

# %% [markdown]
# The last line used **bfloat16**, a number of 16 bits with the range of float32 but only two to three digits. A forward pass
# in bfloat16 stores about half the bytes. Weights and their updates stay in float32, and for a reason:

# %%
print("1 − 0.001 in bfloat16 is", (torch.ones(1, dtype=torch.bfloat16) - 0.001).item())

# %% [markdown]
# Activations grow with the number of pixels. Micro-batches of one image are the end of that road: how large may that one image be?
# We measure two images at once, of up to 256 × 256 pixels, divide by two, and continue the line to the memory of real devices.

# %% tags=["nbval-ignore-output"]
from course.lessons.l05_training_one_process.figures import memory_against_image

memory_against_image({edge: step_bytes(2, edge=edge) for edge in (32, 64, 128, 256)}, batch_size=2)

# %% [markdown]
# A scanned tissue slide in pathology may have 100 000 × 100 000 pixels. No batch size helps then: the image itself must be split
# (lesson 10).

# %% [markdown]
# ### A whole training
#
# A learning rate that is good at first is often too large at the end, when each batch still moves the weights too far. So most recipes
# let it **decay**, here along a straight line to zero. We train the MLP for five epochs on 12 000 images, here with
# **momentum**: each step also adds 0.9 of the one before.

# %% tags=["nbval-ignore-output"]
from dataclasses import replace

from course_lib.training.recipes import RECIPES, train

fifth = replace(data, train_images=data.train_images[:12_000], train_labels=data.train_labels[:12_000])
for epoch, report in enumerate(train(build("mlp", seed=0), RECIPES["mlp"], fifth, seed=0), 1):
    score = report.score
    print(f"epoch {epoch}: {score.correct} of {score.samples} test images right, {score.accuracy:.2%}")

# %% [markdown]
# The accuracy is a count, divided once at the end. Does that matter?

# %% tags=["exercise: 05.q2"]

# %% [markdown]
# And if we train longer, on fewer images? We take a thousand images and twenty epochs, and watch the loss on those images (the mean
# *during* each epoch) and on the test images (after it).

# %% tags=["nbval-ignore-output"]
from course.lessons.l05_training_one_process.figures import learning_curves

thousand = replace(data, train_images=data.train_images[:1000], train_labels=data.train_labels[:1000])
twenty = replace(RECIPES["mlp"], epochs=20)
reports = train(build("mlp", seed=0), twenty, thousand, seed=0)
lengths = [128] * 7 + [104]  # images per batch: the shorter one weighs less
trained = [np.average(report.losses, weights=lengths) for report in reports]
learning_curves(trained, [report.score.mean_loss for report in reports])

# %% [markdown]
# Where the training loss goes on falling and the test loss does not, the network learns details of *these* thousand images that help
# on no other. This is **overfitting**. So a training loss alone never says how good a network is.

# %% [markdown]
# ## On GPUs
#
# Learning rate, batch size and micro-batches work the same way. A GPU is busy only with far larger batches, so the extra images that
# large batches need matter more. Its memory is the usual reason to accumulate gradients.

# %% [markdown]
# ## Pitfalls
#
# - Taking the mean of the means. It is right for equal parts, so nobody notices until the last batch is shorter.
# - Updating the weights after every micro-batch. Then the micro-batch *is* the batch.
# - Calling `zero_grad` inside the loop over micro-batches, or never.
# - Comparing two batch sizes at one learning rate: find a good rate for each first. And a rate that is best after a few steps need not be
#   best at the end.
# - Checking gradients in float32, or with dropout, which draws new random numbers each time.

# %% [markdown]
# ## References
#
# - D. Rumelhart, G. Hinton and R. Williams, [Learning representations by back-propagating errors](https://doi.org/10.1038/323533a0), 1986.
# - M. Jakovac and E. Pichler, *MPI in Distributed Training*, 2025: the three networks, and the figures called published.
# - C. Shallue and others, [Measuring the effects of data parallelism on neural network training](https://arxiv.org/abs/1811.03600), 2019:
#   the picture of section 3, for many networks.
# - P. Goyal and others, [Accurate, large minibatch SGD](https://arxiv.org/abs/1706.02677), 2017: the linear scaling rule.
# - M. Li, E. Yumer and D. Ramanan, [Budgeted training](https://arxiv.org/abs/1905.04753), 2020: decay along a straight line.
# - P. Micikevicius and others, [Mixed precision training](https://arxiv.org/abs/1710.03740), 2018. Theirs is float16,
#   whose smaller range needs the loss scaled up; bfloat16 does not.

# %% [markdown]
# ## Stretch
#
# In a `%%px` cell, `samples_to_reach(few, 4000, rate, target=0.6)` trains with the full batch; each rank can try a different rate.
# Find the rate that needs the fewest images. How close to batches of 16 do you get?
