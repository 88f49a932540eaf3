# ---
# title: Start here
# goal: Run the same lines of Python in four processes at once, and know where each of them runs.
# able:
#   - say what a rank knows about itself and about the others
#   - tell whether a cell runs in the kernel or on the ranks, and move values between them
#   - tell a rank from a CPU core
#   - estimate how much memory it takes to train a model
# more:
#   - tell rank, local rank, node and world apart
#   - say how memory grows with the batch and with the size of an image
# before: some Python; this page open in JupyterLab (`make lab`)
# minutes: {core: 20, more: 14}
# ranks: 4
# also: >-
#   **Core** is a lesson's first part; **More** is the optional second part.
# ---

# %% [markdown] tags=["notes"]
# Minutes: 3 for arrival and this table, 5 for sections 1 and 2, 6 for the exercise, 6 for the rest. Let
# everybody run the Setup cell before you explain anything: whoever has no cluster yet runs `course doctor` in
# a terminal and has a remedy while the others read on.

# %% [markdown] tags=["slide"]
# ## How to use this page
#
# Run the cells in order. The page is your own copy: change whatever you like.
#
# | You want to | Do this |
# |---|---|
# | run a cell | click on it and press **Shift + Enter**. `[*]` beside the cell means that it is running; a number means that it is done |
# | answer a question | write the letter between the quotes, as in `answer("b")`, and run the cell. You may try again |
# | stop a cell | press **■** in the toolbar. A cell that hangs on the ranks ends by itself and reports which rank waits for which |
# | start again | choose *Kernel → Restart Kernel…*, then run the cells from the top |
# | find out what is wrong | run the doctor in section 7, or type `course doctor` in a terminal |
# | restore this lesson | type `course reset 00` in a terminal. Your version is kept under another name |
# | look up a word | open the [glossary](../docs/glossary.md) |
# | see what you have passed | type `course progress` in a terminal |
# | join late | run Setup, then `catch_up("00.1")`: it runs everything that comes before exercise 00.1 |

# %% [markdown] tags=["slide"]
# ## Setup
#
# This cell starts four processes on your machine that can send messages to each other. A **cluster** is
# usually many machines; ours is one machine with four processes. Starting it takes up to half a minute; then
# one line reports what you have.

# %% [markdown] tags=["slide"]
# ## 1 · One cell, four processes
#
# A cell that begins with `%%px` runs in all four processes at once. Each process has a number, its **rank**.
# We use the same word for the process: "rank 2 prints" means that the process with number 2 prints.
#
# The processes exchange messages. **MPI**, the Message Passing Interface, is the standard for this;
# **mpi4py** is its Python library, **Open MPI** the implementation underneath.
#
# The ranks belong to a **communicator**, a group of processes that can exchange messages. `MPI.COMM_WORLD` is
# the communicator of all ranks. From it, a rank learns its own number and the number of ranks.

# %%
# %%px --setup
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size

# %% [markdown]
# Every lesson begins with these lines. With `--setup`, the cluster runs the cell again whenever it restarts
# the ranks (after a hang, for example). Now let every rank say hello.

# %%
# %%px
print(f"hello from rank {rank} of {size}")

# %% [markdown]
# The program ran four times; only the number differed. `[stdout:2]` marks what rank 2 printed. Every lesson
# works this way, including the one that trains a language model.

# %% [markdown] tags=["slide"]
# What are the ranks doing while a cell runs? The **dashboard** shows it live: one lane per rank, with the last
# ten seconds in it. The newest moment is at the right.

# %% tags=["nbval-ignore-output"]
cluster.dashboard()

# %% [markdown]
# In the next cell, rank 0 sleeps for one second, rank 1 for two, and so on. Then all ranks call `Barrier`. No
# rank can leave a `Barrier` before every rank has called it. Run the cell and watch the lanes. Which rank do the
# others wait for?

# %% tags=["nbval-ignore-output"]
# %%px
import time

time.sleep(1 + rank)
comm.Barrier()

# %% [markdown]
# They waited for rank 3, and the dashboard named it. It counts a rank as *computing* when the rank is in no MPI
# call, even if it sleeps. From 3 seconds on, `%%px` also prints who waits for whom.

# %% [markdown] tags=["slide"]
# ## 2 · Where does a cell run?
#
# A cell **without** `%%px` runs in the **kernel**, the process behind this page. The kernel and the four
# ranks are five separate processes. Each has its own memory. So what happens if we set a variable in the
# kernel and ask the ranks for it?

# %%
base = 42

# %%
# %%px
print(f"rank {rank} knows 'base':", "base" in globals())

# %% [markdown]
# `False`, four times: no rank can see the kernel's variables. We have to send the value. Assigning to
# `cluster["name"]` sends it to all ranks:

# %%
cluster["base"] = base

# %%
# %%px
mine = base + rank

# %% [markdown]
# Reading `cluster["name"]` goes the other way. It returns a list with one value per rank, and the value of
# rank 0 comes first:

# %%
cluster["mine"]

# %% [markdown] tags=["notes"]
# Ask the room before the next question: how many processes are running now? (Five: one kernel, four ranks.)
# Most stumble over `%%px` in the first hour: they define a function in a plain cell and call it in a `%%px`
# cell.

# %% tags=["exercise: 00.q1"]

# %% [markdown] tags=["slide"]
# ## 3 · Your turn

# %% tags=["exercise: 00.1"]

# %% [markdown]
# The next cell runs your function on the ranks of this notebook. If your function is not right yet,
# `continue_with` uses ours.

# %% tags=["nbval-ignore-output"]
continue_with("00.1")

# %%
# %%px
print(f"the right neighbour of rank {rank} is rank {right_neighbour(comm)}")

# %% [markdown]
# Four ranks ran the same line and got four different results. That is how one program gives each rank a
# different task: the task depends on `comm.rank`.

# %% [markdown] tags=["slide"]
# ## 4 · Which core runs a rank?
#
# A rank is a process. A **core** is the part of a CPU that runs the instructions of a process, one process at
# a time. (We count as your system does. Many systems count a physical core twice, once per hardware thread.)
# The operating system decides which core runs each process, and it may move a process to a different core many
# times per second. Let us ask every rank where it is now.

# %% tags=["nbval-ignore-output"]
# %%px
import psutil

process = psutil.Process()
core = process.cpu_num() if hasattr(process, "cpu_num") else None  # macOS does not say
print(f"rank {rank} is process {process.pid}, now on core {core}")

# %% tags=["nbval-ignore-output"]
from course.lessons.l00_start_here.figures import cluster_picture
from mpi_classroom.launch import available_cores

cluster_picture(cluster["core"], available_cores())

# %% [markdown]
# Run the two cells again, several times. A rank keeps its number and its process, but its core may change.
#
# With more ranks than cores, ranks share cores, and the machine is **oversubscribed**. By default, Open MPI
# starts at most one rank per physical core; `start_cluster` switches that limit off. Everything still works,
# but four ranks on two cores do at most the work of two. So when this course *times* something, it uses at most
# one rank per core, or says that the ranks are oversubscribed.

# %% tags=["exercise: 00.q2"]

# %% [markdown] tags=["slide"]
# ## 5 · Why more than one device?
#
# Seven billion parameters make a small language model. Large models are usually trained in **mixed
# precision**: the layers compute with numbers of 16 bits, 2 bytes each. So the weights alone take 14 GB. How
# much memory does training need for the model alone, without any data? Write your guess in place of `None`, or
# run on without one.

# %%
predict("GB to train 7 billion parameters?", None)

# %%
from course_lib.theory.memory import training_state

state = training_state(7_000_000_000)
why = f"That is {state.total / state.weights:.0f} times the weights alone."
outcome("GB to train 7 billion parameters?", state.total / 1e9, "GB", word="computed", because=why)

# %% [markdown]
# For each parameter, training keeps more than the weight. With the optimizer Adam it is this:
#
# | per parameter | bytes |
# |---|---|
# | the weight, in 16 bits | 2 |
# | its gradient, in 16 bits | 2 |
# | **optimizer state**: a copy of the weight in 32 bits, because 16 bits would lose small updates | 4 |
# | optimizer state: two running averages, of the gradient and of its square, in 32 bits | 4 + 4 |
# | together | 16 |
#
# In plain 32-bit numbers, PyTorch's default, the sum is 16 as well: 4 for the weight, 4 for its gradient, 8
# for Adam's averages. Which device can hold all this?

# %% tags=["nbval-ignore-output"]
import psutil

from course.lessons.l00_start_here.figures import memory_bars

parameters = 7_000_000_000
memories = {"this machine": psutil.virtual_memory().total, "one 80 GB GPU": 80 * 10**9}
memory_bars(training_state(parameters), memories, parameters=parameters)

# %% [markdown]
# Do you have a GPU? Add it to `memories`, for instance `"my GPU": 8 * 10**9`. Then change `parameters` to
# `1_500_000_000`, the size of the largest GPT-2, and run the last cell again.
#
# If a model does not fit into the memory of one device, we split it over several: its layers (part III of the
# course) or its training state, such as Adam's averages (part IV). A model that does fit can be trained faster
# if the ranks share the data (part II). Either way, ranks exchange messages (part I).

# %% [markdown] tags=["notes"]
# Collect guesses for the memory aloud before the cell runs; 14 and 28 are common. The point to bring home:
# Adam's state is three quarters of it, and that is why part IV exists.

# %% [markdown] tags=["slide"]
# ## 6 · The course
#
# Each lesson says at its top which lessons it builds on. Its core ends with the line "Stop here in a short
# workshop". *More* is for those who have time.

# %% tags=["nbval-ignore-output"]
from course.lessons.l00_start_here.figures import course_map

course_map(here="00")

# %% [markdown] tags=["slide"]
# ## 7 · Is everything all right?
#
# The doctor checks everything that the course needs. Below each problem, it prints a remedy. This takes up to
# a minute.

# %% tags=["nbval-ignore-output"]
from course.doctor import doctor

doctor()

# %% [markdown] tags=["slide"]
# ## Key points
#
# - A cell with `%%px` runs on every rank; a cell without it runs in the kernel.
# - The kernel and the ranks are separate processes. To move a value between them, send it.
# - A rank is a process with a number. The operating system decides which core runs it.
# - Training with Adam takes 16 bytes per parameter, 112 GB for 7 billion parameters, for weights, gradients
#   and optimizer state. What the layers compute from the data, the **activations**, comes on top (section 9).

# %% [markdown] tags=["slide"]
# ## Discuss
#
# On a machine with 64 cores, a colleague splits a pure computation over 256 ranks. Will it finish (a) later
# than with 64 ranks, (b) at about the same time, or (c) sooner? Vote, talk to your neighbour for two minutes,
# and vote again. What could the machine run out of?
#
# <details><summary>Answer</summary>At best (b), usually (a): the ranks share cores and wait for each other. Each rank also needs memory of its own, so the machine may run out of memory.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More

# %% [markdown]
# ### 8 · World, node, local rank
#
# A **node** is one machine of a cluster. Its ranks use the same physical memory, but each still has its own
# variables. (If a node has several CPUs, each core reaches the memory of its own CPU faster. That is called
# **NUMA**, non-uniform memory access.) `Split_type` makes a smaller communicator for the ranks of each node.
# A rank's number within its node is its **local rank**.

# %%
# %%px
node = comm.Split_type(MPI.COMM_TYPE_SHARED)
print(f"rank {rank} of {size}, local rank {node.rank} of {node.size} on its node")
node.Free()

# %% [markdown]
# All our ranks are on one node, so the two numbers are equal. On three nodes with two ranks each they would
# be:
#
# | node | A | A | B | B | C | C |
# |---|---|---|---|---|---|---|
# | rank | 0 | 1 | 2 | 3 | 4 | 5 |
# | local rank | 0 | 1 | 0 | 1 | 0 | 1 |
#
# Here the **world size**, the number of all ranks, is 6. The **root** of an operation is the rank that sends
# to all others or collects from them. It is often rank 0, but any rank can be the root.

# %% tags=["exercise: 00.2"]

# %% [markdown]
# ### 9 · What grows with the data
#
# The 16 bytes per parameter do not depend on the data. The activations do. An activation is what a layer
# computes in the forward pass. The backward pass needs it to compute gradients, so it stays in memory until
# then. We let PyTorch count the bytes for a small network, a ResNet with 20 layers. If you double the side of an
# image, by what factor does the memory grow?

# %%
import torch

from course_lib.training.kept import kept_bytes
from course_lib.training.models import ResNet

model = ResNet(blocks=3)


def activations(batch, side):
    """Return the bytes that a forward pass of `batch` square images keeps."""
    images = torch.rand(batch, 3, side, side)
    return kept_bytes(model, lambda: model(images))


predict("Times the memory, for an image with twice the side?", None)

# %% tags=["nbval-ignore-output"]
measured = {1: {side: activations(1, side) for side in (64, 128, 256)}}
measured[16] = {side: activations(16, side) for side in (64, 128)}
times = measured[1][256] / measured[1][128]
of_16 = measured[16][128] / measured[1][128]
why = f"It has 4 times the pixels. And a batch of 16 images takes {of_16:.1f} times the memory of one."
outcome("Times the memory, for an image with twice the side?", times, because=why)

# %% [markdown]
# So activations grow with the number of pixels and with the number of images in a batch: one large image can
# fill any device. Here is the curve for our network. Each line across it is the memory of a device. Jain et
# al. (see the references) draw the same picture; we add a newer GPU:

# %% tags=["nbval-ignore-output"]
from course.lessons.l00_start_here.figures import memory_by_size

GB = 10**9
devices = {"Pascal GPU": 16 * GB, "Volta GPU": 32 * GB, "Hopper GPU": 80 * GB, "Skylake server": 192 * GB}
memory_by_size(measured, devices)

# %% [markdown]
# A smaller batch helps until the batch is a single image. Beyond that, the layers or the image have to be
# split over ranks: lessons 08 to 10.

# %% [markdown]
# ### 10 · All lessons

# %% tags=["nbval-ignore-output"]
from course.lessons.l00_start_here.figures import lesson_table

lesson_table()

# %% [markdown]
# After 07, go on with lessons 08 to 10 or with 11 to 13. Lessons 07 and 14 need the core of 06, lesson 12 the cores
# of 07 and 11, and lesson 13 the core of 12. These cores fit into a workshop of lecture, discussion and hands-on
# work, with breaks:
#
# | Time | Cores |
# |---|---|
# | two hours | 00, 01, 04 |
# | half a day (3½ hours) | also 06, 07, 11; 13 as a demonstration |
# | one day | also 02, 05, 08, 12, 14 |
# | two days | all lessons, and *More* by choice |

# %% [markdown]
# ## On GPUs
#
# A rank usually drives one GPU, and its local rank says which one. You need no GPU for this course: ranks
# and messages work the same with GPUs.
#
# ## Pitfalls
#
# - `NameError` on all ranks: the variable is in the kernel. Send it with `cluster["name"] = name`, or put `%%px` above
#   the cell that sets it.
# - `NameError` in the kernel: the variable is on the ranks. Read it with `cluster["name"]`.
# - *Restart Kernel* also ends the ranks. Begin again with the Setup cell.
#
# ## References
#
# - [mpi4py](https://mpi4py.readthedocs.io) · [ipyparallel](https://ipyparallel.readthedocs.io) · [Open MPI](https://www.open-mpi.org)
# - Rajbhandari et al., [ZeRO: Memory Optimizations Toward Training Trillion Parameter Models](https://arxiv.org/abs/1910.02054), 2020, section 3.1: the 16 bytes
# - Jain et al., [GEMS: GPU-Enabled Memory-Aware Model-Parallelism System for Distributed DNN Training](https://doi.org/10.1109/SC41405.2020.00049), SC 2020
#
# ## Stretch
#
# Let each rank sum a quarter of the numbers from 0 to 999 999. Read the four results in the kernel and add
# them.
