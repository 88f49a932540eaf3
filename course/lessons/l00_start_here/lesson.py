# %% [markdown]
# # 00 · Start here
#
# *Run the same lines of Python in four processes at once, and know where each of them runs.*
#
# | | |
# |---|---|
# | **You will be able to** | say what a rank knows of itself and of the others; tell a cell for the kernel from a cell for the ranks, and move values between the two; tell a rank from a core; say why training a large model takes more than one machine |
# | **Before this** | some Python; this page open in JupyterLab (`make lab`) |
# | **Time** | core 14 min · more 14 min |
# | **Ranks** | 4 |
#
# [Course map](00_start_here.ipynb) · [01 · MPI basics →](01_mpi_basics.ipynb)

# %% [markdown]
# ## How to use this page
#
# Run the cells one after the other, from the top. This is your own copy: change what you like.
#
# | You want to | Do this |
# |---|---|
# | run a cell | click on it and press **Shift + Enter**; `[*]` beside it means that it is running, a number that it is done |
# | stop a cell | press **■** in the toolbar; on the ranks, cells also end by themselves after 60 seconds, and say who waited for whom |
# | begin again | menu *Kernel → Restart Kernel…*, then run the cells from the top |
# | see what is wrong | run the doctor in section 5, or type `course doctor` in a terminal |
# | have this lesson back as it was | type `course reset 00` in a terminal; yours is kept aside |
# | see what you have passed | type `course progress` in a terminal |
# | join late | run Setup, then `catch_up("00.2")`: what comes before exercise 00.2 is run for you |

# %% [markdown]
# ## Setup
#
# This cell starts four processes on your machine that can send each other messages: a small cluster. It takes
# a few seconds, then says in one line what you have.

# %% tags=["nbval-ignore-output"]
from mpi_classroom.cluster import start_cluster

cluster = start_cluster(n=4)

# %% [markdown]
# ## 1 · One cell, four processes
#
# A cell that begins with `%%px` runs in all four processes. Each of them is called a **rank**, after its
# number: it finds its own in `comm.rank`, and how many there are in `comm.size`. These lines come first in
# every lesson; `--setup` means: run this cell again whenever the ranks have to be restarted.

# %%
# %%px --setup
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size

# %%
# %%px
print(f"hello from rank {rank} of {size}")

# %% [markdown]
# The same program ran four times, and only the number was different. `[stdout:2]` marks what rank 2 printed.
# Everything in this course, up to training a language model, is built like this.

# %% [markdown]
# ## 2 · Two places where a cell can run
#
# A cell **without** `%%px` runs in the **kernel**, the one process behind this page. The kernel and the four
# ranks are separate processes: each has its own memory, and none can see the variables of another.

# %%
answer = 42

# %%
# %%px
print(f"rank {rank} knows 'answer':", "answer" in globals())

# %% [markdown]
# To give all ranks a value of the kernel, assign it to `cluster["name"]`. To read a variable of the ranks,
# ask for `cluster["name"]`: you get a list with the value of every rank, rank 0 first.

# %%
cluster["answer"] = answer

# %%
# %%px
mine = answer + rank

# %%
cluster["mine"]

# %% [markdown]
# ## 3 · Your turn

# %% tags=["exercise: 00.1"]

# %% [markdown]
# ## 4 · A rank is not a core
#
# A rank is a process, here also called an *engine*; a **core** is the part of your machine that computes.
# Which core a process runs on, the operating system decides, many times a second. We ask each rank where it
# is right now.

# %% tags=["nbval-ignore-output"]
# %%px
import psutil

process = psutil.Process()
core = process.cpu_num()
print(f"rank {rank} is process {process.pid}, now on core {core}")

# %% tags=["nbval-ignore-output"]
from course.lessons.l00_start_here.figures import cluster_picture
from mpi_classroom.launch import available_cores

cluster_picture(cluster["core"], available_cores())

# %% [markdown]
# Run the two cells again: a rank keeps its number and its process, but not its core. Where there are fewer cores
# than ranks, the ranks take turns (the machine is *oversubscribed*): nothing breaks, but nothing gets faster
# either. So what this course *times*, it times on at most as many ranks as you have cores.

# %% [markdown]
# ## 5 · Is everything all right?
#
# The doctor looks at everything the course needs. What is not right comes with the line that repairs it. And when a
# cell hangs, as one will in the next lesson, on purpose: it ends with a report, and you have four working ranks again.

# %% tags=["nbval-ignore-output"]
from course.doctor import doctor

doctor()

# %% [markdown]
# ## 6 · Why more than one machine?
#
# To train a model takes more memory than the model itself. A weight and its gradient take 2 bytes each, and the
# usual optimizer, Adam, keeps three more numbers of 4 bytes: 16 bytes for each parameter. How much is that for
# seven billion parameters, a small language model? Guess first, if you like: put a number in the place of `None`.

# %%
predict("How many GB for 7 billion parameters?", None)

# %%
from course_lib.theory.memory import training_state

parameters = 7_000_000_000
state = training_state(parameters)
outcome("How many GB for 7 billion parameters?", state.total / 1e9, "GB", word="computed")

# %% tags=["nbval-ignore-output"]
import psutil

from course.lessons.l00_start_here.figures import memory_bars

memories = {"this machine": psutil.virtual_memory().total, "one 80 GB GPU": 80 * 10**9}
memory_bars(state, memories, parameters=parameters)

# %% [markdown]
# A model that does not fit into one memory must be divided among several: its optimizer state (part IV), its
# layers (part III). One that does fit is trained faster when several ranks share the data (part II). In all
# three, ranks exchange messages (part I).
#
# Change `parameters` to 1 500 000 000, the size of GPT-2, and run both cells again.

# %% [markdown]
# ## 7 · The course
#
# Seventeen lessons in five parts; section 10 lists them. Each says at the top which lessons it builds on. Every
# lesson has a core and ends it with a line like the one below; after it comes *More*, for those who have time.

# %% tags=["nbval-ignore-output"]
from course.lessons.l00_start_here.figures import course_map

course_map(here="00")

# %% [markdown]
# ## Key points
#
# - A cell with `%%px` runs on every rank; a cell without it runs in the kernel.
# - Kernel and ranks are separate processes: a value goes from one to the other only when it is sent.
# - A rank is a process with a number, not a core.
# - With Adam, training takes 16 bytes a parameter before the first activation: 112 GB for 7 billion.

# %% [markdown]
# ## Discuss
#
# A colleague has a machine with 64 cores and asks for 256 ranks. What works, what does not get faster, and
# what might not even start?

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# ### 8 · Two questions
#
# Write your letter between the quotes, and run the cell.

# %% tags=["exercise: 00.q1"]

# %% tags=["exercise: 00.q2"]

# %% [markdown]
# ### 9 · World, node, local rank
#
# A **communicator** is a group of ranks that can send each other messages. `MPI.COMM_WORLD` holds all ranks,
# wherever they run. A **node** is one machine; the ranks on it can share its memory. `Split_type` makes a smaller
# communicator of just those, and the rank in that one is the **local rank**.

# %%
# %%px
node = comm.Split_type(MPI.COMM_TYPE_SHARED)
print(f"rank {rank} of {size} in the world, local rank {node.rank} of {node.size} on its node")
node.Free()

# %% [markdown]
# Here all ranks are on one node, so the two numbers are equal. On three nodes with two ranks each they would
# be:
#
# | node | A | A | B | B | C | C |
# |---|---|---|---|---|---|---|
# | rank | 0 | 1 | 2 | 3 | 4 | 5 |
# | local rank | 0 | 1 | 0 | 1 | 0 | 1 |
#
# The **world size** is 6. The **root** is the rank that hands out or collects in some operation: usually rank
# 0, but any rank can be it.

# %% tags=["exercise: 00.2"]

# %% [markdown]
# ### 10 · All lessons
#
# | Part | Lessons |
# |---|---|
# | | 00 · Start here |
# | **I. Message passing** | [01 · MPI basics](01_mpi_basics.ipynb) · [02 · Monte Carlo π](02_monte_carlo_pi.ipynb) · [03 · arctan π and quadrature](03_arctan_pi.ipynb) · 04 · Collectives |
# | **II. Data parallelism** | [05 · Training in one process](05_training_one_process.ipynb) · [06 · Data parallelism by hand](06_data_parallel_by_hand.ipynb) · [07 · DDP on MNIST](07_ddp_on_mnist.ipynb) |
# | **III. Model parallelism** | [08 · Pipeline parallelism](08_pipeline_parallelism.ipynb) · [09 · Tensor parallelism](09_tensor_parallelism.ipynb) · [10 · Spatial and hybrid](10_spatial_and_hybrid.ipynb) |
# | **IV. Memory** | 11 · ZeRO from scratch · 12 · DeepSpeed on CIFAR · 13 · DeepSpeed summarization |
# | **V. In the world** | 14 · Scaling out · 15 · When things fail · 16 · Choose your strategy |
#
# Lessons without a link are still being written. For a workshop that mixes lecture, discussion and hands-on:
#
# | Time | Lessons |
# |---|---|
# | two hours | the core of 00, 01, 02, 04, 06, 07, 11 and 12; 13 as a demonstration |
# | one day | also the core of 03, 05, 08 and 09 |
# | two days | all lessons, with *More* |

# %% [markdown]
# ## On GPUs
#
# With GPUs, each rank usually drives one of them, and its local rank says which. This course needs none: what
# it teaches about ranks and messages holds for both.

# %% [markdown]
# ## Pitfalls
#
# - `NameError` on all ranks: the variable is in the kernel. Send it with `cluster["name"] = name`, or add `%%px`.
# - `NameError` in the kernel: the variable is on the ranks. Read it with `cluster["name"]`.
# - After *Restart Kernel* the ranks are new, too: begin with the Setup cell.

# %% [markdown]
# ## References
#
# - [mpi4py](https://mpi4py.readthedocs.io) · [ipyparallel](https://ipyparallel.readthedocs.io) · [Open MPI](https://www.open-mpi.org)
# - Rajbhandari et al., [ZeRO: Memory Optimizations Toward Training Trillion Parameter Models](https://arxiv.org/abs/1910.02054), 2020, section 3.1: the 16 bytes

# %% [markdown]
# ## Stretch
#
# Let every rank compute the sum of a quarter of the numbers 0 to 999 999, and add the four results in the
# kernel.

# %% [markdown]
# ## Teardown

# %%
cluster.stop()
