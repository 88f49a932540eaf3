# %% [markdown]
# # 05 · Training in one process
#
# *Choose a learning rate and a batch, and take a batch apart without changing what is learned.*
#
# | | |
# |---|---|
# | **You will be able to** | choose a learning rate from a sweep; say what a bigger batch costs, in images and in steps; get the gradient of a batch from micro-batches of any size; check a backward pass by differences; measure what threads gain |
# | **Before this** | [02 · Monte Carlo π](02_monte_carlo_pi.ipynb); a training loop in PyTorch |
# | **Time** | core 20 min · more 32 min |
# | **Ranks** | 4 |
#
# [← 04 · Collectives](04_collectives.ipynb) · [Course map](00_start_here.ipynb) · [06 · Data parallelism by hand →](06_data_parallel_by_hand.ipynb)

# %% [markdown]
# ## Warm-up
#
# Answer from memory, then open the answer.
#
# 1. Four ranks each have a sum of their own. Which call leaves the sum of all four on every rank?
#    <details><summary>Answer</summary><code>Allreduce</code>; <code>Reduce</code> leaves it on the root only.</details>
# 2. A cell begins with `%%px`. Where does it run, and where does a cell without it run?
#    <details><summary>Answer</summary>On all four ranks; without it, in the notebook's own process, which is no rank.</details>
# 3. Two numbers were added up on one rank and on four, and differ in the last digit. Which one is wrong?
#    <details><summary>Answer</summary>Neither: other orders of adding round differently. Compare with a tolerance.</details>

# %% [markdown]
# ## Setup

# %% tags=["nbval-ignore-output"]
from mpi_classroom.cluster import start_cluster

cluster = start_cluster(n=4)

# %%
# %%px --setup
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size

# %% [markdown]
# ## 1 · One step
#
# Before ranks share a training, look at one that they could share. The network has three layers of weights and
# reads images of digits; it begins with random weights. This runs in the notebook's own process.

# %% tags=["nbval-ignore-output"]
import torch

from course_lib.data.mnist import load_mnist
from course_lib.training.loop import image_batch, shuffled_batches, summed_cross_entropy
from course_lib.training.models import build, parameter_count

torch.set_num_threads(1)  # as on each rank
data = load_mnist()
model = build("mlp", seed=0)
print(data.source)
print("numbers to learn:", parameter_count(model))

# %% [markdown]
# A step of **stochastic gradient descent** takes a few images, the **mini-batch**, or batch for short. The loss says
# how wrong the network is about them, and its **gradient** how the loss grows with each weight. So move every weight a
# little the other way: w ← w − η · gradient. The factor η is the **learning rate**.

# %% tags=["nbval-ignore-output"]
first = shuffled_batches(len(data.train_labels), 128, seed=0)[0]
batch = image_batch(data.train_images, data.train_labels, first, global_size=128)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    optimizer.zero_grad()
    loss = summed_cross_entropy(model(batch.inputs), batch.targets) / 128  # forward
    loss.backward()  # the gradient, in .grad of each parameter
    optimizer.step()  # w ← w − η · gradient
    print(f"step {step}: loss {loss.item():.3f}")

# %% [markdown]
# ## 2 · The learning rate
#
# Five steps on one batch, and its loss falls. How far should a step go? We try eight learning rates from 0.001 to 10,
# each with the same first weights and the same 100 batches of 128, and look at the loss of images that were *not*
# trained on. Which will do best?

# %%
predict("Learning rate with the lowest loss after 100 steps?", None)

# %% [markdown]
# Trainings that know nothing of each other are the easiest thing to share: each rank does two of the eight. It takes
# a few seconds.

# %% tags=["nbval-ignore-output"]
# %%px --timeout 200
from course.lessons.l05_training_one_process.sweeps import learning_rate_sweep, samples_to_reach
from course_lib.data.mnist import load_mnist

data = load_mnist()
rates = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 10.0)
trials = learning_rate_sweep(data, rates[rank::size], batch_size=128, steps=100)

# %% tags=["nbval-ignore-output"]
from course.lessons.l05_training_one_process.figures import loss_against_rate

trials = [trial for of_rank in cluster["trials"] for trial in of_rank]
best = min(trials, key=lambda trial: trial.loss)
why = "Smaller ones are still on their way; larger ones jump past the valley."
outcome("Learning rate with the lowest loss after 100 steps?", best.learning_rate, because=why)
loss_against_rate(trials)

# %% [markdown]
# Too small: nothing breaks, and nothing is learned in the time you have. Too large: each step overshoots by more
# than the last, and the numbers leave the range of floats. The best is often not far below the first that fails. So
# try powers of ten, then three values around the best.

# %% [markdown]
# ## 3 · What a batch costs
#
# More images in a batch keep more cores busy. Do they also teach more? Each rank takes one batch size, 16, 64, 256
# or 1024, and trains until the loss is 0.3. We count *images*, for these are what computing costs. All have the
# learning rate 0.1 at first. How many times as many images will batches of 256 need?

# %%
predict("Batches of 256: how many times the images that batches of 16 need?", None)

# %% tags=["nbval-ignore-output"]
# %%px --timeout 200
size_here = (16, 64, 256, 1024)[rank]
same_rate = samples_to_reach(data, size_here, 0.1, target=0.3, most=100_000)
scaled_rate = samples_to_reach(data, size_here, 0.1 * size_here / 16, target=0.3, most=100_000)

# %% [markdown]
# The last line tried a **rule** that many use: a batch twice as large, a learning rate twice as large.

# %% tags=["nbval-ignore-output"]
from course.lessons.l05_training_one_process.figures import images_against_batch

same, scaled = cluster["same_rate"], cluster["scaled_rate"]
times = (same[2].samples or float("inf")) / same[0].samples
why = "An epoch of them has 16 times fewer steps, and each goes no further."
outcome("Batches of 256: how many times the images that batches of 16 need?", times, because=why)
images_against_batch({"same rate": same, "scaled rate": scaled})

# %% [markdown]
# With the same learning rate, a bigger batch makes a step hardly better, and there are fewer steps. The scaled
# rate makes up for that, up to where it is too large itself. Below that point a bigger batch costs nothing; beyond it,
# you pay in images. Four ranks with 64 images *each* have a batch of 256: remember this picture then.

# %% [markdown]
# ## 4 · A batch in pieces
#
# What if the batch that you want does not fit into memory? Take it apart into **micro-batches**. `backward` *adds*
# to the gradient that is there: so call it for one micro-batch after the other, and make the step at the end.
# That is **gradient accumulation**. Only: by what do you divide?

# %% tags=["exercise: 05.1"]

# %% [markdown]
# The course's own loss is a *sum* over images, which is divided by the size of the batch, once. Then there is nothing
# to weigh: the parts of a sum just add up. Here are ten images in micro-batches of 6, 3 and 1, and the gradient of one
# weight.

# %% tags=["nbval-ignore-output"]
from course.lessons.l05_training_one_process.figures import microbatch_sum


def added(images):
    """What these images add to the gradient of the last layer, of a batch of ten."""
    model.zero_grad()
    (summed_cross_entropy(model(batch.inputs[images]), batch.targets[images]) / 10).backward()
    return model.fc3.weight.grad.flatten().clone()


lengths, ten = (6, 3, 1), torch.arange(10)
parts = torch.stack([added(images) for images in ten.split(lengths)])
microbatch_sum(parts.numpy(), lengths, added(ten).numpy())

# %% [markdown]
# The mean of the means gives the micro-batch with a single image as much say as the one with six. And the micro-batches
# could as well be computed by *different ranks*, or flow one after the other through a network that is spread over
# ranks: lessons 06 and 08 are built on this sum.

# %% [markdown]
# ## Key points
#
# - Sweep the learning rate by powers of ten. Too small looks harmless and learns nothing; too large diverges.
# - A bigger batch at the same learning rate needs more images. A larger rate makes up for it, up to a point.
# - Divide the loss by the whole batch, once. Then the gradients of its parts add up, however unequal they are.
# - A falling loss does not prove a gradient; central differences in float64 do.
# - Threads share operations. What they gain depends on how large these are: measure it.

# %% [markdown]
# ## Discuss
#
# Your team gets 16 times the GPUs and makes the batch 16 times as large. The loss at the end is worse. What do you try
# first? Vote, talk to your neighbour for two minutes, vote again: (a) more epochs, (b) a larger learning rate,
# (c) a smaller batch.
#
# <details><summary>What to listen for</summary>(b) costs nothing and is enough up to a point, as section 3 showed; begin with a small rate for a few
# hundred steps if training diverges. (a) gives back what the GPUs gained. (c) is right beyond that point: more ranks do
# not make a batch useful that is too large.</details>

# %% [markdown]
# **Stop here in a short workshop.** More trains a network well, and shows how you know that a gradient is right.

# %% [markdown] tags=["more"]
# ## More
#
# ### Three questions
#
# Write your letter between the quotes, and run the cell.

# %% tags=["exercise: 05.q1"]

# %% tags=["exercise: 05.q2"]

# %% tags=["exercise: 05.q3"]

# %% [markdown]
# ### The same step, in pieces
#
# The library's version of what you wrote in 05.1. The loss is a sum, so no micro-batch is weighed, and a last one that is
# shorter needs no care.

# %% tags=["source: course_lib.training.loop:accumulate_gradients"]

# %% [markdown]
# Is it the same? We compare with the whole batch at once, in float64, where rounding is about 1e-16.

# %%
exact = build("mlp", seed=0).double()


def gradient(microbatch_size):
    """All numbers of the gradient of our batch of 128, computed in micro-batches of this size."""
    exact.zero_grad()
    doubled = type(batch)(batch.inputs.double(), batch.targets, 128)
    accumulate_gradients(exact, summed_cross_entropy, doubled, microbatch_size)
    return torch.cat([parameter.grad.flatten() for parameter in exact.parameters()])


for size in (64, 50, 1):
    same = bool((gradient(size) - gradient(128)).abs().max() < 1e-12)
    print(f"micro-batches of {size}: the gradient of the whole batch, to 1e-12: {same}")

# %% [markdown]
# What you pay is time, for small operations keep cores less busy; what you save is memory, for activations live only
# from a micro-batch's forward to its backward. One kind of layer spoils it: batch-norm, which looks at all the images it is
# given, sees other images in a micro-batch.

# %% [markdown]
# ### Five epochs
#
# A constant learning rate that is good at first is too large at the end: the last batches still pull the weights
# about. So let it **decay**, here along a line to zero. We train the same network twice for five epochs, on a fifth of the
# images.

# %%
from dataclasses import replace

from course_lib.training.recipes import RECIPES, score_on_tests, train

few = replace(data, train_images=data.train_images[:12_000], train_labels=data.train_labels[:12_000])
decaying = build("mlp", seed=0)
reports = train(decaying, RECIPES["mlp"], few, seed=0)

# %% [markdown]
# And once more by the loop of section 1, with the same momentum, but a rate that stays as it is:

# %%
from course_lib.training.loop import fit, image_batches, make_step

constant = build("mlp", seed=0)
steady = torch.optim.SGD(constant.parameters(), lr=RECIPES["mlp"].learning_rate, momentum=0.9)
step = make_step(constant, summed_cross_entropy, steady)
for epoch in range(5):
    order = shuffled_batches(len(few.train_labels), 128, seed=0, epoch=epoch)
    fit(step, image_batches(few.train_images, few.train_labels, order))

# %% tags=["nbval-ignore-output"]
for name, score in (("decay", reports[-1].score), ("no decay", score_on_tests(constant, few))):
    print(f"{name:>8}: {score.accuracy:.2%} of {score.samples} test images right")

# %% [markdown]
# With all 60 000 images of the real MNIST, the CNN of lesson 06 and its recipe got 99.1 % of the test images right after five
# epochs: **measured** on the course's reference machine, with three seeds.
#
# ### Learning by heart
#
# What does more training bring? Take only a thousand images, and twenty epochs. The loss of the images that are trained on
# goes to zero, sooner or later. And that of others?

# %% tags=["nbval-ignore-output"]
from course.lessons.l05_training_one_process.figures import learning_curves

thousand = replace(data, train_images=data.train_images[:1000], train_labels=data.train_labels[:1000])
twenty = replace(RECIPES["mlp"], epochs=20)
reports = train(build("mlp", seed=0), twenty, thousand, seed=0)
trained = [sum(report.losses) / len(report.losses) for report in reports]
learning_curves(trained, [report.score.mean_loss for report in reports])

# %% [markdown]
# From some epoch on, the network only learns *these* images, by heart. So no training loss says how good a network is;
# and a bug that makes a loss fall faster may just show it the same images again.

# %% [markdown]
# ### Is the gradient right?
#
# `backward` is right because somebody checked it. Here is how, for you will write communication that has a backward of
# its own. A gradient says how fast the loss grows with a number. So move the number a little, both ways, and look.

# %% tags=["source: course_lib.training.gradient_check:central_difference"]

# %% [markdown]
# How large should the step `h` be? Too large, and the curve of the loss is no line; too small, and rounding eats the
# difference. We know that the slope of sin at 1 is cos(1).

# %% tags=["nbval-ignore-output"]
import numpy as np


def off_by(kind, h):
    """How far the central difference of sin at 1 is from cos(1)."""
    number = np.array([1.0], kind)
    slope = central_difference(lambda: np.sin(number[0]), number, (0,), kind(h))
    return abs(slope - np.cos(1.0))


for h in (1e-1, 1e-3, 1e-5, 1e-7):
    print(f"h = {h:g}: off by {off_by(np.float64, h):.0e} in float64, {off_by(np.float32, h):.0e} in float32")

# %% [markdown]
# In float64 there is room for ten right digits. In float32 the slope of sin has about four; the loss of a network, which is
# large beside what one weight changes, has two, and a mistake of half a percent would hide in that. So a **gradient check** wants float64. `check_model` looks at up to a hundred numbers of each parameter and gives the relative
# error.

# %%
from course_lib.training.gradient_check import TOLERANCE, check_model

small = image_batch(data.train_images, data.train_labels, first[:3], 3)
small = type(small)(small.inputs.double(), small.targets, 3)
errors = check_model(build("mlp", seed=0).double(), summed_cross_entropy, small, most=20)
for name, error in errors.items():
    print(f"{name:10} right: {error < TOLERANCE}")

# %% [markdown]
# Now a network whose backward pass is *not* PyTorch's. Its forward, in NumPy: an input, a hidden and an output layer,
# with weights `w1`, `b1`, `w2`, `b2`.

# %% tags=["source: course_lib.training.by_hand:forward"]

# %% tags=["exercise: 05.2"]

# %% [markdown]
# Does it train? Fifty steps on our batch of 128 images:

# %%
from course_lib.training.by_hand import initial_weights, mean_loss

images, labels = batch.inputs.flatten(1).double().numpy(), batch.targets.numpy()
weights = initial_weights(784, 32, 10, seed=0)
losses = []
for _ in range(50):
    losses.append(mean_loss(weights, images, labels))
    for name, gradient in backward(weights, images, labels).items():
        weights[name] -= 0.05 * gradient
print("the loss falls to less than a half:", losses[-1] < losses[0] / 2)

# %% [markdown]
# It does. How many of its four gradients are wrong?

# %%
predict("Wrong gradients among the four?", None)

# %% tags=["nbval-ignore-output"]
from course_lib.training.gradient_check import gradient_errors

weights = initial_weights(784, 32, 10, seed=0)
errors = gradient_errors(
    lambda: mean_loss(weights, images, labels), weights, backward(weights, images, labels)
)
wrong = [name for name, error in errors.items() if error > TOLERANCE]
outcome(
    "Wrong gradients among the four?",
    len(wrong),
    word="counted",
    because=f"Wrong: {', '.join(wrong) or 'none'}.",
)
for name, error in errors.items():
    print(f"{name}: relative error {error:.0e}")

# %% [markdown]
# A falling loss proves little: any direction that leads downhill will do, and a network learns around a layer that
# does not. A mistake like this one costs accuracy, and nobody knows. Later lessons check each new
# backward against one that is known.

# %% [markdown]
# ### What threads gain
#
# One process can use several cores by **threads**, which share the work inside one operation. That is the baseline that
# ranks have to beat. We time training steps of the course's three networks on one thread and on all cores. What will it be
# for the CNN?

# %%
predict("All cores: how many times the CNN's images a second on one thread?", None)

# %% tags=["nbval-ignore-output"]
from course.lessons.l05_training_one_process.baselines import thread_baselines
from mpi_classroom.launch import available_cores

threads = sorted({1, min(2, available_cores()), available_cores()})
baselines = thread_baselines(("mlp", "cnn", "lstm"), threads, repetitions=5)
for found in baselines:
    size = parameter_count(build(found.name, seed=0))
    print(
        f"{found.name:4}  {size:7} parameters  threads: {found.threads}  {found.images_per_second:7.0f} images/s"
    )

# %% tags=["nbval-ignore-output"]
from course.lessons.l05_training_one_process.figures import explain_threads, speedups, thread_speedups

published = {"mlp": {1: 1, 4: 1.07, 8: 1.15}, "cnn": {1: 1, 4: 1.76, 8: 2.2}, "lstm": {1: 1, 4: 1.5, 8: 1.65}}
gain = speedups(baselines)["cnn"][threads[-1]]
why = explain_threads(baselines) + "."
outcome("All cores: how many times the CNN's images a second on one thread?", gain, because=why)
thread_speedups(baselines, published)

# %% [markdown]
# The **published** figures are those of Jakovac and Pichler, with 4 and 8 threads on a machine of their own: an epoch of
# the CNN took 65 s on one thread and 30 s on eight. Threads meet after every operation, ranks once in a step: that is why
# lesson 06 has something to win.

# %% [markdown]
# ### Half the bits
#
# GPUs multiply numbers of 16 bits several times as fast as those of 32. **Mixed precision** computes products of
# matrices in bfloat16, which has the range of float32 and two to three digits, and keeps weights, gradients and sums in
# float32. What does that do to a gradient?

# %% tags=["nbval-ignore-output"]
from course.lessons.l05_training_one_process.mixed_precision import in_bfloat16


def float32_gradient(network):
    """All numbers of the gradient of our batch."""
    network.zero_grad()
    (summed_cross_entropy(network(batch.inputs), batch.targets) / 128).backward()
    return torch.cat([parameter.grad.flatten() for parameter in network.parameters()])


fresh = build("mlp", seed=0)
full, mixed = float32_gradient(fresh), float32_gradient(in_bfloat16(fresh))
print(f"{mixed.dtype}, relative difference {(mixed - full).norm() / full.norm():.1%}")

# %% [markdown]
# That is far less than the difference between two mini-batches, so training hardly notices. But weights in
# bfloat16 would not do: the numbers next to 1 are 0.996 and 1.008, and a step of 0.001 gets lost in rounding.

# %%
one = torch.ones(1, dtype=torch.bfloat16)
print("1 − 0.001 in bfloat16 is", (one - 0.001).item())

# %% [markdown]
# ## On GPUs
#
# Learning rate, batch and micro-batches are the same there. A GPU needs far larger batches to be busy, so what they
# cost matters more; and its memory is what makes people accumulate gradients.

# %% [markdown]
# ## Pitfalls
#
# - The mean of the means: right for equal parts, and so not noticed until the last batch is shorter.
# - A step after every micro-batch: then it *is* the batch.
# - `zero_grad` inside the loop over micro-batches, or nowhere.
# - Comparing two batch sizes by epochs, or two learning rates after a few steps.
# - Checking gradients in float32, or with dropout, which draws anew each time.

# %% [markdown]
# ## References
#
# - D. Rumelhart, G. Hinton and R. Williams, [Learning representations by back-propagating errors](https://doi.org/10.1038/323533a0), 1986.
# - M. Jakovac and E. Pichler, *MPI in Distributed Training*, 2025: the three networks, and the figures called published.
# - C. Shallue and others, [Measuring the effects of data parallelism on neural network training](https://arxiv.org/abs/1811.03600), 2019:
#   what a batch costs, for many networks.
# - P. Goyal and others, [Accurate, large minibatch SGD](https://arxiv.org/abs/1706.02677), 2017: the rule of section 3.
# - M. Li, E. Yumer and D. Ramanan, [Budgeted training](https://arxiv.org/abs/1905.04753), 2020: decay along a line.
# - P. Micikevicius and others, [Mixed precision training](https://arxiv.org/abs/1710.03740), 2018.

# %% [markdown]
# ## Stretch
#
# `samples_to_reach(data, 1024, rate, target=0.3, most=100_000)`: find a learning rate for batches of 1024. How close to
# the images of a batch of 16 do you get?

# %% [markdown]
# ## Teardown

# %%
cluster.stop()
