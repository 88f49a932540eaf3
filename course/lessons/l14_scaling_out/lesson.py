# ---
# title: Scaling out
# goal: >-
#   Take a training to several machines: measure a link, forecast what it does to a step, and choose a remedy.
# able:
#   - fit the latency and the bandwidth of a link, and forecast a training step from them
#   - forecast an all-reduce on 2,048 ranks, and say what that assumes
#   - write a hierarchical all-reduce and count what crosses the link
#   - choose a remedy for a slow link by seconds and accuracy
# more:
#   - hold a model against published runs, and name what it lacks
#   - measure whether two jobs share one device well
#   - say how one script starts from a hostfile, under Slurm and on Kubernetes
# before: >-
#   {04} and {06}, the cores. Helpful: *Several nodes* in 04
# minutes: {core: 20, more: 21}
# ranks: 4
# warm-up:
#   - ask: What is the alpha-beta model?
#     answer: >-
#       A message of k bytes takes α + βk seconds: α is the latency, 1/β the bandwidth.
#   - ask: Four ranks all-reduce 100 MB in a ring. How many steps is that, and how many bytes does each rank send?
#     answer: 2(n−1) = 6 steps; 2(n−1)/n = 1.5 arrays, so 150 MB.
#   - ask: What does a data-parallel step send, and when?
#     answer: All gradients, in an all-reduce after backward (lesson 06) or during it (DDP, lesson 07).
# ---

# %%
# %%px --setup
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size

# %% [markdown] tags=["slide"]
# ## 1 · A second machine
#
# Most of us have one computer. So we build a **lab**: your machine plays several machines, the **nodes**. Each node has
# its own network, host name and shared memory. A **link** joins it to the other nodes, and we choose how slow this link is. The
# nodes still share your cores. Each lab starts its own ranks; the four of Setup serve section 8, in More.
#
# In Python a lab is a `with` block:
#
# ```python
# with network(nodes=2, rate="100mbit") as lab:
#     lab.run_ranks(["step.py"], timeout=60)
# ```
#
# Here `rate` **throttles** the links: it limits their rate on purpose. `in_lab` starts a lab and runs one of our programs in it.
# Where a system allows no lab, `in_lab` returns what the reference machine measured, and says so.
#
# Our formulas for an all-reduce assume that a rank sends and receives at the same time. Open MPI ensures this only with the
# eager protocol (lesson 01), so in our labs it sends long messages eagerly, too.
#
# We time a step of lesson 06's CNN: two ranks, 64 images per rank, and one all-reduce of all gradients, 1.7 MB. First both
# ranks run on one node. (`slots`: ranks per node, by default one; `nodes`: by default two.)

# %% tags=["nbval-ignore-output"]
from course.lessons.l14_scaling_out.lab import in_lab
from course.lessons.l14_scaling_out.words import say_step

steps = {"one node": in_lab("step", nodes=1, slots=2, batch=64, steps=10)}
print(say_step(steps["one node"]))

# %% [markdown]
# Now each rank gets its own node. They first use a **fast link**, whose rate we do not limit, and then a **slow link**,
# throttled to 100 Mbit/s, which is 12.5 MB per second.

# %%
predict("Over the slow link, how many times as long is a step as on one node?", None)

# %% tags=["nbval-ignore-output"]
steps["fast link"] = in_lab("step", nodes=2, batch=64, steps=10)
steps["slow link"] = in_lab("step", nodes=2, rate="100mbit", batch=64, steps=10)

# %% tags=["nbval-ignore-output"]
from course.lessons.l14_scaling_out.figures import slower, step_bars
from course.lessons.l14_scaling_out.words import explain_step

times, why = slower(steps), explain_step(steps)
outcome("Over the slow link, how many times as long is a step as on one node?", times, because=why)
step_bars(steps)

# %% [markdown]
# Can we forecast how long the all-reduce takes?

# %% [markdown] tags=["slide"]
# ## 2 · α and β of a link
#
# Two ranks on two nodes exchange arrays of 4 bytes to 256 KiB in three rounds, over both links. `fitted` fits α + βk to the
# seconds of all rounds, as in lesson 04.

# %% tags=["nbval-ignore-output"]
from course.lessons.l14_scaling_out.fits import fitted
from course.lessons.l14_scaling_out.lab import SMALL_TO_LARGE
from course.lessons.l14_scaling_out.words import say_link

exchanges, links = {}, {}
for name, rate in (("fast link", None), ("slow link", "100mbit")):
    exchanges[name] = in_lab("exchange", nodes=2, rate=rate, sizes=SMALL_TO_LARGE, rounds=3)
    links[name] = fitted(exchanges[name])
    print(f"{name}: {say_link(links[name])}")

# %% [markdown]
# The lab adds no latency: throttling changes β, not α. The packets' headers use the link, too, so the slow link's 1/β is below
# 100 Mbit/s.
#
# MPI chooses the algorithm of its all-reduce. On two ranks the choice matters little: ring and recursive doubling both send one
# array of m bytes each way. We forecast a ring, two steps with half of the array each: 2(α + β · m/2).

# %% tags=["nbval-ignore-output"]
from course.lessons.l14_scaling_out.words import explain_forecast

nbytes = steps["one node"]["nbytes"]  # of the gradients
for name, link in links.items():
    forecast = 2 * link.one_way_seconds(nbytes / 2)
    print(f"{name}: {explain_forecast(forecast, steps, name)}")

# %% [markdown]
# The forecast for the slow link is nearly all β · m. What the model leaves out hardly counts over a slow link, but it does
# over a fast one.

# %% [markdown] tags=["notes"]
# Six minutes up to here. Ask: "Which part of the forecast would a faster card change, and which a better driver?" On a busy machine α
# is the time until a rank gets a core, a millisecond or more. Then it is a good α to discuss, not a wrong one.

# %% [markdown] tags=["slide"]
# ## 3 · From 2 to 4, and on to 2,048
#
# Now we time an all-reduce without computing: the ring of lesson 04 over the slow link, on two nodes, then on four.

# %% tags=["nbval-ignore-output"]
from course.lessons.l14_scaling_out.lab import ring_in_lab
from course.lessons.l14_scaling_out.words import explain_doubling

measured = {nodes: ring_in_lab(nodes, nbytes) for nodes in (2, 4)}
print(explain_doubling(measured))

# %% [markdown]
# You have measured 2 and 4 nodes, and you know α and β. What about 2,048 such nodes?

# %%
predict("Over the slow link, on 2,048 ranks: how many times as long as on 2?", None)

# %% tags=["nbval-ignore-output"]
from course.lessons.l14_scaling_out.figures import forecasts
from course.lessons.l14_scaling_out.fits import ring_seconds
from course.lessons.l14_scaling_out.words import explain_many

slow = links["slow link"]
times = ring_seconds(2048, nbytes, slow) / ring_seconds(2, nbytes, slow)
why = explain_many(exchanges, steps, 2048)
outcome("Over the slow link, on 2,048 ranks: how many times as long as on 2?", times, "", why, "forecast")
forecasts(exchanges, nbytes, measured)

# %% [markdown]
# We have three forecasts for the slow link. The first uses α and β. The second uses β alone: it misses the α that each of the
# 2(n−1) steps pays. The faster the link, the more these α count. The third repeats the factor from 2 to 4 at every doubling.
# But the bytes per rank, 2(n−1)/n arrays, hardly grow after the first doublings.
#
# Such a forecast is an **extrapolation**: nobody ran the shaded part. A line by α and β fits all rounds of section 2. Its
# band, often narrower than the line, is the range of the three rounds' fits; the line need not be in its middle.
#
# The first forecast holds if α and β stay what they are on two ranks. It leaves out waiting, copying and adding, and that
# headers take a larger share of a short message. And the lab has no network card: between real machines, TCP's α is several
# times larger.

# %% [markdown] tags=["notes"]
# Five minutes for section 3. Collect three numbers before the cell runs. Listen for "about 2,000": it
# counts the steps, and forgets that the chunks shrink as the steps grow. Listen for "about 2": it counts
# the bytes, and forgets α. On a slow link it is nearly right; on a fast one α decides, and 2 and 4 ranks
# hardly show it.

# %% tags=["exercise: 14.q1"]

# %% [markdown] tags=["slide"]
# ## 4 · Nodes with several ranks
#
# The nodes of a cluster run several ranks. Take two nodes: ranks 0 and 1 are on one, ranks 2 and 3 on the other. The ring is
# a **flat algorithm**: it knows nothing of nodes. Every rank sends 1.5 arrays to its right neighbour, wherever that neighbour
# is. A **hierarchical all-reduce** (lesson 04) sums inside each node first. Then only the **leaders**, one rank per node,
# exchange over the link, and each passes the sum on inside its node.

# %% tags=["exercise: 14.1"]

# %% [markdown] tags=["notes"]
# Six minutes with the exercise. Two slips: the third step is forgotten, so only the leaders hold the sum;
# or it is another all-reduce, which adds sums that are complete already. Who is done early says how many
# arrays the two leaders send.

# %%
continue_with("14.1")

# %% [markdown]
# We begin with the ring, over the 1.7 MB of gradients.

# %%
predict("How many MB does the ring send between the nodes, both ways together?", None)

# %% [markdown]
# We time the hierarchy, and the ring and MPI's own in two orders of the ranks. We count the bytes at the nodes' network
# devices, with headers and acknowledgements. `hierarchical` is your function, if 14.1 is right and this machine allows a lab.
# `MPI's own` is `comm.Allreduce`. With `ranks in turn` the ring goes 0, 2, 1, 3: neighbours are always on different nodes.

# %% tags=["nbval-ignore-output"]
from course.lessons.l14_scaling_out.lab import all_reduces_in_lab

results = all_reduces_in_lab(nbytes, own=hierarchical_allreduce)

# %% tags=["nbval-ignore-output"]
from course.lessons.l14_scaling_out.figures import link_bars
from course.lessons.l14_scaling_out.words import explain_crossing

mb, why = results["ring"]["link_nbytes"] / 1e6, explain_crossing(results, nbytes)
outcome("How many MB does the ring send between the nodes, both ways together?", mb, "MB", why, "counted")
link_bars(results, nbytes)

# %% [markdown]
# Which rank is on which node, the **placement**, decides how much of a flat algorithm's data crosses the link. A hierarchy
# sends the same number of bytes for any placement.
#
# Sending fewer bytes is not always faster. By default Open MPI sends long messages by rendezvous (lesson 01), and waiting for
# the receiver's answer can cost much of what the hierarchy saves: see [Several
# machines](../docs/several-machines.md#what-an-all-reduce-costs-on-such-a-link).

# %% [markdown] tags=["slide"]
# ## 5 · Your choice
#
# You have to train at 100 Mbit/s, on two nodes. `plain` all-reduces the gradients after backward, in three messages. Each
# carries the gradients of neighbouring layers, a **bucket**. Choose a **remedy**:
#
# | choice | what it does |
# |---|---|
# | `bigger buckets` | sends all gradients in one message instead of three |
# | `overlap` | sends the gradients of the last layers while backward computes the others |
# | `bfloat16` | sends each gradient in 2 bytes instead of 4 |
# | `accumulate` | adds up the gradients of four micro-batches, then sends and updates once |
# | `PowerSGD` | sends two thin matrices whose product approximates the gradient, and adds the error to the next step's gradient |
# | `top-k` | sends the 1 % of the entries with the largest absolute values, and adds the others to the next step's gradient |
# | `local SGD` | lets each rank train alone for eight steps; then all take the mean of their weights and momentum (the optimizer's memory of earlier gradients) |
#
# Every choice trains lesson 06's CNN on the same 6,144 digits, with the same learning rate.

# %%
choice = "bfloat16"  # or another one of the table
predict("Your choice, how many times as fast as plain?", None)

# %% [markdown] tags=["notes"]
# Let the two halves of the room choose different remedies before the cell runs, and write both results on
# the board: seconds and accuracy. Listen for "half the bytes, half the time": the step also computes. Five
# minutes.

# %% tags=["nbval-ignore-output", "subslide"]
where = {"nodes": 2, "rate": "100mbit", "images": 6144}
runs = {name: in_lab("train", choice=name, **where) for name in ("plain", choice)}

# %% tags=["nbval-ignore-output", "subslide"]
from course.lessons.l14_scaling_out.figures import trainings
from course.lessons.l14_scaling_out.words import explain_choice

times, why = runs["plain"]["seconds"] / runs[choice]["seconds"], explain_choice(runs, choice)
outcome("Your choice, how many times as fast as plain?", times, because=why)
trainings(runs)

# %% [markdown] tags=["fragment"]
# With `bfloat16`, half the bytes do not mean half the time: the step also computes. A remedy can also cost accuracy, as
# `accumulate` does (see More): with a quarter of the updates, the network needs more images. Its batch is four times as
# large, so lesson 05's linear scaling rule asks for four times the learning rate. We tried: here even twice the rate is too much.

# %% [markdown] tags=["slide"]
# ## Key points
#
# - A slow link makes only the communication of a step longer. α and β of that link forecast by how much.
# - From 2 to 4 ranks, the bytes per rank grow by half. From 1,024 to 2,048 they hardly grow, but the steps double, and
#   each pays α. So a small run hardly shows α.
# - What crosses a link depends on the algorithm *and*, for a flat one, on the placement of the ranks.
# - Judge a remedy by its seconds *and* by its accuracy.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# Your all-reduce on 2,048 ranks takes 20 times as long as α and β forecast. What do you look at first? Vote, talk to your
# neighbour, vote again: (a) whether one rank is late, (b) whether the network cards are as fast as the vendor says, (c) which
# algorithm MPI runs.
#
# <details><summary>What to listen for</summary>(a) first: every step of the ring waits for the slowest rank, and 2,048 ranks nearly always have a slow one. (b) second: you fitted β on two ranks only, and other jobs may use the network now. (c) third: does MPI run the algorithm that you forecast?</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more", "slide"]
# ## More
#
# Here are all remedies side by side, as the reference machine measured them, with the same images. [Several
# machines](../docs/several-machines.md#what-helps-on-a-slow-link) compares the seconds until they are equally accurate:
# there, with a larger model, accumulation needs more epochs than PyTorch's DDP, but less time.

# %% tags=["nbval-ignore-output"]
from course.lessons.l14_scaling_out.lab import CHOICES, recorded
from course.lessons.l14_scaling_out.words import say_all_choices

how = {"nodes": 2, "slots": 1, "rate": "100mbit", "images": 6144}
print(say_all_choices({name: recorded("train", choice=name, **how) for name in CHOICES}))

# %% [markdown]
# Each row is one run, and its MB are those of both nodes together. After so few updates all networks still learn fast, so a few
# points of accuracy decide nothing. Bigger buckets save two messages per step, which is a few α, but no bytes. Overlap hides
# at most the backward pass, a small part of a step that is mostly all-reduce. Top-k sends an index with each entry, so 1 % of
# the entries are 2 % of the bytes. Local SGD exchanges only 6 times, but each time it sends two arrays, weights and momentum.
# Its lead in accuracy may be chance, too.

# %% [markdown] tags=["slide"]
# ### 6 · Thousands of ranks, on paper
#
# A talk of the Ohio State University (see References) reports ResNet-50 on Summit, with 1,536 V100 GPUs, and on
# Frontera, with 2,048 nodes. It also gives a small run, with PyTorch instead of TensorFlow: one V100 GPU processes 334.0 images
# per second, two on two nodes 316.4 each. That is an efficiency of 94.7 %.

# %%
predict("Thousands of images per second, on 1,536 V100 GPUs?", None)

# %%
from course.lessons.l14_scaling_out import published

outcome(
    "Thousands of images per second, on 1,536 V100 GPUs?",
    published.SUMMIT / 1e3,
    because="If every doubling lost what the first one loses, it would be "
    f"{published.repeated() / 1e3:.0f}; the model below says {published.modelled() / 1e3:.0f}.",
    word="published",
)

# %% [markdown]
# If we repeat what the small run lost, the forecast is nearly a third too low. Our model has a third number, γ, the time to
# add one byte. We take 1/300 s per GB in a GPU's memory, and 1/20 s per GB in a CPU's. A step takes the time to compute plus
# 2(n−1)·α + 2(n−1)/n·βm + (n−1)/n·γm: one flat ring through all ranks, without overlap. Here is what the model says about each
# published figure, what it assumes and what it lacks. Hy-Fi and GEMS (lesson 10, More) combine pipelines with data parallelism.

# %%
print(published.claims_table(published.claims()))

# %% [markdown]
# An error of a few percent does not show that the model is right: with other assumptions, as plausible as these, the error
# would be a different few percent. The last row shows a model that is wrong. The published 16.1 includes a better schedule,
# 1.72 times as fast on the same 4 GPUs. So 32 times as many GPUs gave only 9.4 times the speed, and no plausible α or β
# explains that. Something did not shrink with the number of GPUs.
#
# Two other figures of the talk follow from its rates: 90 epochs of ImageNet take 4.6 minutes at 420,000 images per second (it
# says 4.5), and 7.4 at 260,000 (it says 7).
#
# > **What the sources say.** The talk calls GEMS's speed-up "15×"; by its own hours, 7.25 and 0.45, it is 16.1. The abstract of
# > the GEMS paper says seven hours and 28 minutes, which gives 15.

# %% tags=["exercise: 14.2"]

# %% [markdown] tags=["slide"]
# ### 7 · How sure is a forecast?
#
# The three rounds of section 2 give three fits per link, and so three forecasts. From each we predict the **efficiency** of
# section 1's step with 64 images per rank: computing / (computing + all-reduce in a ring). The band lies between the lowest
# and the highest of the three, and is often narrower than the line.

# %% tags=["nbval-ignore-output"]
from course.lessons.l14_scaling_out.figures import efficiency_curves
from course.lessons.l14_scaling_out.fits import fitted_by_round
from course_lib.theory.scale_out import DataParallelStep

one_step = DataParallelStep(steps["one node"]["computing"], nbytes, samples_per_rank=64)
efficiency_curves(one_step, {name: fitted_by_round(each) for name, each in exchanges.items()}, steps)

# %% [markdown]
# On 4,096 ranks a ring pays α 8,190 times. Over the fast link that is nearly all of its time, so there a small difference in
# α counts. A narrow band does not mean that the forecast is right. It shows how much three rounds on two ranks differ; it
# cannot show a late rank, a second job on the network, or a node that fails.
#
# The dots are the steps of section 1. The model leaves out adding, copying and waiting, which lowers a dot. The curves take
# the computing time on one node: a step that computed for longer has a higher dot, one that computed for less a lower one.

# %% [markdown] tags=["slide"]
# ### 8 · Two jobs on one device
#
# The talk also says that some trainings cannot keep all cores of a GPU busy, and that larger batches and larger images help.
# Does that hold on a CPU? We train one small network, with one thread and then with one thread per core, and take the faster.

# %% tags=["nbval-ignore-output"]
# %%px --timeout 300
from course.lessons.l14_scaling_out.sharing import by_batch, one_and_two_jobs

rates = by_batch((28, 112), (1, 4, 16, 64)) if rank == 0 else None

# %% tags=["nbval-ignore-output"]
from course.lessons.l14_scaling_out.figures import throughput
from course.lessons.l14_scaling_out.words import explain_throughput

print(explain_throughput(cluster["rates"][0]))
throughput(cluster["rates"][0])

# %% [markdown]
# Another remedy is to run several jobs at once. NVIDIA's **Multi-Process Service (MPS)** lets several processes use one GPU
# at the same time. With four such processes per GPU, the talk reports up to 62 % better performance in data-parallel
# training (AccDP). Our CPU analogue compares one job that may use all cores with two jobs that use half of the cores each. The
# small network has 8 channels, the other one 32.

# %%
predict("Two jobs of the small network: how many percent more images per second?", None)

# %% tags=["nbval-ignore-output"]
# %%px --timeout 300
jobs = {
    "8 channels, batch 32": one_and_two_jobs(comm, width=8, batch=32),
    "32 channels, batch 64": one_and_two_jobs(comm, width=32, batch=64),
}

# %% tags=["nbval-ignore-output"]
from course.lessons.l14_scaling_out.words import say_jobs

jobs = cluster["jobs"][0]
small = jobs["8 channels, batch 32"]
gain = round(100 * (small["two"] / small["one"] - 1))
outcome("Two jobs of the small network: how many percent more images per second?", gain, "%")
print(say_jobs(jobs))

# %% [markdown]
# A job that spends part of its time starting small operations leaves cores idle, and only then can a second job gain. The
# more work each operation has, the smaller this part of the time is, and the less a second job can gain. The two jobs may also
# be two ranks of one training: that is what AccDP does.
#
# Several jobs gain only what one job alone leaves idle. A gain of 62 % is possible only if one job keeps its GPU busy for at
# most 1/1.62 of the time, which happens to be 62 % as well.

# %% [markdown] tags=["slide"]
# ### 9 · Three ways to start the same script
#
# The script is `notebooks/code/train_mnist_ddp.py` of lesson 07. **From a hostfile:** mpiexec reads the nodes from a file, and
# starts a helper on each by ssh. In the lab a small script stands in for ssh, so this way runs here, on two nodes. At the
# end the training prints a hash of its weights, by which runs can be compared, and its accuracy:
#
# ```
# mpiexec --hostfile hosts -n 2 python -m mpi4py train_mnist_ddp.py --samples 2000 --epochs 1
# ```

# %% tags=["nbval-ignore-output"]
from course.lessons.l14_scaling_out.lab import script_in_lab

print(script_in_lab("train_mnist_ddp.py", "--samples", "2000", "--epochs", "1", nodes=2))

# %% [markdown]
# **Slurm** gives the nodes of a cluster to jobs. You ask for nodes in a **batch script**, and the job waits in a queue until
# they are free. Open MPI's mpiexec asks Slurm for the names of the nodes, so it needs neither hostfile nor `-n`. This is the
# heart of `notebooks/code/train_mnist_ddp.sbatch`. A job started with that file also survives a lost node: Slurm puts it back
# into the queue, and it resumes from its checkpoint.
#
# ```sh
# #!/bin/bash
# #SBATCH --nodes=4
# #SBATCH --ntasks-per-node=1
# #SBATCH --cpus-per-task=1
# #SBATCH --time=00:30:00
# export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK
# mpiexec --bind-to none python -m mpi4py train_mnist_ddp.py
# ```
#
# **Kubernetes** runs containers on the machines of a cluster. The MPI Operator, an add-on of the Kubeflow project, reads an
# **MPIJob**: it starts workers and a launcher, and gives the launcher a hostfile of the workers. This is the heart of
# `notebooks/code/train_mnist_ddp.mpijob.yaml`; the file also names the image and a disk for the checkpoint.
#
# ```yaml
# apiVersion: kubeflow.org/v2beta1
# kind: MPIJob
# metadata: {name: mnist-ddp}
# spec:
#   slotsPerWorker: 2
#   mpiReplicaSpecs:
#     Launcher: {replicas: 1, template: …}   # runs mpiexec with that hostfile
#     Worker: {replicas: 2, template: …}     # runs sshd, and waits
# ```
#
# The script is the same each time: it asks MPI for its rank and size. Only what starts the ranks differs.
#
# This notebook ran the first way only. The course's tests run the second. We have not run the third: see
# [Several machines](../docs/several-machines.md#what-ran-here).

# %% tags=["exercise: 14.q2"]

# %% [markdown]
# ## On GPUs
#
# NCCL chooses between rings and trees, and knows which GPUs share a node. What you measured holds there too, with other
# numbers: fit α and β with NCCL's own benchmark (`nccl-tests`), and forecast with them.

# %% [markdown]
# ## Pitfalls
#
# - Measuring the bandwidth with one long message, and using it for thousands of short ones.
# - Extending a speed-up on two nodes as a straight line.
# - Throttling with a limiter that lets 256 KB pass first: short tests over a link of 100 Mbit/s see no limit. (The lab's
#   limiter lets only 16 KiB pass.)
# - Timing four ranks on two cores over a fast link: that measures the cores.
# - Trusting the exit code 0 of an `mpiexec` that lost a node. Look for the result instead.
# - Accumulating more micro-batches without trying learning rates again (lesson 05).

# %% [markdown]
# ## References
#
# - D. K. Panda and others, *High Performance Distributed Deep Learning*, a talk of the Ohio State University: sections 6 and 8.
#   Its slides have no date; the latest work that they cite is of 2022. The group's page is <http://hidl.cse.ohio-state.edu>.
# - A. Jain, A. A. Awan, H. Subramoni and D. K. Panda, [Scaling TensorFlow, PyTorch, and MXNet using MVAPICH2 for
#   High-Performance Deep Learning on
#   Frontera](https://sc19.supercomputing.org/proceedings/workshops/workshop_pages/ws_dls117.html), SC 2019 workshop. Its abstract
#   says 250,000 images per second, sustained, with four ranks per node.
# - N. Alnaasan, A. Jain, A. Shafi, H. Subramoni and D. K. Panda, *AccDP: Accelerated Data-Parallel Distributed DNN Training for
#   Modern GPU-Based HPC Clusters*, HiPC 2022. The papers of GEMS and Hy-Fi are in the references of lesson 10.
# - R. Hockney, [The communication challenge for MPP](https://doi.org/10.1016/S0167-8191(06)80021-9), 1994.
# - R. Thakur, R. Rabenseifner and W. Gropp, [Optimization of collective communication operations in
#   MPICH](https://doi.org/10.1177/1094342005051521), 2005: the model with γ.
# - [Slurm's sbatch](https://slurm.schedmd.com/sbatch.html) · [MPI Operator](https://github.com/kubeflow/mpi-operator) ·
#   [Several machines](../docs/several-machines.md): the lab, and what it can and cannot do.

# %% [markdown]
# ## Stretch
#
# Write a hierarchical all-reduce in which *every* rank of a node sends over the link, each its own part: reduce-scatter inside,
# all-reduce between the ranks with the same number inside their nodes, all-gather inside. How many bytes cross the link now,
# and when is it faster?
#
# <details><summary>Answer</summary>As many bytes as with one leader. It is faster where one rank alone cannot fill the link, as on nodes with several network cards.</details>
