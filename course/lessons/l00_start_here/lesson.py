# ---
# title: Start here
# goal: Run one program in four processes, and let them train a classifier together.
# able:
#   - say where a cell runs, and move values
#   - estimate the memory that training takes
#   - give every rank its part of the work
# more:
#   - choose one rank per machine for a task
#   - find out which rank the others wait for
# before: some Python
# minutes: {core: 17, more: 15}
# ranks: 4
# also: >-
#   **Shift + Enter** runs a cell. [Here](../docs/using.md) are more keys and help.
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
# The same line ran four times. Each process has a number, its **rank**. We call the process a rank, too. `comm` is a **communicator**, a
# group of processes that exchange messages. **MPI** is the standard for such messages.

# %% [markdown] tags=["slide"]
# ## 2 · Where does a cell run?
#
# A cell *without* `%%px` runs in the **kernel**, the process behind this page.

# %%
base = 42

# %% [markdown]
# **Vote:** what do the ranks print? (a) 42 on every rank, (b) 42 on rank 0 only, (c) an error

# %% tags=["raises-exception"]
# %%px
print(base)

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# No rank has a `base`. The kernel and the ranks each have their own memory:
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
# A small language model has seven billion parameters. At 2 bytes each, they take 14 GB. How much memory does *training* take?

# %%
predict("GB to train 7 billion parameters?", None)

# %%
needed = 7e9 * (2 + 2 + 4 + 4 + 4) / 1e9
outcome("GB to train 7 billion parameters?", needed, "GB", word="computed")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# In **mixed precision**, layers compute with 16 bits. With the optimizer Adam, each parameter takes
#
# - 2 + 2 bytes for the weight and its gradient;
# - 4 + 4 + 4 bytes for the **optimizer state**: the weight in 32 bits, and two running averages.
#
# **Activations**, the results of the layers, come on top. A GPU of 80 GB is too small, so we need several.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 4 · A part for every rank
#
# Our model is tiny, so we distribute the *data*: 1,500 handwritten digits. Every rank draws one.

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
# Each rank computes the gradient over its part. `allreduce` gives every rank the sum of all gradients, so all take the same step.


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
# Now a contest with new digits. Write down what *you* read:

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
# Who won? Now the model reads all new digits:

# %%
# %%px --save 00_hello.py
if __name__ == "__main__":
    right = (new_images @ train(comm)).argmax(axis=1) == new_labels
    if rank == 0:
        print(f"trained on {len(part(comm, images))} images per rank, {right.mean():.1%} right")

# %% [markdown]
# The `--save` cells are now a program. `mpiexec` starts it in new processes. **Predict:** does one rank read better than four, worse, or
# equally well?

# %% tags=["nbval-ignore-output"]
# !mpiexec -n 1 python code/00_hello.py
# !mpiexec -n 4 python code/00_hello.py

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# Equally well. The loss is a sum over images, so the four gradients add up to the gradient over all images. Four ranks take the same
# steps as one, up to rounding.
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# | | |
# |---|---|
# | **cluster** | many machines. `mpiexec -n 64 --hostfile hosts python 00_hello.py` uses those in the file `hosts` |
# | **core** | the part of a CPU that runs a process. Usually each rank has its own; a machine with more ranks than cores is **oversubscribed** |

# %% [markdown]
# ## 6 · The course
#
# [All lessons](../docs/using.md)

# %% [markdown] tags=["slide"]
# ## Key points
#
# - `%%px` runs a cell on every rank. Each process has its own memory.
# - From `comm.rank` and `comm.size`, a rank knows its part.
# - Training with Adam usually takes 16 bytes per parameter, plus activations.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# A colleague has a GPU with 24 GB. How large a model can she train with Adam: (a) 12 billion parameters, (b) 1.5 billion,
# (c) fewer. What do you ask her?
#
# <details><summary>What to listen for</summary>(a) counts only the weights. (b) leaves no room for activations. (c) is right. Ask
# for the batch size.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# ### Who downloads the data?
#
# A **node** is one machine of a cluster. Its ranks share no variables, but often they can read the same disk.
# `Split_type` makes one communicator per node. It holds the ranks on that node. A rank's number in this communicator is its **local rank**.

# %%
# %%px
node = comm.Split_type(MPI.COMM_TYPE_SHARED)
print(f"rank {rank} of {size}, local rank {node.rank} of {node.size} on its node")
node.Free()  # the communicator is no longer needed

# %% [markdown]
# We have one node, so the two numbers are equal. On three nodes with two ranks each, they differ. Here the launcher has filled one node
# after the other:
#
# | node | A | A | B | B | C | C |
# |---|---|---|---|---|---|---|
# | rank | 0 | 1 | 2 | 3 | 4 | 5 |
# | local rank | 0 | 1 | 0 | 1 | 0 | 1 |
#
# The **world size**, the number of all ranks, is 6. A rank usually takes the GPU with the number of its local rank.
#
# A rank that sends to all others, or collects from them, is called the **root**. It is often rank 0, but any rank can be the root.

# %% tags=["exercise: 00.q3"]

# %% tags=["exercise: 00.2"]

# %% [markdown]
# ### Whom do they wait for?
#
# We are going to make some ranks late, and see who waits. Let the ranks stand in a ring: 0 → 1 → 2 → 3 → 0.

# %% tags=["exercise: 00.1"]

# %%
continue_with("00.1")

# %%
# %%px
neighbour = right_neighbour(comm)
print(f"to the right of rank {rank} is rank {neighbour}")

# %% [markdown]
# Soon, each rank will sleep for 1 + n seconds, where n is the number of its *right neighbour*. Then all ranks call `Barrier`. No rank
# leaves `Barrier` before all ranks have called it. **Predict:** for which rank do the others wait?
#
# The **dashboard** shows live what each rank does. It has one lane per rank, with the newest moment at the right. Run the next
# two code cells, then look at the dashboard again. (It counts *collectives*: calls that all ranks make together, lesson 04.)

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
# They wait for rank 2. Its right neighbour, rank 3, has the largest number, so rank 2 sleeps longest. On the dashboard, dots mark waiting,
# and only the lane of rank 2 has none. (A rank counts as *computing* when it is in no MPI call, even if it sleeps.)
#
# </details>

# %% [markdown]
# ## References
#
# - [mpi4py](https://mpi4py.readthedocs.io) · [ipyparallel](https://ipyparallel.readthedocs.io) · [Open MPI](https://www.open-mpi.org)
# - S. Rajbhandari and others, [ZeRO: Memory Optimizations Toward Training Trillion Parameter Models](https://arxiv.org/abs/1910.02054), 2020, section 3.1: the 16 bytes.
# - E. Alpaydin and C. Kaynak, [Optical Recognition of Handwritten Digits](https://doi.org/10.24432/C50P49), 1998 (CC BY 4.0): the digits.
