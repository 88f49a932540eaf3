# ---
# title: When things fail
# goal: Find the rank that is to blame, and lose as few steps as possible.
# able:
#   - find the rank to blame when a job hangs
#   - save a training so that it goes on after a kill or a time limit, on any number of ranks
# more:
#   - tell a dead process from a dead node, and say what late ranks cost
#   - say what a failure costs, and how often to save
#   - call a function on another rank
# before: >-
#   {06}. Helpful: {11}
# minutes: {core: 20, more: 30}
# ranks: 4
# warm-up:
#   - ask: Rank 2 never calls `Allreduce`; ranks 0, 1 and 3 do. What happens?
#     answer: >-
#       The three wait in <code>Allreduce</code> for ever: the call needs all ranks.
#   - ask: >-
#       Four ranks train with a global batch of 128. You go on with two ranks. How many samples must each take per
#       step, so that it stays the same training?
#     answer: >-
#       64: the global batch stays 128.
#   - ask: Which weights does each rank have after a step of data parallelism?
#     answer: All of them, and all ranks have the same.
# ---

# %% [markdown] tags=["slide"]
# ## 1 · A job hangs
#
# Four ranks each read a batch, then sum their gradients. One rank's disk is broken. The sum has a **timeout**: `signal.alarm(4)` ends a rank
# that is still there after four seconds.

# %%
program = """
import faulthandler, signal, sys, time
from mpi4py import MPI

comm = MPI.COMM_WORLD

def read_batch():
    if comm.rank == int(sys.argv[1]):
        time.sleep(1000)  # the file never comes

def sum_gradients():
    comm.allreduce(1.0)

faulthandler.dump_traceback_later(2)  # in 2 s, write down where this rank is
read_batch()
signal.alarm(4)  # the timeout
sum_gradients()"""

# %% [markdown] tags=["subslide"]
# We run the job. `mpiexec` ends with:

# %% tags=["nbval-ignore-output"]
from random import randrange
from subprocess import PIPE, STDOUT, run

job = ["mpiexec", "--output", "rank", "-n", "4", "python", "-c", program, str(randrange(4))]
log = run(job, stdout=PIPE, stderr=STDOUT, text=True, timeout=100).stdout.splitlines()
print(*log[-4:], sep="\n")

# %% [markdown] tags=["slide"]
# ## 2 · The stacks
#
# `mpiexec` accuses one rank. Would you replace its node?
#
# After two seconds, each rank wrote its **stack** to the log: the functions that it was in, innermost first. Guess the rank, then look:

# %%
predict("Whose disk is broken?", None)

# %% tags=["nbval-ignore-output"]
print(*(line for line in log if "File" in line), sep="\n")
outcome("Whose disk is broken?", int(job[-1]), word="that of rank")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# One rank never came to the sum, so its timeout never began. The others waited for it, and the first whose time was up got the blame: `mpiexec` names a **victim**.
#
# </details>

# %% [markdown] tags=["notes"]
# Five minutes up to here. Ask before the stacks: where was the named rank during its four seconds?

# %% [markdown] tags=["slide"]
# ## 3 · Killed while saving
#
# A dead job leaves its **checkpoint**, a file with the training's state. This function writes a new checkpoint over the old one:

# %% tags=["source: course_lib.training.saving:naive_save"]

# %% [markdown]
# We run it three times, and kill it just before it opens, writes or closes the file. Then we look what is in the file. **Vote:** how many of the three kills lose both the old bytes and the new ones? (a) None. (b) One. (c) Two.

# %%
from course_lib.training.saving import kill_before_each_line

print(kill_before_each_line(naive_save))  # and once without a kill

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (c). `open` empties the old file. `write` leaves these few bytes in Python's buffer, which dies with the process.
#
# </details>
#
# An **atomic save** writes a second file. Then `os.replace` gives this file the old name in one instant. A power
# cut also loses what is still in memory, so `os.fsync` waits until the bytes are on the disk.
#
# Now we build our program, one piece per cell. Skip its `sbatch` lines until you have a cluster.

# %%
# %%px --save 15_resume.py
"""A training that stops at SIGUSR1. Started again, it goes on, on any number of ranks.

mpiexec -n 4 python code/15_resume.py FOLDER

sbatch -n 64 --time=60 --requeue --open-mode=append --signal=B:USR1@60 --wrap '
    stop() { kill -USR1 $!; again=1; }; trap stop USR1
    mpiexec python code/15_resume.py FOLDER & wait $! || wait $!
    code=$?; if [ $again ]; then scontrol requeue $SLURM_JOB_ID; fi; exit $code'
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
# A batch system ends a job at its time limit. If you ask, it sends a signal shortly before, say **SIGUSR1**. It may come in the middle of a step, so our program only notes it:

# %%
# %%px --save 15_resume.py
asked = []  # filled when a signal asks this rank to stop
_ = signal.signal(signal.SIGUSR1, lambda *_: asked.append(True))


# %% [markdown]
# `train` is lesson 06's loop. It begins with the checkpoint, if there is one. The step's number seeds the batch, so every run draws the same batches. `yield` hands the loss to the caller. Then the ranks agree whether to stop. Rank 0 saves every 20 steps, and when they stop.


# %%
# %%px --save 15_resume.py
def train(path, steps=60, every=20):
    """Train from the checkpoint at `path` on; yield how many steps are done, and the loss."""
    torch.manual_seed(0)  # the same weights on every rank
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1)).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    done, stop = 0, False
    if saved := comm.bcast(path.read_bytes() if comm.rank == 0 and path.exists() else None):
        done, weights, state = torch.load(io.BytesIO(saved))
        model.load_state_dict(weights)
        optimizer.load_state_dict(state)
    while done < steps and not stop:
        batch = torch.randn(128, 8, generator=torch.Generator().manual_seed(done)).double()
        x = batch[comm.rank :: comm.size]
        loss = (model(x) - x[:, :1] * x[:, 1:2]).square().sum() / 128
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
    if comm.rank == 0 and losses:
        print(f"ranks: {comm.size}, steps {min(losses)} to {max(losses)}, loss {losses[max(losses)]:.6f}")

# %% [markdown] tags=["subslide"]
# After step 50, rank 1 alone gets SIGKILL, which ends it at once, or SIGUSR1. Then *two* ranks go on. **Vote** for each signal: which is their first step? (a) 1. (b) 41. (c) 51.

# %%
from subprocess import check_output
from tempfile import mkdtemp

from mpi_classroom.launch import job_folder

disturbed = """
import os, runpy, signal, sys
from pathlib import Path
mine = runpy.run_path("code/15_resume.py")  # its functions, without starting it
for done, loss in mine["train"](Path(sys.argv[1], "training.pt")):
    if done == 50 and mine["comm"].rank == 1:
        os.kill(os.getpid(), signal.Signals[sys.argv[2]])"""

for name in ("SIGKILL", "SIGUSR1"):
    folder = mkdtemp(dir=job_folder())
    run(["mpiexec", "-n", "4", "python", "-c", disturbed, folder, name], capture_output=True, timeout=100)
    print(name, check_output(["mpiexec", "-n", "2", "python", "code/15_resume.py", folder], text=True))

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# SIGKILL: (b). The last save was after step 40. SIGUSR1: (c). Only rank 1 was asked, but all ranks stopped, and rank 0 saved. The loss is that
# of the undisturbed run: each step has the same 128 samples.
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# | | with 64 GPUs |
# |---|---|
# | stacks | Python runs ahead of the GPU. So compare each rank's last collective: PyTorch's **flight recorder** keeps them (check that it is on). |
# | resuming | Batch norm averages over one rank's samples. With it, keep the number of ranks. |

# %% [markdown] tags=["slide"]
# ## Key points
#
# - The rank that times out is usually a victim. Compare all ranks' stacks.
# - Write a second file, `fsync` it, rename it.
# - Only note a signal. Let the ranks agree between two steps.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# Every second night, a different rank of 64 times out. What do you do first? (a) Double the timeout. (b) Record all
# stacks. (c) Replace that rank's node.
#
# <details><summary>What to listen for</summary>(b). (c) usually replaces a victim's node. (a) only helps late ranks.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# First two questions and an exercise about the core.

# %% tags=["exercise: 15.q7"]

# %% tags=["exercise: 15.q2"]

# %% tags=["exercise: 15.3"]

# %% [markdown]
# <details><summary>Open after you have solved 15.3</summary>
#
# Each rank has random states of its own, so each rank saves its own. On a GPU, it also saves `torch.cuda.get_rng_state()`. These states fit only the same number of ranks. Save the data loader's position, too.
#
# </details>

# %% [markdown]
# ### Who is to blame when the stacks look alike?
#
# Four ranks pass arrays round a ring, as a ring all-reduce does. Each sends to the next one, rank 3 to rank 0: first its own array, then each array that it receives. One rank's network card is
# broken, so it neither sends nor receives. Soon all ranks wait in the ring, and their stacks accuse nobody. We run three such jobs, and count what ranks 0 to 3 receive:

# %%
ring = """
import signal, sys
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
array, tag = np.ones(10), int(rank == int(sys.argv[1]))  # a broken card: nobody waits for tag 1
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
# Name each line's broken card first.

# %%
predict("Whose card is broken in the first line?", None)

# %% tags=["nbval-ignore-output"]
outcome("Whose card is broken in the first line?", cases[0], word=f"the cards were {cases}, so rank")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# Two neighbours received nothing. The rank before them received an array, so its card works. It sent to the first of the two, and nothing arrived: the first one's card is broken. The second only
# waits for the first. (Large messages stop their senders, too. Then look in the nodes' logs for *link down* and for GPU errors, *Xid*.)
#
# </details>
#
# Other ranks are not broken, but late. In lesson 06, the same rank was late in every step. Now each rank is late in one step out of ten, by chance. A step ends when the last rank
# has come.

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
# At least one of 64 ranks is late in 1 − 0.9⁶⁴ = 99.9 % of the steps. If all delays are equal, the job is almost as slow as with one rank that is *always* late.
# How can we tell the two cases apart? Our four ranks are late by chance, and measure how long they wait.

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
# All four waited about equally long in all, so the totals accuse nobody. Keep the waiting times of *each step*: the rank that waited least came last. Does the
# same rank always come last? Then move it to another node, and see whether the rank is still slow, or the node. If the last rank changes, look for a cause that hits all ranks, such as
# samples of different lengths.
#
# And a rank that never comes? When a *process* dies, its operating system closes its connections, and over TCP the other side notices at once. A *node*
# without power closes nothing. We cannot cut the power, but SIGSTOP comes close: it freezes a process, which then closes nothing and sends nothing.
#
# Each rank touches a file ten times a second: its **heartbeat**. Rank 1 gets SIGKILL in one job, and SIGSTOP in the next. **Predict** for each signal: does
# `mpiexec` end the job within five seconds? Does the heartbeat stop?

# %%
import os
import signal
import time
from pathlib import Path
from subprocess import DEVNULL, Popen

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
# `mpiexec` sees that a process has died. For a frozen process it waits as long as you let it. A dead node sends nothing either, so somebody must
# watch its heartbeat and decide how long to wait. By default, Slurm waits for 300 seconds (`SlurmdTimeout`). A shorter wait also declares slow nodes dead.
#
# </details>
#
# The `@60` in section 3's `sbatch` lines is such a choice, too. These 60 seconds must cover one save, and the steps until the ranks agree. (On GPUs, let them agree every tenth step, as the CPU waits for the GPU each time.) If they do not, the job is killed and never requeued. Why SIGUSR1? Open MPI's `mpiexec` passes it on to the ranks. At SIGTERM it ends them. (The shell waits twice, because the signal ends its first `wait`.)

# %% [markdown] tags=["slide"]
# ### What does a failure cost?
#
# Meta trained Llama 3 on 2,048 nodes with eight GPUs each, and counted 419 unexpected interruptions in 54 days (**published**): one every 3.1 hours. This
# is the **mean time between failures**, MTBF. We assume that a save stops the training for one minute, and that a restart takes ten. Rare saves lose
# much work per failure. Frequent saves stop the training often. When is the least time lost?

# %%
predict("Minutes of work between two saves, on 2,048 nodes?", None)

# %% [markdown]
# After every τ seconds of work, a save takes δ seconds. A failure comes every M seconds on average. It loses half an interval of work, and the
# seconds of the restart. **Young's formula** says where the least is lost: near τ = √(2δM). It holds while δ is much smaller than τ, and τ much smaller than M.

# %%
M = 54 * 24 * 3600 / 419


def lost(tau, save=60, restart=600):
    """The part of the time that is no lasting work."""
    running = 1 - (tau / 2 + restart) / M
    return 1 - running * tau / (tau + save)


best = (2 * 60 * M) ** 0.5
outcome("Minutes of work between two saves, on 2,048 nodes?", best / 60, word="computed")
for minutes in (5, best / 60, 60):
    print(f"a save every {minutes:4.1f} min: {lost(60 * minutes):.1%} of the time is lost")

# %% [markdown]
# Meta reports that less than 10 % of the time was lost. Our model says 15 %. We guessed one minute
# per save and ten per restart. If the model is right, at least one guess is too long. **Vote:** what gains more? (a) Restarts that take a tenth. (b) Saves that take a tenth.

# %%
for save, restart in ((60, 600), (60, 60), (6, 600)):
    print(f"save {save:2} s, restart {restart:3} s: {lost((2 * save * M) ** 0.5, save, restart):.1%} lost")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (b), with these numbers. Short saves can also come more often, and then a failure loses less work.
#
# </details>
#
# How can a save be short? An **asynchronous** save only copies the state to the CPU's memory. It writes the copy while the training
# goes on. PyTorch's `torch.distributed.checkpoint` can do that (on GPUs, if the group also has a backend for CPUs: `cpu:gloo,cuda:nccl`). It can also load on a different number of ranks, which is called **resharding**.
#
# In the next cells, four ranks save 12 numbers, three per rank. They set their numbers to zero without waiting for the files. Then two ranks
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
# (a): by default, `async_save` returns only when it has its copy. Do not start a save before the previous one is written.
#
# </details>
#
# The course's own `save_training` (`course_lib/parallel/checkpoint.py`) compares like this:
#
# | | `torch.distributed.checkpoint` | ours |
# |---|---|---|
# | loads on a different number of ranks | yes, any cut along any axis | yes, flat buffers as ZeRO cuts them |
# | writes while training goes on | yes | no |
# | killed while saving | keeps the old checkpoint if each save has its own folder; in one folder for all saves, the old files are lost first | keeps the old checkpoint |
# | a changed byte | not noticed | noticed by its SHA-256 |
#
# And how can a restart be short? Keep spare nodes in the job, and test each node before the start. Restart the ranks, not the job: then nobody waits in the queue.
# torchrun does that with `--max-restarts`. When a process fails, it ends the others, and starts them all again. In this program, rank 1 dies in step 3 of
# the first attempt:

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
# Steps 0 and 1 were saved, so the second attempt begins with step 2.
#
# With `--nnodes=2:4`, torchrun restarts all ranks when a node joins or is lost, on two to four nodes. A
# training that goes on with a different number of ranks is **elastic**. If each rank takes a fixed number of samples, the global batch changes with the ranks.

# %% tags=["exercise: 15.q3"]

# %% [markdown]
# ### A call to another rank
#
# Supervisors, parameter servers and data loaders work by question and answer. A **remote procedure call** (RPC) runs a function on another rank and
# returns its result. It takes two messages: the first has the function's name and its arguments, the second has the result.

# %% tags=["source: course.lessons.l15_when_things_fail.rpc:serve"]
# %%px

# %% [markdown]
# Rank 1 serves, and rank 0 calls. If the function raises an error on rank 1, the server goes on, and `call` raises the error on
# rank 0:

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
# And if no answer comes? `call` has a timeout, too. MPI loses no message, but mostly ends the job when a rank dies. In other systems, messages are lost, and servers die and are started again.

# %% tags=["exercise: 15.q6"]

# %% [markdown]
# So a function that you call again after a timeout should do no harm when it runs twice.
#
# PyTorch has `torch.distributed.rpc`, which its documentation calls stable and in maintenance mode.
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
