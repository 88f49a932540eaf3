# ---
# title: When things fail
# goal: Let ranks fail in four ways, find the guilty one, and lose no more than the steps since the last save.
# able:
#   - say what the other ranks notice when a rank raises, hangs, is slow or dies
#   - find the guilty rank of a hang and the straggler of a training
#   - write a file that survives a kill at any moment
#   - resume a training on another number of ranks
# more:
#   - say what a checkpoint must hold
#   - choose how often 2,048 nodes should save
#   - let the survivors of a failure go on
#   - find an error that nobody reports
#   - call a function on another rank
# before: >-
#   {06}. Helpful: {11}
# minutes: {core: 20, more: 40}
# ranks: 4
# warm-up:
#   - ask: Rank 2 never calls `Allreduce`; ranks 0, 1 and 3 do. What happens?
#     answer: >-
#       The three wait in <code>Allreduce</code> for ever: it needs all ranks of the communicator.
#   - ask: >-
#       Four ranks train with a global batch of 128. You go on with two ranks. How many samples must each take per
#       step, so that it stays the same training?
#     answer: >-
#       64: the global batch stays 128.
#   - ask: Why do the replicas of data parallelism hold the same weights after every step, to the last bit?
#     answer: They start equal, and all take the same step, with the same mean gradient.
# ---

# %%
# %%px --setup
import os

from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size

# %% [markdown] tags=["slide"]
# ## 1 · Four ways to fail
#
# An all-reduce needs every rank, so one rank can stop or delay all others. A rank can fail in four ways. It **raises** an
# error. It **hangs**: it never returns from a call or a loop. It **is slow**, and is called a **straggler**. Or it **dies**:
# its process is killed, or its machine fails.
#
# A job that you start with `mpiexec` has no hang reports like this notebook. We start four such jobs of three ranks.
# In each, rank 1 fails in one of the four ways, and the others wait for it in an all-reduce. MPI's `Allreduce` has no
# timeout, so these jobs use `Iallreduce` and test for two seconds whether it is done: that is their **timeout**. (The slow rank
# is late by less than that.) If a job ends early, `mpiexec` prints which rank ended it: that is the last message. In how many of
# the four jobs does it name rank 1?

# %% [markdown] tags=["notes"]
# One minute for the vote: 0 to 4 fingers. Listen for "four, an error names its rank": that is so in a
# program with one process. Ask what the other two ranks see. They only wait.

# %%
predict("In how many of the four jobs does the last message name rank 1?", None)

# %% tags=["nbval-ignore-output"]
from course.lessons.l15_when_things_fail.jobs import run_failure

failures = {how: run_failure(how) for how in ("raises", "hangs", "is slow", "dies")}

# %% tags=["nbval-ignore-output"]
from course.lessons.l15_when_things_fail.words import explain_blame, failure_table

named = sum(failure.blamed == 1 for failure in failures.values())
why = explain_blame(failures)
outcome("In how many of the four jobs does the last message name rank 1?", named, "", why, "counted")
print(failure_table(failures))

# %% [markdown]
# `mpiexec` started the ranks. When it sees a rank die, it ends the others. It does not see a Python error. So we start Python
# with `-m mpi4py`: when nobody catches the error, the rank calls `MPI_Abort`, which ends the whole job. Without `-m mpi4py`, the
# rank prints its traceback and then waits in `MPI_Finalize` for the others, which wait for it in the all-reduce: a deadlock.
#
# A rank that hangs is alive, so nobody notices until the timeout of another rank. That timeout is an error, too: the *waiting*
# rank calls `MPI_Abort`.

# %% [markdown] tags=["slide"]
# ## 2 · The victim of a timeout
#
# Look at the hang. What happened when?

# %% tags=["nbval-ignore-output"]
from course.lessons.l15_when_things_fail.figures import failure_timeline

print(failures["hangs"].said)
failure_timeline(failures["hangs"])

# %% [markdown]
# Ranks 0 and 2 have the same timeout, so it is chance which of them a message names, and two messages may name different ranks.
# Both ranks are only **victims**: they came in time, and waited. The guilty rank reports nothing. So do not begin with the rank in
# the message. Ask *every* rank where it stands. While they waited, we sent each rank a signal, and it wrote down the function
# and the line it was in:

# %% tags=["nbval-ignore-output"]
from course.lessons.l15_when_things_fail.words import stack_table

print(stack_table(failures["hangs"]))

# %% [markdown]
# The guilty rank is the one that is *not* in the all-reduce. The hang reports of lesson 01 are made in this way. In a job of
# your own, [py-spy](https://github.com/benfred/py-spy) does it: on the rank's node, `py-spy dump --pid 1234` prints where
# process 1234 stands (you may need root; in a container, `SYS_PTRACE`). And PyTorch has a **flight recorder**: each rank logs
# the collectives that it has begun.
#
# How long should a timeout be? Longer than anything that one rank does alone, such as saving or reading the first batch.
# PyTorch's default is 10 minutes with NCCL and 30 with other backends. For that long, all GPUs of the job stand still.

# %% tags=["exercise: 15.q1"]

# %% [markdown] tags=["notes"]
# Six minutes up to here. Ask who has seen "NCCL timeout" in a log, and which rank they restarted. Exercise 15.2 in More finds the guilty
# rank from the logs of a flight recorder.

# %% [markdown] tags=["slide"]
# ## 3 · The straggler
#
# A straggler raises no error and exceeds no timeout. The training is right, but slow. Now our four ranks take six
# data-parallel steps of four parts: load the batch, forward, backward, all-reduce. One rank is late every time. (Instead of
# computing, they sleep; the all-reduces are real.) We record the steps as in lesson 06, and print how long each rank waited in
# all-reduces.

# %% tags=["nbval-ignore-output"]
# %%px --timeout 200
from course.lessons.l15_when_things_fail.runs import traced_steps

spans = traced_steps(comm, steps=6)

# %% tags=["nbval-ignore-output"]
from course_lib.comm.spans import totals

spans = cluster["spans"][0]
for number, seconds in totals(spans).items():
    print(f"rank {number} waited {1e3 * seconds['wait']:.0f} ms")

# %% [markdown]
# Decide from these numbers alone: which rank is late, and by about how much in each of the six steps?

# %% [markdown] tags=["notes"]
# Most choose the rank with the longest wait. Ask for whom it waited. Let somebody put the rule into words
# before the figure: the rank that all others wait for hardly waits itself. Three minutes.

# %%
predict("Which rank is the straggler?", None)

# %% tags=["nbval-ignore-output"]
from course.lessons.shared.figures.timeline import timeline
from course_lib.comm.straggler import find_straggler

straggler = find_straggler(spans)
outcome("Which rank is the straggler?", straggler.rank, because=straggler.sentence(steps=6), word="it is")
timeline(spans, parts=True)

# %% [markdown]
# The straggler waits least. Whoever looks for the longest wait finds a victim again. What makes a rank slow? Another program on
# its cores, a CPU that is too hot, a slow disk, a larger shard of the data. In which part of the step
# is the rank late? Here it is in 'load', so look at the disk and the shard first.

# %% [markdown] tags=["slide"]
# ## 4 · A file that survives a kill
#
# When a job ends, its memory is gone. The training can go on only from its last **checkpoint**, a file with its state. So this
# file must survive a kill at any moment. This is the obvious way:

# %% tags=["source: course_lib.training.saving:naive_save"]

# %% [markdown]
# We let it replace an old checkpoint four times, and kill it each time with SIGKILL, the signal of `kill -9`: before `open`,
# before the write, in the middle of the write, and at the end. Then we read the file. Does it hold all old bytes, all new ones,
# or neither? If neither, it is damaged: empty (*lost*) or cut short (*half*).

# %%
predict("Naive saver: how many of the four kills damage the file?", None)

# %%
import os

from course.lessons.l15_when_things_fail.kill_points import kill_at_every_step, table
from course.lessons.l15_when_things_fail.words import count_damaged

naive = kill_at_every_step(naive_save)
outcome("Naive saver: how many of the four kills damage the file?", count_damaged(naive), word="counted")
print(table(naive))

# %% [markdown]
# `open` with `"wb"` empties the old file before a single new byte is written. Until the last byte is written, there is neither
# the old checkpoint nor the new one. A training that saves for 10 s in every 100 s would lose both in about one of ten kills.
#
# An **atomic save** replaces the file in one instant. It writes the new bytes to another file, and then gives that file the
# name of the old one, with `os.replace`. So at every moment, the name leads to all old bytes or to all new ones.
#
# And if the power fails? When `write` has returned, the bytes may still be in memory only. `os.fsync` waits until they are on
# the disk. It has to come before the rename. Otherwise the name may reach the disk before the bytes do.

# %% tags=["exercise: 15.1"]

# %%
continue_with("15.1")

# %% [markdown]
# This saver is killed before each of its operations, too. We cannot cut the power, so we compute the worst case: whatever has
# not been fsynced is lost, and a name may reach the disk before its bytes.

# %% tags=["nbval-ignore-output"]
from course.lessons.l15_when_things_fail.figures import save_states

save_states({"naive save": naive, "atomic save": kill_at_every_step(save)})

# %% [markdown]
# With the atomic save, every box is old or new. After the rename, a power cut may still leave the old file, because the rename
# itself is not on the disk yet. The library's `atomic_save` also waits for the rename, with an `fsync` of the folder.

# %% [markdown] tags=["notes"]
# Eight minutes for this section. Those who are done early kill `renaming_save` of `course_lib.training.saving`, which has no
# fsync, and compare the column of the power cut in the figure.

# %% [markdown] tags=["slide"]
# ## 5 · Resume on two ranks
#
# The library's `save_training` saves a folder atomically. Every rank writes its own file into a hidden folder and calls
# `fsync`. When all ranks have done so, rank 0 renames the folder. Our training uses stage 3 of ZeRO (lesson 11): each rank keeps
# only a shard of the weights and of the optimizer state, so each has something of its own to save. With plain data
# parallelism, both are equal on all ranks, so rank 0 alone could save them. (Random-number states may differ.)
#
# Four ranks train for 14 steps and save after every fourth step. The first job runs undisturbed. In the second job, a rank is
# killed after ten steps. The third job resumes from the second job's last checkpoint, and trains until 14 steps are done. It has
# only *two* ranks, as if a machine with two ranks were lost. All three jobs divide the same global batches among their ranks.
# How many steps do the second and the third job compute in total?

# %% [markdown] tags=["notes"]
# Listen for "14, as without a kill". Ask after which step the last save was, and what happened to the
# steps after it. Three minutes.

# %%
predict("Steps computed by the killed and the resumed job in total?", None)

# %%
import tempfile
from pathlib import Path

from course.lessons.l11_zero_from_scratch.resume_jobs import run_job

with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
    undisturbed = run_job(4, Path(one), steps=14)
    killed = run_job(4, Path(other), steps=14, kill_after=10)
    resumed = run_job(2, Path(other), steps=14)

# %% tags=["nbval-ignore-output"]
from course.lessons.l15_when_things_fail.resume_picture import resumed_curves
from course.lessons.l15_when_things_fail.words import explain_resume

steps, why = len(killed) + len(resumed), explain_resume(killed, resumed)
outcome("Steps computed by the killed and the resumed job in total?", steps, because=why, word="counted")
losses = {"4 ranks, undisturbed": undisturbed, "4 ranks, killed": killed, "2 ranks, resumed": resumed}
resumed_curves(losses)

# %% [markdown]
# Did the restart change the training?

# %%
from course.lessons.l11_zero_from_scratch.resume_jobs import largest_difference

same = largest_difference(undisturbed, resumed) < 1e-9
print("the resumed losses are those of the undisturbed job, to 1e-9:", same)

# %% [markdown]
# Two ranks can resume because the checkpoint says which parts of which parameters each shard holds. The losses are equal because
# the global batches are. (Their last digits may differ: two ranks add gradients in a different order from four.)

# %% [markdown] tags=["slide"]
# ## Key points
#
# - `mpiexec` notices a rank that dies, `-m mpi4py` an error. A hang shows only after a timeout, a straggler only
#   in waiting times.
# - The rank that reports a timeout is its victim. Look for the rank that did not come.
# - The straggler waits least.
# - Write to another file, fsync, rename. Then neither a kill nor a power cut damages the last checkpoint.
# - If the checkpoint says which parts of which parameters each shard holds, any number of ranks can resume.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# Every second night your training on 64 ranks ends with a timeout, each time on a different rank. What do you do first? Vote,
# talk to your neighbour, vote again: (a) double the timeout, (b) let every rank log its collectives, (c) replace the node that
# timed out last.
#
# <details><summary>What to listen for</summary>(b): the logs show who did not come. The ranks that time out are victims, so (c)
# most likely replaces a good node. (a) helps only if something takes longer than the timeout and then ends, such as a save.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more", "slide"]
# ## More
#
# ### One question, two exercises

# %% tags=["exercise: 15.q2"]

# %% tags=["exercise: 15.2"]

# %% tags=["exercise: 15.3"]

# %% [markdown]
# How much does such a mistake change? We train for 20 steps and restart after ten, as the colleague does. How many of the ten
# losses after the restart are those of the training that was never interrupted?

# %%
predict("Weights alone: how many of the ten losses are right?", None)

# %% tags=["nbval-ignore-output"]
# %%px --timeout 200
from course.lessons.l15_when_things_fail.runs import resumed_losses

SAVED = {"weights": ["weights"], "and random numbers": ["weights", "random"]}
SAVED["and optimizer"] = ["weights", "random", "optimizer"]
never = losses = None
if rank == 0:  # one process, so one rank trains
    never = resumed_losses(None)
    losses = {name: resumed_losses(saved) for name, saved in SAVED.items()}

# %%
from course.lessons.l15_when_things_fail.words import count_right, right_table

never, losses = cluster["never"][0], cluster["losses"][0]
right = count_right(losses["weights"], never)
outcome("Weights alone: how many of the ten losses are right?", right, word="counted")
print(right_table(losses, never))

# %% [markdown]
# With the weights alone, dropout draws different numbers, so even the first loss differs. With the random numbers, the first
# loss is right: it comes before the first update, in which the missing momentum shows. Both trainings still learn, and no error
# says that they are different ones. But if you compare two runs, or look for a bug that shows in step 70,000, you need all
# three. You also need the number of the step: the order of the data and the learning rate follow from it. (In float16, you
# also need the loss scale.)

# %% [markdown] tags=["slide"]
# ### 6 · How often to save
#
# The **mean time between failures**, MTBF, is the time from one failure to the next, on average. One node that fails ends the
# whole job. So if a node has an MTBF of M hours, a job on n nodes has one of M/n. Meta trained Llama 3 on 2,048 nodes with
# eight GPUs each, and counted 419 unexpected interruptions in 54 days (**published**). We count every interruption as one of a
# node.

# %%
from course_lib.theory.failures import Unreliable, best_interval, machine_mtbf

node = 2048 * 54 * 24 * 3600 / 419  # seconds between two failures of one node
machine = Unreliable(machine_mtbf(node, nodes=2048), save_seconds=60, restart_seconds=600)
hours = machine.mtbf_seconds / 3600
print(f"one node fails every {node / 86400:.0f} days, 2,048 nodes every {hours:.1f} hours")

# %% [markdown]
# We assume that a save stops the training for one minute, and that a restart takes ten. If you save often, you pay for saving.
# If you save rarely, each failure costs more work: half an interval, on average. How many minutes of work should lie between
# two saves?

# %%
predict("Minutes of work between two saves, on 2,048 nodes?", None)

# %%
best, why = best_interval(machine), "The exact model assumes independent failures at a constant rate."
outcome("Minutes of work between two saves, on 2,048 nodes?", best / 60, because=why, word="computed")

# %% [markdown]
# Two formulas come close to this number. **Young's formula** follows in two steps. A save takes δ, the work between two saves
# takes τ, and the MTBF is M. Saving costs δ/τ of the time. A failure loses τ/2, and there is one per M. The sum, δ/τ + τ/(2M),
# is smallest at τ = √(2δM). A restart costs the same for every τ, so it does not matter here. **Daly's formula** is a
# higher-order approximation: it also counts failures while saving and while repeating lost work.
#
# Is the model right? A simulation draws failures at random, and uses no formula. The figure shows how much of the time is work
# that no failure undoes:

# %% tags=["nbval-ignore-output"]
from course.lessons.l15_when_things_fail.figures import efficiency_curves

efficiency_curves(machine)

# %% [markdown]
# Near its best point the curve is flat: half or twice the best interval costs only about 2 % of the time. A quicker save gains
# more. So large trainings copy their state to memory, and write it to disk while they compute.
#
# Here is the model beside published figures. Those of Meta were measured: they check the model. The other papers computed their
# intervals with the formulas of Daly and Young: they check our program.

# %%
from course.lessons.l15_when_things_fail.published import claims, claims_table

print(claims_table(claims()))

# %% [markdown]
# Our program gives the intervals of Daly and of Low and others. How well the model forecasts a training depends on the MTBF,
# and that is hard to forecast: two clusters of one company differ by a factor of almost three, and a few nodes fail far more
# often than the others (Kokolis and others call them *lemon nodes*).

# %% tags=["exercise: 15.q3"]

# %% [markdown] tags=["slide"]
# ### 7 · The survivors go on
#
# In section 1, one dead rank ended the job. There are two ways to go on.
#
# **ULFM** (*User-Level Failure Mitigation*) is an extension of MPI. In a job started with `mpiexec --with-ft ulfm`, the other
# ranks survive. A call that needs the dead rank raises an error. Whoever sees this error **revokes** the communicator, so that
# nobody goes on waiting in it. Then the survivors **shrink** it to those who are alive:

# %% tags=["source: course_lib.comm.survivors:without_the_dead"]

# %% [markdown]
# In the all-reduce in which a rank dies, one survivor may get the sum and another one an error. So before they update their
# weights, the survivors **agree** whether the step is done: `comm.Agree(1)` returns 1 only if every survivor passed 1. If not,
# they take the step again. Here is a job of three ranks. Rank 1 dies in step 8, and the two survivors divide the same global
# batches between them. A second job runs undisturbed, for comparison:

# %% tags=["nbval-ignore-output"]
from course.lessons.l15_when_things_fail.figures import loss_of_survivors
from course.lessons.l15_when_things_fail.jobs import run_survivors
from course.lessons.l15_when_things_fail.words import explain_survivors

run = run_survivors(ranks=3, victim=1, steps=20, dies_at=8)
undisturbed = run_survivors(ranks=3, steps=20, dies_at=-1)
print(explain_survivors(run))
loss_of_survivors(run, undisturbed) if run.steps else None

# %% [markdown]
# Each step has a batch of its own, so the loss does not fall evenly: it drops from step 7 to step 8 without a death, too.
#
# In data parallelism, every survivor has all weights. With sharded state (lesson 11), a part of the state died with its owner,
# and only a checkpoint has it.

# %% tags=["exercise: 15.q4"]

# %% [markdown]
# The second way is **torchrun** (lesson 07), which calls the ranks *workers*. When a worker fails, torchrun ends the others and
# starts all of them again; `--max-restarts=1` allows that once. The training has to save, and to look for a checkpoint when it
# starts. Ours saves with the saver of 15.1:

# %% tags=["nbval-ignore-output"]
from course.lessons.l15_when_things_fail.figures import elastic_timeline
from course.lessons.l15_when_things_fail.jobs import run_elastic
from course.lessons.l15_when_things_fail.words import explain_elastic

run = run_elastic(workers=2, steps=30, kill_at=12, save_every=5, save=save)
print(explain_elastic(run))
elastic_timeline(run)

# %% [markdown]
# With `--nnodes=2:4 --max-restarts=3`, torchrun also goes on when a node is lost (unless `--rdzv-endpoint` names this
# node), or when one more joins. Such a training is **elastic**. The number of ranks changes then. If each rank takes a fixed
# number of samples, the global batch changes with it (lesson 06).

# %% [markdown] tags=["slide"]
# ### 8 · An error that nobody reports
#
# A bit flips in memory, or a CPU computes a wrong number. No rank raises, hangs or is late. This is a **silent error**; six of the
# 419 interruptions of Llama 3 were of this kind. Replicas help: they have to be equal to the last bit (lesson 06). So now and
# then, every rank computes a hash of each tensor, and the ranks compare them:

# %% tags=["source: course_lib.parallel.replicas:compare_replicas"]
# %%px

# %% [markdown]
# Four ranks train. After step 3, one bit of one weight flips on rank 1.

# %%
# %%px --timeout 200
from course.lessons.l15_when_things_fail.runs import train_with_a_flip

found = train_with_a_flip(comm, steps=6, flip_at=3, rank=1)

# %%
for step, differences in cluster["found"][0]:
    print(step, differences or "all replicas are equal")

# %% [markdown]
# All ranks add the same update, so the difference neither spreads nor heals. But rank 1 now computes wrong gradients, and
# their mean reaches everybody. Three ranks agree, so rank 1 is wrong. It can take the weights of another rank; if it happens
# again, its node is replaced. The updates since the flip already contain wrong gradients; to be rid of them, go back to a
# checkpoint from before. With two replicas we would know that something is wrong, but not on which rank. And an error that
# reaches all replicas alike stays hidden.

# %% tags=["exercise: 15.q5"]

# %% [markdown] tags=["slide"]
# ### 9 · Remote calls
#
# In some programs, one rank asks and another one answers. A **remote procedure call** (RPC) runs a function on another rank and
# returns its result. It takes two messages: one with the function's name and its arguments, and one with the result. The rank
# that is called can fail in the same four ways as in section 1.

# %% tags=["source: course_lib.comm.rpc:serve"]
# %%px

# %% [markdown]
# Rank 1 serves, and rank 0 calls. If the function raises an error, the server goes on, and the error is raised where the call
# was made:

# %%
# %%px
from course_lib.comm.rpc import RemoteError, call, stop

if rank == 1:
    print("answered:", serve(comm, {"add": lambda a, b: a + b, "divide": lambda a, b: a / b}))
elif rank == 0:
    print("2 + 3 =", call(comm, 1, "add", 2, 3))
    try:
        call(comm, 1, "divide", 1, 0)
    except RemoteError as error:
        print("error:", error)
    stop(comm, 1)

# %% [markdown]
# And if no answer comes? `call` has a timeout, too.

# %% tags=["exercise: 15.q6"]

# %% [markdown]
# So a function that is called again after a timeout should do no harm when it runs twice.
#
# PyTorch has `torch.distributed.rpc`, which its documentation calls stable and in maintenance mode:
# `rpc.init_rpc("worker0", rank=0, world_size=2)` on each rank, then `rpc.rpc_sync("worker1", torch.add, args=(x, y))`. Our ranks
# poll shared memory, and serve one call at a time. PyTorch hands each call to other threads. The hand-over takes longer, but
# the rank can compute meanwhile.

# %% tags=["nbval-ignore-output"]
from course.lessons.l15_when_things_fail.jobs import time_remote_calls
from course.lessons.l15_when_things_fail.words import call_table

print(call_table(time_remote_calls()))

# %% [markdown]
# ## On GPUs
#
# NCCL's collectives run on the GPU, and the Python code goes on. So a hang shows later, at the next call that waits for the GPU, and
# a Python stack may point to the wrong line. PyTorch's watchdog thread ends a rank whose collective is over its timeout. With
# `TORCH_FR_BUFFER_SIZE` above 0 (before: `TORCH_NCCL_TRACE_BUFFER_SIZE`), the flight recorder then writes one file per rank, named
# after `TORCH_FR_DUMP_TEMP_FILE`, and `torchfrtrace` compares them.
#
# Dropout on a GPU draws from that GPU's generator: save `torch.cuda.get_rng_state()` of every rank, too.
#
# ## Pitfalls
#
# - Replacing the node whose rank reported the timeout.
# - torchrun of PyTorch 2.13 uses one store for all attempts. A new worker may find the address of a dead one in it, and end with
#   "connectFullMesh failed". `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1` gives each attempt a store of its own.
# - A timeout that is shorter than the save on rank 0, for which the others wait in a barrier.
# - Cleaning up in `finally`: after SIGKILL, nothing in it runs.
# - Keeping only the newest checkpoint: its weights may already be NaN.
# - A checkpoint that nobody has ever loaded.
# - A temporary file on another file system: `os.replace` refuses it, and `shutil.move` copies, which takes more than an instant.
# - `os.fsync` on macOS: the bytes may still be in the drive's own cache. `fcntl.fcntl(file, fcntl.F_FULLFSYNC)` empties that, too.
#
# ## References
#
# - T. Pillai and others, [All file systems are not created equal](https://www.usenix.org/conference/osdi14/technical-sessions/presentation/pillai), OSDI 2014.
# - J. Young, [A first order approximation to the optimum checkpoint interval](https://doi.org/10.1145/361147.361115), 1974.
# - J. Daly, [A higher order estimate of the optimum checkpoint interval for restart dumps](https://doi.org/10.1016/j.future.2004.11.016), 2006.
# - Y. Low and others, [Distributed GraphLab](https://doi.org/10.14778/2212351.2212354), 2012: an interval by Young's formula.
# - Llama team, [The Llama 3 herd of models](https://arxiv.org/abs/2407.21783), 2024: the interruptions of 54 days, by cause.
# - A. Kokolis and others, [Revisiting reliability in large-scale machine learning research clusters](https://arxiv.org/abs/2410.21680), 2025.
# - W. Bland and others, [Post-failure recovery of MPI communication capability](https://doi.org/10.1177/1094342013488238), 2013: ULFM.
# - A. Birrell and B. Nelson, [Implementing remote procedure calls](https://doi.org/10.1145/2080.357392), 1984.
# - PyTorch, [torchrun](https://docs.pytorch.org/docs/stable/elastic/run.html),
#   [flight recorder](https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html),
#   [RPC](https://docs.pytorch.org/docs/stable/rpc.html).
#
# ## Stretch
#
# Save while the training goes on: copy the state to memory between two steps, and let a thread write it. What must the next save
# wait for? How much of a step does a save cost then, and how large is the best interval?
