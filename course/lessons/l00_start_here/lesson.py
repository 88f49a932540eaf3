# ---
# title: Start here
# goal: Let four processes train one classifier. Is a quarter of the data enough for each?
# able:
#   - say where a cell runs, and move values
#   - estimate the memory that training takes
#   - give every rank its part of the work
# more:
#   - choose one rank per machine for a task
#   - find out which rank the others wait for
# before: some Python
# minutes: {core: 17, more: 18}
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
# This cell starts four processes. Give it half a minute.

# %% [markdown] tags=["slide"]
# ## 1 · Hello
#
# A cell that begins with `%%px` runs in all four processes at once. (Ignore `--setup` and `--save` for now.)

# %%
# %%px --setup --save 00_hello.py
"""Say hello, then learn to read the digits in data/digits.npz, beside this file."""

from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size

# %%
# %%px --save 00_hello.py
print(f"hello from rank {rank} of {size}")

# %% [markdown]
# One line ran four times, and only the **rank** differs: the number of a process, and our word for the process itself. `comm` is a
# **communicator**, a group of ranks that exchange messages. **MPI** is the standard for such messages.

# %% [markdown] tags=["slide"]
# ## 2 · Where does a cell run?
#
# A cell *without* `%%px` runs in the **kernel**, the process behind this page.

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
# No rank has a `base`: only the kernel ran that line, and each process has its own memory:
#
# ```
#             ┌ rank 0
#   kernel    ├ rank 1
#   base = 42 ├ rank 2
#             └ rank 3
# ```
#
# Values move between processes only in messages.
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
# This line collects `mine` from all ranks:

# %%
cluster["mine"]

# %% tags=["exercise: 00.q1", "subslide"]

# %% [markdown] tags=["notes"]
# Ask the room: how many processes are running now? (Five.) Most people stumble over `%%px` once: they define a function in a plain cell and call it on the
# ranks.

# %% [markdown] tags=["slide"]
# ## 3 · Why more than one?
#
# A small language model has seven billion parameters: 14 GB at 2 bytes each. *Training* also keeps gradients and the optimizer's numbers.
# How much is that in all?

# %%
predict("GB to train 7 billion parameters?", None)

# %%
needed = 7e9 * (2 + 2 + 4 + 4 + 4) / 1e9
outcome("GB to train 7 billion parameters?", needed, "GB", word="computed")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# Eight times the weights. Each block is one byte per parameter:
#
# ```
# weight             ██
# gradient           ██
# copy of weight     ████  ┐
# running average    ████  ├ optimizer state
# running average    ████  ┘
# ```
#
# In **mixed precision**, layers compute with 16 bits. The optimizer Adam keeps its **optimizer state** in 32 bits. **Activations**, the
# results of the layers, come on top. An 80 GB GPU is too small, so several must share the work.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 4 · A part for every rank
#
# Our model is tiny, so we distribute the *data*: 1,500 handwritten digits. Each rank draws one:

# %%
# %%px --save 00_hello.py
from pathlib import Path

import numpy as np

here = Path(__file__).parent  # the folder of code/00_hello.py
digits = np.load(here / "data" / "digits.npz")
images = digits["train_images"].reshape(-1, 64) / 16  # 8 x 8 pixels from 0 to 1
labels = digits["train_labels"]


# %%
# %%px
def draw(image):
    for row in image.reshape(8, 8):
        print("".join(" ░▒▓█"[int(4 * pixel)] * 2 for pixel in row))


draw(images[rank])

# %% [markdown] tags=["subslide"]
# Each rank knows its number, `comm.rank`, and the number of ranks, `comm.size`. (Stuck? Run `hint()`.)

# %% tags=["exercise: 00.3"]

# %% [markdown] tags=["slide"]
# ## 5 · Train
#
# Each rank computes the gradient over its part. Then `allreduce` gives every rank the sum of all gradients, so all take the same step.


# %%
# %%px --save 00_hello.py
def train(comm, steps=200):
    """Train a matrix of weights, from 64 pixels to 10 digits, on all ranks of `comm`."""
    weights = np.zeros((64, 10))
    x, y = part(comm, images), part(comm, labels)
    for _ in range(steps):
        guess = np.exp(x @ weights)
        guess /= guess.sum(axis=1, keepdims=True)  # how probable is each digit?
        gradient = x.T @ (guess - np.eye(10)[y])  # a row of np.eye(10) is 1 at the true digit
        weights -= comm.allreduce(gradient) / len(images)
    return weights


# %% [markdown]
# Now compete with the model, on digits it never saw. Write down what *you* read:

# %%
# %%px --save 00_hello.py
new_images = digits["test_images"].reshape(-1, 64) / 16
new_labels = digits["test_labels"]

# %%
# %%px
draw(new_images[70 + rank])

# %%
# %%px
reads = (new_images[70 + rank] @ train(comm)).argmax()
print(f"rank {rank} reads {reads}, the label says {new_labels[70 + rank]}")

# %% [markdown]
# Who won? Four digits prove little, so the model reads all new ones:

# %%
# %%px --save 00_hello.py
if __name__ == "__main__":
    right = (new_images @ train(comm)).argmax(axis=1) == new_labels
    if rank == 0:
        print(f"trained on {len(part(comm, images))} images per rank, {right.mean():.1%} right")

# %% [markdown]
# The `--save` cells are now a program. `mpiexec` runs it on one rank, then on four. **Predict:** do four read better than one,
# worse, or equally well?

# %% tags=["nbval-ignore-output"]
# !mpiexec -n 1 python code/00_hello.py
# !mpiexec -n 4 python code/00_hello.py

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# Equally well. The loss is a sum over images, so the four parts' gradients add up to the gradient over all images. Four ranks take the same
# steps as one, up to rounding.
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# A **cluster** is many machines. This command starts 64 ranks on those listed in `hosts`:
#
# ```
# mpiexec -n 64 --hostfile hosts python 00_hello.py
# ```
#
# Usually each rank has its own **core**, the part of a CPU that runs a process. A machine with more ranks than cores is **oversubscribed**.

# %% [markdown]
# ## 6 · The course
#
# [All lessons](../docs/using.md)

# %% [markdown] tags=["slide"]
# ## Key points
#
# - `%%px` runs a cell on every rank. Each process has its own memory.
# - A rank finds its part from `comm.rank` and `comm.size`.
# - Training with Adam usually takes 16 bytes per parameter, plus activations.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# A colleague has a GPU with 24 GB. How large a model can she train with Adam: (a) 12 billion parameters, (b) 1.5 billion,
# (c) fewer? What do you ask her?
#
# <details><summary>What to listen for</summary>(c). (a) counts only weights. (b) takes all 24 GB, and
# activations need room too. They grow with the batch, so ask for its size.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# ### Who downloads the data?
#
# Suppose that 64 ranks on eight machines all need the same file. If each rank downloads it, most of the downloads are wasted. A **node** is
# one machine of a cluster. Its ranks share no variables, but they can usually read the same disk, so one download per node is enough.
#
# For this, a rank must know who else runs on its node. `Split_type` makes one communicator per node, which holds the ranks on that node.
# A rank's number in this communicator is its **local rank**.

# %%
# %%px
node = comm.Split_type(MPI.COMM_TYPE_SHARED)
print(f"rank {rank} of {size}, local rank {node.rank} of {node.size} on its node")
node.Free()  # the communicator is no longer needed

# %% [markdown]
# We have only one node, so the two numbers are equal. On three nodes with two ranks each, they are not. In this table, the launcher has
# filled one node after the other:
#
# | node | A | A | B | B | C | C |
# |---|---|---|---|---|---|---|
# | rank | 0 | 1 | 2 | 3 | 4 | 5 |
# | local rank | 0 | 1 | 0 | 1 | 0 | 1 |
#
# The **world size**, the number of all ranks, is 6. Local ranks start at 0 on every node, and so do the numbers of its GPUs. That is why
# a rank usually takes the GPU whose number is its local rank.
#
# A rank that sends to all others, or collects from them, is called the **root**. It is often rank 0, but any rank
# can be the root. Before we return to the download, find one rank on a larger machine.

# %% tags=["exercise: 00.q3"]

# %% tags=["exercise: 00.2"]

# %% [markdown]
# ### Whom do they wait for?
#
# In our training loop, every step calls `allreduce`, and no rank has the sum before all gradients are in. So one late rank can hold up all
# the others. Could you find out which one it was? We are going to make ranks late on purpose, and look.
#
# How late a rank comes will depend on its neighbour. Let the ranks stand in a ring, 0 → 1 → 2 → 3 → 0:

# %% tags=["exercise: 00.1"]

# %%
continue_with("00.1")

# %%
# %%px
neighbour = right_neighbour(comm)
print(f"to the right of rank {rank} is rank {neighbour}")

# %% [markdown]
# In a moment, each rank will sleep for 1 + n seconds, where n is the number of its *right neighbour*. Then all ranks call `Barrier`,
# which no rank leaves before all ranks have called it. **Predict:** for which rank do the others wait?
#
# To see it, we open the **dashboard**, which shows live what each rank does. Every rank has one lane, with the newest moment at the right.
# Run the next two code cells, then come back to the dashboard. (The *collectives* that it counts are calls that all ranks make together,
# such as `Barrier`; lesson 04 is about them.)

# %% tags=["nbval-ignore-output"]
cluster.dashboard()

# %% [markdown]
# Now the ranks sleep, each for its own time, and meet at the `Barrier`:

# %% tags=["nbval-ignore-output"]
# %%px
import time

time.sleep(1 + neighbour)
comm.Barrier()

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# They wait for rank 2. Dots on the dashboard mark waiting, and only the lane of rank 2 has none. The right neighbour of rank 2 is rank 3,
# the largest number, so rank 2 sleeps longest: 4 seconds. The others reach `Barrier` earlier and stay in it until rank 2 arrives.
#
# So the rank to look at is the one that does *not* wait. The dashboard says that it computes, because a rank counts as *computing* whenever
# it is in no MPI call, even while it sleeps. The lane tells you who was late, but not why.
#
# </details>

# %% [markdown]
# ## References
#
# - [mpi4py](https://mpi4py.readthedocs.io) · [ipyparallel](https://ipyparallel.readthedocs.io) · [Open MPI](https://www.open-mpi.org)
# - S. Rajbhandari and others, [ZeRO: Memory Optimizations Toward Training Trillion Parameter Models](https://arxiv.org/abs/1910.02054), 2020, section 3.1: the 16 bytes.
# - E. Alpaydin and C. Kaynak, [Optical Recognition of Handwritten Digits](https://doi.org/10.24432/C50P49), 1998 (CC BY 4.0): the digits.
