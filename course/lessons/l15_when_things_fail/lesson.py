# ---
# title: When things fail
# goal: Find the rank that is to blame, and lose as few steps as possible.
# able:
#   - find the rank to blame when a job hangs
#   - replace a file so that a kill does no harm
#   - stop a training when asked, and resume it on another number of ranks
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
#       The three wait in <code>Allreduce</code> for ever: it needs all ranks of the communicator.
#   - ask: >-
#       Four ranks train with a global batch of 128. You go on with two ranks. How many samples must each take per
#       step, so that it stays the same training?
#     answer: >-
#       64: the global batch stays 128.
#   - ask: Which weights does each rank have after a step of data parallelism?
#     answer: All of them, and all ranks have the same.
# ---

# %% [markdown] tags=["slide"]
# ## 1 · Four logs
#
# Four ranks train. In each step, every rank reads a batch and then calls a sum over all ranks, here a small ring: each array travels once around. A rank that
# is still in a sum after four seconds gives up, and its job ends. That is the **timeout**.
#
# We break one rank in step 3, drawn at random: its `disk` or its network `card`. A broken card is one whose messages go to a tag that nobody listens to.

# %%
import os
from pathlib import Path
from random import randrange
from subprocess import run

program = """
import faulthandler, signal, sys, time
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, fault = comm.rank, sys.argv[1] if comm.rank == int(sys.argv[2]) else "none"

def read_batch(step):
    while step == 3 and fault == "disk":
        time.sleep(0.1)  # the file never comes
    return np.ones(10)

def all_reduce(step, moving):
    tag, total = int(step == 3 and fault == "card"), moving.copy()
    for turn in range(comm.size - 1):
        comm.Sendrecv_replace(moving, (rank + 1) % comm.size, tag, (rank - 1) % comm.size, tag)
        print(f"rank {rank} received a message of step {step}")
        total += moving
    return total

faulthandler.dump_traceback_later(2)  # after 2 s, write where this rank stands
for step in range(5):
    batch = read_batch(step)
    signal.alarm(4)  # the timeout
    total = all_reduce(step, batch)
    signal.alarm(0)
    print(f"rank {rank} finished step {step}")"""


def log_of(fault, guilty):
    """All that four ranks print, each line with its rank; the last lines are from mpiexec."""
    job = ["mpiexec", "--output", "rank", "-n", "4", "python", "-u", "-c", program, fault, str(guilty)]
    done = run(job, capture_output=True, text=True, timeout=100)
    return done.stdout.splitlines() + done.stderr.splitlines()


# %% [markdown] tags=["subslide"]
# First a broken disk. Here is what the ranks say about their steps, and the last words of `mpiexec`:

# %% tags=["nbval-ignore-output"]
guilty = randrange(4)
log = log_of("disk", guilty)
for rank in range(4):
    print([line for line in log if f"rank {rank} finished" in line][-1])
print(*log[-4:-1], sep="\n")

# %% [markdown]
# **Vote:** who is to blame? (a) the rank that `mpiexec` names, (b) one that it does not name, (c) the network.

# %% [markdown] tags=["subslide"]
# Each rank has also written its **stack**: the functions that it was in after two seconds, the innermost first.

# %% tags=["nbval-ignore-output"]
def innermost(log):
    """The function in which each rank stood."""
    after = [log[n + 2] for n, line in enumerate(log) if "Timeout" in line]
    print(*sorted(f"{line[:3]} in {line.split()[-1]}" for line in after), sep="\n")


innermost(log)

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# (b). One rank is in `read_batch` and never came. The rank that `mpiexec` names was in time; it is a **victim**, and chance decides which of the three gives up
# first. A new node for the victim changes nothing.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 2 · The card
#
# Now the card fails. Ask the stacks again:

# %%
guilty = randrange(4)
log = log_of("card", guilty)
innermost(log)

# %% [markdown]
# They accuse nobody: all four are *inside* the sum. So count the messages of step 3. Each rank sends to the next one, and rank 3 to rank 0.

# %% tags=["nbval-ignore-output"]
for rank in range(4):
    print(f"rank {rank} received", sum(f"rank {rank} received a message of step 3" in line for line in log))

# %%
predict("Whose card failed?", None)

# %% tags=["nbval-ignore-output"]
outcome("Whose card failed?", guilty, word="it was rank")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# Two ranks received nothing. One of them waits for a neighbour who has received, so who could send: something came, and was not heard. That one is guilty. The other
# is its first victim. With a real card, also suspect the cable between two ranks.
#
# </details>

# %% [markdown] tags=["notes"]
# Eight minutes up to here. Draw the ring with four arrows; let somebody strike out the arrows that carried nothing.

# %% [markdown] tags=["slide"]
# ## 3 · Killed while saving
#
# The job is dead. What is left is its last **checkpoint**, a file with the state of the training. This saver replaces it:

# %% tags=["source: course_lib.training.saving:naive_save"]

# %% [markdown]
# We let it replace an old file and kill it, as `kill -9` does, before each line that it runs: three times, since `with` opens the file and later closes it. (The last page
# of `course_lib/training/saving.py` is the killer.)

# %%
predict("Naive saver: how many of the three kills damage the file?", None)

# %%
from course_lib.training.saving import kill_before_each_line

for line, left in kill_before_each_line(naive_save):
    print(f"killed before {line:8} the file is {left}")
damaged = sum(left in ("empty", "a part") for _, left in kill_before_each_line(naive_save))
outcome("Naive saver: how many of the three kills damage the file?", damaged, word="counted")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# `open` empties the old file, and `write` only fills Python's buffer. Until the file is closed, there is neither the old checkpoint nor the new one.
#
# </details>
#
# An **atomic save** writes the new bytes to a file aside, and then gives it the name of the old one with `os.replace`, in one instant. And if the power
# fails? Bytes that were written may be in memory only. `os.fsync` waits until they are on the disk.

# %%
# %%px --save 15_resume.py
"""Trains on data/digits.npz, which lies beside this file. After a kill, start it again on any number of ranks.

    mpiexec -n 4 python code/15_resume.py FOLDER       FOLDER keeps the checkpoint; the ranks' SIGTERM: save, stop

    sbatch -n 64 --time=60 --requeue --open-mode=append --signal=B:TERM@60 --wrap '
        trap "kill -USR1 \$!" TERM                     # 60 s before the limit; mpiexec passes USR1 on
        mpiexec python code/15_resume.py FOLDER & wait; wait'
"""

import io
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from mpi4py import MPI
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(1)  # one thread per rank
torch.set_default_dtype(torch.float64)  # no mistake can hide behind rounding

comm = MPI.COMM_WORLD
digits = np.load(Path(__file__).with_name("data") / "digits.npz")
images = torch.from_numpy(digits["train_images"] / 16).flatten(1)
labels = torch.from_numpy(digits["train_labels"]).long()

# %% tags=["exercise: 15.1"]

# %%
for line, left in kill_before_each_line(atomic_save):
    print(f"killed before {line:8} the file is {left}")

# %% [markdown] tags=["notes"]
# Six minutes for the exercise. Ask what is in the file, what is in Python's buffer, what is in the system's memory.

# %% [markdown] tags=["slide"]
# ## 4 · Stop, and go on
#
# A batch system such as Slurm ends a job at its time limit, and sends **SIGTERM** before, if you ask for it. The signal only makes a note. The
# training looks at the note between two steps.


# %%
# %%px --save 15_resume.py
asked = []  # filled when a signal asks this rank to stop
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, lambda *_: asked.append(True))


def train(path, steps=60, every=20):
    """Train from the checkpoint at `path` on; yield how many steps are done, and the loss."""
    torch.manual_seed(0)  # the same weights on every rank
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer, done, stop = torch.optim.Adam(model.parameters(), lr=0.01, foreach=False), 0, False
    if saved := comm.bcast(path.read_bytes() if comm.rank == 0 and path.exists() else None):
        done, weights, averages = torch.load(io.BytesIO(saved))
        model.load_state_dict(weights)
        optimizer.load_state_dict(averages)
    while done < steps and not stop:
        batch = np.random.default_rng(done).choice(len(images), 128, replace=False)
        mine = np.array_split(batch, comm.size)[comm.rank]
        loss = F.cross_entropy(model(images[mine]), labels[mine], reduction="sum") / len(batch)
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            comm.Allreduce(MPI.IN_PLACE, parameter.grad.numpy())
        optimizer.step()
        done += 1
        yield done, comm.allreduce(loss.item())
        stop = comm.allreduce(len(asked)) > 0  # when one rank is asked, all stop
        if comm.rank == 0 and (stop or done % every == 0):
            torch.save([done, model.state_dict(), optimizer.state_dict()], file := io.BytesIO())
            atomic_save(path, file.getvalue())


def main(folder):
    history = dict(train(Path(folder, "training.pt")))
    if comm.rank == 0 and history:
        last = max(history)
        print(f"ranks: {comm.size}, steps {min(history)} to {last}, loss {history[last]:.6f}")
        if last < 60 and "SLURM_JOB_ID" in os.environ:
            subprocess.run(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]], check=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(sys.argv[1] if len(sys.argv) == 2 else scratch)

# %% [markdown] tags=["subslide"]
# First undisturbed. Then the program is the same, but after 50 of the 60 steps rank 1 sends itself a signal, and *two* ranks go on.

# %%
# !mpiexec -n 4 python code/15_resume.py

# %%
predict("SIGKILL: how many steps do both jobs compute together?", None)

# %%
from tempfile import mkdtemp

disturbed = """
import os, runpy, signal, sys
from pathlib import Path
mine = runpy.run_path("code/15_resume.py")
for done, loss in mine["train"](Path(sys.argv[1], "training.pt")):
    if done == 50 and mine["comm"].rank == 1:
        os.kill(os.getpid(), signal.Signals[sys.argv[2]])"""


def go_on_after(name):
    """Disturb four ranks with the signal of this name, and let two go on."""
    folder = mkdtemp()
    run(["mpiexec", "-n", "4", "python", "-c", disturbed, folder, name], capture_output=True, timeout=100)
    again = ["mpiexec", "-n", "2", "python", "code/15_resume.py", folder]
    print(run(again, capture_output=True, text=True, timeout=100).stdout)


go_on_after("SIGKILL")

# %% [markdown]
# **Vote:** and with SIGTERM, which only rank 1 gets? (a) also from step 41 on, (b) from step 51, (c) the other three hang.

# %%
go_on_after("SIGTERM")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# (b). After each step, the ranks add up their notes. If one rank was asked, all of them stop, after the same step. If rank 1 had simply left, the others would
# hang in the next sum.
#
# The loss is that of the undisturbed job, in all decimals: which images are in a batch depends on the step alone, and two ranks share the same 128.
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# | | with 64 GPUs |
# |---|---|
# | stacks | sums run on the GPU while Python goes on, so a stack may show a later line. PyTorch's **flight recorder** keeps the last sums of each rank |
# | the card | the log of the node's kernel says *Xid 79, GPU has fallen off the bus*. In a tree, a rank waits for up to three others; the question stays |
# | SIGTERM | the program's first lines are for Slurm; at the end it puts itself back into the queue. Clouds send it before they take a machine away |
# | checkpoint | with ZeRO, each rank has a part of the state, so all ranks save (More). Random numbers count, too: of dropout, and of each GPU |

# %% tags=["exercise: 15.q7", "subslide"]

# %% [markdown] tags=["slide"]
# ## Key points
#
# - Who reports a timeout is a victim, as a rule. Ask every rank where it stands. If all are inside the same sum, ask what each has received.
# - Write aside, `fsync`, rename. A kill then leaves the old checkpoint or the new one.
# - A signal makes a note, and the ranks agree between two steps. With the same global batches, any number of ranks goes on.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# Every second night your training on 64 ranks ends with a timeout, each time of a different rank. What do you do first? (a) Double the timeout. (b) Let
# all ranks record their messages. (c) Replace the node that timed out last.
#
# <details><summary>What to listen for</summary>(b): it shows who did not come, or did not answer. (c) most likely replaces a good node. (a) helps if somebody
# needs longer than the timeout and then comes, as in a save; the GPUs wait that long, too.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# First a question and an exercise about the core.

# %% tags=["exercise: 15.q2"]

# %% tags=["exercise: 15.3"]

# %% [markdown]
# ### Who is late, and who is dead?
#
# In lesson 06, one rank was late in every step. Now every rank is late in one step out of ten, by chance. A step ends when the last rank
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
# 1 − 0.9⁶⁴ is 99.9 %. On 64 ranks the job is as slow as with one rank that is *always* late. Can we see who it is? Our four ranks measure how long they wait.

# %%
# %%px
import time

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
# The sums accuse nobody: all four waited about as long. Keep the numbers of *each step*. If the last one is always the same rank, look at its node. If it
# changes, look for what visits all ranks: Python's garbage collection (switch it off, and collect on all ranks in the same step), samples of different
# lengths, a file system that others use as well.
#
# And a rank that never comes? A process that dies leaves its sockets to the operating system, which closes them: the other side notices at once. A *node*
# without power closes nothing. We cannot cut the power, but SIGSTOP freezes a process in the same way: nothing is closed, and nothing is sent. So
# let each rank touch a file ten times a second, its **heartbeat**. **Predict** for both: does `mpiexec` end the job within five seconds? Is the heartbeat
# more than a second old?

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

for number in (signal.SIGKILL, signal.SIGSTOP):
    folder = Path(mkdtemp())
    job = Popen(["mpiexec", "-n", "2", "python", "-c", alive, folder], stdout=DEVNULL, stderr=DEVNULL)
    while len(list(folder.iterdir())) < 2 and job.poll() is None:
        time.sleep(0.1)
    time.sleep(1)
    os.kill(int((folder / "1").read_text()), number)
    time.sleep(5)
    old = time.time() - (folder / "1").stat().st_mtime > 1
    print(f"{number.name}: mpiexec ended the job: {job.poll() is not None}, heartbeat stopped: {old}")
    job.kill()
    job.wait()

# %% [markdown]
# `mpiexec` sees the death of a process, and waits for a frozen one as long as you let it. (Nodes of Open MPI report to each other, too, if you ask for it.)
# Silence is all that a dead node has to say, so somebody must listen for it, and decide how long. Slurm waits for five minutes, as it comes;
# torchrun's rendezvous for some 15 seconds. A shorter wait declares slow nodes dead.

# %% [markdown] tags=["slide"]
# ### What does a failure cost?
#
# Meta trained Llama 3 on 2,048 nodes with eight GPUs each, and counted 419 unexpected interruptions in 54 days (**published**): one in 3.1 hours. This
# is the **mean time between failures**, MTBF. Say that a save stops the training for one minute, and a restart takes ten.

# %%
predict("Minutes of work between two saves, on 2,048 nodes?", None)

# %% [markdown]
# With τ seconds of work between two saves of δ seconds, saving takes δ/τ of the time. A failure loses half an interval, on average, and the
# restart: (τ/2 + R)/M. The sum is smallest at τ = √(2δM), **Young's formula**, good while δ is much smaller than M.

# %%
M, restart = 54 * 24 * 3600 / 419, 600


def lost(tau, save=60):
    """The part of the time that is no lasting work."""
    return save / tau + (tau / 2 + restart) / M


best = (2 * 60 * M) ** 0.5
outcome("Minutes of work between two saves, on 2,048 nodes?", best / 60, word="computed")
for minutes in (5, best / 60, 60):
    print(f"a save every {minutes:4.1f} min: {lost(60 * minutes):.1%} of the time is lost")

# %% [markdown]
# Meta reports more than 90 % of effective time. Our model says 84 %. "An error of 6 %?" Look at what is *lost*: less than 10 % there, 16 % here, more than half as
# much again. The model's minute and ten minutes are guesses, and they are too long. Which of the two should Meta's engineers have worked on?

# %%
for save, back in ((60, 600), (6, 600), (60, 60), (6, 60)):
    restart = back
    print(f"save {save:2} s, restart {back:3} s: {lost((2 * save * M) ** 0.5, save):.1%} lost")

# %% [markdown]
# Both, and each has its tool. A short save is **asynchronous**: copy the state to memory, go on, and write meanwhile. PyTorch's `torch.distributed.checkpoint` does it. It
# also reads on another number of ranks, called **resharding**. Four ranks save 12 numbers, three each, and overwrite them *before* the file is written;
# two ranks load. **Vote:** they find (a) the numbers, (b) zeros, (c) some of both.

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
    print(f"rank {dist.get_rank()} has {mine.int().tolist()}")
dist.destroy_process_group()"""

folder = Path(mkdtemp())
(folder / "sharded.py").write_text(sharded)
for ranks, what in ((4, "save"), (2, "load")):
    job = ["torchrun", "--standalone", "--nproc-per-node", str(ranks), folder / "sharded.py", folder / "saved", what]
    print(*sorted(run(job, capture_output=True, text=True, timeout=200).stdout.splitlines()), sep="\n")

# %% [markdown]
# The numbers: `async_save` returns when it has its copy. Do not save again before the last one is written.
#
# Ours is `save_training` of `course_lib/parallel/checkpoint.py`, and does less and more:
#
# | | `torch.distributed.checkpoint` | ours |
# |---|---|---|
# | other ranks may read | yes, any cut along any axis | yes, pieces of flat buffers, as ZeRO cuts them |
# | while training goes on | yes | no |
# | killed while saving | a new folder per save: `.metadata` is renamed last. In the same folder, old files are overwritten first | the folder is renamed last |
# | a changed byte | not noticed | SHA-256 of every file |
# | two trainings in one folder | mixed | the second one is refused |
#
# A short restart is mostly a matter of people and spares:
#
# | | what it saves |
# |---|---|
# | spare nodes in the job | the wait for a repair, or in the queue; some 1–2 % of the nodes |
# | a health check before each start | the second failure on the same node: run one matrix product and one all-reduce per node, and compare results and seconds with the others' |
# | ranks that are started again, not the job | loading programs and data |
#
# The last row is torchrun's `--max-restarts`: when a process fails, it ends the others, and starts all again. In this program the last process dies in step 3 of
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
            saved.write_text(str(step + 1))
dist.destroy_process_group()"""

(folder / "elastic.py").write_text(elastic)
os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # else the second attempt may find addresses of the first
# !torchrun --standalone --nproc-per-node 2 --max-restarts 1 {folder}/elastic.py {folder}/done 2> {folder}/errors

# %% [markdown]
# Two steps were saved, so the second attempt begins with step 2. With `--nnodes=2:4`, torchrun goes on when a node is lost or one more joins. Such a training is
# **elastic**; if each rank takes a fixed number of samples, its global batch changes.

# %% tags=["exercise: 15.q3"]

# %% [markdown]
# ### A call to another rank
#
# Supervisors, parameter servers and data loaders work by question and answer. A **remote procedure call** (RPC) runs a function on another rank and
# returns its result. It takes two messages: one with the function's name and its arguments, and one with the result.

# %% tags=["source: course_lib.comm.rpc:serve"]
# %%px

# %% [markdown]
# Rank 1 serves, and rank 0 calls. If the function raises an error, the server goes on, and the error is raised where the call
# was made:

# %%
# %%px
from course_lib.comm.rpc import RemoteError, call, stop

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
# And if no answer comes? `call` has a timeout, too.

# %% tags=["exercise: 15.q6"]

# %% [markdown]
# So a function that is called again after a timeout should do no harm when it runs twice. PyTorch has `torch.distributed.rpc`, which its documentation calls
# stable and in maintenance mode.
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
# - E. Alpaydin and C. Kaynak, [Optical Recognition of Handwritten Digits](https://doi.org/10.24432/C50P49), 1998 (CC BY 4.0): the digits.
