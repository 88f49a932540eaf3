# %% [markdown]
# # 08 · Pipeline parallelism
#
# *Cut a model into stages, one on each rank, and keep all of them busy.*
#
# | | |
# |---|---|
# | **You will be able to** | cut a model into stages that take equally long; read and write the schedules GPipe and 1F1B; predict the bubble, and measure it; say how many micro-batches a stage holds, and what to do when that is too many |
# | **Before this** | [01 · MPI basics](01_mpi_basics.ipynb), [05 · Training in one process](05_training_one_process.ipynb) |
# | **Time** | core 20 min · more 50 min |
# | **Ranks** | 4 |
#
# [← 07 · DDP on MNIST](07_ddp_on_mnist.ipynb) · [Course map](00_start_here.ipynb#6-·-The-course) · [09 · Tensor parallelism →](09_tensor_parallelism.ipynb)

# %% [markdown]
# ## Warm-up
#
# Answer from memory, then open the answer.
#
# 1. You cut a batch into micro-batches, and call `backward` for each. What has to be true of the loss, so that `.grad`
#    ends with the gradient of the batch?
#    <details><summary>Answer</summary>It is a sum over samples, divided once by the size of the whole batch. Then the gradients add up.</details>
# 2. Two ranks call `Send` to each other at the same moment, with 1 MB each. What happens?
#    <details><summary>Answer</summary>Both wait for a receiver that never comes. <code>Isend</code> begins to send, and returns.</details>
# 3. Every rank has the whole model, and a part of every batch. What do the ranks send each other?
#    <details><summary>Answer</summary>Gradients, which are summed. That was data parallelism; today nobody has the whole model.</details>

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
torch.set_num_threads(1)

# %% [markdown]
# ## 1 · A model in stages
#
# Suppose a model does not fit into one rank's memory. Then give every rank some of its layers. These are **pipeline stages**:
# going forward, a rank receives activations from the rank before it, computes, and sends the result on. Going
# backward, gradients come the other way.
#
# To time four ranks we need four cores, and your laptop may have two. So our stages *sleep* for as long as they would
# compute, which needs no core, and send real messages: **emulated**.
#
# One rank with all four stages would need 4 · (160 + 320) ms for a batch, 1.92 s. Now the batch goes through four ranks.

# %%
predict("Times faster, one batch in four stages on four ranks?", None)

# %%
# %%px
from course.lessons.l08_pipeline_parallelism.runs import emulate
from course_lib.theory.schedules import naive

step, spans = emulate(comm, naive(4, 1), forward_seconds=0.16, backward_seconds=0.32)

# %% tags=["nbval-ignore-output"]
from course.lessons.shared.figures.schedules import predicted_and_measured
from course_lib.comm.spans import duration
from course_lib.theory.schedules import naive, simulate
from mpi_classroom.launch import available_cores

cores, alone = available_cores(), 1.92
faster = alone / duration(cluster["spans"][0])
why = "Each stage waits for the one before it." if faster > 0.5 else "And this machine is busy elsewhere."
outcome("Times faster, one batch in four stages on four ranks?", faster, because=why)
predicted_and_measured(simulate(naive(4, 1), 0.16, 0.32), cluster["spans"][0], cores=cores, emulated=True)

# %% [markdown]
# Stages give you room for a larger model. They do not make one batch faster: at any moment, three of four ranks are idle.

# %% [markdown]
# ## 2 · Micro-batches fill the pipeline
#
# You know from lesson 05 that a batch can be cut into **micro-batches** whose gradients add up. So let rank 0 begin with the
# second micro-batch as soon as it has passed the first one on. A **schedule** is a list of what each rank does, in order:
# `F0` takes micro-batch 0 forward, `B0` takes it backward. **GPipe** goes forward with all, then backward with all:

# %% tags=["source: course_lib.theory.schedules:gpipe"]
# %%px --local

# %% [markdown]
# `simulate` plays a schedule: every action starts as soon as its rank is free and its input is there. Here a forward takes
# one unit of time, a backward two.

# %% tags=["nbval-ignore-output"]
from course.lessons.shared.figures.schedules import schedule_grids

four = {"one at a time": naive(4, 4), "GPipe": gpipe(4, 4)}
schedule_grids({name: simulate(schedule, 1, 2) for name, schedule in four.items()})

# %% [markdown]
# The white part is the **bubble**. With p stages and m micro-batches, a rank is busy for m forwards and backwards, and idle
# while p − 1 others begin or end. So the idle share is **(p − 1) / (m + p − 1)**: for four and four, 3/7 or 43 %. What will
# it be with *eight* micro-batches, half as long each?

# %%
predict("Percent of the ranks' time idle, eight micro-batches in four stages?", None)

# %%
# %%px
step, gpipe_spans = emulate(comm, gpipe(4, 8), 0.02, 0.04)

# %% tags=["nbval-ignore-output"]
from course.lessons.shared.figures.schedules import boxes, idle

share = 100 * idle(boxes(cluster["gpipe_spans"][0]))
why = "The formula says 3/11, 27 %; messages, and ranks that wake up late, come on top."
outcome("Percent of the ranks' time idle, eight micro-batches in four stages?", share, "%", because=why)
predicted_and_measured(
    simulate(gpipe(4, 8), 0.02, 0.04), cluster["gpipe_spans"][0], cores=cores, emulated=True
)

# %% [markdown]
# More micro-batches, smaller bubble. But look at rank 0: when its first backward begins, all eight micro-batches have gone
# forward, and it holds the activations of every one.

# %% [markdown]
# ## 3 · One forward, one backward
#
# **1F1B** goes backward as early as it can. Each rank first sends just enough micro-batches on their way, and then does one
# forward and one backward in turn. Same work, same ranks, another order. How much sooner is the step done?

# %%
predict("Percent of time that 1F1B saves, compared with GPipe?", None)

# %%
# %%px
from course_lib.theory.schedules import one_f_one_b

step, spans_1f1b = emulate(comm, one_f_one_b(4, 8), 0.02, 0.04)

# %% tags=["nbval-ignore-output"]
from course_lib.theory.schedules import one_f_one_b

both = {"GPipe": cluster["gpipe_spans"][0], "1F1B": cluster["spans_1f1b"][0]}
saved = 100 * (1 - duration(both["1F1B"]) / duration(both["GPipe"]))
same = "The bubble is the same: a rank waits before its first backward, or between the last ones."
why = same if abs(saved) < 10 else "It would be 0, but this machine was busy elsewhere in one of the runs."
outcome("Percent of time that 1F1B saves, compared with GPipe?", saved, "%", because=why)
predicted_and_measured(simulate(one_f_one_b(4, 8), 0.02, 0.04), both["1F1B"], cores=cores, emulated=True)

# %% [markdown]
# So what is it good for? Count the micro-batches that each rank holds, from the same two runs:

# %% tags=["nbval-ignore-output"]
from course.lessons.shared.figures.schedules import live_activations

live_activations(both)

# %% [markdown]
# 1F1B does not shrink the bubble. **It cuts memory**: rank s holds p − s micro-batches at most, however many there are. And
# what you save, you can spend on more micro-batches, which do shrink the bubble.

# %% tags=["exercise: 08.1"]

# %% tags=["exercise: 08.q1"]

# %% [markdown]
# ## Key points
#
# - Stages make room for a larger model. They do not make one batch faster; micro-batches keep the stages busy.
# - Idle share of GPipe and of 1F1B: (p − 1) / (m + p − 1). More micro-batches shrink it.
# - 1F1B cuts memory: rank s holds min(p − s, m) micro-batches, in place of m.
# - The slowest stage sets the pace: cut by work, not by number of layers.
# - Gradients of micro-batches add up to that of the batch, if the loss is divided by the batch once.

# %% [markdown]
# ## Discuss
#
# Your pipeline has 8 stages and 8 micro-batches, and you may change one thing. What do you do first? Vote, talk to your
# neighbour for two minutes, vote again: (a) GPipe to 1F1B, (b) 32 micro-batches, (c) a network twice as fast.
#
# <details><summary>What to listen for</summary>(b): the bubble goes from 7/15 to 7/39. (a) leaves it as it is; but without
# it, 32 micro-batches may not fit into memory, so the best answer is "(b), and (a) if I must". (c) helps little: the
# bubble is waiting, not transfer. Who asks whether a quarter of a micro-batch still fills the cores has thought furthest.</details>

# %% [markdown]
# **Stop here in a short workshop.** More is pipeline-parallel training of a real model, on real cores, in less memory.

# %% [markdown] tags=["more"]
# ## More
#
# ### Three questions
#
# Write your letter between the quotes, and run the cell.

# %% tags=["exercise: 08.q2"]

# %% tags=["exercise: 08.q3"]

# %% [markdown]
# ### Both schedules, and what runs them
#
# 1F1B is as short as GPipe. `warmup` is how many micro-batches a stage sends on their way first: one for each stage below it.

# %% tags=["source: course_lib.theory.schedules:one_f_one_b"]
# %%px --local

# %% [markdown]
# Each action takes one micro-batch through one stage. Going forward, a stage receives the output of the previous stage,
# computes, and sends the result to the next one. Look at `requires_grad_`: for autograd, what arrives in a message is a new
# tensor without a history. The previous stage will need its gradient, so we ask for it.

# %% tags=["source: course_lib.parallel.pipeline:stage_forward"]
# %%px

# %% [markdown]
# Going backward, a stage receives the gradient of its outputs. Autograd turns it into the gradient of its inputs, and adds the
# gradients of the weights to `.grad` on the way. The gradient of the inputs is what the previous stage waits for.

# %% tags=["source: course_lib.parallel.pipeline:stage_backward"]
# %%px

# %% [markdown]
# A rank executes the same list that was drawn, action by action:

# %% tags=["source: course_lib.parallel.pipeline:run_actions"]
# %%px

# %% [markdown]
# `neighbours` receives with `Recv` and sends with `Isend`. If a send waited until its message is received, two neighbours that
# send to each other at the same moment would wait forever. `run_schedule` checks that schedule, modules and micro-batches fit
# each other, that no action is missing and that the schedule can finish, and runs the actions of each rank.

# %% [markdown]
# ### The same numbers
#
# Now a real model: a Transformer of four blocks, cut into one to four stages, in 64-bit numbers. It trains for three steps,
# beside a copy that nobody has cut. Loss and weights have to be the same.

# %%
# %%px
import copy

from course_lib.parallel.pipeline import make_pipeline_step, run_schedule, split_layers
from course_lib.training.loop import Batch, make_step
from course_lib.training.transformer import build_transformer


def token_loss(logits, targets):
    """The cross entropy of all tokens, added up."""
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")


torch.manual_seed(0)
tokens = torch.randint(64, (7, 17))  # seven sequences: no number of micro-batches but 1 and 7 divides them
text = Batch(tokens[:, :-1], tokens[:, 1:], 7 * 16)
whole = build_transformer(vocabulary=64, length=16, width=32, layers=4, seed=0).stack().double()

# %% [markdown]
# `split_layers` cuts the layers of `whole` into stages so that the most expensive stage is as cheap as possible. Only the last
# stage computes the loss, so a rank's step returns the sum over all ranks.


# %%
# %%px
def compare(team, microbatches):
    """The largest difference of losses and weights after three steps, over all ranks of `team`."""
    model, uncut = copy.deepcopy(whole), copy.deepcopy(whole)
    mine, same = (split_layers(each, team.size)[team.rank] for each in (model, uncut))
    sgd = torch.optim.SGD(mine.parameters(), lr=0.1, momentum=0.9)
    schedule = one_f_one_b(team.size, microbatches)
    step = make_pipeline_step(team, schedule, {(0, team.rank): mine}, token_loss, sgd)
    expected = make_step(uncut, token_loss, torch.optim.SGD(uncut.parameters(), lr=0.1, momentum=0.9))
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
    print(f"{n} stages, 1, 3 and 7 micro-batches: the same as uncut, to 1e-10: {difference < 1e-10}")

# %% [markdown]
# Two kinds of layers ask for care. **Dropout** draws random numbers, and every rank has its own: `with_repeatable_dropout`
# makes those of a layer depend on its name and on how often it ran, so they are the same on any number of stages. **Batch-norm**
# takes the mean over what it sees, a micro-batch: so a pipeline equals one process that accumulates the same
# micro-batches, and neither equals a single pass over the batch.

# %% [markdown]
# ### On real cores
#
# Now one rank per core, and real computing: a Transformer that is wide enough to be worth it. We time the optimised twin of
# our pipeline, `course_lib.fast.pipeline`: it has the same `run_schedule`, and computes the same. Each action is timed, and
# `simulate` is given those times. Does it predict how long the whole step takes?

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

spans = cluster["measured"][0]["1F1B"]
stages = 1 + max(span.rank for span in spans)
seconds = measured_seconds(one_f_one_b(stages, 8), spans)
weights = measured_weights(one_f_one_b(stages, 8), spans)  # nobody waits for these seconds of a backward
predicted = simulate(one_f_one_b(stages, 8), seconds, seconds, deferred=weights)
predicted_and_measured(predicted, spans, cores=cores)

# %% [markdown]
# A model of the schedule, fed with the times of single actions, predicts the time of the step. When it does not, something that
# it does not know took time: messages, or ranks that share a core.
#
# Look closely: a backward of rank 0 may begin *before* that of rank 1 has ended. The fast pipeline defers the gradients of its
# weights: it first sends the gradient of its inputs, for which a rank waits. Zero-bubble schedules (Qi et al., 2024) take this
# idea to its end. And does one order take longer than the other?

# %% tags=["nbval-ignore-output"]
for name in ("GPipe", "1F1B"):
    drawn = boxes(cluster["measured"][0][name])
    took = 1e3 * max(box.end for box in drawn)
    print(f"{name:6} {took:6.0f} ms, {idle(drawn):.0%} idle (measured, {stages} ranks on {cores} cores)")

# %% [markdown]
# The bubble is the same, and so is the work. What differs is memory: where it is short or slow, GPipe is the longer one.
#
# ### PyTorch's own
#
# `torch.distributed.pipelining` has the same schedules, on any backend: here on the one that this course has written for
# MPI. We give it the same stage and micro-batches. Its gradients have to be ours.

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
print("the gradients agree:", cluster["agree"][0])

# %% [markdown]
# Which of the two is faster, and by how much, is a row of `python -m benchmarks.pipeline`; the reference machine's figures are
# at the end.

# %% [markdown]
# ### Interleaving: two small stages per rank
#
# Cut the model into eight stages, and give rank r the stages r and r + 4. A micro-batch now goes round twice, in steps half as
# long, so the first one arrives at the last rank sooner. The bubble becomes (p − 1) / (v · m + p − 1), with v stages per
# rank; the price is v times the messages.

# %% tags=["nbval-ignore-output"]
from course_lib.theory.schedules import interleaved_one_f_one_b

schedule_grids(
    {
        "1F1B": simulate(one_f_one_b(4, 8), 1, 2),
        "interleaved": simulate(interleaved_one_f_one_b(4, 8, chunks=2), 0.5, 1),
    }
)

# %% [markdown]
# `run_schedule` runs this one as well, for it is only another list. Emulated, with stages half as long:

# %%
# %%px
from course_lib.theory.schedules import interleaved_one_f_one_b

step, spans = emulate(comm, interleaved_one_f_one_b(4, 8, chunks=2), 0.01, 0.02)

# %% tags=["nbval-ignore-output"]
schedule = interleaved_one_f_one_b(4, 8, chunks=2)
predicted_and_measured(simulate(schedule, 0.01, 0.02), cluster["spans"][0], cores=cores, emulated=True)

# %% tags=["exercise: 08.2"]

# %% [markdown]
# ### Stages that take equally long
#
# A pipeline goes as fast as its slowest stage. As many layers for each is not as much work for each: convolutions have few
# weights and much to compute. `layer_flops` counts the floating-point operations of each layer, and `split_layers` balances
# what it is given.

# %%
# %%px --targets 0
from torch import nn

from course_lib.parallel.pipeline import layer_flops

layers = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1),
    *(layer for _ in range(4) for layer in (nn.Conv2d(16, 16, 3, padding=1), nn.ReLU())),
    *(nn.MaxPool2d(4), nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10)),
)
flops = layer_flops(layers, torch.ones(8, 1, 28, 28))
for name, costs in {"weights": None, "operations": flops}.items():
    first, second = split_layers(layers, 2, costs)
    share = sum(flops[: len(first)]) / sum(flops)
    print(f"by {name:10}: {len(first)} and {len(second)} layers, {share:.0%} and {1 - share:.0%} of the work")

# %% [markdown]
# ### When even 1F1B holds too much
#
# What a stage holds for a micro-batch is every tensor that its backward will need. **Recomputation** keeps only what came into
# the stage, and goes forward a second time when the gradient arrives: a third more computing, for a fraction of the
# memory. The random-number state and the running means are kept too, so that the second time is like the first:

# %% tags=["source: course_lib.parallel.pipeline:_Recomputed"]
# %%px

# %% tags=["source: course_lib.parallel.pipeline:Recomputed"]
# %%px

# %% [markdown]
# `SavedBytes` counts what autograd keeps, at most, in a step of four stages. (It needs no clock, so four ranks may share cores.)

# %%
# %%px
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
for name in ("GPipe", "1F1B", "1F1B, recomputed"):
    kilobytes = [f"rank {r} {kept[name] / 1000:6.0f} kB" for r, kept in enumerate(cluster["kept"])]
    print(f"{name:17} {', '.join(kilobytes)}")

# %% [markdown]
# GPipe keeps all eight micro-batches on every rank. 1F1B keeps fewer the further down a rank is; and recomputation keeps the
# stage's inputs, and the rest of one micro-batch at a time. Large models use it together with 1F1B.

# %% [markdown]
# ### A model that one rank cannot hold
#
# Why cut a model at all? We train one with 16 layers, of 16 MiB each with gradients and Adam's state, in processes that
# may use 192 MiB each. They are started for this and have a **memory limit**; the ranks of this notebook have none. (Linux
# only.)

# %%
from course.lessons.shared.memory_limit import fits

stories = []
try:
    for ranks in (1, 2):
        found = fits(ranks, limit_mib=192)
        stories.append(found.story)
        print(f"{ranks} rank{'s' * (ranks > 1)} of {found.limit_mib} MiB: trained = {found.trained}")
except OSError as error:
    print(error)

# %% [markdown]
# And what did the two runs say?

# %% tags=["nbval-ignore-output"]
print("\n".join(stories))

# %% [markdown]
# A model whose training does not fit into one device is called **out-of-core** there. Stages are one way out. Recomputation
# is another, if it is the activations that are too many; here it would not have helped: it is the weights.

# %% tags=["exercise: 08.3"]

# %% [markdown]
# ### The reference machine
#
# `python -m benchmarks.pipeline` runs our fast pipeline, the plain one and PyTorch's in turn, two stages on two cores. These are
# the figures of the **reference machine**.

# %% tags=["nbval-ignore-output"]
import json

from course.paths import ROOT

results = ROOT / "benchmarks" / "results" / "pipeline.json"
rows = json.loads(results.read_text()) if results.exists() else []
for row in rows:
    print(f"{row['case']:52} {row['ours']:8.1f} {row['unit']:3} {row['peer_name']:42} {row['peer']:8.1f}")
print(f"{len(rows)} rows in {results.name}" if rows else "not measured yet")

# %% [markdown]
# Part of our speed-up has nothing to do with messages. With small micro-batches, adding a weight's gradient to the others costs a second
# pass over the whole weight; `course_lib.fast.pipeline` lets the matrix product itself add.

# %% [markdown]
# ## On GPUs
#
# The schedules are the same. A stage is a GPU or a whole machine, and because only activations cross the border between
# stages, pipelines go *between* machines, where the network is slow. Large runs interleave, recompute, and use far more
# micro-batches than stages.

# %% [markdown]
# ## Pitfalls
#
# - Adding up means of micro-batches: the steps grow with their number.
# - Blocking sends between neighbours: fine with small activations, a deadlock with large ones.
# - A weight that two stages share, such as an embedding used twice: each stage would train its own. `split_layers` refuses.
# - Batch-norm over very small micro-batches.
# - Timing four stages on two cores: ranks share a core, and no bubble can be seen.

# %% [markdown]
# ## References
#
# - Y. Huang and others, [GPipe](https://arxiv.org/abs/1811.06965), 2019: micro-batches, and recomputation with them.
# - D. Narayanan and others, [PipeDream](https://doi.org/10.1145/3341301.3359646), 2019: one forward, one backward.
# - D. Narayanan and others, [Efficient large-scale language model training on GPU clusters using
#   Megatron-LM](https://arxiv.org/abs/2104.04473), 2021: 1F1B with a flush, which is ours, and interleaving.
# - T. Chen and others, [Training deep nets with sublinear memory cost](https://arxiv.org/abs/1604.06174), 2016: recomputation.
# - PyTorch, [Pipeline parallelism](https://docs.pytorch.org/docs/stable/distributed.pipelining.html).

# %% [markdown]
# ## Stretch
#
# In a backward, the gradient of the input is urgent: the stage above waits for it. The gradient of the weights is not. Split
# `B` into the two, and put the second where the bubble was. (Qi and others, [Zero bubble pipeline
# parallelism](https://arxiv.org/abs/2401.10241), 2023.)

# %% [markdown]
# ## Teardown

# %%
cluster.stop()
