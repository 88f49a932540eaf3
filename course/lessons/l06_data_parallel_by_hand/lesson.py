# %% [markdown]
# # 06 · Data parallelism by hand
#
# *Train one network on several ranks with nothing but MPI, and end with the weights that one process would have.*
#
# | | |
# |---|---|
# | **You will be able to** | name the ten phases of data-parallel training and the MPI call of each; deal a batch to ranks, also where it does not divide; sum gradients so that they are those of the whole batch; say where the time of a step goes |
# | **Before this** | [01 · MPI basics](01_mpi_basics.ipynb), [02 · Monte Carlo π](02_monte_carlo_pi.ipynb); a training loop in PyTorch |
# | **Time** | core 20 min · more 60 min |
# | **Ranks** | 4 |
#
# [← 05 · Training in one process](05_training_one_process.ipynb) · [Course map](00_start_here.ipynb) · [07 · DDP on MNIST →](07_ddp_on_mnist.ipynb)

# %% [markdown]
# ## Warm-up
#
# Answer from memory, then open the answer.
#
# 1. Four ranks call `Reduce` with a number each. Which of them have the sum afterwards?
#    <details><summary>Answer</summary>Rank 0 alone. <code>Allreduce</code> gives it to all; you will need that today.</details>
# 2. Tensors are arrays. Do you send them with `send` or with `Send`?
#    <details><summary>Answer</summary>With the capital letter: the bytes go as they are. Small letters pack every object first.</details>
# 3. Ten darts, four ranks, and no dart may be lost. How many does each rank throw?
#    <details><summary>Answer</summary>3, 3, 2 and 2: the first ranks take one more.</details>

# %% [markdown]
# ## Setup

# %% tags=["nbval-ignore-output"]
from mpi_classroom.cluster import start_cluster

cluster = start_cluster(n=4)

# %%
# %%px --setup
import torch
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size

# %% [markdown]
# ## 1 · Ten phases
#
# **Data parallelism**: every rank has the whole network, and a part of every batch. A study by Jakovac and
# Pichler tells it in ten phases:
#
# | phase | on every rank | MPI |
# |---|---|---|
# | 0 init | know your rank and the size | `Init`, `Comm_rank` |
# | 1 broadcast | take the weights of rank 0 | `Bcast` |
# | 2 shard | take your part of the batch | – |
# | 3 forward | compute the loss of your part | – |
# | 4 backward | compute its gradients | – |
# | 5 **sum** | add up everybody's gradients | `Allreduce` |
# | 6 update | change the weights | – |
# | 7 barrier | wait for the last | `Barrier` |
# | 8 gather | tell rank 0 loss and accuracy | `Gather` |
# | 9 finalize | end MPI | `Finalize` |
#
# Phases 2 to 6 are repeated for every batch, and only one of them sends anything.

# %% [markdown]
# ## 2 · Start equal: the broadcast
#
# The network is a small CNN for images of digits. Suppose every rank draws its first weights with a seed of
# its own. A `weight_hash` is a few digits that change when any bit of any weight does: equal hashes, equal
# networks.

# %% tags=["nbval-ignore-output"]
# %%px
from course_lib.parallel.data_parallel import broadcast_weights, replicas_agree, weight_hash
from course_lib.training.models import build

model = build("cnn", seed=rank)
before = weight_hash(model)
broadcast_weights(comm, model)
print(f"rank {rank}: weights {before} before the broadcast, {weight_hash(model)} after it")

# %% [markdown]
# Phase 1 sent the weights of rank 0 to everyone, in one message. With one seed everywhere it would change nothing,
# until somebody draws one random number too many.

# %% [markdown]
# ## 3 · Deal the batch: the shard
#
# Every rank shuffles the training images in the same order, cuts them into the same **global batches** of
# 128, and takes its part of each, its **shard**. That needs no message, only the same seed on every rank.

# %% tags=["nbval-ignore-output"]
# %%px --timeout 200
from course_lib.data.mnist import load_mnist

data = load_mnist()
if rank == 0:
    print(data.source)

# %%
# %%px
from course_lib.parallel.data_parallel import shard
from course_lib.training.loop import image_batch, make_step, shuffled_batches, summed_cross_entropy

order = shuffled_batches(len(data.train_labels), 128, seed=0)
mine = shard(comm, order[0])
print(f"rank {rank}: {len(mine)} of {len(order[0])} images, the first is number {mine[0]}")

# %% [markdown]
# On three ranks it would be 43, 43 and 42. The global batch stays 128, however many ranks there are. Give
# *each rank* 128 images instead, and you train with batches of 512: another experiment.

# %% [markdown]
# ## 4 · One loop, one seam
#
# A training step, and who comes between backward and update:
#
# ```
# zero gradients → forward → loss → backward → synchronize() → update
# ```
#
# `make_step` builds it. Two things prepare it for many ranks: the loss, a sum over images, is divided by the size
# of the **global** batch; and `synchronize` is yours to fill: when you are alone, it does nothing. What if each
# rank just takes this step with its shard? How many different networks will there be?

# %%
predict("Networks after one step?", None)

# %%
# %%px
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
batch = image_batch(data.train_images, data.train_labels, mine, global_size=128)
make_step(model, summed_cross_entropy, optimizer)(batch)
alone = weight_hash(model)

# %%
outcome(
    "Networks after one step?", len(set(cluster["alone"])), word="counted", because="Their shards differ."
)

# %% [markdown]
# But the loss of the batch is a sum over images, divided once. Cut the sum into shards, and the shards' gradients
# **add up** to the gradient of the batch. So add them up: no average of gradients, and none of weights.

# %% [markdown]
# ## 5 · Sum the gradients
#
# `Allreduce` adds up an array over all ranks and leaves the sum on *every* rank; with `MPI.IN_PLACE`, in the
# same array. Every parameter has its gradient in `parameter.grad`, and `.grad.numpy()` is an array in the same
# memory.

# %% tags=["exercise: 06.1"]

# %% [markdown]
# ## 6 · The test that matters
#
# `train_epoch` strings the ten phases together (More shows it). Before it may run for long,
# **1, 2, 3 and 4 ranks must end with the same weights.** It trains on 650 images (as many as we give it labels):
# five batches of 128, and a last one of 10, which neither 3 nor 4 divides.

# %%
# %%px
from dataclasses import replace

from course_lib.parallel.data_parallel import flatten, train_epoch


def train(team, images):
    """Train a new CNN on `team`: the report, whether the replicas agree, and all weights in a row."""
    model = build("cnn", seed=team.rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    report = train_epoch(team, model, optimizer, images, batch_size=128, seed=0)
    return report, replicas_agree(team, model), flatten(list(model.parameters()))


# %%
# %%px
few = replace(data, train_labels=data.train_labels[:650], test_labels=data.test_labels[:500])
weights = {}
for n in (1, 2, 3, 4):
    first_n = comm.Split(0 if rank < n else MPI.UNDEFINED, rank)
    if rank < n:
        _, _, weights[n] = train(first_n, few)
if rank == 0:
    for n in (2, 3, 4):
        same = bool((weights[n] - weights[1]).norm() < 1e-5 * weights[1].norm())
        print(f"{n} ranks and one process end with the same weights, to 1e-5: {same}")

# %% [markdown]
# Not to the last bit: the ranks add the same numbers in another order, and rounding depends on it. But no
# number of ranks is less accurate than another.

# %% [markdown]
# ## Key points
#
# - Data parallelism adds two things to a training loop: a broadcast at the start, and a sum of the gradients
#   in every step.
# - Divide the loss by the global batch once; then the gradients of the shards only have to be added.
# - 1, 2, 3 and 4 ranks end with the same weights, to rounding. If not, it is a mistake, not a cost.
# - One flat bucket: one message for each step, however many tensors there are.
# - Overlap starts sums during backward. What it hides depends on who moves the bytes: measure it.
# - An asynchronous server waits for nobody; it pays with stale gradients.
# - A step lasts as long as its slowest rank. Tell waiting from transferring before you blame the network.

# %% [markdown]
# ## Discuss
#
# Your colleague's run on eight ranks is 0.4 points less accurate than the one on one rank. What do you ask first? Vote,
# talk to your neighbour for two minutes, vote again: (a) which network card, (b) which global batch and
# learning rate, (c) which seed.
#
# <details><summary>What to listen for</summary>(b): ranks that see the same global batches end with the same weights, so a
# difference that size comes from another batch or another learning rate. (c) comes second: other
# seeds move the accuracy by about a tenth of a point. The network card changes the time, never the numbers.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# ### Three questions
#
# Write your letter between the quotes, and run the cell.

# %% tags=["exercise: 06.q1"]

# %% tags=["exercise: 06.q2"]

# %% tags=["exercise: 06.q3"]

# %% [markdown]
# ### One message in place of eight
#
# This is the library's phase 5. It calls `Allreduce` once for each of the CNN's eight parameter tensors.

# %% tags=["source: course_lib.parallel.data_parallel:sum_gradients_one_by_one"]
# %%px

# %%
# %%px
broadcast_weights(comm, model)
step = make_step(model, summed_cross_entropy, optimizer, lambda: sum_gradients_one_by_one(comm, model))
step(batch)
agree = replicas_agree(comm, model)

# %%
print("after one step, replicas agree:", cluster["agree"][0])

# %% [markdown]
# Now the replicas agree. But each call has a price, however short its message, because the ranks have to meet;
# and two of the eight tensors hold nearly all the numbers. One change: let all gradients *live* in one flat
# **bucket**. Backward writes there directly, and a single `Allreduce` sums them all.

# %% tags=["source: course_lib.parallel.data_parallel:GradientBucket"]
# %%px

# %% [markdown]
# Was it worth it? We time both with one rank for every core, as in lesson 02; the ranks that are left out return
# at once and sleep.

# %%
# %%px
from course_lib.comm.timing import one_rank_a_core, seconds_on

alone, team = one_rank_a_core(comm, cores=1), one_rank_a_core(comm)
one_by_one = seconds_on(team, lambda: sum_gradients_one_by_one(team, model), repetitions=50)
bucket = GradientBucket(model)
in_one = seconds_on(team, lambda: bucket.sum(team), repetitions=50)

# %% tags=["nbval-ignore-output"]
from mpi_classroom.launch import available_cores

cores = available_cores()
eight, one = 1e3 * cluster["one_by_one"][0], 1e3 * cluster["in_one"][0]
print(f"8 messages {eight:.2f} ms, 1 message {one:.2f} ms ({min(cores, 4)} ranks on {cores} cores)")
print(f"{eight / one:.1f} times faster" if eight > one else "no gain this time; is the machine busy?")

# %% [markdown]
# The bytes are the same. What went away are seven meetings, and copies of gradients. Deep networks have
# hundreds of tensors, and between machines a meeting costs far more: there the bucket matters most.

# %% [markdown]
# ### A step in four lanes
#
# Do the ranks compute, or do they wait? `trace_step` reads the clock as a step and its sum begin and end. From
# a rank's arrival at the sum to the last one's, it is **waiting** for slower ranks; what follows is
# **transfer**. All four ranks take part, even where they have to share cores. How much of the time do they wait?

# %%
predict("Percent of the ranks' time spent waiting?", None)

# %%
# %%px
from course_lib.parallel.data_parallel import trace_step

spans = trace_step(comm, model, data, batch_size=128)

# %% tags=["nbval-ignore-output"]
from course.lessons.shared.figures.timeline import shares, timeline
from course_lib.comm.spans import totals

seconds = totals(cluster["spans"][0])
last = min(seconds, key=lambda rank: seconds[rank]["wait"])
why = f"Rank {last} waited least: it is the one that the others waited for."
outcome("Percent of the ranks' time spent waiting?", 100 * shares(seconds)["wait"], "%", because=why)
timeline(cluster["spans"][0], cores=cores)

# %% [markdown]
# A step lasts as long as its slowest rank. A long wait does not mean that messages are slow: the lane with the
# *shortest* wait kept the others waiting. And with more ranks than cores, a lane also holds time in which its
# rank had no core.
#
# So what did the ranks gain? The same 128 images on one rank, and then on one rank for every core:

# %%
# %%px
on_one = trace_step(alone, model, data, batch_size=128)

# %%
# %%px
on_team = trace_step(team, model, data, batch_size=128)

# %% tags=["nbval-ignore-output"]
from course.lessons.l06_data_parallel_by_hand.figures.training import explain_speedup

print(explain_speedup(cluster["on_one"][0], cluster["on_team"][0], cores))

# %% [markdown]
# ### All ten phases
#
# First the step of section 4, with the place where ranks meet:

# %% tags=["source: course_lib.training.loop:make_step"]
# %%px

# %% [markdown]
# And the phases around it, with the numbers of the table. Each rank also tests the network on its shard of the test
# images, and `gather_metrics` adds up how many were right.

# %% tags=["source: course_lib.parallel.data_parallel:train_epoch"]
# %%px

# %% [markdown]
# ### Train
#
# One epoch on all 60 000 images, first on two ranks, then on four: same global batch, same learning rate,
# same steps. It may take a quarter of a minute each, and longer on a busy machine.

# %%
# %%px --timeout 300
two = comm.Split(0 if rank < 2 else MPI.UNDEFINED, rank)
two_ranks, agree, _ = train(two, data) if rank < 2 else (None, None, None)

# %%
# %%px --timeout 300
four_ranks, agree_all, _ = train(comm, data)

# %% tags=["nbval-ignore-output"]
for report in (cluster["two_ranks"][0], cluster["four_ranks"][0]):
    turns = f", taking turns on {cores} cores" if report.ranks > cores else ""
    score, seconds = report.score, report.seconds
    print(f"{report.ranks} ranks: accuracy {score.accuracy:.2%} after one epoch, {seconds:.1f} s{turns}")

# %% [markdown]
# And do the replicas agree, on two ranks and on four?

# %%
cluster["agree"][0], cluster["agree_all"][0]

# %% [markdown]
# *Replicas agree*: to the last bit. Since the broadcast, nobody has sent a weight. The ranks started equal and took
# equal steps, and whether two or four of them, it was the same training.

# %% [markdown]
# ### The same curve
#
# Two and four ranks, loss against step. Each rank knows only its shard's part of a loss; `gather_metrics` has
# added them up.

# %% tags=["nbval-ignore-output"]
from course.lessons.l06_data_parallel_by_hand.figures.training import loss_curves

reports = [cluster["two_ranks"][0], cluster["four_ranks"][0]]
loss_curves({f"{report.ranks} ranks": report.losses for report in reports})

# %% [markdown]
# Where the curves part a little, rounding has grown over hundreds of steps. The study that the ten phases come
# from took 67 s for an epoch of this CNN on one core, and 19 s on eight ranks: **published**, on another machine.

# %% [markdown]
# ### Phase 1, and a run without it
#
# The broadcast copies all parameters into one flat bucket, sends that, and copies it back:

# %% tags=["source: course_lib.parallel.data_parallel:broadcast_weights"]
# %%px

# %% [markdown]
# Without it, four ranks start with four different networks. The sum of the gradients is still the same on
# all, so they take the same steps, from different places. Nothing crashes.

# %%
# %%px --timeout 200
from course_lib.parallel.data_parallel import shard_batches
from course_lib.training.loop import fit


def sixty_steps(broadcast):
    """Train a new CNN, with or without phase 1: the losses of this rank's shards, and its model."""
    model = build("cnn", seed=rank)
    if broadcast:
        broadcast_weights(comm, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    bucket = GradientBucket(model)
    step = make_step(model, summed_cross_entropy, optimizer, lambda: bucket.sum(comm))
    shards = shard_batches(comm, data.train_images, data.train_labels, order[:60])
    return fit(step, shards).losses, replicas_agree(comm, model)


with_it, agree = sixty_steps(broadcast=True)
without, agree_without = sixty_steps(broadcast=False)

# %%
print("with the broadcast, replicas agree:   ", cluster["agree"][0])
print("without the broadcast, replicas agree:", cluster["agree_without"][0])

# %% tags=["nbval-ignore-output"]
for name in ("with_it", "without"):
    losses = [sum(parts) for parts in zip(*cluster[name], strict=True)]  # the shards' parts add up
    print(f"{name}: mean loss of the last ten of 60 steps {sum(losses[-10:]) / 10:.2f}")

# %% [markdown]
# Each network is moved mostly by the gradients of other networks. Compare the hashes once in a while: it costs
# milliseconds, and this mistake never raises an error.

# %% tags=["exercise: 06.2"]

# %% [markdown]
# ### Averaging weights instead of gradients
#
# "Everyone takes a step alone, then we average the weights." With plain SGD and equal shards that is the
# same after every step, as a step is proportional to the gradient; so the idea survives. Adam divides by the size of
# the gradient, and there it is another algorithm:


# %%
# %%px
def one_step(optimizer_of, team):
    """All weights after a step on our shard, with the gradients summed over `team`."""
    model = build("mlp", seed=0)
    bucket = GradientBucket(model)
    step = make_step(model, summed_cross_entropy, optimizer_of(model.parameters()), lambda: bucket.sum(team))
    step(image_batch(data.train_images, data.train_labels, mine, global_size=team.size * len(mine)))
    return flatten(list(model.parameters()))


for optimizer_of in (lambda p: torch.optim.SGD(p, lr=0.05), lambda p: torch.optim.Adam(p, lr=0.001)):
    weights = one_step(optimizer_of, MPI.COMM_SELF)
    comm.Allreduce(MPI.IN_PLACE, weights.numpy())
    same = torch.allclose(weights / size, one_step(optimizer_of, comm), atol=1e-6)
    if rank == 0:
        print(type(optimizer_of([torch.zeros(1)])).__name__, "averaging weights is the same:", same)

# %% tags=["exercise: 06.3"]

# %% [markdown]
# ### Four times 128 is not 128
#
# Keep 128 images *on each rank*, and the global batch is 512: an epoch has a quarter of the steps. On
# the first 12 000 images, with the same learning rate:

# %%
# %%px --timeout 200
part = replace(data, train_labels=data.train_labels[:12_000], test_labels=data.test_labels[:5_000])
reports = []
for batch_size in (128, 512):
    model = build("cnn", seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    reports.append(train_epoch(comm, model, optimizer, part, batch_size=batch_size, seed=0))

# %% tags=["nbval-ignore-output"]
for batch_size, report in zip((128, 512), cluster["reports"][0], strict=True):
    print(f"global batch {batch_size}: {len(report.losses)} steps, accuracy {report.score.accuracy:.2%}")

# %% [markdown]
# It is the batch that changes what is learned, not the number of ranks: one process with a batch of 512 would do
# the same. Studies that keep the *local* batch see accuracy fall with every rank, and blame the ranks.

# %% [markdown]
# ### Start the sum before backward is done
#
# Backward begins at the last layer. Its gradients are ready while the first layers still have to be worked on,
# so their sum could start: **overlap**. `register_post_accumulate_grad_hook` calls a function of yours whenever a
# gradient is ready, and `Iallreduce` starts a sum and returns at once. This is all it takes:

# %% tags=["source: course_lib.parallel.gradient_buckets:sum_as_they_come"]
# %%px

# %%
# %%px
model = build("mlp", seed=0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
make_step(model, summed_cross_entropy, optimizer, sum_as_they_come(comm, model))(batch)
agree = replicas_agree(comm, model)

# %%
print("started during backward, replicas agree:", cluster["agree"][0])

# %% [markdown]
# `GradientBuckets` of the library does the same with **fused** buckets: neighbours share one message, up to a
# limit. And its buckets leave in the same order on all ranks, even if hooks fire in another. A bucket is *on its
# way* from its start until the rank finds it complete:

# %%
# %%px
from course.lessons.l06_data_parallel_by_hand.bucket_trace import trace_buckets

model = build("cnn", seed=0)
flights = trace_buckets(comm, model, batch, bucket_bytes=2**16)

# %% tags=["nbval-ignore-output"]
from course.lessons.l06_data_parallel_by_hand.figures.buckets import bucket_overlap, explain_overlap

bucket_overlap(cluster["flights"][0], cores=cores)

# %% [markdown]
# On its way is not *moving*. MPI moves bytes only while the rank is inside an MPI call, and backward makes none.
# So every hook also looks at the buckets that are under way, which gives MPI a moment to work. What is left is
# the wait at the end. Is a whole step shorter now, on one rank for every core?

# %%
predict("Percent of a step saved by overlap?", None)

# %%
# %%px
from course.lessons.l06_data_parallel_by_hand.engines import ENGINES


def seconds_of_step(engine):
    """Seconds of a step of the CNN on one rank for every core; None on ranks that are left out."""
    if team == MPI.COMM_NULL:
        return None
    model = build("cnn", seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    step = make_step(model, summed_cross_entropy, optimizer, ENGINES[engine](team, model))
    return seconds_on(team, lambda: step(batch), repetitions=15)


after, during = seconds_of_step("one bucket"), seconds_of_step("overlapped buckets")

# %% tags=["nbval-ignore-output"]
after, during = cluster["after"][0], cluster["during"][0]
why = explain_overlap(after, during, min(cores, 4))
outcome("Percent of a step saved by overlap?", 100 * (1 - during / after), "%", because=why)

# %% [markdown]
# Overlap pays where sums are long and something else moves the bytes: a network card, or a GPU's own engines.
# Between ranks that share the memory of one machine, the sum takes little of the step, and copies need a core.

# %% tags=["exercise: 06.4"]

# %% [markdown]
# ### Fewer messages, fewer bytes
#
# How full should a bucket be? Small ones leave early, but each is a message; Horovod calls its limit the
# **fusion threshold**. Here every threshold sends the gradients of the CNN once:


# %%
# %%px
from course_lib.parallel.gradient_buckets import GradientBuckets


def messages_bytes_seconds(**settings):
    """Of the sum of all gradients on `team`."""
    if team == MPI.COMM_NULL:
        return None
    buckets = GradientBuckets(team, build("cnn", seed=0), overlap=False, **settings)
    seconds = seconds_on(team, buckets.wait, repetitions=15)
    return len(buckets.buckets), buckets.nbytes, seconds


found = [messages_bytes_seconds(bucket_bytes=limit) for limit in (1, 2**14, 2**20, 2**25)]

# %% tags=["nbval-ignore-output"]
for limit, (messages, nbytes, seconds) in zip((1, 2**14, 2**20, 2**25), cluster["found"][0], strict=True):
    print(f"threshold {limit:>8} B: {messages} messages, {nbytes} B, {1e3 * seconds:.2f} ms")

# %% [markdown]
# Fewer bytes: **compress**. With `wire_dtype=torch.float16` a bucket travels in 16 bits a number and is added in
# them. What does rounding cost?


# %%
# %%px
def summed_gradients(wire_dtype):
    """The gradients of one batch, summed over all ranks, and the bytes that a rank hands to MPI."""
    model = build("cnn", seed=0)
    buckets = GradientBuckets(comm, model, wire_dtype=wire_dtype)
    loss = summed_cross_entropy(model(batch.inputs), batch.targets) / batch.global_size
    loss.backward()
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
    print(f"{dtype}: off by {error:.4%} of the gradient's length")

# %% [markdown]
# All ranks round alike, so the replicas still agree, but not with one process any more. A float16 ends at 65 504,
# and a bfloat16 has 8 bits: in it, 256 + 1 is 256. On one machine, converting costs more than the bytes it saves.

# %% [markdown]
# ### A parameter server
#
# The older way: rank 0 keeps the weights and the optimizer. The **workers** send it gradients, and get new weights
# back. *Synchronous*, it waits for everybody and updates once; that is data parallelism again, except that one
# rank moves all the bytes. *Asynchronous*, it updates at every gradient. Then a slow rank delays nobody, but its
# gradients are **stale**: others have changed the weights meanwhile. Three workers have 40 batches each, first all
# alike, then with one that rests after each batch. Between reading the weights and changing them, how many updates do
# others make?


# %%
predict("Updates by others before a gradient arrives, on average?", None)


# %%
# %%px --timeout 100
import time

from course_lib.parallel.parameter_server import train_asynchronously


def with_a_server(slow):
    """Train the MLP; rank `slow` rests after each batch. What the server did, on rank 0; None elsewhere."""
    model = build("mlp", seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    mine = order[40 * rank : 40 * (rank + 1)] if rank > 0 else []

    def batches():
        for indices in mine:
            yield image_batch(data.train_images, data.train_labels, indices, len(indices))
            time.sleep(0.05 if rank == slow else 0)

    _, service = train_asynchronously(comm, model, summed_cross_entropy, optimizer, batches())
    return service


alike, straggling = with_a_server(slow=None), with_a_server(slow=3)

# %% tags=["nbval-ignore-output"]
from course.lessons.l06_data_parallel_by_hand.figures.buckets import staleness

alike, straggling = cluster["alike"][0], cluster["straggling"][0]
mean = sum(alike.staleness) / len(alike.staleness)
because = "If the three took turns, it would be 2: one update by each of the others."
outcome("Updates by others before a gradient arrives, on average?", mean, because=because)
staleness({"workers alike": alike.histogram(), "rank 3 rests": straggling.histogram()})

# %% [markdown]
# A stale gradient is the slope of a place that the weights have left: a little when all are alike, far when its
# rank is slow. And all of it goes through one rank:

# %%
weights = 4 * 235_146  # bytes of the MLP's weights
moved, updates = alike.received + alike.sent, len(alike.order)
print("rank 0 moved the weights", moved / weights, "times for", updates, "updates")

# %% [markdown]
# For *w* workers, a round of gradients costs the server 2 *w* times the weights; in a ring all-reduce no rank
# sends more than twice the weights. With the same batches, an asynchronous run never gives the same numbers
# twice: who comes first decides.

# %% [markdown]
# ### With a small letter
#
# `comm.allreduce`, in small letters, takes any object, tensors too: it packs them, sends them, and adds
# them up in Python. Compare with the times of one message and of eight:


# %%
# %%px
def sum_gradients_packed(comm, model):
    """The same sum, of packed objects."""
    for parameter in model.parameters():
        parameter.grad.copy_(comm.allreduce(parameter.grad))


packed = seconds_on(team, lambda: sum_gradients_packed(team, model), repetitions=10)

# %% tags=["nbval-ignore-output"]
print(f"8 packed messages {1e3 * cluster['packed'][0]:.1f} ms, 1 bucket {one:.2f} ms")

# %% [markdown]
# ## On GPUs
#
# The ten phases stay; `Allreduce` then takes the GPU's own memory, with NCCL or an MPI that was built for it.
# Computing gets ten to a hundred times faster and messages do not, so waiting and transfer matter far more.

# %% [markdown]
# ## Pitfalls
#
# - Dividing by the shard and averaging: wrong as soon as the shards differ.
# - Dividing by the global batch *and* by the number of ranks.
# - Forgetting one tensor in the sum: training goes on, and the replicas drift apart.
# - `zero_grad()` without `set_to_none=False`: the gradients leave their bucket. Ours notices.
# - Comparing runs with different global batches.
# - Updating before the sums that were started are waited for.
# - Resuming with the weights alone: `broadcast_optimizer` sends momentum and step counts, too.

# %% [markdown]
# ## References
#
# - M. Jakovac and E. Pichler, *MPI in Distributed Training*, 2025: the ten phases, the CNN and the figures called
#   published.
# - P. Goyal and others, [Accurate, large minibatch SGD](https://arxiv.org/abs/1706.02677), 2017: large global batches.
# - A. Sergeev and M. Del Balso, [Horovod](https://arxiv.org/abs/1802.05799), 2018: data parallelism over MPI,
#   with fusion of tensors and 16-bit compression.
# - S. Li and others, [PyTorch Distributed](https://arxiv.org/abs/2006.15704), 2020: buckets that overlap with backward.
# - J. Dean and others, *Large scale distributed deep networks*, 2012: the asynchronous parameter server.
# - mpi4py, [Tutorial](https://mpi4py.readthedocs.io/en/stable/tutorial.html): in-place reductions.

# %% [markdown]
# ## Stretch
#
# Compression forgets what it rounds away. Remember it: keep, on each rank, the difference between its gradient and
# what it sent, and add it to the gradient of the next step (*error feedback*). Train 60 steps with bfloat16, with and
# without, and compare the weights with those of the exact sums.

# %% [markdown]
# ## Teardown
#
# Phase 9. MPI is finalized when the ranks' processes end.

# %%
cluster.stop()
