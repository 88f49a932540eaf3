# ---
# title: Data parallelism by hand
# goal: >-
#   Train one network on several ranks with nothing but MPI, and end with the weights that one process would have.
# able:
#   - name the phases of data-parallel training
#   - divide a global batch among ranks
#   - average gradients so that many ranks train as one process
#   - read a timeline of a step
# more:
#   - send gradients in fewer, earlier or smaller messages
#   - keep replicas equal
#   - compare a parameter server with an all-reduce
# before: >-
#   {01}, {04}; a training loop in PyTorch. Helpful: {02}, {05}
# minutes: {core: 20, more: 45}
# ranks: 4
# warm-up:
#   - ask: Four ranks call `Reduce` with one number each. Which of them hold the sum afterwards?
#     answer: Rank 0, the root. After <code>Allreduce</code>, all do.
#   - ask: Tensors are arrays. Do you send them with `send` or with `Send`?
#     answer: >-
#       With <code>Send</code>: the bytes go as they are. <code>send</code> pickles every object first.
#   - ask: Four ranks share ten images as evenly as they can. How many does each get?
#     answer: Two of them get 3, the other two get 2.
# ---

# %%
# %%px --setup
import numpy as np
import torch
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size

# %% [markdown] tags=["slide"]
# ## 1 · Ten phases
#
# In **data parallelism**, every rank holds a **replica** of the network, a complete copy, and computes a part of every batch. Ten
# phases, after Jakovac and Pichler:
#
# | phase | every rank … | MPI call |
# |---|---|---|
# | 0 init | learns its rank | `Init` |
# | 1 broadcast | gets the weights of rank 0 | `Bcast` |
# | 2 shard | takes its part of the batch | – |
# | 3 forward | computes its part of the loss | – |
# | 4 backward | computes its part of the gradient | – |
# | 5 average | gets the gradient of the whole batch | `Allreduce` |
# | 6 update | changes its weights | – |
# | 7 barrier | waits for the last rank | `Barrier` |
# | 8 gather | reports its loss to rank 0 | `Gather` |
# | 9 finalize | leaves MPI | `Finalize` |
#
# Phases 2 to 6 repeat for every batch, and only one of them communicates. Phase 7 only makes the timing fair.

# %% [markdown] tags=["slide"]
# ## 2 · Divide the batch
#
# All ranks shuffle the training images with the same seed, so all get the same order. They cut it into **global batches** of 128. Each
# rank takes one part of every batch, its **shard**.

# %% tags=["nbval-ignore-output", "skip"]
# %%px --timeout 200
from course_lib.data.mnist import load_mnist

data = load_mnist()
if rank == 0:
    print(data.source)

# %%
# %%px
from course_lib.parallel.data_parallel import shard
from course_lib.training.loop import image_batch, shuffled_batches, summed_cross_entropy

order = shuffled_batches(len(data.train_labels), 128, seed=0)
mine = shard(comm, order[0])
print(f"rank {rank}: {len(mine)} of {len(order[0])} images, the first is number {mine[0]}")

# %% tags=["exercise: 06.q1", "subslide"]

# %% [markdown] tags=["notes"]
# Five minutes up to here. Ask the room before the question: "Who has ever changed the number of GPUs and left the batch size in
# the config alone?" That is the most common mistake with data parallelism, and 06.q1 is about it.

# %% [markdown] tags=["slide"]
# ## 3 · One step without messages
#
# Every rank draws weights with a seed of its own, and phase 1 replaces them with those of rank 0. Then each rank takes a step
# with the gradient of its shard. We print a hash of the weights: if one bit differs, so does the hash.

# %%
predict("Different networks after one step?", None)

# %% tags=["nbval-ignore-output", "subslide"]
# %%px
from course.lessons.l06_data_parallel_by_hand.runs import step_alone

equal, stepped = step_alone(comm, image_batch(data.train_images, data.train_labels, mine, global_size=128))
print(f"rank {rank}: weights {equal} after the broadcast, {stepped} after the step")

# %%
outcome("Different networks after one step?", len(set(cluster["stepped"])), word="counted")

# %% [markdown] tags=["slide"]
# ## 4 · Average the gradients
#
# A single process would sum the gradients of all 128 images and divide by 128. Each rank has summed only those of its 32. So the
# ranks add their sums, and each divides by 128.
#
# `comm.Allreduce(MPI.IN_PLACE, array)` replaces `array` on every rank by the sum over all ranks. The arrays share memory with the model's
# gradients: change an array in place, and the gradient changes.

# %% tags=["exercise: 06.1", "subslide"]

# %% tags=["skip"]
continue_with("06.1")

# %% [markdown] tags=["notes"]
# Six minutes. The usual slip is to divide by `comm.size`: ask what the mean runs over, ranks or images. Whoever writes
# `gradient = gradient / global_size` makes a new array and leaves the model as it was.

# %% [markdown] tags=["slide"]
# ## 5 · The training loop
#
# Here are phases 1 to 6, and 8 for the loss.

# %%
# %%px
from course_lib.parallel.data_parallel import broadcast_weights, gradient_arrays
from course_lib.training.models import build


def start(team):
    """A new CNN, equal on all ranks of `team`; its gradients as arrays; its optimizer."""
    model = build("cnn", seed=team.rank)
    broadcast_weights(team, model)  # 1
    return model, gradient_arrays(model), torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


# %% tags=["subslide"]
# %%px
def train(team, started, batches):
    """Train what `start` returned on the global batches; return the loss of each."""
    model, gradients, optimizer = started
    losses = []
    for indices in batches:
        batch = image_batch(data.train_images, data.train_labels, shard(team, indices), len(indices))  # 2
        optimizer.zero_grad(set_to_none=False)
        loss = summed_cross_entropy(model(batch.inputs), batch.targets)  # 3
        loss.backward()  # 4
        average_gradients(team, gradients, len(indices))  # 5: yours, if 06.1 is right
        optimizer.step()  # 6
        losses.append(loss.item() / len(indices))
    return team.allreduce(np.array(losses))  # 8: the shards' parts add up to the batch's loss


# %% [markdown] tags=["subslide"]
# Compared with one process (lesson 05), the lines marked 1, 2, 5 and 8 are new. The loss stays a sum, because phase 5 divides.
# `gradient_arrays` and `set_to_none=False` keep each gradient in the same memory, so the arrays stay valid. Phase 8 here needs only the
# sum of the losses, so an all-reduce replaces the gather (lower-case: pickling so few numbers costs little).
#
# First a test: **on 1, 2, 3 and 4 ranks, the training must end with the same weights.** We take five global batches of 128 images and one
# of 10, which neither 3 nor 4 divides. `weights_on` computes in float64, so rounding stays far below what a mistake would change.

# %% tags=["subslide"]
# %%px --timeout 200
from course.lessons.l06_data_parallel_by_hand.runs import weights_on

weights = {n: weights_on(comm, n, start, train, [*order[:5], order[5][:10]]) for n in (1, 2, 3, 4)}
if rank == 0:
    for n in (2, 3, 4):
        same = bool((weights[n] - weights[1]).norm() < 1e-9 * weights[1].norm())
        print(f"{n} ranks end with the weights of one process, to 1e-9: {same}")

# %% [markdown] tags=["fragment"]
# They are not equal to the last bit, because the ranks add in a different order. In float32, such a difference can make a max-pooling pick a
# different pixel; then the weights differ as much as after a small mistake. (To see the test fail, put a `#` before the `Allreduce` line
# of your 06.1; run that cell, then the test. Then remove the `#`, and run both again.)

# %% [markdown] tags=["slide"]
# ## 6 · Train
#
# Now we train for 120 steps on one rank and on one rank per core; the other ranks sit out. The two runs alternate, ten steps at a time, so
# other programs disturb both. We compare the median time per step. The global batch stays 128.

# %%
predict("Speed-up of the training with one rank per core?", None)

# %%
# %%px --timeout 300
from course.lessons.l06_data_parallel_by_hand.runs import alternate
from course_lib.comm.timing import one_rank_per_core

team = one_rank_per_core(comm)
on_one, on_team = alternate(team, start, train, order[:120], data)

# %% tags=["nbval-ignore-output", "subslide"]
from course.lessons.l06_data_parallel_by_hand.figures.training import loss_curves, rest_of, summary

one, many = cluster["on_one"][0], cluster["on_team"][0]
speedup = one.seconds / many.seconds
outcome("Speed-up of the training with one rank per core?", speedup, because=rest_of(speedup, many.ranks))
print(summary(one), summary(many), sep="\n")
loss_curves({"on 1 rank": one.losses, f"on {many.ranks} ranks": many.losses})

# %% [markdown] tags=["subslide"]
# Only short runs agree so closely: the rounding of one step enters the next, and grows. After an epoch, runs on different numbers of ranks
# may differ by dozens of right answers out of 10 000. So may runs with different seeds.
#
# Within a run, replicas must agree to the last bit: they started equal, and in every step all use the same mean gradient.

# %% [markdown] tags=["notes"]
# Six minutes for sections 5 and 6. Let two people with different laptops compare their speed-ups. On a busy machine the speed-up is
# poor: section 7 says so when its numbers do not fit together. That is a good moment, not an accident.

# %% [markdown] tags=["slide"]
# ## 7 · Where the time goes
#
# A rank that reaches phase 5 early **waits** until the last rank has arrived. All the time after that, until the call returns, is
# **transfer**: the ranks exchange and add the gradients. If another program takes a core meanwhile, that counts as transfer, too.
#
# `trace_step` reads the clock when a rank enters and leaves `average_gradients`.

# %%
predict("Percent of the ranks' time spent waiting?", None)

# %%
# %%px --timeout 200
from course.lessons.l06_data_parallel_by_hand.runs import bare_average, trace_step

spans = trace_step(team, average_gradients, build("cnn", seed=0), data, batch_size=128)
bare = bare_average(team, average_gradients, build("cnn", seed=0))  # a sum without a training around it

# %% tags=["nbval-ignore-output", "subslide"]
from course.lessons.l06_data_parallel_by_hand.figures.training import explain_speedup, explain_wait
from course.lessons.shared.figures.timeline import shares, timeline
from course_lib.comm.spans import totals
from mpi_classroom.launch import available_cores

cores, spans = available_cores(), cluster["spans"][0]
waiting = 100 * shares(totals(spans))["wait"]
outcome("Percent of the ranks' time spent waiting?", waiting, "%", because=explain_wait(spans))
print(f"Speed-up {speedup:.2f}. {explain_speedup(one, many, spans, cluster['bare'][0])}")
timeline(spans, cores=cores)

# %% [markdown] tags=["fragment"]
# Where the wait is long, do not blame the network: find the rank that waited least. The others waited for it.

# %% [markdown] tags=["slide"]
# ## Key points
#
# - Data parallelism adds a broadcast at the start and an average of the gradients in every step.
# - The mean runs over the *global* batch: add up the sums of the shards, and divide once.
# - After a few steps in float64, any number of ranks must hold the same weights up to rounding. If not, there is a bug.
# - A step lasts as long as its slowest rank. The others wait for it.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# On eight ranks, your colleague's run is 3 percentage points less accurate than on one. What do you ask first? Vote, talk to your
# neighbour, vote again: (a) which network card, (b) which global batch and learning rate, (c) which seed.
#
# <details><summary>What to listen for</summary>(b): with both equal, the two runs do the same training up to rounding, and rounding alone
# moves far less than 3 points. Then (c): run several seeds. (a) changes the time, and at most the order of a sum.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# First a question about section 5.

# %% tags=["exercise: 06.q2"]

# %% [markdown]
# ### Fewer, earlier, smaller messages
#
# `average_gradients` calls `Allreduce` once per array, eight times for our CNN. Each call has a price, however short the message,
# because the ranks have to meet. **Fewer:** all gradients live in one flat buffer, a **bucket**, so that one message carries them.
# We also divide the loss by the global batch *before* backward. Then phase 5 is only a sum.

# %% tags=["source: course_lib.parallel.data_parallel:GradientBucket"]
# %%px

# %%
# %%px
from course_lib.comm.timing import seconds_on
from course_lib.parallel.data_parallel import sum_gradients

batch = image_batch(data.train_images, data.train_labels, mine, global_size=128)
model = build("cnn", seed=0)


def sum_pickled(team, model):
    """The same sum with lower-case `allreduce`, which pickles every tensor."""
    for parameter in model.parameters():
        parameter.grad.copy_(team.allreduce(parameter.grad))


bucket = GradientBucket(model)
pickled = seconds_on(team, lambda: sum_pickled(team, model), repetitions=10)
one_by_one = seconds_on(team, lambda: sum_gradients(team, model), repetitions=30)
in_one = seconds_on(team, lambda: bucket.sum(team), repetitions=30)

# %% tags=["nbval-ignore-output"]
ways = {"pickled": "8 pickled messages", "one_by_one": "8 messages", "in_one": "1 message"}
for name, how in ways.items():
    print(f"{how:>18}: {1e3 * cluster[name][0]:.2f} ms on {many.ranks} ranks")
times = cluster["pickled"][0] / cluster["one_by_one"][0]
print(f"Pickling 1.7 MB and adding Python objects takes {times:.0f} times as long.")

# %% [markdown]
# The bytes of the last two rows are the same. Deep networks have hundreds of tensors, and between machines each meeting costs far more, so
# there a bucket saves most.
#
# **Earlier:** backward starts at the last layer. Its gradients are ready while the first layers are still at work, so their sum could
# already start: this is **overlap**. `register_post_accumulate_grad_hook` calls a function when a gradient is ready. `Iallreduce` starts a
# sum and returns at once.

# %% tags=["source: course_lib.parallel.gradient_buckets:sum_when_ready"]
# %%px

# %% [markdown]
# `GradientBuckets` of the library does the same with a few buckets of neighbouring layers. We record when each bucket's sum starts and
# when a test finds it complete. All four ranks take part, although they may share cores: the title counts the cores.

# %%
# %%px
from course.lessons.l06_data_parallel_by_hand.bucket_trace import trace_buckets

flights = trace_buckets(comm, build("cnn", seed=0), batch, bucket_bytes=2**16)

# %% tags=["nbval-ignore-output"]
from course.lessons.l06_data_parallel_by_hand.figures.buckets import bucket_overlap

bucket_overlap(cluster["flights"][0], cores=cores)

# %% [markdown]
# A bucket under way is not necessarily *moving*. Many builds of MPI move bytes only while the rank is inside an MPI call, and backward
# makes none. So every hook also calls `Test` on the buckets under way, which gives MPI a moment to work. Does a whole step get shorter? We
# measure with one rank per core: a step that sums after backward, a step that sums during backward, 25 times in turn. Each rank computes
# the 32 images of `batch`, whatever the number of cores, so on two cores these steps are shorter than those of section 6.

# %%
predict("Percent of a step saved by overlap?", None)

# %%
# %%px --timeout 200
from course.lessons.l06_data_parallel_by_hand.engines import ENGINES
from course.lessons.l06_data_parallel_by_hand.runs import in_turn
from course_lib.training.loop import make_step


def step_with(engine):
    """A function that takes a training step of a CNN of its own on our batch."""
    model = build("cnn", seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    step = make_step(model, summed_cross_entropy, optimizer, ENGINES[engine](team, model))
    return lambda: step(batch)


after, during = in_turn(team, step_with, ("one bucket", "overlapped buckets"), rounds=25)

# %% tags=["nbval-ignore-output"]
from course.lessons.l06_data_parallel_by_hand.figures.buckets import saved_by_overlap

saved, why = saved_by_overlap(cluster["after"][0], cluster["during"][0], many.ranks)
outcome("Percent of a step saved by overlap?", saved, "%", because=why)

# %% [markdown]
# Overlap pays where sums are long and something other than the cores moves the bytes: a network card, or the copy engines of a GPU.

# %% tags=["exercise: 06.2"]

# %% [markdown]
# How full should a bucket be? Small ones start early, but each is a message. Putting several tensors into one message is **tensor
# fusion**, and the limit in bytes is the **fusion threshold**. We time `Allreduce` on the gradients of the CNN with four thresholds.
# (This is a run of its own, so compare these times with each other, not with those above.)

# %%
# %%px --timeout 100
from course.lessons.l06_data_parallel_by_hand.runs import messages_and_seconds

found = [messages_and_seconds(team, build("cnn", seed=0), limit) for limit in (1, 2**14, 2**20, 2**25)]

# %% tags=["nbval-ignore-output"]
from course.lessons.l06_data_parallel_by_hand.figures.buckets import fusion

fusion(cluster["found"][0])

# %% [markdown]
# On one machine with free cores, an extra message costs only microseconds. So the four times differ little, and a new run may order
# them differently.
#
# **Smaller:** with `wire_dtype`, a bucket travels as 16-bit numbers. How far off is the sum then?

# %%
# %%px
from course_lib.parallel.gradient_buckets import GradientBuckets
from course_lib.training.flat import flatten


def summed_gradients(wire_dtype):
    """The gradients of one batch, summed over all ranks, and the bytes that each rank hands to MPI."""
    model = build("cnn", seed=0)
    buckets = GradientBuckets(comm, model, wire_dtype=wire_dtype)
    (summed_cross_entropy(model(batch.inputs), batch.targets) / batch.global_size).backward()
    buckets.wait()
    return flatten([parameter.grad for parameter in model.parameters()]), buckets.nbytes


exact, full = summed_gradients(None)
errors = {}
for dtype in (torch.float16, torch.bfloat16):
    rounded, half = summed_gradients(dtype)
    errors[str(dtype)] = float((rounded - exact).norm() / exact.norm())

# %%
print("bytes of the gradients:", cluster["full"][0], "and compressed:", cluster["half"][0])

# %% tags=["nbval-ignore-output"]
for dtype, error in cluster["errors"][0].items():
    print(f"{dtype}: relative error {error:.3%}")

# %% [markdown]
# All ranks receive the same rounded sum, so the replicas still agree, but no longer with one process. The largest float16 is 65 504. A
# bfloat16 has the range of float32 but keeps only 8 significant bits: in it, 256 + 1 is 256.
#
# These techniques together (broadcast, hooks, fusion, compression) are what **Horovod** made popular, over MPI. We build them ourselves
# because its latest release, 0.28.1, is written for C++14 and does not compile against a current PyTorch. PyTorch's own answer is in lesson 07.

# %% [markdown]
# ### Stay equal
#
# What if somebody forgets phase 1?

# %% tags=["exercise: 06.q3"]

# %% [markdown]
# We train four replicas for 40 steps, with the broadcast and without.

# %%
# %%px --timeout 200
from course_lib.parallel.data_parallel import replicas_agree, shard_batches
from course_lib.training.loop import fit


def forty_steps(broadcast):
    """Train a new CNN, with or without phase 1; this rank's losses, and whether the replicas agree."""
    model = build("cnn", seed=rank)
    if broadcast:
        broadcast_weights(comm, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    bucket = GradientBucket(model)
    step = make_step(model, summed_cross_entropy, optimizer, lambda: bucket.sum(comm))
    shards = shard_batches(comm, data.train_images, data.train_labels, order[:40])
    return fit(step, shards).losses, replicas_agree(comm, model)


with_it, agree = forty_steps(broadcast=True)
without, agree_without = forty_steps(broadcast=False)

# %%
print("with the broadcast, replicas agree:   ", cluster["agree"][0])
print("without the broadcast, replicas agree:", cluster["agree_without"][0])

# %% tags=["nbval-ignore-output"]
with_it, without = (
    [sum(parts) for parts in zip(*cluster[name], strict=True)] for name in ("with_it", "without")
)
loss_curves({"with the broadcast": with_it, "without": without}, window=5)

# %% [markdown]
# Nothing crashed. Without the broadcast, each replica is moved by the mean of gradients that belong to four different networks.

# %% tags=["exercise: 06.3"]

# %% [markdown]
# The same happens after a restart, in a place that is easier to overlook. Rank 0 reads a checkpoint and broadcasts the weights. But the
# *momentum* of the optimizer is state, too. We train one step, let the other ranks forget their optimizer, and train one more step, with
# `broadcast_optimizer` and without.

# %%
# %%px --timeout 100
from course_lib.parallel.data_parallel import broadcast_optimizer


def restart(send_optimizer):
    """Two steps with a restart between them; whether the replicas agree afterwards."""
    model = build("cnn", seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    bucket = GradientBucket(model)
    make_step(model, summed_cross_entropy, optimizer, lambda: bucket.sum(comm))(batch)
    if rank > 0:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)  # a new one, no momentum
    if send_optimizer:
        broadcast_optimizer(comm, optimizer)
    make_step(model, summed_cross_entropy, optimizer, lambda: bucket.sum(comm))(batch)
    return replicas_agree(comm, model)


forgotten, sent = restart(send_optimizer=False), restart(send_optimizer=True)

# %%
print("weights only, replicas agree:         ", cluster["forgotten"][0])
print("weights and optimizer, replicas agree:", cluster["sent"][0])

# %% [markdown]
# ### A parameter server
#
# Before all-reduces were common, one rank, the **parameter server**, kept the weights and the optimizer. The other ranks, its **workers**,
# send it gradients and get new weights back. A *synchronous* server waits for all gradients and updates once. Ours, rank 0, computes a
# shard, too. We train ten steps with it and with an all-reduce, and compare the weights and the time.

# %%
# %%px --timeout 200
from course_lib.parallel.parameter_server import make_server_step, train_asynchronously


def ten_steps(server):
    """Train the MLP on all ranks, by a synchronous server or an all-reduce: weights and seconds."""
    model = build("mlp", seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    if server:
        step = make_server_step(comm, model, summed_cross_entropy, optimizer)
    else:
        bucket = GradientBucket(model)
        step = make_step(model, summed_cross_entropy, optimizer, lambda: bucket.sum(comm))
    shards = shard_batches(comm, data.train_images, data.train_labels, order[:10])
    return fit(step, shards).seconds, flatten(list(model.parameters()))


(by_server, theirs), (by_sum, ours) = ten_steps(server=True), ten_steps(server=False)
same = bool((theirs - ours).norm() < 1e-5 * ours.norm())

# %%
print("the synchronous server trains the same network, to 1e-5:", cluster["same"][0])

# %% tags=["nbval-ignore-output"]
by_server, by_sum = cluster["by_server"][0], cluster["by_sum"][0]
print(f"ten steps: {by_server:.2f} s with the server, {by_sum:.2f} s with an all-reduce")

# %% [markdown]
# The server trains the same network. With four ranks and a network this small, the two times say little. The difference is how many bytes
# one rank sends: for w workers and a network of M bytes, the server receives w · M and sends w · M per step. In a ring all-reduce, no rank
# sends more than 2 M, however many there are (lesson 04).
#
# An *asynchronous* server does not wait. It updates as soon as any gradient arrives, so a slow worker delays nobody. But other workers have
# changed the weights meanwhile: the gradient is **stale**, and its **staleness** is the number of their updates. Three workers train on 40
# batches each. In a second run, worker 3 rests after each batch. We count updates until the first worker is done. Predict the mean of the
# first run.

# %%
predict("Updates by others before a gradient is used, on average?", None)

# %%
# %%px --timeout 100
import time

from course.lessons.l06_data_parallel_by_hand.runs import while_all_work


def with_a_server(slow):
    """Train the MLP; rank `slow` rests after each batch. On rank 0: what the server did; else None."""
    model = build("mlp", seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    mine = order[40 * rank : 40 * (rank + 1)] if rank > 0 else []

    def batches():
        for indices in mine:
            yield image_batch(data.train_images, data.train_labels, indices, len(indices))
            time.sleep(0.05 if rank == slow else 0)

    _, service = train_asynchronously(comm, model, summed_cross_entropy, optimizer, batches())
    return while_all_work(service)


alike, straggling = with_a_server(slow=None), with_a_server(slow=3)

# %% tags=["nbval-ignore-output"]
from course.lessons.l06_data_parallel_by_hand.figures.buckets import staleness

alike, straggling = cluster["alike"][0], cluster["straggling"][0]
mean = sum(alike.staleness) / len(alike.staleness)
why = "If the three strictly alternate, it is 2: one update by each of the others."
outcome("Updates by others before a gradient is used, on average?", mean, because=why)
staleness({"workers alike": alike.histogram(), "worker 3 rests": straggling.histogram()})

# %% [markdown]
# While worker 3 rests, the other two go on updating, so its staleness is the number of updates that it slept through. The gradients of the
# other two are fresher, because one worker fewer updates between them. A stale gradient belongs to weights that no longer exist. And two
# asynchronous runs hardly ever give the same numbers, because these depend on who arrives first.

# %% [markdown]
# ### A whole epoch
#
# The library's own training has all ten phases. Its step calls `synchronize()` between backward and update:

# %% tags=["source: course_lib.training.loop:make_step"]
# %%px

# %% tags=["source: course_lib.parallel.data_parallel:train_epoch"]
# %%px

# %% [markdown]
# We train for one epoch on 30 000 images with two ranks and with four, at the same global batch. Then each of the four ranks takes
# 128 images: their global batch is 512, and the learning rate stays as it was.

# %%
# %%px --timeout 600
from dataclasses import replace

half = replace(data, train_images=data.train_images[:30_000], train_labels=data.train_labels[:30_000])
two = comm.Split(0 if rank < 2 else MPI.UNDEFINED, rank)


def epoch(team, batch_size):
    """The report of an epoch of the CNN on `team`, on rank 0."""
    model = build("cnn", seed=team.rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return train_epoch(team, model, optimizer, half, batch_size=batch_size, seed=0)


reports = [epoch(two, 128)] if rank < 2 else []

# %%
# %%px --timeout 600
reports += [epoch(comm, 128)]

# %% [markdown]
# The last one is the epoch with 128 images per rank.

# %%
# %%px --timeout 600
reports += [epoch(comm, 512)]

# %% tags=["nbval-ignore-output"]
for report, batch_size in zip(cluster["reports"][0], (128, 128, 512), strict=True):
    shared = f", sharing {cores} cores" if report.ranks > cores else ""
    print(
        f"{report.ranks} ranks{shared}, global batch {batch_size}: "
        f"{report.score.accuracy:.2%}, {report.seconds:.0f} s"
    )

# %% [markdown]
# The first two differ only by rounding, which has grown over hundreds of steps. How much that is in percentage points, and how much a
# different seed makes, is measured in lesson 07 with several seeds each. The third is a different training. One process with a batch of
# 512 would do the same, so it says nothing about the ranks.
#
# Jakovac and Pichler report 67 s for an epoch of this CNN on one core and 19 s on eight ranks (**published**, on a machine of their own).
# The 65 s that lesson 05 quotes are from a table of theirs, the 67 s from their summary.

# %% [markdown]
# ## On GPUs
#
# The ten phases stay the same. `Allreduce` then works on the GPU's memory, with NCCL or with an MPI that was built for it. Computing gets
# many times as fast. Messages between machines speed up far less, so waiting and transfer matter far more.

# %% [markdown]
# ## Pitfalls
#
# - Dividing by the number of ranks what is a sum over images, or averaging the means of unequal shards.
# - Dividing the loss by the global batch *and* the gradients as well.
# - Leaving one tensor out of the average: training goes on, and the replicas drift apart.
# - `zero_grad()` without `set_to_none=False`: new gradients, and MPI goes on working with the old memory.
# - Updating before the sums that were started have been waited for.
# - Comparing runs with different global batches.

# %% [markdown]
# ## References
#
# - M. Jakovac and E. Pichler, *MPI in Distributed Training*, 2025: the ten phases, the CNN and the figures called published. The paper says
#   that PyTorch's DDP (lesson 07) starts one `Allreduce` per parameter; DDP sends buckets, like Horovod.
# - P. Goyal and others, [Accurate, large minibatch SGD](https://arxiv.org/abs/1706.02677), 2017: large global batches.
# - A. Sergeev and M. Del Balso, [Horovod](https://arxiv.org/abs/1802.05799), 2018: tensor fusion and 16-bit compression over MPI.
# - S. Li and others, [PyTorch Distributed](https://arxiv.org/abs/2006.15704), 2020: buckets that overlap with backward.
# - J. Dean and others, *Large scale distributed deep networks*, 2012: the asynchronous parameter server.
# - mpi4py, [Tutorial](https://mpi4py.readthedocs.io/en/stable/tutorial.html): in-place reductions.

# %% [markdown]
# ## Stretch
#
# Compression forgets what it rounds away. Let each rank remember it: keep the difference between the gradient and what was sent, and add it
# to the gradient of the next step (*error feedback*). Train 60 steps with bfloat16, with and without, and compare the weights with those of
# exact sums.
