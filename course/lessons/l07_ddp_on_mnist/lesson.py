# ---
# title: DDP on MNIST
# goal: Train one network on four ranks with PyTorch's DDP, and know what DDP leaves to you.
# able:
#   - turn the loop of one process into a DDP loop
#   - say what DDP does and what it leaves to you
#   - say where the time of a step goes
# more:
#   - say what changes the accuracy when ranks are added
# before: >-
#   {06}
# minutes: {core: 20, more: 33}
# ranks: 4
# warm-up:
#   - ask: In data parallelism, what do the ranks send in every step?
#     answer: Their gradients. Weights are sent once; images never.
#   - ask: Four ranks train on 64 images each per step. How large is the global batch?
#     answer: >-
#       256: what all ranks together train on in one step.
#   - ask: Every rank draws its own first weights, and nobody broadcasts. What goes wrong?
#     answer: >-
#       The weights start different, and every rank adds the same update, so they stay different. Nothing raises
#       an error.
# ---

# %%
# %%px --setup
import torch
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size

# %% [markdown] tags=["slide"]
# ## 1 · A process group
#
# In lesson 06 we trained on four ranks with nothing but MPI. PyTorch has this built in: **DistributedDataParallel**,
# **DDP** for short. First the processes form a **process group**. Each calls `init_process_group` with its rank, the
# number of ranks, and an address where all meet: here a file, whose name rank 0 broadcasts with MPI. The library that
# moves the bytes is the group's **backend**. Ours is Gloo, which comes with PyTorch.

# %%
# %%px
import os
import tempfile

import torch.distributed as dist

from course_lib.network import loopback
from course_lib.parallel.ddp import end_group, start_group
from mpi_classroom.launch import job_folder

end_group()  # in case you run this cell again
os.environ["GLOO_SOCKET_IFNAME"] = loopback()  # all ranks are on this machine
folder = comm.bcast(tempfile.mkdtemp(dir=job_folder()) if rank == 0 else None)  # removed with the cluster
dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=size)

# %% [markdown] tags=["slide"]
# ## 2 · Wrap the model
#
# What does DDP do with a model? Take the smallest there is: a single weight. Every rank draws its own, then wraps it.

# %%
# %%px
from torch.nn.parallel import DistributedDataParallel

torch.manual_seed(rank)
line = torch.nn.Linear(1, 1, bias=False)
before = line.weight.item()
replica = DistributedDataParallel(line)
print(f"rank {rank}: weight {before:+.3f} before, {line.weight.item():+.3f} after")

# %% [markdown]
# Wrapping gives every rank the weight of rank 0: the broadcast of lesson 06.
#
# Ranks 0 to 3 now get the inputs 4, 40, 400 and 4000. The model multiplies its input by the weight. We call `backward`
# on this product, so each rank's own gradient is its input. Which gradient does rank 2 hold afterwards?

# %%
predict("Gradient on rank 2 after backward?", None)

# %%
# %%px
line.weight.grad = None  # in case you run this cell again
replica(torch.tensor([[4 * 10.0**rank]])).backward()
gradient = line.weight.grad.item()

# %%
outcome("Gradient on rank 2 after backward?", cluster["gradient"][2], because="It is 4444 / 4.")

# %% [markdown]
# So `backward` now contains an all-reduce, and DDP **averages**. If each rank's loss is the mean over 32 images, the
# average of the four gradients is the gradient of the mean over all 128. Equal weights, equal gradients: every rank takes
# the same step.

# %% [markdown] tags=["notes"]
# Collect candidates before the cell runs: 400 (its own), 4444 (the sum), 1111 (the mean). Many say 4444, because lesson
# 06 added. Three minutes for sections 1 and 2.

# %% [markdown] tags=["slide"]
# ## 3 · A shard for each rank
#
# DDP never looks at the images: a rank trains on whatever it passes to its model. A **DistributedSampler** gives each
# rank its shard. Ten images, four ranks, two epochs:

# %%
# %%px
from torch.utils.data import DistributedSampler

sampler = DistributedSampler(range(10), shuffle=True)
shards = {}
for epoch in (0, 1):
    sampler.set_epoch(epoch)
    shards[f"epoch {epoch}"] = list(sampler)

# %% tags=["nbval-ignore-output"]
from course.lessons.l07_ddp_on_mnist.figures.ddp import sampler_shards

sampler_shards(cluster["shards"])

# %% [markdown]
# Every rank shuffles all ten images with the same seed, made from a fixed number and the epoch, so all have the same
# order. Rank r keeps every fourth image, from place r on. Nothing is sent. Without `set_epoch`, every epoch has the order
# of the first.
#
# The hatched images come twice, because four does not divide ten. Without the repeats, two ranks might have one batch
# more, and its all-reduce would wait for the others until a timeout.

# %% [markdown] tags=["slide"]
# ## 4 · Train
#
# We train a small CNN on 12 800 images of digits. Without MNIST on this machine, the course draws digits itself; the
# figure's title says which. A **DataLoader** makes batches of the images that its sampler lists.

# %% tags=["nbval-ignore-output"]
# %%px --timeout 200
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from course.lessons.l07_ddp_on_mnist.runs import first_images
from course_lib.data.mnist import load_mnist

data = load_mnist()
images = TensorDataset(*first_images(data, 12_800))

# %% tags=["exercise: 07.1"]

# %% [markdown]
# Now train: two epochs, with global batches of 128. `start_group` makes a new process group, as in section 1.

# %%
continue_with("07.1")

# %% tags=["nbval-ignore-output"]
# %%px --timeout 300
from course.lessons.l07_ddp_on_mnist.runs import test_accuracy
from course_lib.training.models import build

start_group(comm, "gloo")  # a new group, also when you run this cell again
model = build("cnn", seed=rank)
losses = train(model, images, batch_size=128, epochs=2)
accuracy = test_accuracy(comm, model, data)
about = f"{len(images):_} images ({data.name})".replace("_", " ")

# %% tags=["nbval-ignore-output"]
from course.lessons.l07_ddp_on_mnist.figures.ddp import training_curve

training_curve(cluster["losses"], cluster["accuracy"][0], images=cluster["about"][0])

# %% [markdown]
# Beyond the process group, four changed lines make the loop data-parallel.

# %% tags=["exercise: 07.q1"]

# %% [markdown] tags=["notes"]
# Six minutes for the exercise, one for the question. The place where people stumble is the third: with batch_size=128 on
# each rank the loop runs and learns, and the global batch is 512. The reply names it. Those who are done early remove
# `set_epoch` and ask for the reply.

# %% [markdown] tags=["slide"]
# ## 5 · DDP or by hand?
#
# You now have DDP and the loop of lesson 06. That loop called `Allreduce` once per parameter; here it sends all
# gradients as one flat array, a bucket. DDP sends buckets as well, over Gloo or, with this course's backend `mpi4py`,
# over MPI. Which of the three is fastest?
#
# We time a step of the CNN on one rank per core, with a global batch of 128. A rank that reaches an all-reduce early is
# **waiting** until the last one arrives; what follows is **transfer**.

# %%
predict("DDP over Gloo: how many times as long as by hand?", None)

# %%
# %%px --timeout 300
from course.lessons.l07_ddp_on_mnist.runs import time_ways
from course_lib.comm.timing import one_rank_per_core

end_group()
team = one_rank_per_core(comm)
ways = time_ways(team, data)

# %% [markdown] tags=["subslide"]
# DDP starts an all-reduce while backward still computes; this is overlap. In the bars, overlap is switched off, so that
# waiting and transfer can be seen. A diamond is a normal step: left of its bar's end, overlap saves time; right of it,
# overlap costs time. By hand nothing overlaps, so there the difference is noise; the output says how much to allow for.

# %% tags=["nbval-ignore-output", "subslide"]
from course.lessons.l07_ddp_on_mnist.figures.ddp import way_bars
from course.lessons.l07_ddp_on_mnist.step_times import BY_HAND, DDP_GLOO, explain_ways, times_as_long
from mpi_classroom.launch import available_cores

ways = cluster["ways"][0]
outcome("DDP over Gloo: how many times as long as by hand?", times_as_long(ways, DDP_GLOO, BY_HAND))
print(explain_ways(ways, cores=available_cores()))
way_bars(ways, cores=available_cores())

# %% [markdown] tags=["subslide"]
# A faster network shortens transfer only; waiting ends when the slowest rank has computed. A log that says "time in
# all-reduce" mixes the two.

# %% tags=["exercise: 07.q2"]

# %% [markdown] tags=["notes"]
# Before the figure: let everybody guess which bar is longest, then which colour makes it longest. On two cores DDP over
# Gloo is usually slowest, through transfer. If the output says "no clear answer", the machine is busy: run the cell
# again. Five minutes with the question.

# %% [markdown] tags=["slide"]
# ## Key points
#
# - DDP broadcasts the weights when it wraps a model, and averages gradients in `backward`. It does not split the batch.
# - The sampler gives each rank its shard: one seed for all, `set_epoch` in every epoch.
# - Time in an all-reduce is waiting plus transfer. A faster network shortens only the transfer.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# Training on two machines is hardly faster than on one. The log says "70 % in all-reduce". What first? Vote, talk to your
# neighbour, vote again: (a) buy a faster network, (b) measure waiting and transfer apart, (c) compress gradients.
#
# <details><summary>What to listen for</summary>(b): the 70 % may be waiting for one slow rank, which neither a network
# nor compression shortens.</details>

# %% [markdown]
# **Stop here in a short workshop.** More begins with shards of unequal size.

# %% [markdown] tags=["more"]
# ## More
#
# ### 6 · Change what DDP sends
#
# DDP's average is right for equal shards, and the sampler of section 3 makes shards equal by repeating images. Without
# repeats, as in lesson 06, a last batch of 10 images has shards of 3, 3, 2 and 2. In the average of the four means, an
# image on a small shard weighs more. So each rank divides its *summed* loss by 10, the global batch, and the ranks
# **add** their gradients. DDP averages, so we replace its all-reduce by a **communication hook**: a function that DDP
# calls with each bucket. Ours only adds:

# %% tags=["source: course_lib.parallel.ddp:sum_bucket"]
# %%px

# %% [markdown]
# `async_op=True` starts the all-reduce and returns at once; backward goes on. The hook returns a **future**: a placeholder
# for a result that is on its way. `then` takes the tensor out of the list that the all-reduce delivers. `state` is for
# hooks that remember something.
#
# Section 5 ended our process group; the new one is over MPI. The gradients of section 2 again:

# %%
# %%px
start_group(comm, "mpi4py")
line.weight.grad = None
replica = DistributedDataParallel(line)
replica.register_comm_hook(None, sum_bucket)
replica(torch.tensor([[4 * 10.0**rank]])).backward()
print(f"rank {rank}: gradient {line.weight.grad.item():.0f}")

# %% [markdown]
# ### 7 · Do ranks cost accuracy?
#
# Jakovac and Pichler trained this CNN on MNIST for five epochs. On one rank it reached 99.1 %, on four 98.88 %, on
# eight 98.7 %, and they conclude that accuracy falls with the number of ranks. Is it the ranks?
#
# First test: the same global batches on one process and on four ranks. We take 650 images, so that the last batch has
# 10, as in section 6. `summing_ddp` is DDP with the hook of section 6; `batch_shards` cuts each global batch into
# shards and repeats no image.

# %%
# %%px --timeout 200
import numpy as np

from course_lib.parallel.ddp import batch_shards, process_group, summing_ddp
from course_lib.training.flat import flatten
from course_lib.training.loop import image_batch, make_step, summed_cross_entropy


def final_weights(group, backend):
    """Train a new CNN on the ranks of `group` and return all its weights, one after the other."""
    model = build("cnn", seed=group.rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    with process_group(group, backend):
        step = make_step(summing_ddp(model), summed_cross_entropy, optimizer)
        for mine, global_size in batch_shards(np.arange(650), 128, rank=group.rank, size=group.size):
            step(image_batch(data.train_images, data.train_labels, mine, global_size))
    return flatten(list(model.parameters()))


alone = final_weights(MPI.COMM_SELF, "mpi4py")
for backend in ("gloo", "mpi4py"):
    same = bool((final_weights(comm, backend) - alone).norm() < 1e-5 * alone.norm())
    if rank == 0:
        print(f"4 ranks over {backend} end with the weights of one process, up to rounding: {same}")

# %% [markdown]
# So ranks change nothing as long as the global batch stays the same. In the published study, each rank may have kept
# its 128 images (the slides do not say). Then the global batch grows with the ranks, to 1024 on eight.
#
# We can test that without eight cores, and without a message. The first test says: eight ranks with 128 images each do
# what *one process* does with batches of 1024. So let every rank train alone, with the global batch of 1, 2, 4 or 8
# ranks, with the same images, learning rate and epochs. To keep it short, each rank trains the MLP for two epochs on
# 20 000 images.

# %%
predict("Points of accuracy lost at batch 1024?", None)

# %% tags=["nbval-ignore-output"]
# %%px --timeout 300
from course.lessons.l07_ddp_on_mnist.runs import accuracy_alone

batch_size = 128 * 2**rank
accuracy = accuracy_alone(data, batch_size)
print(f"batch {batch_size:4}: {accuracy:.2%} of the test images right")

# %% tags=["nbval-ignore-output"]
lost = 100 * (cluster["accuracy"][0] - cluster["accuracy"][3])
why = "No rank sent anything; fewer steps, on larger batches, did that." if lost > 0 else ""
outcome("Points of accuracy lost at batch 1024?", lost, "points", because=why)

# %% [markdown]
# That was a short training. A study of ours asks the same of the CNN and the MLP: five epochs of real MNIST, three
# seeds. It is not run here; its results are in the repository. It has three rules for adding ranks: the same global
# batch; the same batch per rank; the same batch per rank with a learning rate that grows with the ranks. First the CNN.
# A dash is one seed.

# %% tags=["nbval-ignore-output"]
from course.lessons.l07_ddp_on_mnist.study_pictures import rule_picture
from course.lessons.l07_ddp_on_mnist.study_results import load
from course.lessons.l07_ddp_on_mnist.study_words import explain_accuracies, not_in

study = load()
rule_picture(study, "cnn")

# %% tags=["nbval-ignore-output"]
print(explain_accuracies(study.rows, "cnn"))

# %% [markdown]
# Now the MLP:

# %% tags=["nbval-ignore-output"]
print(explain_accuracies(study.rows, "mlp"))
print(not_in(study.rows))

# %% tags=["exercise: 07.q3"]

# %% [markdown]
# So when accuracy falls with the number of ranks, look at the global batch first. There are other ways to lose accuracy,
# and they are silent too.

# %% tags=["exercise: 07.2"]

# %% [markdown]
# ### 8 · Where an epoch goes
#
# Our study also timed epochs of 60 000 images with a global batch of 128: by hand, and DDP over both backends. Runs with
# more ranks than cores are marked *oversubscribed*. A *replayed* bar, hatched all over, was not run: it is put together
# from computing times and messages that were measured one by one. Overlap is on here: transfer that hides behind backward
# counts as computing. Where ranks share a core, waiting also depends on which rank the operating system lets run.

# %% tags=["nbval-ignore-output"]
from course.lessons.l07_ddp_on_mnist.study_pictures import (
    curve_picture,
    epoch_picture,
    scatter_picture,
    speedup_picture,
    thread_picture,
)
from course.lessons.l07_ddp_on_mnist.study_tables import timings

epoch_picture([one for one in timings(study.rows) if one.model == "cnn"])

# %% [markdown]
# The same epochs as speed-up over one thread, and as efficiency:

# %% tags=["nbval-ignore-output"]
speedup_picture(study, "cnn")

# %% [markdown]
# The CNN gains as long as each rank has a core. The MLP may lose even then: its steps are too short for an all-reduce. The
# replay estimates what eight ranks with a core each would do. Here are our figures, and the published ones below them.
# Compare speed-ups, not seconds: the published times come from a machine with eight cores.

# %% tags=["nbval-ignore-output"]
from course.lessons.l07_ddp_on_mnist.study_words import after_equal_epochs, epoch_tables

print(epoch_tables(study.rows))

# %% [markdown]
# Did speed cost accuracy? All ways trained for equally many epochs, with several seeds:

# %% tags=["nbval-ignore-output"]
print(after_equal_epochs(study.rows))

# %% tags=["nbval-ignore-output"]
scatter_picture(study, "cnn")

# %% [markdown]
# The same accuracy arrives at different times. Here is each training against the clock:

# %% tags=["nbval-ignore-output"]
curve_picture(study, "cnn")

# %% [markdown]
# Why not use threads instead of ranks? On one machine you can: PyTorch's operators share the cores among threads, and
# no gradient has to be sent. Ranks are for what threads cannot do: go beyond one machine. Both at once help only until
# the cores run out.

# %% tags=["nbval-ignore-output"]
from course.lessons.l07_ddp_on_mnist.study_words import explain_threads

print(explain_threads(study))
thread_picture(study)

# %% [markdown]
# There is a third way: **replicas in threads** of one process. `torch.nn.DataParallel` works like this. In every step
# it copies the model for each thread, splits the batch, and adds up the gradients:

# %% tags=["source: course.lessons.l07_ddp_on_mnist.threaded:threaded_gradients"]
# %%px

# %% [markdown]
# The same 128 images each way:

# %%
# %%px --timeout 300
from course.lessons.l07_ddp_on_mnist.runs import time_threads_and_ranks

whole = image_batch(data.train_images, data.train_labels, np.arange(128), 128)
seconds = time_threads_and_ranks(comm, build("cnn", seed=0), whole, replicas=threaded_gradients)

# %% tags=["nbval-ignore-output"]
from course.lessons.l07_ddp_on_mnist.figures.ddp import compare_times
from course.lessons.l07_ddp_on_mnist.step_times import replicas_and_ranks

print(compare_times(cluster["seconds"][0]))
print(replicas_and_ranks(cluster["seconds"][0]))

# %% [markdown]
# On GPUs, replicas in threads usually fall behind: DataParallel copies the model in every step, and one Python interpreter
# serves all its threads. It cannot leave the machine either, and PyTorch's documentation advises against it. It needs
# GPUs: on a CPU it just calls your model.
#
# One more measurement, without a data set. Horovod's `pytorch_synthetic_benchmark.py` trains on the same random batch
# again and again, with equally many images per rank however many ranks there are (weak scaling), and counts images per
# second. Jain published, for ResNet-50 on V100 GPUs: 334.0 on one, 632.8 on two, 1.89 times as many. Ours is a small
# ResNet for 32 × 32 images, with shorter readings than the original's:

# %%
# %%px --timeout 300
from course.lessons.l07_ddp_on_mnist.runs import images_per_second, random_images

one, rates = one_rank_per_core(comm, cores=1), {}
for group in (one, team):
    if group == MPI.COMM_NULL or group.size in rates:
        continue
    model, batch = build("resnet", seed=0), random_images(8, global_size=8 * group.size, seed=rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with process_group(group, "mpi4py"):
        step = make_step(summing_ddp(model), summed_cross_entropy, optimizer)
        rates[group.size] = images_per_second(group, step, batch, iterations=5, batches=5)

# %% tags=["nbval-ignore-output"]
from course.lessons.l07_ddp_on_mnist.figures.ddp import synthetic_report

readings = {n: [mine[n] for mine in cluster["rates"] if n in mine] for n in cluster["rates"][0]}
print(synthetic_report(readings))

# %% [markdown]
# ± is 1.96 standard deviations of the readings. Ranks with a core each still share the memory's bandwidth, so even weak
# scaling can stay below the number of ranks.
#
# `.venv/bin/course study --quick` measures a small study on *your* machine in a few minutes, and writes a report to
# `build/study-quick`. Without `--quick` it takes hours. You can stop it; the next start resumes where it stopped.

# %% [markdown]
# ### 9 · Start it anywhere
#
# There is a ladder from one device to many, and each step adds one thing:
#
# | where | what you use | what is new |
# |---|---|---|
# | one GPU or CPU | a plain loop | – |
# | several GPUs, one process | `DataParallel` | one line; one machine only, see section 8 |
# | several GPUs or CPUs, one machine | DDP | one process per device, a process group |
# | several machines | DDP, started on each machine | an address that all machines can reach |
# | machines that come and go | `torchrun --nnodes=2:8 --max-restarts=3` | torchrun starts the ranks again on the machines that are left; your program loads its last checkpoint (lesson 15) |
#
# DDP itself stays the same on the last three steps. What changes is how ranks start and find each other.
#
# Long trainings are programs, not notebooks. `notebooks/code/train_mnist_ddp.py` is a complete one; this is its heart:

# %%
from course.paths import NOTEBOOKS

script = NOTEBOOKS / "code" / "train_mnist_ddp.py"
text = script.read_text()
print(text[text.index("def train(") : text.index("def tensors(")].rstrip())

# %% [markdown]
# Three launchers can start it. **torchrun** starts the ranks and tells each its number in its environment; `mpiexec`
# does so through MPI; `spawn` starts them from Python. Ranks meet in one of four ways, and we try all of them:

# %%
import sys

from course.lessons.shared.programs import output_of
from course_lib.network import loopback
from mpi_classroom.launch import mpiexec_command, rank_environment

options = [str(script), "--samples", "2560", "--epochs", "2"]
python, torchrun = sys.executable, ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
commands = {
    "torchrun, env://": [python, *torchrun, *options],
    "spawn, tcp://": [python, *options, "--spawn", "2", "--meet", "tcp"],
    "spawn, file://": [python, *options, "--spawn", "2", "--meet", "file"],
    "mpiexec, MPI": mpiexec_command(2, [python, "-m", "mpi4py", *options]),
}

# %% tags=["nbval-ignore-output"]
environment = rank_environment(2) | {"GLOO_SOCKET_IFNAME": loopback()}
said = {}
for name in ("torchrun, env://", "spawn, tcp://"):
    said[name] = output_of(commands[name], environment, timeout=120)
    print(f"{name:17}", said[name])

# %% [markdown]
# The other two meet without a port:

# %% tags=["nbval-ignore-output"]
for name in ("spawn, file://", "mpiexec, MPI"):
    said[name] = output_of(commands[name], environment, timeout=120)
    print(f"{name:17}", said[name])
hashes = {words.split("weights ")[1].split(",")[0] for words in said.values()}
print("All ways end with the same weights:", len(hashes) == 1)

# %% [markdown]
# Equal hashes are equal weights, to the last bit. Two ranks add two numbers, in either order. With four, the order of
# a sum may differ, and with it the last digits.
#
# | where ranks meet | what it needs | good for |
# |---|---|---|
# | `env://` (the default) | MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE in the environment | `torchrun`, which sets all four |
# | `tcp://host:port` | a free port; rank and world size as arguments | starting by hand |
# | `file:///path` | a new file that all ranks can lock; rank and world size as arguments | one machine, no ports |
# | MPI | nothing | `mpiexec`, on one machine or many |
#
# On several machines the same script is started over ssh, as a Slurm job (`sbatch train_mnist_ddp.sbatch`) or on
# Kubernetes: lesson 14 and [Several machines](../docs/several-machines.md#from-your-laptop-to-a-cluster) show each
# way. With `--checkpoint FILE` it goes on after the last finished epoch when a machine has failed.

# %% [markdown]
# *Published, and corrected here.* The script follows one in a report by Kolly (see References), whose steps are the right
# ones. It changes these: there, every rank downloads MNIST; nothing is shuffled and `set_epoch` is missing; tensors go to
# the GPU before `set_device` chooses it; the number of ranks is the number of GPUs, which is 0 on a CPU; and port 12355
# is fixed. The report says that DDP splits the input; the sampler does.
#
# **PyTorch with MPI.** PyTorch has a backend called `mpi`, and the packages on PyPI leave it out: it must be compiled
# against *your* MPI library. In a checkout of PyTorch, with `mpicc` on the path,
# `USE_MPI=1 pip install --no-build-isolation .` does it, in an hour or more. The course's `mpi4py` backend needs no
# build: it is Python on the stock package, and [its page](../packages/torch_mpi4py/README.md) says what works.
#
# **NCCL** is the backend for NVIDIA's GPUs and comes with PyTorch's CUDA packages. Each rank calls
# `torch.cuda.set_device(local_rank)` *before* it moves anything there, then `dist.init_process_group("nccl")`. Its
# all-reduce is usually a ring or a tree, chosen by the size of the message.

# %% [markdown]
# ### 10 · Messages and other reductions
#
# DDP is built on `torch.distributed`, and you can call that yourself. It has MPI's ideas in its own words. `isend` and
# `irecv` start a message and return a request; `wait` ends it. Each rank sends its number to the right:

# %%
# %%px
with process_group(comm, "mpi4py"):
    right, left = (rank + 1) % size, (rank - 1) % size
    received = torch.zeros(1)
    requests = [dist.isend(torch.tensor([float(rank)]), dst=right), dist.irecv(received, src=left)]
    for request in requests:
        request.wait()
print(f"rank {rank} received {received.item():.0f} from rank {left}")

# %% [markdown]
# `send` and `recv` are the blocking pair. An all-reduce takes an operation; the default is the sum. Rank r
# contributes r + 1:

# %%
# %%px
operations = {"SUM": dist.ReduceOp.SUM, "PRODUCT": dist.ReduceOp.PRODUCT}
operations |= {"MIN": dist.ReduceOp.MIN, "MAX": dist.ReduceOp.MAX}
with process_group(comm, "mpi4py"):
    for name, operation in operations.items():
        value = torch.tensor(rank + 1)
        dist.all_reduce(value, op=operation)
        if rank == 0:
            print(f"{name:8} of 1, 2, 3, 4: {value.item()}")

# %% [markdown]
# `AVG` and, for integers, `BAND`, `BOR` and `BXOR` exist too, but not with every backend. Like MPI's communicators,
# smaller groups talk among themselves. *Every* rank of the process group makes *every* smaller group, also those that
# it is not in:

# %%
# %%px
with process_group(comm, "mpi4py"):
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    value = torch.tensor(10**rank)
    dist.all_reduce(value, group=pairs[rank // 2])
print(f"rank {rank}: {value.item()}")

# %% [markdown]
# After `dist.reduce`, read the tensor only on the rank that it names: on the others its content is not specified.

# %% [markdown]
# ## On GPUs
#
# Sampler, average, hook and `set_epoch` are the same. Use `"nccl"`, and move the model to its GPU before DDP wraps it.
# Computing is much faster there, so waiting and transfer weigh more, and overlap with backward matters. PyTorch's
# `fp16_compress_hook` sends 16-bit numbers: half of the bytes.
#
# ## Pitfalls
#
# - No sampler: every rank goes through all the images.
# - A test accuracy through a sampler that repeats images: some count twice.
# - A fixed port on a machine that thirty people share.
# - `state_dict()` of the wrapper: its names begin with `module.`; save `replica.module`.
# - Calling the model inside the wrapper: no gradient is averaged, and nothing reports it.
# - No `dist.destroy_process_group()` at the end of a program: Gloo's threads may crash it when it exits.
#
# ## References
#
# - S. Li and others, [PyTorch Distributed](https://arxiv.org/abs/2006.15704), 2020: how DDP works, and why.
# - M. Jakovac and E. Pichler, *MPI in Distributed Training*, 2025: the study whose figures are called published.
# - F. Kolly, *Data Parallelism in PyTorch*, 2022: the script that section 9 starts from.
# - PyTorch, [DistributedDataParallel](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html)
#   and [DistributedSampler](https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler).
# - A. Sergeev and M. Del Balso, [Horovod](https://arxiv.org/abs/1802.05799), 2018.
# - A. Jain, *High-Performance Deep Learning*, slides of a talk at The Ohio State University: the images per second of
#   ResNet-50 in section 8.
#
# ## Stretch
#
# Make rank 0 slow: let it compute each forward pass twice, and look at section 5 again. Who waits now? Then find shards
# with which all ranks wait as little as possible when one core is half as fast. (You will need the hook.)
