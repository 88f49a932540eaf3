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
# ## 1 · The disk
#
# You are the detective. Four ranks each read a batch, then pass arrays round a ring, as a ring all-reduce does. One rank's `disk` or network
# `card` is broken. Every rank has a **timeout**: after four seconds in the ring, it ends the job.

# %%
program = """
import faulthandler, signal, sys, time
import numpy as np
from mpi4py import MPI

comm, array = MPI.COMM_WORLD, np.ones(10)
fault = sys.argv[1] if comm.rank == int(sys.argv[2]) else "none"

def read_batch():
    time.sleep(1000 if fault == "disk" else 0)  # the file never comes

def pass_round():
    tag = int(fault == "card")  # nobody waits for tag 1
    for turn in range(comm.size - 1):
        comm.Sendrecv_replace(array, (comm.rank + 1) % comm.size, tag, (comm.rank - 1) % comm.size, tag)
        print("received")

faulthandler.dump_traceback_later(2)  # in 2 s, write down where this rank is
read_batch()
signal.alarm(4)  # the timeout
pass_round()"""

# %%
import os
from pathlib import Path
from random import randrange, sample
from subprocess import PIPE, STDOUT, run


def log_of(fault, guilty):
    job = ["mpiexec", "--output", "rank", "-n", "4", "python", "-u", "-c", program, fault, str(guilty)]
    return run(job, stdout=PIPE, stderr=STDOUT, text=True, timeout=100).stdout.splitlines()


# %% [markdown] tags=["subslide"]
# A disk breaks. `mpiexec` ends with:

# %% tags=["nbval-ignore-output"]
log = log_of("disk", randrange(4))
print(*log[-4:], sep="\n")

# %% [markdown]
# **Vote:** in this program, whose disk is broken? (a) The named rank's. (b) Another rank's. (c) Either is possible.
#
# Each rank wrote its **stack**: the functions that it was in, innermost first.

# %% tags=["nbval-ignore-output"]
print(*(line for line in log if "File" in line), sep="\n")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# (b). One rank is still in `read_batch`, so its timeout has not begun. The others waited for it in the ring. So `mpiexec` names a **victim**.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 2 · Three cards
#
# A broken network card neither sends nor receives. All ranks wait in `pass_round`, so their stacks accuse nobody. But every rank sends to the next one, rank 3 to
# rank 0: first its own array, then each array that it receives. Three jobs have one broken card each. We count what ranks 0 to 3 receive:

# %% tags=["nbval-ignore-output"]
cases = sample(range(4), 3)
for broken in cases:
    log = log_of("card", broken)
    print([log.count(f"[{rank}]<stdout>: received") for rank in range(4)])

# %% [markdown]
# Name each line's broken card first. One right is luck, two make you a sergeant, three an inspector.

# %%
predict("Whose card is broken in the first line?", None)

# %% tags=["nbval-ignore-output"]
outcome("Whose card is broken in the first line?", cases[0], word=f"the cards were {cases}, so rank")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# Two neighbours received nothing. The rank before them received, so its card works. It sent to the first of the two, and nothing arrived: that rank's card is broken. The second waits for
# the first:
#
# ```
# rank       g, broken   g+1   g+2   g+3
# received   0         ✗ 0   → 1   → 2   ✗ back to g
# ```
#
# </details>

# %% [markdown] tags=["notes"]
# Eight minutes up to here. Draw the ring with four arrows; let somebody strike out the arrows that carried nothing.

# %% [markdown] tags=["slide"]
# ## 3 · Killed while saving
#
# A dead job leaves its **checkpoint**, a file with the training's state. This function writes a new one over it:

# %% tags=["source: course_lib.training.saving:naive_save"]

# %% [markdown]
# We kill this function three times: before it opens, writes or closes the file. **Vote:** how many of the three kills lose both old
# bytes and new? (a) None. (b) One. (c) Two.

# %%
from course_lib.training.saving import kill_before_each_line

print(kill_before_each_line(naive_save))  # and once without a kill

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# (c). `open` empties the old file. `write` leaves these few bytes in Python's buffer, which dies with the process.
#
# </details>
#
# An **atomic save** writes a second file. Then `os.replace` gives this file the old name in one instant. Against a power
# cut, `os.fsync` waits until the bytes are on the disk. Our program begins (its `sbatch` lines are for a cluster):

# %%
# %%px --save 15_resume.py
"""A training that saves, stops when a rank gets SIGUSR1, and goes on, on any number of ranks.

Start it, and start it again, with one of these:

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
# A batch system ends a job at its time limit. If you ask, it sends a signal a minute before, say **SIGUSR1**. Our program only notes the signal:

# %%
# %%px --save 15_resume.py
asked = []  # filled when a signal asks this rank to stop
_ = signal.signal(signal.SIGUSR1, lambda *_: asked.append(True))


# %% [markdown]
# `train` is lesson 06's loop. Before the loop, all ranks get the checkpoint. After each step, they agree whether to stop. Rank 0 saves every 20 steps, and when they stop. The step's number seeds the
# batch.


# %%
# %%px --save 15_resume.py
def train(path, steps=60, every=20):
    """Train from the checkpoint at `path` on; yield how many steps are done, and the loss."""
    torch.manual_seed(0)  # the same weights on every rank
    model, done, stop = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1)).double(), 0, False
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
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
    with tempfile.TemporaryDirectory() as scratch:  # without FOLDER
        losses = dict(train(Path(sys.argv[1] if len(sys.argv) == 2 else scratch, "training.pt")))
    if comm.rank == 0 and losses:
        print(f"ranks: {comm.size}, steps {min(losses)} to {max(losses)}, loss {losses[max(losses)]:.6f}")

# %% [markdown] tags=["subslide"]
# After step 50, rank 1 alone gets SIGKILL (dead at once), or SIGUSR1. A new job of *two* ranks goes on. **Vote** for each signal:
# which is the new job's first step? (a) 1. (b) 41. (c) 51.

# %%
from subprocess import check_output
from tempfile import mkdtemp

from mpi_classroom.launch import job_folder

disturbed = """
import os, runpy, signal, sys
from pathlib import Path
mine = runpy.run_path("code/15_resume.py")  # its functions; does not start the training
for done, loss in mine["train"](Path(sys.argv[1], "training.pt")):
    if done == 50 and mine["comm"].rank == 1:
        os.kill(os.getpid(), signal.Signals[sys.argv[2]])"""

for name in ("SIGKILL", "SIGUSR1"):
    folder = mkdtemp(dir=job_folder())  # each job saves in its own
    run(["mpiexec", "-n", "4", "python", "-c", disturbed, folder, name], capture_output=True, timeout=100)
    print(name, check_output(["mpiexec", "-n", "2", "python", "code/15_resume.py", folder], text=True))

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# SIGKILL: (b), as the last save was after step 40. SIGUSR1: (c). One rank was asked, all stopped, and rank 0 saved. If rank 1 had just left, the others would hang.
# The loss is that of the undisturbed run (in float64, to six digits): two ranks share each step's 128 samples.
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# | | with 64 GPUs |
# |---|---|
# | stacks | Python runs ahead of the GPU. Compare the ranks' last collectives: PyTorch's **flight recorder** keeps them, if it was on from the start. |
# | card | Large messages stop their senders, too, and not every sum is a ring. Look in the nodes' logs for *link down* and for GPU errors (*Xid*). |
# | time limit | Agree every tenth step: each time, CPU and GPU wait for each other. |
# | saving | Save the data loader's position. Batch norm averages over one rank's samples, so keep the number of ranks. ZeRO, dropout: see More. |

# %% [markdown] tags=["slide"]
# ## Key points
#
# - The rank that times out is mostly a victim. Compare all stacks, then what each rank received (on GPUs: its last collective).
# - Write a second file, `fsync` it, rename it.
# - Only note a signal. Let the ranks agree between two steps.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# Every second night, a different rank of 64 times out. What do you do first? (a) Double the timeout. (b) Record stacks and
# messages. (c) Replace that rank's node.
#
# <details><summary>What to listen for</summary>(b). (c) most likely replaces a good node. (a) helps only if ranks are late.</details>

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
# Each rank has random states of its own, so each rank saves its own. On a GPU, it also saves `torch.cuda.get_rng_state()`. (Such states fit only the same number of ranks.)
#
# </details>

# %% [markdown]
# ### Who is late, and who is dead?
#
# In lesson 06, the same rank was late in every step. Now each rank is late in one step out of ten, by chance. A step ends when the last rank
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
# All four waited about equally long in all, so the totals accuse nobody. Keep the waiting times of *each step*: the rank that waited least came last. If the
# same rank always comes last, move it to another node: is the rank still slow, or the node? If the last rank changes, look for a cause that hits all ranks. It may be Python's garbage collection (switch it
# off, and collect on all ranks in the same step), samples of different lengths, or a file system that other jobs use.
#
# And a rank that never comes? When a *process* dies, its operating system closes its connections, and over TCP the other side notices at once. A *node*
# without power closes nothing. We cannot cut the power, but SIGSTOP comes close: it freezes a process, which then closes nothing and sends nothing.
#
# Each rank touches a file ten times a second: its **heartbeat**. Rank 1 gets SIGKILL in one job, and SIGSTOP in the next. **Predict** for each signal: does
# `mpiexec` end the job within five seconds? Does the heartbeat stop?

# %%
import signal
import time
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
    job = Popen(["mpiexec", "-n", "2", "python", "-c", alive, folder], stdout=DEVNULL, stderr=DEVNULL)
    while len(list(folder.iterdir())) < 2 and job.poll() is None:
        time.sleep(0.1)
    time.sleep(1)
    rank_1 = int((folder / "1").read_text())
    os.kill(rank_1, number)
    time.sleep(5)
    old = time.time() - (folder / "1").stat().st_mtime > 1
    print(f"{number.name}: mpiexec ended the job: {job.poll() is not None}, heartbeat stopped: {old}")
    if number == signal.SIGSTOP:
        os.kill(rank_1, signal.SIGKILL)  # nobody else ends a frozen process
    job.kill()
    job.wait()

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# `mpiexec` sees that a process has died. For a frozen process it waits as long as you let it. A dead node sends nothing either, so somebody must
# watch its heartbeat, and decide how long to wait. By default, Slurm waits for 300 seconds (`SlurmdTimeout`). torchrun's rendezvous waits for three
# heartbeats, one every 5 seconds. A shorter wait also declares slow nodes dead.
#
# </details>
#
# The `@60` in section 3's `sbatch` lines is such a choice, too. These 60 seconds must cover one save, and ten steps if the ranks agree every tenth step. If they do not, the job is killed and never requeued. (Slurm may
# send the signal up to a minute *earlier*.) Open MPI's `mpiexec` passes SIGUSR1 on to the ranks. At SIGTERM it ends them. (The shell waits twice, because the signal ends its first `wait`.)

# %% [markdown] tags=["slide"]
# ### What does a failure cost?
#
# Meta trained Llama 3 on 2,048 nodes with eight GPUs each, and counted 419 unexpected interruptions in 54 days (**published**): one every 3.1 hours. This
# is the **mean time between failures**, MTBF. We assume that a save stops the training for one minute, and that it takes ten from a failure to the next step. Rare saves lose
# much work per failure, frequent saves stop the training often. When is the least time lost?

# %%
predict("Minutes of work between two saves, on 2,048 nodes?", None)

# %% [markdown]
# After every τ seconds of work, a save takes δ seconds. A failure comes every M seconds on average. It loses half an interval of work on average, and the
# seconds of the restart. **Young's formula** says where the least is lost: near τ = √(2δM). It is good while δ is much smaller than τ, and τ much smaller than M.

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
# Meta reports more than 90 % of effective time. Our model says 85 %. Is this a small error? Compare what is *lost*: less than 10 % there, 15 % here. We guessed one minute
# per save and ten per restart. If the model is right, at least one guess is too long. **Vote:** what gains more? (a) Restarts that take a tenth. (b) Saves that take a tenth.

# %%
for save, restart in ((60, 600), (60, 60), (6, 600)):
    print(f"save {save:2} s, restart {restart:3} s: {lost((2 * save * M) ** 0.5, save, restart):.1%} lost")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# (b), with these numbers. Short saves can also come more often, and then a failure loses less work.
#
# </details>
#
# An **asynchronous** save stops the training only for a short time: copy the state to the CPU's memory, go on, and write the copy
# meanwhile. PyTorch's `torch.distributed.checkpoint` can do that (on GPUs, if the group also has a backend for CPUs: `cpu:gloo,cuda:nccl`). It can also load on a different number of ranks, which is called **resharding**.
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
for ranks, what in ("4", "save"), ("2", "load"):
    job = [
        "torchrun",
        "--standalone",
        "--nproc-per-node",
        ranks,
        folder / "sharded.py",
        folder / "saved",
        what,
    ]
    said = run(job, capture_output=True, text=True, timeout=200).stdout
print(*sorted(said.splitlines()), sep="\n")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
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
# | two trainings in one folder | mixed | the second one is refused |
#
# Three things make a restart short:
#
# | | what it spares you |
# |---|---|
# | spare nodes in the job (under Slurm with `--no-kill`, else a lost node ends the job) | the wait for a repair, or in the queue |
# | a health check before each start | a second failure on the same node: let each node run a matrix product, an all-reduce among its GPUs and one with another node, and compare results and seconds |
# | a restart of the ranks, not of the job | the queue, and the set-up of the nodes (each rank still loads its program again) |
#
# The last row is torchrun's `--max-restarts`: when a process fails, torchrun ends the others, and starts them all again. In this program, rank 1 dies in step 3 of
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
job = ["torchrun", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1", folder / "elastic.py"]
print(run([*job, folder / "done"], stdout=PIPE, stderr=DEVNULL, text=True, timeout=200).stdout)

# %% [markdown]
# Steps 0 and 1 were saved, so the second attempt begins with step 2.
#
# With `--nnodes=2:4`, torchrun restarts all ranks when a node joins, or when one is lost and the others' collective has failed or timed out, on two to four nodes. (If the node with the rendezvous is lost, the job ends.) A
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
