# ---
# title: Pipeline parallelism
# goal: Cut a model into stages, one per rank, and keep all of them busy.
# able:
#   - carry a forward and a backward pass across ranks
#   - read and write the schedules GPipe and 1F1B
#   - predict and measure how long the ranks of a pipeline are idle
#   - say how many micro-batches a stage holds
# more:
#   - run a schedule on a real model
#   - cut a model into stages that take equally long
#   - find out how deep a model may be, and recompute activations
# before: >-
#   {01}, {05}
# minutes: {core: 20, more: 46}
# ranks: 4
# warm-up:
#   - ask: >-
#       You cut a batch into micro-batches and call `backward` for each. What must be true of each loss, so that
#       `.grad` ends with the gradient of the whole batch?
#     answer: It is a sum over samples, divided by the size of the whole batch. Then the gradients add up.
#   - ask: Two ranks call `Send` to each other at the same moment, with 1 MB each. What happens?
#     answer: >-
#       With most MPI libraries the program hangs: each rank waits in Send, and neither reaches its Recv.
#       <code>Isend</code>, which starts to send and returns at once, avoids this; section 3 uses it.
#   - ask: In data parallelism every rank holds the whole model. What do the ranks send each other in a step?
#     answer: Gradients, which are summed. Today no rank needs the whole model.
# ---

# %%
# %%px --setup
import torch
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
torch.set_num_threads(1)

# %% [markdown] tags=["slide"]
# ## 1 · One stage per rank
#
# Suppose a model does not fit into the memory of one rank. In **pipeline parallelism** each rank keeps some consecutive layers, a
# **pipeline stage**. We start with two stages, on ranks 0 and 1. The target is the product of the first two inputs.

# %%
# %%px
from torch import nn
from torch.nn.functional import mse_loss

torch.manual_seed(8)  # the same numbers on all ranks
first = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh())
second = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
inputs = torch.randn(64, 8)
target = inputs[:, :1] * inputs[:, 1:2]

# %% [markdown]
# In the forward pass, a rank receives the output of the previous stage, runs its own layers, and sends the result on.


# %%
# %%px
last, stage = 1, (first if rank == 0 else second)


def forward(x):
    """Take a batch through this rank's stage; return its input and its output."""
    if rank > 0:
        x = torch.empty(64, 32)
        comm.Recv(x.numpy(), source=rank - 1)
        x.requires_grad_()
    y = stage(x)
    if rank < last:
        comm.Send(y.detach().numpy(), dest=rank + 1)
    return x, y


# %% [markdown]
# Look at `requires_grad_()`. For autograd, a received tensor has no history. Why ask for its gradient?
#
# Because the previous stage waits for it: the only path from the loss to its weights leads through `x`. So in the backward pass a rank
# receives the gradient of its *output*, autograd computes the gradient of its *input*, and the rank sends that one back.


# %%
# %%px
def backward(x, y):
    """Add the gradients of this stage's weights to .grad, and send the input's gradient back."""
    if rank == last:
        mse_loss(y, target).backward()  # the last stage knows the loss
    else:
        gradient = torch.empty_like(y)
        comm.Recv(gradient.numpy(), source=rank + 1)
        y.backward(gradient)
    if rank > 0:
        comm.Send(x.grad.numpy(), dest=rank - 1)


# %% [markdown]
# How far are these gradients from those of one process that runs all layers?

# %%
predict("Largest difference from one process's gradients?", None)

# %%
# %%px
import copy

from course.lessons.l08_pipeline_parallelism.runs import largest_difference

whole = copy.deepcopy(nn.Sequential(first, second))
mse_loss(whole(inputs), target).backward()  # one process
if rank <= last:
    backward(*forward(inputs))  # two stages
difference = largest_difference(stage, whole[rank]) if rank <= last else 0.0

# %% tags=["nbval-ignore-output"]
from course.lessons.l08_pipeline_parallelism.figures import explain_difference

largest = max(cluster["difference"])
outcome("Largest difference from one process's gradients?", largest, because=explain_difference(largest))

# %% [markdown]
# A model cut *between* layers computes the same numbers. It costs messages: 64 × 32 numbers forward per step, and as many gradients
# backward. It also costs time: while rank 1 computes, what does rank 0 do?

# %% [markdown] tags=["notes"]
# Five minutes. Ask before the second function: "Rank 0 has no loss. From what does it start its backward pass?" Let somebody remove
# `requires_grad_()`: `x.grad` is None on rank 1, the cell fails there, and rank 0 waits for a gradient.

# %% [markdown] tags=["slide"]
# ## 2 · Micro-batches
#
# Nothing: it waits for the gradient. With four stages, one rank computes and three are idle at any moment. So we cut the batch into
# micro-batches, whose gradients add up (lesson 05). Once rank 0 has sent the first one on, it can start the second. A **schedule** lists
# what each rank does, in order: `F0` is the forward pass of micro-batch 0, `B0` its backward pass. **GPipe** takes all micro-batches
# forward, then all backward, the last one first.
#
# `simulate` plays a schedule: each action starts as soon as its rank is free and its input is there. Messages take no time, and a backward
# takes as long as two forwards. In the upper panel, the stages take one micro-batch at a time.

# %% tags=["nbval-ignore-output"]
from course.lessons.shared.figures.schedules import schedule_grids
from course_lib.theory.schedules import gpipe, naive, simulate

four = {"one at a time": naive(4, 4), "GPipe": gpipe(4, 4)}
schedule_grids({name: simulate(schedule, 1, 2) for name, schedule in four.items()})

# %% [markdown]
# The white part until the last box ends is the **bubble**: time in which a rank is idle. Take p stages and m micro-batches, and look at
# rank 0 in the lower panel. It works for m forwards and m backwards. In between it waits as long as p − 1 forwards and p − 1 backwards
# take: its last micro-batch passes the other stages and comes back. Every other rank waits as long, split between start, middle and end.
# So, with equal stages and free messages, the idle share is
#
# **(p − 1) / (m + p − 1)**
#
# For p = m = 4 that is 3/7; with more micro-batches it is less. But when rank 0 begins its first backward, it holds the activations of all
# m micro-batches: the outputs of its layers, which the backward pass needs.

# %% [markdown] tags=["notes"]
# Five minutes. Derive the formula at the board: colour the triangle at the left and the triangle at the right, push them together, count
# p − 1 columns. Who believes that four stages make *one* batch faster? More measures it.

# %% [markdown] tags=["slide"]
# ## 3 · One forward, one backward
#
# **1F1B** lets every rank go backward as early as it can. First come the warm-up forwards, one for each later stage. Then the rank
# alternates: *one forward, one backward*. The remaining backwards come last. On rank 0 of three, the warm-up is F0 F1; then come F2 B0 F3
# B1 …

# %% tags=["exercise: 08.1"]

# %%
continue_with("08.1")

# %% [markdown]
# Now three ranks run GPipe and 1F1B with eight micro-batches; `noted` records what your `rank_1` calls. The messages are real, sent with
# `Isend`: in 1F1B, two neighbours send to each other at the same moment. The stages *sleep* for as long as they would compute, 0.02 s
# forward and 0.04 s backward, so two cores are enough. We call such times **emulated**, and keep the shortest of three runs.

# %%
predict("Percent idle with GPipe?", None)
predict("Percent of time that 1F1B saves, compared with GPipe?", None)

# %%
# %%px
from course.lessons.l08_pipeline_parallelism.runs import noted, shortest
from course_lib.theory.schedules import gpipe, one_f_one_b

three = comm.Split(0 if rank < 3 else MPI.UNDEFINED, rank)
schedule = one_f_one_b(3, 8)
schedule[1] = noted(rank_1, stage=1, microbatches=8)  # yours, if 08.1 is right
both = shortest(three, {"GPipe": gpipe(3, 8), "1F1B": schedule}, 0.02, 0.04) if rank < 3 else {}

# %% tags=["nbval-ignore-output"]
from course.lessons.l08_pipeline_parallelism.figures import explain_idle, explain_saved
from course.lessons.shared.figures.schedules import boxes, idle
from course_lib.comm.spans import duration

both = cluster["both"][0]
share, saved = idle(boxes(both["GPipe"])), 100 * (1 - duration(both["1F1B"]) / duration(both["GPipe"]))
outcome("Percent idle with GPipe?", 100 * share, "%", explain_idle(share, stages=3, microbatches=8))
outcome("Percent of time that 1F1B saves, compared with GPipe?", saved, "%", because=explain_saved(saved))
schedule_grids(both, unit="measured seconds, compute emulated by sleeping")

# %% [markdown]
# So what is 1F1B good for? Count the micro-batches that a rank has taken forward but not yet backward.

# %% tags=["nbval-ignore-output"]
from course.lessons.shared.figures.schedules import live_activations

live_activations(both)

# %% [markdown]
# With equal stages and free messages, 1F1B has the same bubble as GPipe. **It saves memory**: counting stages from 0, stage s of p holds at
# most p − s micro-batches; with GPipe it holds all m. So with 1F1B you can take a larger batch, with more micro-batches of the same size:
# the bubble's share shrinks, and the activations need no more memory.

# %% tags=["exercise: 08.q2"]

# %% [markdown] tags=["notes"]
# Eight minutes with exercise and question. Whoever is done early changes each 8 to 16 in the last cells of the ranks, and
# says first what will change in the last figure.

# %% [markdown] tags=["slide"]
# ## Key points
#
# - Activations travel forward from stage to stage; their gradients travel back.
# - More stages let you train a larger model; micro-batches keep the stages busy.
# - With equal stages and free messages, GPipe and 1F1B are idle for (p − 1) / (m + p − 1) of the time.
# - Counting stages from 0, stage s of p holds min(p − s, m) micro-batches with 1F1B, and all m with GPipe.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# Your pipeline has 8 stages and 8 micro-batches. What do you change first? Vote, discuss, vote again: (a) 1F1B instead of GPipe,
# (b) 32 micro-batches instead of 8, (c) links with twice the bandwidth.
#
# <details><summary>What to listen for</summary>(b): the idle share falls from 7/15 to 7/39; (a) leaves it as it is. But if the batch
# grows fourfold, GPipe needs four times the memory, and (a) may become necessary. (c) helps little: ranks wait mostly for other ranks'
# computing.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# ### One batch at a time
#
# Section 2 said that without micro-batches one rank computes and three are idle. What speed-up do the four ranks have then? Let us measure
# it. A batch takes 0.16 s forward through one of four stages, and 0.32 s backward. One rank with all four stages needs
# 4 · (0.16 + 0.32) s = 1.92 s. (Emulated, as in section 3.)

# %%
predict("Speed-up of one batch through four stages on four ranks?", None)

# %%
# %%px
from course.lessons.l08_pipeline_parallelism.runs import emulate
from course_lib.theory.schedules import naive

# naive(4, 1): 4 stages, 1 micro-batch
_, spans = emulate(comm, naive(4, 1), forward_seconds=0.16, backward_seconds=0.32)

# %% tags=["nbval-ignore-output"]
from course.lessons.l08_pipeline_parallelism.figures import explain_one_batch
from course.lessons.shared.figures.schedules import predicted_and_measured
from mpi_classroom.launch import available_cores

cores, speedup = available_cores(), 1.92 / duration(cluster["spans"][0])
outcome(
    "Speed-up of one batch through four stages on four ranks?", speedup, because=explain_one_batch(speedup)
)
predicted_and_measured(simulate(naive(4, 1), 0.16, 0.32), cluster["spans"][0], cores=cores, emulated=True)

# %% tags=["exercise: 08.q1"]

# %% [markdown] tags=["slide"]
# ### A real model on real cores
#
# The schedule of rank 1 of three is one case. Write that of any rank:

# %% tags=["exercise: 08.2"]

# %% [markdown]
# And here is what executes such a list. A rank goes through its list and calls `stage_forward` or `stage_backward`. They are `forward` and
# `backward` of section 1, for any number of stages and micro-batches; `held` is what the last figure of the core counted.

# %% tags=["source: course_lib.parallel.pipeline:run_actions"]
# %%px

# %% [markdown]
# One more thing is different from section 1: `neighbours` sends with `Isend`. In 1F1B, one rank sends an activation to the next rank while
# that one sends a gradient back. With `Send` and long messages, both may wait forever (lesson 01).
#
# Now the check: a small language model of four blocks, cut into one to four stages, in float64. It trains for three steps, beside a
# copy that is not cut. Losses and weights have to agree.

# %%
# %%px
from course_lib.parallel.pipeline import make_pipeline_step, run_schedule, split_layers
from course_lib.training.loop import Batch, make_step
from course_lib.training.transformer import build_transformer


def token_loss(logits, targets):
    """The cross entropy of all tokens, added up."""
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")


torch.manual_seed(0)
tokens = torch.randint(64, (7, 17))  # seven sequences, which 3 micro-batches cannot divide evenly
text = Batch(tokens[:, :-1], tokens[:, 1:], 7 * 16)
uncut = build_transformer(vocabulary=64, length=16, width=32, layers=4, seed=0).stack().double()

# %% [markdown]
# `make_pipeline_step` runs a schedule and then the optimizer. Only the last stage computes the loss, so each rank's step returns the sum
# over all ranks.


# %%
# %%px
def compare(team, microbatches):
    """The largest difference of losses and weights after three steps, over all ranks of `team`."""
    cut, one = copy.deepcopy(uncut), copy.deepcopy(uncut)
    mine, same = (split_layers(each, team.size)[team.rank] for each in (cut, one))
    sgd = torch.optim.SGD(mine.parameters(), lr=0.1, momentum=0.9)
    schedule = one_f_one_b(team.size, microbatches)
    step = make_pipeline_step(team, schedule, {(0, team.rank): mine}, token_loss, sgd)
    expected = make_step(one, token_loss, torch.optim.SGD(one.parameters(), lr=0.1, momentum=0.9))
    losses = max(abs(step(text) - expected(text)) for _ in range(3))
    pairs = zip(mine.parameters(), same.parameters(), strict=True)
    weights = ((a - b).abs().max().item() for a, b in pairs)
    return team.allreduce(max(losses, *weights), op=MPI.MAX)


differences = {}
for n in (1, 2, 3, 4):
    team = comm.Split(0 if rank < n else MPI.UNDEFINED, rank)
    if rank < n:
        differences[n] = max(compare(team, m) for m in (1, 3, 7))

# %%
for n, difference in cluster["differences"][0].items():
    stages = f"{n} stage{'s' * (n > 1)}"
    print(f"{stages:8} with 1, 3 and 7 micro-batches: as one process, to 1e-10: {difference < 1e-10}")

# %% [markdown]
# We ask for 1e-10, not for equal bits: several micro-batches add up the same gradients in a different order. Two kinds of layers need care.
# **Dropout** draws random numbers, and every rank has its own. `with_repeatable_dropout` derives them from the layer's name and from how
# often the layer ran, so any number of stages draws the same numbers. **Batch-norm** takes the mean over what it sees, a micro-batch: a
# pipeline equals one process that accumulates the same micro-batches, and neither equals a single pass over the batch.
#
# Now a loop that adds up the gradients of micro-batches, without a pipeline. It has a bug:

# %% tags=["exercise: 08.3"]

# %% [markdown]
# How fast is it, with one rank per core and real computing? We time the optimised twin of our pipeline, `course_lib.fast.pipeline`. A
# recorder notes how long each action of a step computes. We give `simulate` these times, and it adds the waiting. Does it find the length
# of that step?

# %%
# %%px
from course_lib.comm.spans import duration
from course_lib.comm.timing import one_rank_per_core
from course_lib.comm.trace import Recorder
from course_lib.fast import pipeline as fast
from course_lib.parallel.pipeline import split_batch

team = one_rank_per_core(comm)
torch.manual_seed(1)
tokens = torch.randint(256, (8, 129))
wide_text = Batch(tokens[:, :-1], tokens[:, 1:], 8 * 128)


def timed(schedule, stage):
    """All ranks' spans of the shortest of four steps, on rank 0."""
    recorder, steps = Recorder(team), []
    for _ in range(4):
        stage.zero_grad()
        parts = split_batch(wide_text, 8)
        fast.run_schedule(team, schedule, {(0, team.rank): stage}, token_loss, parts, recorder)
        steps.append(recorder.gather())
    return min(steps, key=duration) if team.rank == 0 else None


# %%
# %%px --timeout 120
measured = {}
if team != MPI.COMM_NULL:
    wide = build_transformer(vocabulary=256, length=128, width=256, layers=4, seed=0).stack()
    stage = split_layers(wide, team.size)[team.rank]
    measured["GPipe"] = timed(gpipe(team.size, 8), stage)
    measured["1F1B"] = timed(one_f_one_b(team.size, 8), stage)

# %% tags=["nbval-ignore-output"]
from course.lessons.shared.figures.schedules import measured_seconds, measured_weights
from course_lib.theory.schedules import one_f_one_b

spans = cluster["measured"][0]["1F1B"]
stages = 1 + max(span.rank for span in spans)
seconds = measured_seconds(one_f_one_b(stages, 8), spans)
weights = measured_weights(one_f_one_b(stages, 8), spans)  # nobody waits for these seconds of a backward
predicted = simulate(one_f_one_b(stages, 8), seconds, seconds, deferred=weights)
predicted_and_measured(predicted, spans, cores=cores)

# %% [markdown]
# If the two lengths differ, something took time that the simulation does not know: messages, or ranks that share a core.
#
# With two stages or more, look closely: a backward of rank 0 may begin *before* that of rank 1 has ended. The fast pipeline first computes
# and sends the gradient of its input, for which a rank waits, and defers the gradients of its weights. Zero-bubble schedules
# (Qi et al., 2024) develop this idea.
#
# Back to GPipe and 1F1B: on real cores, is their idle share that of the formula?

# %% tags=["nbval-ignore-output"]
from course.lessons.l08_pipeline_parallelism.figures import compare_orders

print(compare_orders(cluster["measured"][0], 8, cores=cores))

# %% [markdown]
# `torch.distributed.pipelining` has the same schedules. Its messages go through a backend of `torch.distributed`, here the one that
# this course has written for MPI. We give PyTorch's 1F1B the same stage and micro-batches, and compare its gradients with ours.

# %%
# %%px --timeout 120
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

import torch_mpi4py

agree = None
if team != MPI.COMM_NULL:
    torch_mpi4py.init_process_group(team)
    ours = [p.grad.clone() for p in stage.parameters()]  # of the last run above
    stage.zero_grad()
    theirs = PipelineStage(stage, team.rank, team.size, torch.device("cpu"))
    schedule = Schedule1F1B(theirs, 8, loss_fn=lambda *given: token_loss(*given) / 1024, scale_grads=False)
    args = (wide_text.inputs,) if rank == 0 else ()
    schedule.step(*args, **({"target": wide_text.targets} if rank == team.size - 1 else {}))
    pairs = zip(ours, stage.parameters(), strict=True)
    agree = team.allreduce(all(torch.allclose(a, p.grad, atol=1e-5) for a, p in pairs), op=MPI.LAND)
    dist.destroy_process_group()

# %%
print("PyTorch's gradients agree with ours:", cluster["agree"][0])

# %% [markdown]
# Which is faster? On the reference machine (lesson 02) we timed our fast pipeline, PyTorch's, and one process with one and with two
# threads, in turn. A ratio above 1 means that ours was faster.

# %% tags=["nbval-ignore-output"]
from course.lessons.l08_pipeline_parallelism.reference import table

print(table())

# %% [markdown]
# On one machine, threads are a good rival: they share the memory, so nothing has to be sent and nothing has to be cut. But all threads of a
# process are on one machine; stages can be on several. A part of our own speed has nothing to do with messages: with small micro-batches,
# adding a weight's gradient to the sum so far costs a second pass over the whole weight, and `course_lib.fast.pipeline` lets the matrix
# product itself add.

# %% [markdown] tags=["slide"]
# ### Two chunks per rank
#
# Cut the model into eight stages instead of four, and give rank r the stages r and r + 4: two *chunks* of the model per rank. This is
# called **interleaving**. A micro-batch passes the ranks twice, in steps half as long, so the first one reaches the last rank sooner. Take
# v chunks per rank, and let the number m of micro-batches be a multiple of p. With equal stages and free messages, the idle share becomes
# (p − 1) / (v · m + p − 1). The price is messages: four stages have three boundaries, eight have seven.

# %% tags=["nbval-ignore-output"]
from course_lib.theory.schedules import interleaved_one_f_one_b

schedule_grids(
    {
        "1F1B": simulate(one_f_one_b(4, 4), 1, 2),
        "interleaved 1F1B": simulate(interleaved_one_f_one_b(4, 4, chunks=2), 0.5, 1),
    },
    unit="time (1 = a forward through one of four stages)",
)

# %% [markdown]
# `emulate` runs this schedule, too, because a schedule is only a list. We take four micro-batches. A forward takes 0.04 s through one of
# four stages, so 0.02 s through one of eight. The idle share should be that of eight micro-batches without chunks, because v · m is 8 in
# both.

# %%
# %%px
from course_lib.theory.schedules import interleaved_one_f_one_b

chunked = interleaved_one_f_one_b(4, 4, chunks=2)
_, spans = emulate(comm, chunked, forward_seconds=0.02, backward_seconds=0.04)

# %% tags=["nbval-ignore-output"]
predicted_and_measured(
    simulate(cluster["chunked"][0], 0.02, 0.04), cluster["spans"][0], cores=cores, emulated=True
)

# %% [markdown] tags=["slide"]
# ### Stages that take equally long
#
# So far all stages took equally long. In a real model they do not:

# %% tags=["exercise: 08.q3"]

# %% [markdown]
# Stages with equally many weights need not take equally long: convolutions have few weights and much to compute. `layer_flops` counts the
# floating-point operations of each layer, and `split_layers` makes the most expensive stage as cheap as possible.

# %%
# %%px --targets 0
from course_lib.parallel.pipeline import layer_flops

layers = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1),
    *(layer for _ in range(4) for layer in (nn.Conv2d(16, 16, 3, padding=1), nn.ReLU())),
    *(nn.MaxPool2d(4), nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10)),
)
flops = layer_flops(layers, torch.ones(8, 1, 28, 28))
for name, costs in {"weights": None, "operations": flops}.items():
    front, back = split_layers(layers, 2, costs)
    share = sum(flops[: len(front)]) / sum(flops)
    print(
        f"by {name:10}: {len(front)} and {len(back)} layers, "
        f"{share:.0%} and {1 - share:.0%} of the operations"
    )

# %% [markdown] tags=["slide"]
# ### How much memory a stage needs
#
# For each micro-batch that it holds, a stage keeps every tensor that its backward will need. **Recomputation** keeps only the input of the
# stage, and runs the forward pass a second time when the gradient arrives. A backward takes about as long as two forwards, so this is a
# third more computing. The random-number state is kept too, so dropout drops the same numbers again. The second forward works on copies of
# batch-norm's running means, so the real ones are updated only once:

# %% tags=["source: course_lib.parallel.pipeline:_Recomputed"]
# %%px

# %% [markdown]
# `Recomputed` is a module that wraps a stage's layers and calls this function. `SavedBytes` counts what autograd keeps at most, in a step
# of four stages. (This needs no clock, so four ranks may share cores.)

# %%
# %%px
from course_lib.parallel.pipeline import Recomputed
from course_lib.training.kept import SavedBytes

narrow = build_transformer(vocabulary=64, length=64, width=32, layers=4, seed=0).stack()
tokens = torch.randint(64, (8, 65))
sequences = split_batch(Batch(tokens[:, :-1], tokens[:, 1:], 8 * 64), 8)
kept = {}
for name, schedule, wrap in (
    ("GPipe", gpipe(size, 8), nn.Sequential),
    ("1F1B", one_f_one_b(size, 8), nn.Sequential),
    ("1F1B, recomputed", one_f_one_b(size, 8), Recomputed),
):
    stage = wrap(split_layers(copy.deepcopy(narrow), size)[rank])
    with SavedBytes(stage) as counter:
        run_schedule(comm, schedule, {(0, rank): stage}, token_loss, sequences)
    kept[name] = counter.peak

# %% tags=["nbval-ignore-output"]
print(f"{'kB kept at most':17}", *(f"rank {r:<4}" for r in range(4)))
for name in ("GPipe", "1F1B", "1F1B, recomputed"):
    print(f"{name:17}", *(f"{kept[name] / 1000:6.0f}   " for kept in cluster["kept"]))

# %% [markdown]
# Within a column, GPipe keeps most: all eight micro-batches. Along the row of 1F1B, later ranks keep less, because they hold fewer
# micro-batches. With recomputation a rank keeps the inputs of its micro-batches, and everything else for only one micro-batch at a time.
# (The last rank also computes the loss, whose tensors are not recomputed.)
#
# And the weights? With its gradients and Adam's state, each layer takes 16 MiB for its weights and a little for its biases. So 12 layers do
# not quite fit into 192 MiB. We train models of such layers in processes that may use that much each. They are started for this and have a
# memory limit; the ranks of this notebook have none. (Linux only.) `boundary` looks for the deepest model that trains, and tries one layer
# more.

# %% tags=["nbval-ignore-output"]
from course.lessons.l08_pipeline_parallelism.boundary import boundary

tried = []
try:
    tried = boundary((1, 2), limit_mib=192)
except OSError as error:
    print(error)
for fit in tried:
    print(f"{fit.layers:2} layers on {fit.ranks} rank{'s' * (fit.ranks > 1)}: {fit.story}")

# %%
predict("Times as many layers on 4 ranks as on 1?", None)

# %% tags=["nbval-ignore-output"]
from course.lessons.l08_pipeline_parallelism.figures import depth_boundary

if tried:
    tried += boundary((4,), limit_mib=192)
    deepest = {fit.ranks: fit.layers for fit in tried if fit.trained}
    outcome("Times as many layers on 4 ranks as on 1?", deepest[4] / deepest[1])
    display(depth_boundary(tried))

# %% [markdown]
# Each rank holds its own layers and nothing of the others, so the boundary rises with the number of ranks. Recomputation would not help
# here: the weights and their state fill the memory, not the activations. (Some papers call a model *out-of-core* when it does not fit
# into one device. Elsewhere the word means that data are read from slower storage as they are needed.)

# %% [markdown]
# ## On GPUs
#
# The schedules are the same. A stage is a GPU or a whole machine, and because only activations and their gradients cross the boundary
# between stages, pipelines go *between* machines, where the network is slow. Large runs interleave, recompute where memory is short, and
# use more micro-batches than stages as far as the batch allows.
#
# Pipelines are often combined with data parallelism. A global batch of 1024 goes to 4 replicas, 256 samples each; each replica is a
# pipeline, which cuts its 256 samples into 32 micro-batches of 8. (PyTorch's first pipeline called the number of micro-batches `chunks`.
# In this lesson, as in the papers on interleaving, chunks are stages of one rank.)

# %% [markdown]
# ## Pitfalls
#
# - Adding up the *means* of micro-batches: the gradient grows with their number.
# - Blocking sends between neighbours in 1F1B: short messages pass, long ones deadlock.
# - A weight that two stages share, such as an embedding used twice: each stage would train its own. `split_layers` refuses.
# - Batch-norm over very small micro-batches: their means are noisy.
# - Timing four stages on two cores: ranks share a core, and the bubble that you measure is not the pipeline's.

# %% [markdown]
# ## References
#
# - Y. Huang and others, [GPipe](https://arxiv.org/abs/1811.06965), 2019: micro-batches, and recomputation with them.
# - D. Narayanan and others, [PipeDream](https://doi.org/10.1145/3341301.3359646), 2019: one forward, one backward.
# - D. Narayanan and others, [Efficient large-scale language model training on GPU clusters using
#   Megatron-LM](https://arxiv.org/abs/2104.04473), 2021: 1F1B with one update per batch, which is ours, and interleaving.
# - T. Chen and others, [Training deep nets with sublinear memory cost](https://arxiv.org/abs/1604.06174), 2016: recomputation.
# - PyTorch, [Pipeline parallelism](https://docs.pytorch.org/docs/stable/distributed.pipelining.html).

# %% [markdown]
# ## Stretch
#
# In a backward, the gradient of the input is urgent: the previous stage waits for it. The gradient of the weights is not. Split
# `B` into the two, and put the second where the bubble was. (Qi and others, [Zero bubble pipeline
# parallelism](https://arxiv.org/abs/2401.10241), 2024.)
