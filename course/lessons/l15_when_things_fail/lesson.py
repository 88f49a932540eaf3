# ---
# title: When things fail
# goal: Find the rank to blame, and lose few steps.
# able:
#   - find out why a job hangs
#   - resume a training after a kill or a time limit, on any number of ranks
# more:
#   - find a dead node, and say what late ranks cost
#   - choose how often to save
#   - call a function on another rank
# before: >-
#   {06}
# minutes: {core: 20, more: 24}
# ranks: 4
# warm-up:
#   - ask: Rank 2 never calls `Allreduce`; ranks 0, 1 and 3 do. What happens?
#     answer: >-
#       They wait in <code>Allreduce</code> for ever, because the call needs all four ranks.
#   - ask: >-
#       Four ranks train with a global batch of 128. You go on with two ranks. How many samples must each take per
#       step so that the training stays the same?
#     answer: >-
#       64: the global batch stays 128. (Batch norm's statistics differ.)
#   - ask: Which weights does each rank have after a step of data parallelism?
#     answer: All, and the same on all ranks (unless sharded). So any rank can save them. (Batch norm's statistics may differ.)
# ---

# %% [markdown] tags=["slide"]
# ## 1 · A job hangs
#
# Four ranks each read a batch, then sum their gradients. One rank's disk is broken. A **timeout** ends a rank after four seconds in the sum, and `mpiexec` then ends the job.

# %%
program = """
import faulthandler, signal, sys, time
from mpi4py import MPI

comm = MPI.COMM_WORLD

def read_batch():
    time.sleep(1000 if comm.rank == int(sys.argv[1]) else 0)  # a broken disk: nothing ever comes

faulthandler.dump_traceback_later(2)  # in 2 s, log where this rank is
read_batch()
signal.alarm(4)  # the timeout
comm.allreduce(1.0)  # sum the gradients"""

# %% [markdown] tags=["subslide"]
# We start three such jobs, with the same broken disk:

# %% tags=["nbval-ignore-output"]
from random import Random
from subprocess import PIPE, STDOUT, Popen

broken = Random(15).randrange(4)  # do not look
job = ["mpiexec", "--output", "rank", "-n", "4", "python", "-c", program, str(broken)]
jobs = [Popen(job, stdout=PIPE, stderr=STDOUT, text=True) for _ in range(3)]
for each in jobs:
    log = each.communicate(timeout=100)[0].splitlines()
    print(*(line for line in log if "process rank" in line))  # of mpiexec; next line: signal 14

# %% [markdown]
# **Vote:** whose disk do you replace? (a) That of the rank named most often. (b) Nobody's yet. (c) All that were named.
#
# <details><summary>Open after your vote</summary>
#
# (b). The broken rank never reaches `signal.alarm(4)`, so no line names it.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 2 · The stacks
#
# After two seconds, `faulthandler` wrote each rank's **stack**: the lines that the rank was in, innermost first. Line 13 is the sum.

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
# The named rank is a **victim**: it waited for the broken one, and its alarm came first.
#
# </details>

# %% [markdown] tags=["notes"]
# Five minutes up to here. Ask before the stacks: where was the named rank during its four seconds?

# %% [markdown] tags=["slide"]
# ## 3 · Killed while saving
#
# A killed job leaves its last **checkpoint**, a file from which training can resume. The obvious way to write it:

# %% tags=["source: course_lib.training.saving:naive_save"]

# %% [markdown]
# A kill can interrupt this write. So an **atomic save** writes a second file. When it is complete, `os.replace` gives it the old name in one instant.
#
# A power cut leaves only what is on the disk:
#
# ```
# file.write ──→ Python's buffer ── file.flush ──→ operating system ── os.fsync ──→ disk
# ```

# %%
# %%px --save 15_resume.py
"""A training that resumes.

mpiexec -n 4 python -m mpi4py 15_resume.py FOLDER    # -m mpi4py: an error ends all ranks
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
# ## 4 · Stop and resume
#
# Before a time limit, a batch system can send a signal, here **SIGUSR1**, early enough for a step and a save. Each rank only notes it:

# %%
# %%px --save 15_resume.py
asked = []  # filled by a signal
_ = signal.signal(signal.SIGUSR1, lambda *_: asked.append(True))

# %% [markdown]
# After each step, the ranks decide together whether to stop (`stop = …`):


# %%
# %%px --save 15_resume.py
def train(path, steps=60, every=20):
    """Resume from `path` if it exists; yield after each step."""
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
        yield (done := done + 1), comm.allreduce(loss.item())
        stop = comm.allreduce(len(asked)) > 0
        if comm.rank == 0 and (stop or done % every == 0):
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
# Why an all-reduce? Let each of two ranks read only its own `asked`. After step 50, rank 1 gets SIGUSR1. **Vote:** (a) Both save and end. (b) Rank 1 ends, and rank 0 trains on. (c) The job hangs.
#
# Then *one* rank resumes. At which step, without and with the all-reduce?

# %%
from re import MULTILINE, findall
from subprocess import getoutput
from tempfile import TemporaryDirectory

training = Path("code/15_resume.py").read_text().split("if __name__")[0]  # its functions
ask = "signal.raise_signal(signal.SIGUSR1) if comm.rank == 1 else signal.alarm(5)"  # rank 0's timeout


def trial(name, program, at_50):
    loop = f"for done, _ in train(Path(sys.argv[1], 'training.pt')):\n    if done == 50:\n        {at_50}"
    with TemporaryDirectory() as folder:
        Path(folder, "job.py").write_text(f"{program}\n{loop}")
        job = f"mpiexec -n 2 python -m mpi4py {folder}/job.py {folder}"
        log = getoutput(f"{job}; mpiexec -n 1 python code/15_resume.py {folder}")
    print(name, " → ".join(findall(r"signal \d.*\)|^ranks.*|^\S*Error: [^:.]*", log, MULTILINE)))


trial("without all-reduce:", training.replace("comm.allreduce(len(asked))", "len(asked)"), ask)
trial("with it:", training, ask)

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (c). Rank 1 has ended, so rank 0 waits in step 51. Step 40 was saved last. With the all-reduce, rank 0 saved step 50.
#
# All six decimals agree (in float64): Adam's state was saved, and each step has the same 128 samples.
#
# </details>

# %% [markdown] tags=["subslide"]
# **Your saver on trial.** We kill `naive_save`, then your saver, in step 60's save after 1,000 bytes. **Vote** for each: does the restart fail, or at which step does it begin?

# %%
from inspect import getsource

byte = 1_000  # then try to break your saver: 1, 5_000, 15_000
limit = f"comm.rank == 0 and resource.setrlimit(resource.RLIMIT_FSIZE, ({byte}, {byte}))"
die = "import resource; signal.signal(signal.SIGXFSZ, signal.SIG_DFL)"  # signal 25: beyond the limit
for name, saver in {"naive_save": naive_save, "atomic_save": atomic_save}.items():
    trial(f"{name}:", f"{training}\n{getsource(saver)}\natomic_save = {name}\n{die}", limit)

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# `open` emptied the only checkpoint: all 60 steps are lost. A correct `atomic_save` kept step 40.
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# | | with 64 GPUs |
# |---|---|
# | a hang | The CPU only queues collectives: compare stacks (`py-spy dump`) and ranks' queues |
# | saving | With ZeRO, the ranks save their shards in one new, shared folder. When all are stored, rank 0 writes a marker file |
# | resuming | On a different number of ranks, rounding, batch norm and dropout differ. On fewer, accumulate gradients |

# %% [markdown] tags=["slide"]
# ## Key points
#
# - The rank that times out is usually a victim. Compare all stacks, on GPUs also the queues.
# - Write a second file, flush, `fsync`, rename.
# - All ranks decide together whether to stop, on GPUs every few steps.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# A job on 64 GPUs hangs now and then. Each time, a different rank times out, and every rank waits for its GPU. What do you do first? (a) Double the timeout. (b) Record each rank's queued and completed collectives. (c) Replace that rank's node.
#
# <details><summary>What to listen for</summary>(b). Often, one rank has queued fewer collectives, or a different one. If not, suspect a GPU or the network.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# First, try the core on two new cases.

# %% tags=["exercise: 15.q7"]

# %% tags=["exercise: 15.3"]

# %% [markdown]
# <details><summary>Open after you have solved 15.3</summary>
#
# A step also reads the optimizer's momentum, and dropout draws from the random-number state. Each rank has to save its own random-number state, and on a GPU also `torch.cuda.get_rng_state()`. This works
# only on the same number of ranks. Also save the learning-rate scheduler, the gradient scaler and the position of the data loader.
#
# </details>

# %% [markdown]
# ### Who is to blame when the stacks look alike?
#
# In the core, one stack differed. Suppose that one rank's network card breaks instead: the rank neither sends nor receives. Soon all ranks wait in the same
# call, and four equal stacks name nobody. What else can we compare?
#
# In a ring all-reduce, each rank sends to the next one, and rank 3 sends to rank 0. We run three such jobs, each with a different broken card. Each line shows how many arrays
# ranks 0 to 3 have received:

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
jobs = [Popen([*job[:-2], ring, str(broken)], stdout=PIPE, stderr=STDOUT, text=True) for broken in cases]
for each in jobs:
    log = each.communicate(timeout=100)[0]
    print([log.count(f"[{rank}]<stdout>: received") for rank in range(4)])

# %% [markdown]
# Name the broken card of each line. A rank with a zero is a suspect, but there are always two zeros.

# %%
predict("Whose card is broken in the first line?", None)

# %% tags=["nbval-ignore-output"]
outcome("Whose card is broken in the first line?", cases[0], word=f"the cards were {cases}, so rank")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# Two neighbours on the ring received nothing. One has the broken card, and the other waits for it. The rank before the pair received arrays, so its card works, and it also sent one. The first of the pair did not get that array,
# so its card is broken.
#
# On a cluster, look for proof in the logs of the nodes: *link down* from the network, *Xid* from a GPU. (With large messages, a tree, or a card that breaks later, the counts say less.) On GPUs, Python only queues a sum,
# so compare collectives: PyTorch's **flight recorder** logs what each rank has queued, started and completed. In each process group, first suspect the rank that queued fewest (it may wait in a different group), then the one that started fewest (needs `TORCH_NCCL_ENABLE_TIMING=1`).
#
# </details>
#
# Now nothing is broken, but each rank, independently, is late in one step out of ten. With one rank, about 100 of 1,000 steps are slow. How many are slow with 64 ranks that wait for each other?

# %%
predict("64 ranks: in how many of 1,000 steps is at least one late?", None)

# %%
slow = round(1000 * (1 - 0.9**64))  # in 0.9**64 of the steps, all 64 are on time
outcome("64 ranks: in how many of 1,000 steps is at least one late?", slow, word="computed")

# %% [markdown]
# Nearly every step is slow, as with one rank that is *always* late. How can we tell the two apart? Our four ranks are late by chance, and each measures how long
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
import numpy as np

waited = np.array(cluster["waited"][0])  # ranks × steps
slow = waited.max(axis=0) > 0.01
print("waited in all, ms:", *(1000 * waited.sum(axis=1)).round().astype(int))
print("steps in which it came last:", *np.bincount(waited.argmin(axis=0)[slow], minlength=4))

# %% [markdown]
# The totals accuse nobody. A rank that is always late would have waited almost nothing in all. So look at *each step*: the rank that waited least came last. If it is mostly the same rank, and it has no more work than the others, move it to a
# different node. If it keeps changing, as here, look for a cause that can hit every rank, such as samples of different
# lengths. (On GPUs, synchronize the device before you read the clock, and only in some steps: synchronizing ends the overlap.)
#
# What if a rank dies? If its *process* dies, the operating system closes its connections, and `mpiexec` ends the job. If its *node* loses power, nobody closes them. So a controller asks each node for a **heartbeat**, a sign of life.
# By default, Slurm declares a node down after 300 s without an answer. A shorter wait finds dead nodes sooner, but also declares slow ones dead.
#
# To remember: **compare what each rank did last, and which rank came last in each step.**
#
# ### What does a failure cost?
#
# In the core, we sent SIGUSR1 ourselves, and we started the job again. On a cluster, Slurm does both (we keep the command in our program):

# %%
# %%px --save 15_resume.py
SLURM = """
sbatch -n 64 --time=1:00:00 --requeue --open-mode=append --signal=B:USR1@60 --wrap '
    stop() { kill -USR1 $!; again=1; }; trap stop USR1
    mpiexec python -m mpi4py code/15_resume.py FOLDER & wait $! || wait $!
    code=$?; if [ $again ]; then scontrol requeue $SLURM_JOB_ID; fi; exit $code'
"""

# %% [markdown]
# At least 60 seconds before the time limit, Slurm signals the job's shell, which runs `stop`. Open MPI's `mpiexec` passes the signal to the ranks: they agree, save and end (60 s must suffice for the steps until they agree, and the save). The signal interrupts the first `wait`; the second waits for `mpiexec`. Then `scontrol requeue` puts the job back into the queue.
# (FOLDER must be on a shared file system. For lost nodes (they may end this job), `torchrun`, SIGTERM and preemption, see [Slurm](../docs/several-machines/slurm.md#before-the-time-limit).)
#
# A failure gives no warning, so how often should you save? Meta trained Llama 3 on 2,048 nodes with eight GPUs each, and counted 419 unexpected interruptions in 54 days (**published**). That is one every
# 3.1 hours, the machine's **mean time between failures** (MTBF). We assume one minute per save and ten per restart, in which the training stands still.

# %%
predict("Minutes of work between two saves, on 2,048 nodes?", None)

# %% [markdown]
# If you save rarely, each failure destroys much work: half an interval, on average. If you save often, the saves take much time. Let a save take δ, and a failure come every M on average. If δ is much smaller than M, the best interval is about τ = √(2δM), **Young's formula**.

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
# Even the best interval loses 15 %. (Meta reports less than 10 %, so their saves or restarts are probably shorter than our guesses.) You may shorten one of the two. **Vote:** what gains more? (a) Restarts that take a tenth. (b) Saves that take a tenth.

# %%
for save, restart in ((60, 600), (60, 60), (6, 600)):
    print(f"save {save:2} s, restart {restart:3} s: {lost((2 * save * M) ** 0.5, save, restart):.1%} lost")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (b), with these numbers. Short restarts help once per failure. Short saves help twice: each takes less time, and you can save more often, so that a failure destroys less
# work.
#
# </details>

# %% tags=["exercise: 15.q3"]

# %% [markdown]
# How can a save be short? An **asynchronous** save returns when the CPU's memory has a copy of the state. The copy is written to the disk while the training goes on.
# PyTorch's `torch.distributed.checkpoint` can do that. (On GPUs, its process group needs two backends: `cpu:gloo,cuda:nccl`.) It can also load a checkpoint on more or fewer ranks than
# wrote it: **resharding**.
#
# Four ranks save 12 numbers, three per rank, and immediately set them to zero. Then two ranks
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
    print(f"rank {dist.get_rank()} has {mine.int().tolist()}\\n", end="")  # one piece: lines stay whole
dist.destroy_process_group()"""

# %%
with TemporaryDirectory() as folder:
    Path(folder, "sharded.py").write_text(sharded)
    for ranks, what in (4, "save"), (2, "load"):
        launch = f"torchrun --standalone --nproc-per-node {ranks} {folder}/sharded.py {folder}/dcp {what}"
        said = getoutput(f"timeout 200 {launch} 2>/dev/null")
print(*sorted(said.splitlines()), sep="\n")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (a). By default, `async_save` returns only when it has its copy. So δ is the time of the copy. Wait for `result()` before the next save,
# and before you end: it also raises the errors of the write.
#
# </details>
#
# The course's saver, `course_lib/parallel/checkpoint.py`, reshards, too. Which would you trust?
#
# | | `torch.distributed.checkpoint` | ours |
# |---|---|---|
# | writes while training goes on | yes | no |
# | killed while saving | keeps the old checkpoint if each save has its own folder; load the newest that has `.metadata` | keeps the old checkpoint |
# | a byte damaged on the disk | not noticed | noticed by its SHA-256 |
#
# How can a restart be short? Test each node before the start, keep spare nodes in the job (with `sbatch --no-kill`), and restart the ranks instead of the job. When one rank fails, `torchrun --max-restarts 3` starts all of them again, and the program loads its last
# checkpoint. With `--nnodes=2:4`, even the number of nodes may change: the training is **elastic**. (If each rank takes a fixed number of samples, the global batch changes, too.)
#
# What survives the loss of a rank without a restart? Not our training: each step needs all ranks. (PyTorch's `torchft` trains on without the lost replica.) Supervisors, parameter servers and some data loaders use **remote procedure calls** (RPC). A call runs a function on another rank. It takes two messages, request and result:

# %%
# %%px
if comm.rank == 1:
    name, arguments = comm.recv(source=0, tag=1)
    comm.send({"add": lambda a, b: a + b}[name](*arguments), dest=0, tag=2)
elif comm.rank == 0:
    comm.send(("add", (2, 3)), dest=1, tag=1)
    print("2 + 3 =", comm.recv(source=1, tag=2))

# %% [markdown]
# (PyTorch's `torch.distributed.rpc` is in maintenance mode; new systems use gRPC or Ray.) What if no answer comes? The caller decides what silence means:

# %% tags=["exercise: 15.q6"]

# %% [markdown]
# The way out is an **idempotent** function: running it twice has the same effect as running it once. To remember: **a failure costs a restart and the work since the last save; a call without an answer may have run.**
#
# ## References
#
# - T. Pillai and others, [All file systems are not created equal](https://www.usenix.org/conference/osdi14/technical-sessions/presentation/pillai), OSDI 2014.
# - J. Young, [A first order approximation to the optimum checkpoint interval](https://doi.org/10.1145/361147.361115), 1974.
# - Llama team, [The Llama 3 herd of models](https://arxiv.org/abs/2407.21783), 2024: the interruptions of 54 days, by cause.
# - A. Kokolis and others, [Revisiting reliability in large-scale machine learning research clusters](https://arxiv.org/abs/2410.21680), 2025: health checks.
# - A. Birrell and B. Nelson, [Implementing remote procedure calls](https://doi.org/10.1145/2080.357392), 1984.
# - PyTorch, [torchrun](https://docs.pytorch.org/docs/stable/elastic/run.html),
#   [flight recorder](https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html),
#   [distributed checkpoint](https://docs.pytorch.org/docs/stable/distributed.checkpoint.html).
