# ---
# title: When things fail
# goal: Find the rank to blame, and lose few steps.
# able:
#   - find the rank to blame when a job hangs
#   - save a training so that it goes on after a kill or a time limit, on any number of ranks
# more:
#   - find a dead node, and say what late ranks cost
#   - choose how often to save
#   - call a function on another rank
# before: >-
#   {06}. Helpful: {11}
# minutes: {core: 20, more: 35}
# ranks: 4
# warm-up:
#   - ask: Rank 2 never calls `Allreduce`; ranks 0, 1 and 3 do. What happens?
#     answer: >-
#       They wait in <code>Allreduce</code> for ever, because the call needs all four ranks.
#   - ask: >-
#       Four ranks train with a global batch of 128. You go on with two ranks. How many samples must each take per
#       step so that the training stays the same?
#     answer: >-
#       64: the global batch stays 128.
#   - ask: Which weights does each rank have after a step of data parallelism?
#     answer: All of them, and the same on all ranks. So any one rank can save them. (Batch norm's statistics may differ.)
# ---

# %% [markdown] tags=["slide"]
# ## 1 · A job hangs
#
# Four ranks each read a batch, then sum their gradients. One rank, drawn in secret, has a broken disk: its read never ends. A **timeout** ends a rank after four seconds in the sum, and `mpiexec` then ends the job.

# %%
program = """
import faulthandler, signal, sys, time
from mpi4py import MPI

comm = MPI.COMM_WORLD

def read_batch():
    time.sleep(1000 if comm.rank == int(sys.argv[1]) else 0)  # a broken disk: nothing ever comes

faulthandler.dump_traceback_later(2)  # in 2 s, write into the log where this rank is
read_batch()
signal.alarm(4)  # the timeout: in 4 s, end this process
comm.allreduce(1.0)  # sum the gradients"""

# %% [markdown] tags=["subslide"]
# The log's last lines will name a rank. **Vote:** is it the one with the broken disk? (a) Always. (b) In some runs. (c) Never.

# %% tags=["nbval-ignore-output"]
from random import Random
from subprocess import PIPE, STDOUT, run

broken = Random(15).randrange(4)  # do not look
job = ["mpiexec", "--output", "rank", "-n", "4", "python", "-c", program, str(broken)]
log = run(job, stdout=PIPE, stderr=STDOUT, text=True, timeout=100).stdout.splitlines()
print(*log[-4:], sep="\n")  # prterun is a part of mpiexec

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (c). The broken rank never reaches `signal.alarm(4)`, so it cannot time out.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 2 · The stacks
#
# After two seconds, `faulthandler` also wrote each rank's **stack** to the log: the lines that the rank was in, innermost first. Line 13 is the sum.

# %% tags=["nbval-ignore-output"]
print(*(line for line in log if "File" in line), sep="\n")  # in brackets: the rank

# %%
predict("Whose disk is broken?", None)

# %%
outcome("Whose disk is broken?", broken, word="that of rank")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# ```
#               0 s         2 s: stacks         4 s
# broken disk   │ read_batch ·····│···············│···  never sets its alarm
# named rank    │ allreduce ······│···············│ alarm: the job ends
# the others    │ allreduce ······│···············│
# ```
#
# Three ranks wait for the broken one in the all-reduce. The first alarm ends one of them, and `mpiexec` names that rank, a **victim**.
#
# </details>

# %% [markdown] tags=["notes"]
# Five minutes up to here. Ask before the stacks: where was the named rank during its four seconds?

# %% [markdown] tags=["slide"]
# ## 3 · Killed while saving
#
# What is left of the job? Its last **checkpoint**, a file from which training can resume. The obvious way to write one:

# %% tags=["source: course_lib.training.saving:naive_save"]

# %% [markdown]
# `open` empties the old file at once. A kill during the next line leaves half a file, or nothing.
#
# So write a second file beside the old one. When the second file is complete, `os.replace` gives it the old name in one instant: an **atomic save**.
#
# A power cut leaves only what is on the disk. `file.flush` moves bytes from Python's buffer to the operating system, and `os.fsync` waits until they are on the disk.

# %%
# %%px --save 15_resume.py
"""A training that goes on when it is started again.

mpiexec -n 4 python -m mpi4py 15_resume.py FOLDER    # -m mpi4py: an error on one rank ends the job
"""

import io
import os
import signal
import sys
import tempfile
from pathlib import Path

import torch
from mpi4py import MPI
from torch import nn

comm = MPI.COMM_WORLD

# %% tags=["exercise: 15.1"]

# %% [markdown] tags=["notes"]
# Six minutes for the exercise. Ask what is in the file, what is in Python's buffer, what is in the system's memory.

# %% [markdown] tags=["slide"]
# ## 4 · Stop, and go on
#
# A kill still costs the steps since the last save. A time limit need not cost any: a job can ask the batch system (such as Slurm) for a signal before the limit, here **SIGUSR1**. A rank notes the signal, and goes on:

# %%
# %%px --save 15_resume.py
asked = []  # filled when a signal asks this rank to stop
_ = signal.signal(signal.SIGUSR1, lambda *_: asked.append(True))


# %% [markdown]
# After each step, the ranks decide together whether to stop (the line `stop = …`).


# %%
# %%px --save 15_resume.py
def train(path, steps=60, every=20):
    """Train on from `path`."""
    torch.manual_seed(0)  # the same weights on every rank
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1)).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    done, stop = 0, False
    if comm.bcast(path.exists()):  # only rank 0's answer counts; it reads for all
        done, weights, state = comm.bcast(torch.load(path) if comm.rank == 0 else None)
        model.load_state_dict(weights)
        optimizer.load_state_dict(state)
    while done < steps and not stop:
        x = torch.randn(128, 8, generator=torch.manual_seed(done))[comm.rank :: comm.size].double()
        loss = (model(x) - x[:, :1] * x[:, 1:2]).square().sum() / 128  # it learns to multiply
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            comm.Allreduce(MPI.IN_PLACE, parameter.grad.numpy())
        optimizer.step()
        yield (done := done + 1), comm.allreduce(loss.item())  # (step, loss); the caller acts here
        stop = comm.allreduce(len(asked)) > 0
        if comm.rank == 0 and (stop or done % every == 0):  # before a stop, and every 20 steps
            torch.save([done, model.state_dict(), optimizer.state_dict()], file := io.BytesIO())
            atomic_save(path, file.getvalue())


# %%
# %%px --save 15_resume.py
if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:  # if no FOLDER is given
        losses = dict(train(Path(sys.argv[1] if len(sys.argv) == 2 else scratch, "training.pt")))
    if comm.rank == 0 and losses:  # none if the training was complete
        print(f"ranks: {comm.size}, steps {min(losses)} to {max(losses)}, loss {losses[max(losses)]:.6f}")

# %% [markdown] tags=["subslide"]
# Why an all-reduce? Suppose that each rank looks only at its own `asked`. Two ranks train, and after step 50 rank 1 gets SIGUSR1. **Vote:** (a) Both save and end. (b) Rank 1 ends, and rank 0 trains on to step 60. (c) The job hangs.
#
# Then `15_resume.py` starts again, on *one* rank. With which step does it begin?

# %%
disturb = """
import resource  # train, and disturb a rank after step 50
for done, loss in train(Path(sys.argv[1], "training.pt")):
    if done == 50 and comm.rank == 1:
        signal.raise_signal(signal.SIGUSR1)
    elif done == 50:
        signal.alarm(5)  # rank 0's timeout, as in section 1
        if kill_at := int(sys.argv[2]):  # signal 25 kills rank 0 at this byte
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_FSIZE, (kill_at, kill_at))"""

# %%
from re import MULTILINE, findall
from shlex import split
from subprocess import getoutput
from tempfile import TemporaryDirectory


def trial(name, training, kill_at=0):
    with TemporaryDirectory() as folder:
        ranks = [*split("mpiexec -n 2 python -m mpi4py -c"), training + disturb, folder, str(kill_at)]
        log = run(ranks, stdout=PIPE, stderr=STDOUT, text=True, timeout=100).stdout
        log += getoutput(f"mpiexec -n 1 python code/15_resume.py {folder}")
    print(name, " → ".join(findall(r"signal \d.*\)|^ranks.*|^\S*Error: [^:.]*", log, MULTILINE)))


training = Path("code/15_resume.py").read_text().split("if __name__")[0]  # its functions
trial("without all-reduce:", training.replace("comm.allreduce(len(asked))", "len(asked)"))
trial("with it:", training)

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (c). In step 51, rank 0 waits for rank 1 until the timeout. Step 40 was saved last. With the all-reduce, both get the same count, both stop after step 50, and rank 0 saves.
#
# All six decimals agree, even on one rank: Adam's state was saved, too, and each step has the same 128 samples.
#
# </details>

# %% [markdown] tags=["subslide"]
# **Your saver on trial.** Now rank 0 is killed while it saves step 50, after 1,000 bytes: first with `naive_save`, then with your saver, right or wrong. **Vote** for each: at which step does the restart begin, or does it fail? Then choose your own byte.

# %%
from inspect import getsource

kill_at = 1000  # then try to break your saver: 1, 15_000, 100_000
for saver in naive_save, atomic_save:
    name = saver.__name__
    trial(f"{name}:", f"{training}\n{getsource(saver)}\natomic_save = {name}\n", kill_at)

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# `naive_save` wrote its 1,000 bytes over the only checkpoint, so all 50 steps are lost. A right `atomic_save` keeps the checkpoint of step 40 until the new one is complete.
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# | | with 64 GPUs |
# |---|---|
# | a hang | Ask each rank for its stack (`py-spy dump`). On GPUs, stacks often look alike: see Discuss |
# | saving | With ZeRO, each rank saves its shard. When all are on the disk, rank 0 marks the checkpoint as complete. Resume only from a marked one |
# | resuming | On a different number of ranks, sums are rounded differently, and batch norm and dropout differ. On fewer ranks, accumulate gradients |

# %% [markdown] tags=["slide"]
# ## Key points
#
# - The rank that times out is usually a victim. Compare all stacks.
# - Write a second file, flush and `fsync` it, then rename it.
# - On a signal, only note the request. Every few steps, all ranks agree to stop.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# A job on 64 GPUs hangs now and then. Each time, a different rank times out, and every rank's stack says that it waits for its GPU. What do you do first? (a) Double the timeout. (b) Record which collectives each rank has queued and completed. (c) Replace that rank's node.
#
# <details><summary>What to listen for</summary>(b). Usually, one rank has queued fewer collectives, or a different one. If all have queued the same, suspect a GPU or the network. (c) usually replaces a victim's node.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# First, try the core on new cases: two questions, and a restart that almost works.

# %% tags=["exercise: 15.q7"]

# %% tags=["exercise: 15.q2"]

# %% tags=["exercise: 15.3"]

# %% [markdown]
# <details><summary>Open after you have solved 15.3</summary>
#
# A step reads more than the weights: the optimizer has its momentum, and dropout draws its masks from the random-number state. With several ranks, each rank draws from its own state,
# so each rank has to save its own, and on a GPU also `torch.cuda.get_rng_state()`. These states fit only the number of ranks that saved them. Also save the learning-rate scheduler, the gradient scaler
# and the position of the data loader. Without this position, the resumed epoch begins again with samples that it has already seen.
#
# </details>

# %% [markdown]
# ### Who is to blame when the stacks look alike?
#
# In the core, one stack differed from the others. Often none does. Suppose that one rank's network card breaks: the rank neither sends nor receives. Soon all ranks wait in the same
# call for their neighbours. Four equal stacks do not show which rank is broken. What else can we compare?
#
# We break a card on purpose. Four ranks pass arrays round a ring, as a ring all-reduce does: each rank sends to the next one, and rank 3 sends to rank 0. A rank first sends its own array, then
# each array that it receives. We run three such jobs, each with a different broken card. Afterwards we count how many arrays ranks 0 to 3 have received:

# %%
ring = """
import signal, sys
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
array, tag = np.ones(10), int(rank == int(sys.argv[1]))  # a broken card: no other rank uses tag 1
signal.alarm(4)
for turn in range(size - 1):
    comm.Sendrecv_replace(array, (rank + 1) % size, tag, (rank - 1) % size, tag)
    print("received", flush=True)"""

# %% tags=["nbval-ignore-output"]
from random import sample

cases = sample(range(4), 3)
for broken in cases:
    log = run([*job[:-2], ring, str(broken)], stdout=PIPE, stderr=STDOUT, text=True, timeout=100).stdout
    print([log.count(f"[{rank}]<stdout>: received") for rank in range(4)])

# %% [markdown]
# Each line is one job, from rank 0 on the left to rank 3 on the right. Before you run on, name the broken card of each line. A rank with a zero is a suspect, but there are always two zeros.

# %%
predict("Whose card is broken in the first line?", None)

# %% tags=["nbval-ignore-output"]
outcome("Whose card is broken in the first line?", cases[0], word=f"the cards were {cases}, so rank")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# In each job, two neighbours on the ring received nothing. One has the broken card, and the other waits for it. Look at the rank just before the pair. It did receive an array,
# so its own card works, and it did send to the first of the pair. Nothing arrived there, so the first of the pair has the broken card. The second waits for the first.
#
# On a cluster, take this as a hint and look for proof in the logs of the nodes: *link down* from the network, *Xid* from a GPU. With large messages, senders wait, too, and then the counts say less.
#
# On GPUs, stacks look alike even more often, because Python only queues a sum, and waits later, where it needs a result. So compare the collectives. If PyTorch's **flight recorder** is on,
# it numbers the collectives of each rank and keeps the last ones. Within one process group, first suspect the rank that queued fewest; if all queued the same, the one that started fewest.
#
# </details>
#
# #### And if a rank is only late?
#
# Now nothing is broken, but the job is still slow. In lesson 06, the same rank was late in every step. More often it is a different rank each time. Suppose that each rank is late in one step out of
# ten, by chance. A step ends only when the last rank has come. With one rank, 10 % of the steps are slow. And with 64 ranks?

# %%
predict("64 ranks: in how many of 1,000 steps is at least one late?", None)

# %%
import numpy as np

late = np.random.default_rng(0).random((1000, 1024)) < 0.1  # steps × ranks
for ranks in (1, 4, 64, 1024):
    print(f"{ranks:4} ranks: {late[:, :ranks].any(axis=1).sum():4} of 1,000 steps wait")
outcome(
    "64 ranks: in how many of 1,000 steps is at least one late?",
    int(late[:, :64].any(axis=1).sum()),
    word="counted",
)

# %% [markdown]
# A step is on time only if *all* ranks are, and 64 ranks are all on time in 0.9⁶⁴ = 0.1 % of the steps (by chance, here in none). Otherwise somebody is late and everybody waits. If all delays are equally long, and nothing hides them (prefetched batches can),
# the job is almost as slow as with one rank that is *always* late.
#
# So a slow job can have one slow rank, or many ranks that are late in turn. From outside, both look the same. How can we tell them apart? We let our four ranks be late by chance, and each measures how long
# it waits for the others:

# %%
# %%px
import time

import numpy as np

late, waited = np.random.default_rng(comm.rank).random(100) < 0.1, np.zeros(100)
for step in range(100):
    time.sleep(0.02 * late[step])
    began = MPI.Wtime()
    comm.Barrier()
    waited[step] = MPI.Wtime() - began
waited = comm.gather(waited)

# %% tags=["nbval-ignore-output"]
waited = np.array(cluster["waited"][0])  # ranks × steps
slow = waited.max(axis=0) > 0.01
print("waited in all, ms:", *(1000 * waited.sum(axis=1)).round().astype(int))
print("steps in which it came last:", *np.bincount(waited.argmin(axis=0)[slow], minlength=4))

# %% [markdown]
# Each rank waited about as long as any other, so the totals accuse nobody. We have to look at *each step*: the rank that waited least in it came last. Is it the same rank in most steps? Then move that rank to a
# different node, to see whether the rank or its node is slow. If the last rank keeps changing, as here, a new node does not help. Look for a cause that can hit every rank, such as samples of different
# lengths. (On GPUs, synchronize the device before you read the clock.)
#
# #### And if a rank never comes?
#
# A late rank arrives in the end. A dead rank never does. Who notices? When a *process* dies, its operating system closes its connections, and over TCP the other side
# notices at once. When a *node* loses its power, nobody is left to close anything. We cannot cut the power here, but SIGSTOP comes close: it freezes a process, which then closes nothing and sends nothing.
#
# As a sign of life, each rank touches a file ten times per second. This is its **heartbeat**. In one job, rank 1 gets SIGKILL, in the next one SIGSTOP. **Predict** for each signal: does
# `mpiexec` end the job within five seconds? Does the heartbeat stop?

# %%
import os
import signal
import time
from pathlib import Path
from subprocess import DEVNULL, Popen
from tempfile import mkdtemp

from mpi_classroom.launch import job_folder

alive = """
import os, sys, time
from pathlib import Path
from mpi4py import MPI
mine = Path(sys.argv[1], str(MPI.COMM_WORLD.rank))
mine.write_text(str(os.getpid()))
MPI.COMM_WORLD.Barrier()
for beat in range(300):
    mine.touch()
    time.sleep(0.1)"""

# %%
for number in (signal.SIGKILL, signal.SIGSTOP):
    folder = Path(mkdtemp(dir=job_folder()))
    pair = Popen(["mpiexec", "-n", "2", "python", "-c", alive, folder], stdout=DEVNULL, stderr=DEVNULL)
    while len(list(folder.iterdir())) < 2 and pair.poll() is None:
        time.sleep(0.1)
    time.sleep(1)
    rank_1 = int((folder / "1").read_text())
    os.kill(rank_1, number)
    time.sleep(5)
    old = time.time() - (folder / "1").stat().st_mtime > 1
    print(f"{number.name}: mpiexec ended the job: {pair.poll() is not None}, heartbeat stopped: {old}")
    if number == signal.SIGSTOP:
        os.kill(rank_1, signal.SIGKILL)  # nobody else ends a frozen process
    pair.kill()
    pair.wait()

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# After SIGKILL, the operating system reports that the process has ended, and `mpiexec` ends the job. After SIGSTOP, the process still exists, so there is nothing to report, and `mpiexec` waits for ever. Only the heartbeat shows that something is wrong.
#
# A dead node is found in the same way. Somebody has to watch its heartbeat, and to decide how long a silence may last. Slurm waits for 300 seconds by default (`SlurmdTimeout`). A shorter wait finds dead
# nodes sooner, but it also declares slow ones dead. On a cluster, send heartbeats rarely, and to a service: thousands of ranks that touch files ten times per second would overload the shared file system.
#
# </details>
#
# #### And when the time limit comes?
#
# In the core, we sent SIGUSR1 ourselves, and we started the job again. On a cluster, Slurm does both (our program keeps the lines):

# %%
# %%px --save 15_resume.py
SLURM = """
sbatch -n 64 --time=60 --requeue --open-mode=append --signal=B:USR1@60 --wrap '
    stop() { kill -USR1 $!; again=1; }; trap stop USR1
    mpiexec python -m mpi4py code/15_resume.py FOLDER & wait $! || wait $!
    code=$?; if [ $again ]; then scontrol requeue $SLURM_JOB_ID; fi; exit $code'
"""

# %% [markdown]
# Read them in the order of events:
#
# 1. 60 seconds before the time limit of 60 minutes, or a little earlier, Slurm sends SIGUSR1 to the shell of the batch job (`--signal=B:USR1@60`).
# 2. The shell runs `stop`, which passes the signal to `mpiexec`. Open MPI's `mpiexec` passes it to the ranks, and they agree, save and end. (SIGTERM would not do: it makes `mpiexec` end the ranks.)
# 3. The signal has ended the shell's first `wait`. The second one waits for the ranks.
# 4. `scontrol requeue` puts the job back into the queue. Later it starts with the same lines, perhaps on other nodes, so FOLDER must be on a shared file system.
#
# Are 60 seconds enough? In this time, the ranks must finish a step, agree and save. (A job that hangs cannot.) Otherwise, the job is killed before it can be requeued. On GPUs, agree only every tenth step, because the CPU waits for the GPU each time. Then allow for ten steps.
#
# SIGUSR1 ends `torchrun`, which does not pass it on. So start such ranks with `srun`: with `--signal=USR1@60`, Slurm signals them directly, but not the shell, which must then check whether the training is complete. A job that is
# *preempted* gets SIGTERM instead, and has the site's `GraceTime` (0 by default) to save, unless the site sets `PreemptParameters=send_user_signal`.

# %% [markdown] tags=["slide"]
# ### What does a failure cost?
#
# Every save costs time, and so does every failure. How often should you save? Meta trained Llama 3 on 2,048 nodes with eight GPUs each, and counted 419 unexpected interruptions in 54 days (**published**). That is one every
# 3.1 hours, the machine's **mean time between failures** (MTBF).
#
# We do not know how long Meta's saves and restarts took, so we assume one minute per save and ten per restart. (A hang costs more: PyTorch's NCCL timeout alone is ten minutes.) The training stands still in both. If you save rarely, each failure destroys much work. If you save
# often, the saves themselves eat the time. Which interval would you choose?

# %%
predict("Minutes of work between two saves, on 2,048 nodes?", None)

# %% [markdown]
# To check your guess, we need a model. After every τ seconds of work, a save takes δ seconds. Every M seconds, on average, a failure comes. It may come early or late in an interval, so on average it destroys half
# an interval of work. Then the restart takes its time. **Young's formula** gives the interval that loses least: about τ = √(2δM), if δ is much smaller than τ, and τ much smaller than M.

# %%
M = 54 * 24 * 3600 / 419


def lost(tau, save=60, restart=600):
    """The part of the time that goes into saves, repeated work and restarts."""
    useful = 1 - (tau / 2 + restart) / M  # without repeated work and restarts
    return 1 - useful * tau / (tau + save)


best = (2 * 60 * M) ** 0.5
outcome("Minutes of work between two saves, on 2,048 nodes?", best / 60, word="computed")
for minutes in (5, best / 60, 60):
    print(f"a save every {minutes:4.1f} min: {lost(60 * minutes):.1%} of the time is lost")

# %% [markdown]
# Saving every five minutes costs about as much as saving every hour, and the best choice lies between. But even then, our model loses 15 % of the time, and Meta reports less than 10 %. So if the model is right, we
# guessed a save or a restart that is too long.
#
# You may improve one of the two. **Vote:** what gains more? (a) Restarts that take a tenth. (b) Saves that take a tenth.

# %%
for save, restart in ((60, 600), (60, 60), (6, 600)):
    print(f"save {save:2} s, restart {restart:3} s: {lost((2 * save * M) ** 0.5, save, restart):.1%} lost")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (b), with these numbers. Short restarts help once per failure: nine minutes out of 3.1 hours are about 5 %. Short saves help twice. Each takes less time, and because they are cheap, you can save more often, so that a failure destroys less
# work. Saves and repeated work each shrink to √0.1, about a third.
#
# </details>
#
# #### How can a save be short?
#
# The slow part of a save is the disk, and the training need not wait for it. An **asynchronous** save only waits for a copy of the state in the CPU's memory. The copy is written to the disk while the training goes on.
# PyTorch's `torch.distributed.checkpoint` can do that. (On GPUs, the process group then also needs a backend for CPUs: `cpu:gloo,cuda:nccl`.) It can also load a checkpoint on more or fewer ranks than
# wrote it, which is called **resharding**.
#
# That sounds risky: what if the training changes a weight before it is on the disk? We try it. Four ranks save 12 numbers, three per rank, and set them to zero at once, without waiting for the files. Then two ranks
# load the files. **Vote:** what do they find? (a) The numbers. (b) Zeros. (c) Some of both.

# %%
sharded = """
import sys
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
state = {"weights": distribute_tensor(torch.zeros(12), mesh, [Shard(0)])}
mine = state["weights"].to_local()
if sys.argv[2] == "save":
    mine += torch.arange(3) + 3 * dist.get_rank()
    writing = dcp.async_save(state, checkpoint_id=sys.argv[1])
    mine.zero_()  # the training goes on
    writing.result()
else:
    dcp.load(state, checkpoint_id=sys.argv[1])
    print(f"rank {dist.get_rank()} has {mine.int().tolist()}\\n", end="")  # one piece, so lines stay whole
dist.destroy_process_group()"""

# %%
folder = Path(mkdtemp(dir=job_folder()))
(folder / "sharded.py").write_text(sharded)
torchrun = ["torchrun", "--standalone", "--nproc-per-node"]
for ranks, what in ("4", "save"), ("2", "load"):
    launch = [*torchrun, ranks, folder / "sharded.py", folder / "saved", what]
    said = run(launch, capture_output=True, text=True, timeout=200).stdout
print(*sorted(said.splitlines()), sep="\n")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (a). By default, `async_save` returns only when it has its copy, so what the training does next cannot reach the files. The two ranks found six numbers each, where four ranks had saved three. Wait for `result()` before the next save,
# and before you end: it also raises the errors of the write.
#
# </details>
#
# The course has a saver for sharded states, too: `save_training` in `course_lib/parallel/checkpoint.py`. Which of the two would you trust with a long run?
#
# | | `torch.distributed.checkpoint` | ours |
# |---|---|---|
# | loads on a different number of ranks | yes, any cut along any axis | yes, flat buffers as ZeRO cuts them |
# | writes while training goes on | yes | no |
# | killed while saving | keeps the old checkpoint if each save has its own folder (load the newest that has `.metadata`, which is written last); in one folder for all saves, the old files are lost first | keeps the old checkpoint |
# | a byte damaged on the disk | not noticed | noticed by its SHA-256 |
#
# #### How can a restart be short?
#
# Most of a restart is often waiting: for a place in the queue, and for a node that replaces the broken one. So keep some spare nodes in the job (with `sbatch --no-kill`, or Slurm ends the job when a node fails), test each node before the start, and restart the ranks instead of the job. `torchrun` does the
# last of these with `--max-restarts`. When one process fails, it ends the others and starts all of them again. In the next program, rank 1 dies in step 3 of the first attempt. **Vote:** with which step does the second attempt begin? (a) 0. (b) 2. (c) 3.

# %%
elastic = """
import os, signal, sys
from pathlib import Path
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, attempt, saved = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"]), Path(sys.argv[1])
first = int(saved.read_text()) if saved.exists() else 0
for step in range(first, 6):
    if (rank, attempt, step) == (1, 0, 3):
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(1))
    if rank == 0:
        print(f"attempt {attempt}: step {step}", flush=True)
        if step % 2:
            aside = saved.with_suffix(".new")
            aside.write_text(str(step + 1))
            aside.replace(saved)
dist.destroy_process_group()"""

# %%
(folder / "elastic.py").write_text(elastic)
os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # attempts must not share addresses
launch = [*torchrun, "2", "--max-restarts", "1", folder / "elastic.py", folder / "done"]
print(run(launch, stdout=PIPE, stderr=DEVNULL, text=True, timeout=200).stdout)

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (b). The state was saved after step 1, so step 2 runs twice. The job kept its nodes.
#
# </details>
#
# With `--nnodes=2:4`, `torchrun` even accepts a changing number of nodes, from two to four, and restarts all ranks when a node joins or is lost (only the rendezvous node must survive). A training that goes on with a different number of ranks is **elastic**. Mind the batch: if each
# rank takes a fixed number of samples, the global batch changes with the number of ranks, and with it the training.

# %% tags=["exercise: 15.q3"]

# %% [markdown]
# #### What if a call gets no answer?
#
# In a training, one failure stops all ranks, because every step needs every rank. The programs around it are less strict. Supervisors, parameter servers and data loaders ask each other and answer, and when one of them dies, the
# others can go on. What does a failure cost there?
#
# Their tool is the **remote procedure call** (RPC): it runs a function on another rank and returns the result. It takes two messages: a number, the function's name and its arguments; then the number and the result. Here
# is the side that answers:

# %% tags=["source: course.lessons.l15_when_things_fail.rpc:serve"]
# %%px

# %% [markdown]
# Rank 1 serves and rank 0 calls. The second call divides by zero. Such an error must not end the server: it goes on, and `call` raises the error on rank 0, where somebody can handle it:

# %%
# %%px
from course.lessons.l15_when_things_fail.rpc import RemoteError, call, stop

if comm.rank == 1:
    print("answered:", serve(comm, {"add": lambda a, b: a + b, "divide": lambda a, b: a / b}))
elif comm.rank == 0:
    print("2 + 3 =", call(comm, 1, "add", 2, 3))
    try:
        call(comm, 1, "divide", 1, 0)
    except RemoteError as error:
        print("error:", error)
    stop(comm, 1)

# %% [markdown]
# An error is an answer, too. What if nothing comes back at all? `call` has a timeout for this case. MPI itself loses no message, but it usually ends the whole job when a rank dies. In systems that survive a death, messages do
# get lost, and servers die and are started again. There the caller has to decide what silence means:

# %% tags=["exercise: 15.q6"]

# %% [markdown]
# So a caller that hears nothing cannot know what happened. The way out is an **idempotent** function: running it twice has the same effect as running it once.
#
# For real use, PyTorch has `torch.distributed.rpc`, which its documentation calls stable and in maintenance mode.
#
# ## References
#
# - T. Pillai and others, [All file systems are not created equal](https://www.usenix.org/conference/osdi14/technical-sessions/presentation/pillai), OSDI 2014.
# - J. Young, [A first order approximation to the optimum checkpoint interval](https://doi.org/10.1145/361147.361115), 1974.
# - Llama team, [The Llama 3 herd of models](https://arxiv.org/abs/2407.21783), 2024: the interruptions of 54 days, by cause.
# - A. Kokolis and others, [Revisiting reliability in large-scale machine learning research clusters](https://arxiv.org/abs/2410.21680), 2025: health
#   checks, and nodes that fail more often than others.
# - A. Birrell and B. Nelson, [Implementing remote procedure calls](https://doi.org/10.1145/2080.357392), 1984.
# - PyTorch, [torchrun](https://docs.pytorch.org/docs/stable/elastic/run.html),
#   [flight recorder](https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html),
#   [distributed checkpoint](https://docs.pytorch.org/docs/stable/distributed.checkpoint.html).
