# ---
# title: Start here
# goal: Run one program in four processes, and let them train a classifier together.
# able:
#   - say where a cell runs, and move values
#   - estimate the memory that training takes
#   - give every rank its own part of the work
# more:
#   - choose one rank per machine for a task
#   - find out which rank the others wait for
# before: some Python; this page open in JupyterLab (`make lab`)
# minutes: {core: 17, more: 15}
# ranks: 4
# also: >-
#   **Shift + Enter** runs a cell. [One page](../docs/using.md) has all keys, all lessons, and help.
# ---

# %% [markdown] tags=["notes"]
# Let everybody run the Setup cell before you explain anything. Whoever has no cluster yet types `course doctor` in a terminal, and has a remedy
# while the others read on.

# %% [markdown] tags=["slide"]
# ## Setup
#
# This cell starts four processes on your machine. Give it half a minute.

# %% [markdown] tags=["slide"]
# ## 1 · Hello
#
# A cell that begins with `%%px` runs in all four at once.

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
# The same line ran four times. Each process has a number, its **rank**; the process itself is called a rank, too. `comm` is a **communicator**, a group of
# processes that can send each other messages; `COMM_WORLD` holds all of them. **MPI** is the standard for that, **mpi4py** brings it to Python, **Open MPI** does
# the work.

# %% [markdown] tags=["slide"]
# ## 2 · Where does a cell run?
#
# A cell *without* `%%px` runs in the **kernel**, the process behind this page.

# %%
base = 42

# %% [markdown]
# **Vote:** what do the ranks print? (a) 42, four times, (b) 42, on rank 0 only, (c) an error message.

# %% tags=["raises-exception"]
# %%px
print(base)

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# No rank has a `base`. The kernel and the ranks are five processes, each with its own memory:
#
# ```
#             ┌ rank 0
#   kernel    ├ rank 1
#   base = 42 ├ rank 2
#             └ rank 3
# ```
#
# What one knows, another learns only from a message. That is why MPI exists.
#
# </details>
#
# So we send it. This line gives every rank a copy:

# %%
cluster["base"] = base

# %%
# %%px
mine = base + rank

# %% [markdown]
# And this one collects a value from all ranks, rank 0's first:

# %%
cluster["mine"]

# %% tags=["exercise: 00.q1", "subslide"]

# %% [markdown] tags=["notes"]
# Ask the room: how many processes are running now? (Five.) Most people stumble over `%%px` once: they define a function in a plain cell and call it on the
# ranks.

# %% [markdown] tags=["slide"]
# ## 3 · Why more than one?
#
# Seven billion parameters make a small language model: 14 GB, with 2 bytes for each weight. How much memory does it take to *train* it? Write your guess in
# place of `None` before you read on.

# %%
predict("GB to train 7 billion parameters?", None)

# %%
needed = 7e9 * (2 + 2 + 4 + 4 + 4) / 1e9
outcome("GB to train 7 billion parameters?", needed, "GB", word="computed")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# Large models usually train in **mixed precision**: layers compute with 16 bits. Per parameter,
#
# - the weight and its gradient take 2 + 2 bytes;
# - the **optimizer state** takes 4 + 4 + 4: the weight in 32 bits, because 16 would lose small updates, and Adam's two averages.
#
# The **activations**, which layers compute from the data, come on top. A GPU of 80 GB cannot hold that, so several share the model, and send messages.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 4 · A part for every rank
#
# Something smaller first: 1,500 handwritten digits. Every rank reads all of them, and draws a different one.

# %%
# %%px --save 00_hello.py
from pathlib import Path

import numpy as np

digits = np.load(Path(__file__).with_name("data") / "digits.npz")  # __file__: code/00_hello.py
# 8 x 8 pixels from 0 to 16, as 64 numbers from 0 to 1
images, new_images = (digits[f"{kind}_images"].reshape(-1, 64) / 16 for kind in ("train", "test"))
labels, new_labels = digits["train_labels"], digits["test_labels"]


# %%
# %%px
def draw(image):
    for row in image.reshape(8, 8):
        print("".join(" ░▒▓█"[int(4 * pixel)] * 2 for pixel in row))


draw(images[rank])

# %% [markdown] tags=["subslide"]
# Now each shall compute with its own part. It knows its number, `comm.rank`, and how many ranks there are, `comm.size`. (Your function is checked on 1 to 4 test
# ranks, then sent to the ranks of this page. Stuck? Run `hint()`, and again for more.)

# %% tags=["exercise: 00.3"]

# %% [markdown] tags=["slide"]
# ## 5 · Train
#
# Each rank computes the gradient of its part. `allreduce` adds up the gradients of all ranks, and gives each of them the sum.


# %%
# %%px --save 00_hello.py
def train(comm, steps=200):
    """Train a matrix of weights, from 64 pixels to 10 digits, on all ranks of `comm`."""
    weights, x, y = np.zeros((64, 10)), part(comm, images), part(comm, labels)
    for _ in range(steps):
        guess = np.exp(x @ weights)
        guess /= guess.sum(axis=1, keepdims=True)  # how probable is each digit?
        gradient = x.T @ (guess - np.eye(10)[y])
        weights -= comm.allreduce(gradient) / len(images)
    return weights


def main():
    counts = comm.gather(len(part(comm, images)))  # on rank 0, all ranks' numbers as a list
    weights = train(comm)
    right = ((new_images @ weights).argmax(axis=1) == new_labels).mean()
    if rank == 0:
        print(f"images per rank: {counts}; {right:.1%} of new ones read correctly")


if __name__ == "__main__":
    main()

# %% [markdown]
# Let every rank read a new digit:

# %%
# %%px
weights = train(comm)
draw(new_images[rank])
print(f"rank {rank} reads {(new_images[rank] @ weights).argmax()}")

# %% [markdown]
# The cells marked `--save` have also written a program, `code/00_hello.py`. It needs neither this page nor this course, only `code/data`.
# **Predict:** does one rank that sees all images read new digits better, worse, or equally well?

# %% tags=["nbval-ignore-output"]
# !mpiexec -n 1 python code/00_hello.py
# !mpiexec -n 4 python code/00_hello.py

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# Equally well. The gradient over all images is the *sum* over the parts, so four ranks take, up to rounding, the steps that one takes alone. (The hellos come in
# any order: `mpiexec` prints what arrives; `%%px` sorts.)
#
# </details>
#
# Change the 4 to 3, or to 7. The program is yours.

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# | | |
# |---|---|
# | **cluster** | usually many machines; in this course, one. The same program: `mpiexec -n 64 --hostfile hosts python 00_hello.py` |
# | **core** | the part of a CPU that runs a process. A machine with more ranks than cores is **oversubscribed**; on a cluster, each rank usually has a core or a GPU to itself |
# | data | ours all read everything. Of large data, let each rank read only its part |

# %% [markdown] tags=["slide"]
# ## 6 · The course
#
# All lessons, keys, and help for cells that hang: [one page](../docs/using.md).

# %% [markdown] tags=["slide"]
# ## Key points
#
# - A cell with `%%px` runs on every rank, one without it in the kernel. Each process has its own memory.
# - From its number and the number of ranks, a rank knows its part.
# - Training with Adam usually takes 16 bytes per parameter, and the activations.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# A colleague has a GPU with 24 GB. How large a model can she train? Vote: (a) 12 billion parameters, (b) 1.5 billion, (c) fewer. What do you ask her?
#
# <details><summary>What to listen for</summary>(a) counts the weights only; (b) leaves no room for activations. (c): how many fewer depends on her batch and the length
# of her texts. And must she train all weights?</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# ### Who downloads the data?
#
# A **node** is one machine of a cluster. Its ranks use the same memory chips and the same disk, but each has its own variables. `Split_type` makes a
# communicator of the ranks on each node; a rank's number in it is its **local rank**.

# %%
# %%px
node = comm.Split_type(MPI.COMM_TYPE_SHARED)
print(f"rank {rank} of {size}, local rank {node.rank} of {node.size} on its node")
node.Free()

# %% [markdown]
# We have one node, so the two numbers are equal. On three nodes with two ranks each they are not:
#
# | node | A | A | B | B | C | C |
# |---|---|---|---|---|---|---|
# | rank | 0 | 1 | 2 | 3 | 4 | 5 |
# | local rank | 0 | 1 | 0 | 1 | 0 | 1 |
#
# The **world size**, the number of all ranks, is 6. The local rank usually says which GPU of the node a rank uses. One rank that sends to all others or collects from
# them is called the **root**; it is often rank 0, but any rank can be.

# %% tags=["exercise: 00.q3"]

# %% tags=["exercise: 00.2"]

# %% [markdown]
# ### Whom do they wait for?
#
# First we need an order in which each rank has a neighbour. Let the ranks stand in a ring: 0 → 1 → 2 → 3 → 0.

# %% tags=["exercise: 00.1"]

# %%
continue_with("00.1")

# %%
# %%px
neighbour = right_neighbour(comm)
print(f"to the right of rank {rank} is rank {neighbour}")

# %% [markdown]
# What do the ranks do while a cell runs? The **dashboard** shows it live: one lane per rank, the newest moment at the right.

# %% tags=["nbval-ignore-output"]
cluster.dashboard()

# %% [markdown]
# In the next cell each rank sleeps for as many seconds as its *neighbour's* number says, and one more. Then all call `Barrier`, which no rank leaves before all have
# called it. **Predict:** for which rank do the others wait?

# %% tags=["nbval-ignore-output"]
# %%px
import time

time.sleep(1 + neighbour)
comm.Barrier()

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# Rank 2, whose neighbour has the largest number. The dashboard calls a rank *computing* when it is in no MPI call, even if it sleeps.
#
# </details>

# %% [markdown]
# ## References
#
# - [mpi4py](https://mpi4py.readthedocs.io) · [ipyparallel](https://ipyparallel.readthedocs.io) · [Open MPI](https://www.open-mpi.org)
# - S. Rajbhandari and others, [ZeRO: Memory Optimizations Toward Training Trillion Parameter Models](https://arxiv.org/abs/1910.02054), 2020, section 3.1: the 16 bytes.
# - E. Alpaydin and C. Kaynak, [Optical Recognition of Handwritten Digits](https://doi.org/10.24432/C50P49), 1998 (CC BY 4.0): the digits.
