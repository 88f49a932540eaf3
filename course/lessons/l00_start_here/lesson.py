# ---
# title: Start here
# goal: Let four processes train one classifier. Is a quarter of the data enough for each?
# able:
#   - say where a cell runs, and move values
#   - estimate the memory that training takes
# more:
#   - choose one rank per machine for a task
#   - find out which rank the others wait for
# before: some Python
# minutes: {core: 10, more: 18}
# ranks: 4
# also: >-
#   **Shift + Enter** runs a cell. [More help](../docs/using.md).
# ---

# %% [markdown] tags=["notes"]
# Let everybody run the Setup cell before you explain anything. Whoever has no cluster yet types `course doctor` in a terminal, and has a remedy
# while the others read on.

# %% [markdown] tags=["slide"]
# ## Setup
#
# Large models are trained by thousands of processes that work together. This cell starts four. Give it half a minute.

# %% [markdown] tags=["slide"]
# ## 1 · Hello
#
# A cell that begins with `%%px` runs in all four processes. Let each say who it is. (Ignore `--setup` and `--save` for now.)

# %%
# %%px --setup --save 00_hello.py
"""Say hello, then learn to read digits."""

from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size

# %%
# %%px --save 00_hello.py
print(f"hello from rank {rank} of {size}")

# %% [markdown]
# One line ran four times. A process's number is its **rank**, and we call the process itself a rank, too.
#
# `comm` is a **communicator**, a group of ranks that can exchange messages. The standard for such messages is **MPI**, the Message
# Passing Interface.

# %% [markdown] tags=["slide"]
# ## 2 · Where does a cell run?
#
# This cell has no `%%px`:

# %%
base = 42

# %% [markdown]
# **Vote:** what will the ranks print? (a) 42 on every rank, (b) 42 on rank 0 only, (c) an error

# %% tags=["raises-exception"]
# %%px
print(base)

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# No rank has a `base`. A cell without `%%px` runs in a fifth process, the **kernel**, and each process has its own memory:
#
# ```
#             ┌ rank 0
#   kernel    ├ rank 1
#   base = 42 ├ rank 2
#             └ rank 3
# ```
#
# </details>
#
# This line sends every rank a copy of `base`:

# %%
cluster["base"] = base

# %%
# %%px
mine = base + rank

# %% [markdown]
# This line collects `mine` from all ranks, rank 0 first:

# %%
cluster["mine"]

# %% tags=["exercise: 00.q1", "subslide"]

# %% [markdown] tags=["notes"]
# Ask the room: how many processes are running now? (Five, besides helpers.) Most people stumble over `%%px` once: they define a function in a plain cell and call it on the
# ranks.

# %% [markdown] tags=["slide"]
# ## 3 · Why more than one?
#
# One reason is time: four ranks can share the work of a training step. The other is memory: large models do not fit on one GPU.
#
# Take a GPU with 80 GB. A small language model has seven billion parameters: 14 GB at 2 bytes each. To *train* it, you also need a gradient per parameter,
# and what the optimizer Adam keeps. How much in all? Guess:

# %%
predict("GB to train 7 billion parameters?", None)

# %%
outcome("GB to train 7 billion parameters?", 7e9 * (2 + 2 + 4 + 4 + 4) / 1e9, "GB", word="computed")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# Eight times the weights, and more than our GPU has. Each block is one byte per parameter:
#
# ```
# weight             ██     16 bits: the layers compute faster
# gradient           ██
# copy of weight     ████   32 bits, because 16 bits would round small steps away
# running average    ████
# running average    ████
# ```
#
# This is **mixed precision**. The last three are the **optimizer state**. **Activations**, the results of the layers, come on top. So
# you need at least two such GPUs.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 4 · Four ranks, one classifier
#
# Lessons 08, 09 and 11 divide the model. Ours is small, so we divide the work of each step: 1,500 images of handwritten digits.
# We sort them by digit. `array_split` cuts them into `size` parts, one per rank. So rank 0 never sees a 9.

# %%
# %%px --save 00_hello.py
from pathlib import Path

import numpy as np

digits = np.load(Path(__file__).parent / "data" / "digits.npz")  # __file__ is code/00_hello.py
order = digits["train_labels"].argsort(kind="stable")  # 0 first, 9 last
images = digits["train_images"].reshape(-1, 64)[order] / 16  # 8 x 8 pixels, 0 to 16
new_images = digits["test_images"].reshape(-1, 64) / 16
x = np.array_split(images, size)[rank]
y = np.array_split(digits["train_labels"][order], size)[rank]

# %% [markdown]
# `train` uses all ranks of a communicator, `team`. Each has its own copy of the weights and computes a gradient from
# its own images. `allreduce` adds up their gradients and gives each rank the sum.


# %%
# %%px --save 00_hello.py
def train(team, steps=200):
    """Train on the images of all ranks of `team`; return the share of new images classified correctly."""
    weights = np.zeros((64, 10))  # from 64 pixels to 10 digits
    total = team.allreduce(len(x))
    for _ in range(steps):
        guess = np.exp(x @ weights)  # an ordinary classifier: you need not follow it
        guess /= guess.sum(axis=1, keepdims=True)
        gradient = x.T @ (guess - np.eye(10)[y])  # summed over my images
        weights -= team.allreduce(gradient) / total  # summed over all ranks
    return ((new_images @ weights).argmax(axis=1) == digits["test_labels"]).mean()


# %% [markdown]
# First, let each rank train alone. `COMM_SELF` is a communicator of this rank alone:

# %%
# %%px
print(f"{len(x)} images, digits {y[0]} to {y[-1]}, alone: {train(MPI.COMM_SELF):.1%} right")

# %% [markdown] tags=["subslide"]
# Now the four train as a team. **Vote:** will they print (a) four different numbers, as before, (b) one number, about as good, (c) one number, and a much better one?

# %%
# %%px
print(f"{len(x)} images, digits {y[0]} to {y[-1]}, with the others: {train(comm):.1%} right")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (c). The copies of the weights started equal and took the same steps, with the sum of all gradients. So rank 0 reads 9s, although it
# trained on none. (With fewer images per step, shuffle first.)
#
# </details>
#
# **Vote:** is one rank with all 1,500 images (a) better still, (b) as good, (c) worse? The cells with `--save` are a program, `code/00_hello.py`. `mpiexec`
# starts it on one rank, then on four:

# %%
# %%px --save 00_hello.py
if __name__ == "__main__":
    right = train(comm)
    if rank == 0:
        print(f"ranks: {size}, images: {len(images):,}, {right:.1%} right")

# %% tags=["nbval-ignore-output"]
# !mpiexec -n 1 python code/00_hello.py
# !mpiexec -n 4 python code/00_hello.py

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (b). Up to rounding, four ranks take the same steps as one, and each computes gradients for a quarter of the images. So a quarter is enough
# if all add up their gradients. (The hellos come in any order.)
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# A **cluster** is many machines. This command starts 64 ranks there:
#
# ```
# mpiexec -n 64 --hostfile hosts python code/00_hello.py
# ```
#
# The file `hosts` has one line per machine (Open MPI: `node1 slots=8` for eight ranks). Slurm (lesson 14) usually needs none.
# All machines must find the program,
# data and Python under the same paths.
#
# Usually there is one rank per GPU or, without GPUs, at most one per **core**, the part of a CPU that runs a process. With more ranks
# than cores, a machine is **oversubscribed**; outside the course, Open MPI wants `--oversubscribe`.

# %% [markdown]
# ## The course
#
# [All lessons](../docs/using.md)

# %% [markdown] tags=["slide"]
# ## Key points
#
# - `%%px` runs a cell on every rank. Each process has its own memory.
# - Without batch norm or dropout (lesson 05), ranks that add up their gradients train as one rank would.
# - Training with Adam usually takes 16 bytes per parameter, plus activations.

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# ### Who downloads the data?
#
# Suppose a cluster has eight machines with eight ranks each. Before they train, all 64 ranks need the same file. Who downloads it?
#
# If every rank does, the file is downloaded 64 times. Once per machine is enough: its ranks share no variables, but usually a disk. (With one disk
# for all machines, once.) One machine of a cluster is called a **node**.
#
# So a rank must find out who else runs on its node. `Split_type` with `COMM_TYPE_SHARED` makes one communicator per node, with the ranks that run
# there. A rank's number in this communicator is its **local rank**:

# %%
# %%px
node = comm.Split_type(MPI.COMM_TYPE_SHARED)
print(f"rank {rank} of {size}, local rank {node.rank} of {node.size} on its node")
node.Free()  # the communicator is no longer needed

# %% [markdown]
# We have only one node, so rank and local rank are equal. On three nodes with two ranks each, they are not. In this table, the launcher
# (the program that starts the ranks) has filled one node after the other:
#
# | node | A | A | B | B | C | C |
# |---|---|---|---|---|---|---|
# | rank | 0 | 1 | 2 | 3 | 4 | 5 |
# | local rank | 0 | 1 | 0 | 1 | 0 | 1 |
#
# The **world size**, the number of all ranks, is 6. Local ranks start at 0 on every node, and the GPUs of a node are numbered from 0, too.
# That is why a rank usually takes the GPU whose number is its local rank. (Some clusters show each rank only its own GPU, and then
# every rank takes GPU 0.)
#
# Can you find one rank on a larger cluster?

# %% tags=["exercise: 00.q3"]

# %% [markdown]
# Back to the download. In many programs, one rank, the **root**, sends to all others or collects from them. Often it is rank 0. Should rank 0 also
# be the one that downloads?

# %% tags=["exercise: 00.2"]

# %% [markdown]
# ### For whom do the others wait?
#
# Each step of `train` calls `allreduce`. It cannot return the sum until the slowest rank has sent its gradient. So one late rank holds
# up all the others. Which one is it? Let us make ranks late on purpose, and look.
#
# Each rank's delay will depend on its neighbour. For that, the
# ranks stand in a ring, 0 → 1 → 2 → 3 → 0. (Lesson 01 uses the same ring.)

# %% tags=["exercise: 00.1"]

# %%
continue_with("00.1")

# %%
# %%px
neighbour = right_neighbour(comm)
print(f"to the right of rank {rank} is rank {neighbour}")

# %% [markdown]
# Each rank will now sleep for 1 + n seconds, where n is the number of its *right neighbour*. Then it calls `Barrier`, which no rank
# leaves before all ranks have called it. **Predict:** for which rank do the others wait?
#
# The **dashboard** shows live what each rank does. It has one lane per rank, with the newest moment at the right. Run the next two
# cells, then come back and look at the lanes. (The *collectives* that it counts are calls that all ranks make together, such as `Barrier`;
# lesson 04 is about them.)

# %% tags=["nbval-ignore-output"]
cluster.dashboard()

# %% [markdown]
# Now the ranks sleep, and meet at the `Barrier`:

# %% tags=["nbval-ignore-output"]
# %%px
import time

time.sleep(1 + neighbour)
comm.Barrier()

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# They wait for rank 2. Its right neighbour is rank 3, which has the largest number, so rank 2 sleeps longest: 4 seconds. The others
# reach `Barrier` earlier and stay in it until rank 2 arrives.
#
# Dots on the dashboard mark waiting, and only the lane of rank 2 has none. So look for the rank that waits *least*: that is the late one.
#
# But why was rank 2 late? It slept, and yet the dashboard shows *computing*, as it does whenever a rank is in no
# MPI call. So a lane tells you who was late, but not why. (On a GPU, even waiting in `allreduce` looks busy: `nvidia-smi` can show 100 %.)
#
# </details>

# %% [markdown]
# ## References
#
# - [mpi4py](https://mpi4py.readthedocs.io) · [ipyparallel](https://ipyparallel.readthedocs.io) · [Open MPI](https://www.open-mpi.org)
# - S. Rajbhandari and others, [ZeRO: Memory Optimizations Toward Training Trillion Parameter Models](https://arxiv.org/abs/1910.02054), 2020, section 3.1: the 16 bytes.
# - E. Alpaydin and C. Kaynak, [Optical Recognition of Handwritten Digits](https://doi.org/10.24432/C50P49), 1998 (CC BY 4.0): the digits.
