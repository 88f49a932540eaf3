# ---
# title: arctan π and quadrature
# goal: Share one sum among ranks, and find out when that pays.
# able:
#   - fit a line to a program's times, and predict from it when more ranks pay
#   - tell strong scaling from weak scaling
# more:
#   - start workers from a running program, and find bugs of big jobs
#   - say which digits of a parallel result to compare, and when
# before: >-
#   {01}, {02}
# minutes: {core: 20, more: 28}
# ranks: 4
# warm-up:
#   - ask: Four ranks share a job. Which rank decides how long it takes?
#     answer: The slowest. The others must wait for its part.
#   - ask: You want the error of your darts ten times smaller. How many times as many darts do you need?
#     answer: A hundred times as many. The typical error of N darts is 1.64/√N.
#   - ask: On rank 2 of 4 ranks, which numbers does `range(rank, 12, size)` give?
#     answer: 2, 6 and 10.
# ---

# %% [markdown] tags=["slide"]
# ## 1 · Would a second rank help?
#
# Your job takes too long. Will a second rank help? That depends on the job. Let us find the **break-even point**: the job that takes two
# ranks as long as one.
#
# Our job is **quadrature**: computing an area. The area under the curve 4/(1 + x²) from 0 to 1 is 4 arctan(1) = π.
# The **midpoint rule** cuts the area into N strips of width h. Each strip is a rectangle, as high as the curve above its middle.

# %%
# %%px --save 03_quadrature.py
"""Quadrature of π, and how its time depends on strips and ranks."""

from mpi4py import MPI

comm = MPI.COMM_WORLD

# %% [markdown] tags=["subslide"]
# Of four ranks, rank 1 takes strips 1, 5, 9, …:

# %% tags=["source: course_lib.pi:midpoint_loop"]
# %%px --save 03_quadrature.py

# %% [markdown] tags=["subslide"]
# `allreduce` adds up the parts of all ranks in `team`:


# %%
# %%px --save 03_quadrature.py
def pi(team, strips):
    """π, on every rank of `team`."""
    return team.allreduce(midpoint_loop(strips, team.rank, team.size))


# %% [markdown]
# Do four ranks find π?

# %%
# %%px
print(f"π on rank {comm.rank}: {pi(comm, 1_000):.10f}")

# %% [markdown] tags=["subslide"]
# But are two ranks faster than one?
#
# Ranks 0 and 1 each do a job alone (`COMM_SELF`), then share its strips (`pair`). A run takes as long as its slowest
# rank. Other programs can only add time, so we keep the fastest of many runs.

# %%
# %%px --save 03_quadrature.py
pair = comm.Split(comm.rank < 2)


def time_job(team, strips):
    """Seconds until the slowest rank is done."""
    team.Barrier()
    start = MPI.Wtime()
    pi(team, strips)
    return team.allreduce(MPI.Wtime() - start, op=MPI.MAX)


def compare(jobs, runs=1_000):
    """Seconds of each job's fastest run, on one rank and on two."""
    one, two = (dict.fromkeys(jobs, float("inf")) for _ in range(2))  # any run is faster
    for strips in runs * list(jobs):
        if comm.rank < 2:
            one[strips] = min(one[strips], time_job(MPI.COMM_SELF, strips))
            two[strips] = min(two[strips], time_job(pair, strips))
    return one, two


# %% [markdown] tags=["subslide"]
# In our smallest job, each of two ranks has five strips. **Predict:**

# %%
predict("10 strips: how many times as fast are two ranks?", None)

# %%
# %%px --save 03_quadrature.py
one, two = compare((10, 100, 1_000, 5_000, 10_000))

# %% tags=["nbval-ignore-output"]
from course.lessons.l03_arctan_pi.figures import draw_times

one, two = cluster["one"][0], cluster["two"][0]
outcome("10 strips: how many times as fast are two ranks?", one[10] / two[10])
draw_times({"one rank": one, "two ranks": two})

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# Below 1: the second rank makes this job *slower*. It saves the time of five strips, but exchanging the parts takes longer. With
# 10,000 strips, two ranks are nearly twice as fast.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 2 · One line for every job
#
# Can we compute the break-even point, without trying every job? Each of p ranks computes N/p strips. Call the time per strip *b*. Then
# the ranks add up their parts. This **overhead** costs the same time for every N; call that time *a*. If each rank has a core, the job takes
#
# ***t* = *a* + *b*·N/p**
#
# For a fixed p, this is a straight line. (The logarithmic axes above bend it.)

# %% tags=["exercise: 03.4"]

# %% [markdown] tags=["notes"]
# Nine minutes up to here, six for the exercise. The usual slip is to forget p: ask how many strips a rank has.

# %% [markdown] tags=["subslide"]
# `fit` finds both lines:

# %% tags=["nbval-ignore-output"]
# %%px --save 03_quadrature.py
if __name__ == "__main__" and comm.rank == 0:
    a_one, b = fit(one, 1)
    a_two, _ = fit(two, pair.size)
    print(f"pi = {pi(MPI.COMM_SELF, 100_000):.10f}, b = {1e9 * b:.2f} ns per strip")
    print(f"a = {1e6 * a_one:.1f} µs on one rank, {1e6 * a_two:.1f} µs on {pair.size}")

# %% [markdown] tags=["subslide"]
# One rank has overhead, too: it calls `pi` and `allreduce`.
#
# The second rank *saves* half of the strips' time: *b*·N/2. It *costs* more overhead: *a*₂ − *a*₁. At which N are both equal? (1 µs is
# 1,000 ns.) **Predict:**

# %%
predict("Up to how many strips is one rank faster?", None)

# %% [markdown] tags=["subslide"]
# We measure sixteen jobs around that N:

# %%
# %%px
break_even = comm.bcast(2 * (a_two - a_one) / b if comm.rank == 0 else None)  # rank 0 tells all
step = max(round(break_even / 8), 1)
one_near, two_near = compare(range(step, 17 * step, step), runs=3_000)

# %% tags=["nbval-ignore-output"]
one_near, two_near, break_even = (cluster[name][0] for name in ("one_near", "two_near", "break_even"))
found = max((strips for strips in one_near if one_near[strips] <= two_near[strips]), default=0)
outcome("Up to how many strips is one rank faster?", found, because=f"From the lines: {break_even:.0f}.")

lines = {"one rank": fit(one, 1), "two ranks": fit(two, 1)}  # 1: the slope over N, not over N/2
draw_times({"one rank": one_near, "two ranks": two_near}, lines)

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# If ranks 0 and 1 each had a core, they break even close to the prediction, computed from two jobs far away. (The exact
# point is just above the measured number.)
#
# If a GPU computes strips ten times as fast with the same *a*, this point moves to ten times as many strips.
#
# </details>

# %% [markdown] tags=["subslide"]
# The notebook records every MPI call, and recording takes time. The saved file records nothing. Which falls: *a*, *b* or both?

# %% tags=["nbval-ignore-output"]
# !mpiexec -n 2 python code/03_quadrature.py

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# *a* falls. The loop over strips never calls MPI, so *b* changes only by chance. In our run, the break-even point fell to
# about a third: we had also measured our instrument.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 3 · What are more ranks for?
#
# First, a job that grows with p: twice the strips on two ranks. This is **weak scaling**. **Predict:**

# %%
predict("40,000 strips on two ranks: how many times as long as 20,000 on one?", None)

# %%
# %%px
one_large, two_large = compare((20_000, 40_000), runs=100)
ratio = two_large[40_000] / one_large[20_000]

# %% tags=["nbval-ignore-output"]
outcome("40,000 strips on two ranks: how many times as long as 20,000 on one?", cluster["ratio"][0])

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# About 1. Each rank still computes 20,000 strips. The overhead grew, and perhaps *b* a little.
#
# </details>
#
# Second, the same job, but sooner: **strong scaling**. Suppose a job's strips take 1,000 s on one rank. The overhead is
# always 1 s, on one rank as on 1,024. **Predict:**

# %%
predict("How many times as fast as one rank are 1,024?", None)

# %%
times = {p: 1 + 1_000 / p for p in (1, 4, 16, 64, 256, 1_024)}
outcome("How many times as fast as one rank are 1,024?", times[1] / times[1_024], word="calculated")
draw_times({"with overhead": times, "without": {p: 1_000 / p for p in times}}, x="ranks", kind="predicted")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# Each rank computes for just under a second, so the overhead is half the time.
#
# </details>
#
# **Efficiency** is the speed-up over one rank, divided by p: here 49 %. In weak scaling, it is the time on one rank, divided by the time
# on p.

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# | | what changes |
# |---|---|
# | *a* | With recursive doubling (lesson 04), 1,024 ranks add up one number in 10 steps. So *a* grows with log p. |
# | data parallelism | *a* is mostly adding up gradients, unless this overlaps with computing (lesson 06). |

# %% [markdown] tags=["slide"]
# ## Key points
#
# - More ranks pay when *b*·N/p falls by more than *a* grows.
# - In strong scaling, *t* never falls below *a*.
# - In weak scaling, *t* grows only as *a* does, if *b* stays.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# A slide says: "1,024 GPUs, efficiency 95 %." Your job takes an hour on 8 GPUs, and you need it in a minute. What do you ask first? (a) Which
# network? (b) Did the job grow? (c) Which precision?
#
# <details><summary>What to listen for</summary>(b). A job that grows keeps GPUs busy. Yours stays the same, and 60 times as fast takes at least
# 480 GPUs. Each has a sixtieth of its work left, so *a* may dominate.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# Before you read on: does the line also hold for a training step? Try it on 16 GPUs.

# %% tags=["exercise: 03.q3"]

# %% [markdown]
# In this question, *a* stays. Does it in practice? With a ring all-reduce (lesson 04), the time for the bytes approaches a constant as p grows, but
# the number of messages grows with p. And between nodes, both cost more.

# %% [markdown]
# ### Who can be a rank?
#
# So far, all ranks knew the number of strips, because it is written in the program. Now suppose it is in a file, and only rank 0 has read the
# file. How do the others learn it? If all ranks run already, one call is enough: `Bcast` (lesson 04) copies an array from one rank, the root, to all
# ranks.

# %% tags=["exercise: 03.2"]

# %% [markdown]
# And if the other ranks do not run yet? Then a program that runs alone, the parent, can start them with `Spawn`. They are called its workers. Parent and
# workers talk through an **intercommunicator**: a communicator that connects two groups of ranks, here the parent and the workers. Each group counts its
# own ranks from 0.
#
# So there are two ranks 0, and `Bcast` (lesson 04) and `Reduce` must know which of them is the root. The root is the parent. It says so with `root=MPI.ROOT`. The
# workers pass `root=0`, which means rank 0 of the *other* group. At the end, `Disconnect` waits until all messages have arrived, and then separates
# the two groups.
#
# Here is the worker. `%%writefile` writes the cell to a file:

# %%
# %%writefile code/cpi.py
"""A worker of spawn_pi.py: it receives the number of strips, adds up its own, and returns their area."""

import numpy as np
from mpi4py import MPI


def part(strips, rank, size):
    """The area of one rank's strips, one by one."""
    h = 1 / strips
    return h * sum(4 / (1 + (h * (i + 0.5)) ** 2) for i in range(rank, strips, size))


if __name__ == "__main__":
    parent = MPI.Comm.Get_parent()
    strips = np.zeros((), dtype=np.int64)
    parent.Bcast(strips, root=0)
    parent.Reduce(np.array(part(int(strips), parent.rank, parent.size)), None, root=0)
    parent.Disconnect()

# %% [markdown]
# The parent does the job twice and times both: first alone, with the worker's own loop, then with the workers that it starts. The second time includes
# their start.

# %%
# %%writefile code/spawn_pi.py
"""π by workers that this program starts: mpiexec -n 1 python code/spawn_pi.py WORKERS STRIPS."""

import sys
from pathlib import Path

import numpy as np
from cpi import part
from mpi4py import MPI

workers, strips = int(sys.argv[1]), int(sys.argv[2])
began = MPI.Wtime()
part(strips, 0, 1)
alone = MPI.Wtime() - began

began = MPI.Wtime()
worker = ["-m", "mpi4py", str(Path(__file__).with_name("cpi.py"))]  # -m mpi4py: an error on one ends all
team = MPI.COMM_SELF.Spawn(sys.executable, args=worker, maxprocs=workers)
team.Bcast(np.array(strips, dtype=np.int64), root=MPI.ROOT)
total = np.zeros(())
team.Reduce(None, total, root=MPI.ROOT)
team.Disconnect()
shared = MPI.Wtime() - began
print(f"π ≈ {total:.9f}; {workers} workers: {1e3 * shared:,.1f} ms; one process: {1e3 * alone:,.1f} ms")

# %% [markdown]
# You measured *b* in the core, so you can estimate what a thousand strips take, and twenty million. (This loop is a little different, but also pure
# Python.) Starting workers takes less time than Setup did, which starts four ranks and the notebook's tools. **Predict:** are two workers faster
# than one process with a thousand strips? And with twenty million?

# %% tags=["nbval-ignore-output"]
# !mpiexec --timeout 100 -n 1 python code/spawn_pi.py 2 1000
# !mpiexec --timeout 100 -n 1 python code/spawn_pi.py 2 20000000

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# With a thousand strips, two workers lose by far. Before they add up anything, they must start Python, import NumPy and connect to the parent. All of this is
# overhead, so *a* is much larger than for ranks that run already.
#
# With twenty million strips, the computing takes much longer than the start. Then two workers can be up to twice as fast, if each has a core and the
# parent has a third. Why does the parent need a core, when it only waits? Because it polls: it asks MPI again and again whether a message has come.
# On two cores, three busy processes share what two could use, so two workers gain less, or even lose.
#
# </details>
#
# So a rank can join late. Must it at least run Python? No. MPI has an interface in C, and other languages call it. Here are a program in C and one in R.
# Both add up the series π = 4 − 4/3 + 4/5 − 4/7 + …
#
# While you read them: which line of C does the work of our `allreduce`, and what differs?

# %%
from course.paths import BUILD, NOTEBOOKS

in_c, in_r = (NOTEBOOKS / "code" / f"arctan_pi.{language}" for language in ("c", "R"))
print(in_c.read_text(), in_r.read_text(), sep="\n")

# %% [markdown]
# <details><summary>Open after you have looked</summary>
#
# `MPI_Reduce` adds up the parts. Unlike `allreduce`, it gives the sum to one rank only, rank 0. And where mpi4py sees for itself what you send, C
# must say how many numbers there are, and of which type.
#
# </details>
#
# We run each program twice. In the first run, every rank adds one term. In the second, the ranks share a million terms. **Guess:** if each rank
# adds one term, how many ranks do you need for an error of 10⁻⁶?
#
# (`run_r` starts R with the MPI that R's package Rmpi was built with. That need not be the MPI of your Python.)

# %% tags=["nbval-ignore-output"]
from course.lessons.l03_arctan_pi.rmpi import run_r, why_no_r
from course.lessons.shared.programs import compile_c, run_program, why_no_c

if reason := why_no_c():
    print("C skipped:", reason)
else:
    program = compile_c(in_c, BUILD / "arctan_pi")
    print(run_program(4, [program]), run_program(4, [program, "1000000"]), sep="\n")
if reason := why_no_r():
    print("R skipped:", reason)
else:
    print(run_r(2, in_r), run_r(2, in_r, ["1000000"]), sep="\n")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# Look at the errors: four terms miss π by about a quarter, and a million terms by about a millionth. After N terms, the sum is off by about 1/N. So
# with one term per rank, you would need a million ranks.
#
# </details>
#
# For many digits, then, each rank must add very many terms. Will our functions still be right then? This one adds up terms from anywhere in the series:

# %% tags=["exercise: 03.3"]

# %% [markdown]
# ### Is it still the same sum?
#
# In the core, you changed the number of ranks and looked at the time. Did the result stay the same? On paper, a sum does not depend on who adds which
# terms. We add up the same 100,000 strips on 1, 2, 3 and 4 ranks, and look at all digits.

# %%
predict("How many different sums on 1, 2, 3 and 4 ranks?", None)

# %%
# %%px
sums = []
for n in (1, 2, 3, 4):
    team = comm.Split(comm.rank < n)  # the first n ranks, and the rest
    sums.append(pi(team, 100_000))

# %%
sums = cluster["sums"][0]
outcome("How many different sums on 1, 2, 3 and 4 ranks?", len(set(sums)))
print(*(f"ranks: {n}, {estimate:.15f}" for n, estimate in enumerate(sums, 1)), sep="\n")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# Four different sums, and none of them is a bug. A computer rounds after every addition. A different number of ranks adds the same strips in a different
# order, so it rounds different numbers. The differences are small: the four sums share 14 digits, and the midpoint rule itself is further off. So when
# you compare the results of different numbers of ranks, use a tolerance, not `==`.
#
# </details>

# %% tags=["exercise: 03.q2"]

# %% [markdown]
# In this sum, rounding stayed in the last digits. Is it as harmless in training? We train a network twice, from the same weights and on the same batches, but the
# second time we reverse the order of the images in each batch. The loss of a batch is a mean over its images, so their order should not matter.
#
# A float32 number has about seven digits. **Predict:** how many of them do the two losses share in step 1? And after 100 steps?

# %%
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(1)
digits = np.load(NOTEBOOKS / "code" / "data" / "digits.npz")


def losses(dtype, order):
    """The loss of each of 300 steps on handwritten digits. `order` is 1, or -1 for reversed batches."""
    torch.manual_seed(0)
    hidden = [layer for _ in range(3) for layer in (nn.Linear(64, 64), nn.ReLU())]
    model = nn.Sequential(*hidden, nn.Linear(64, 10)).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    draw, found = np.random.default_rng(0), []
    for _ in range(300):
        batch = draw.choice(1500, 128, replace=False)[::order].copy()
        images = torch.from_numpy(digits["train_images"][batch] / 16).flatten(1).to(dtype)
        loss = F.cross_entropy(model(images), torch.from_numpy(digits["train_labels"][batch]).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


# %% tags=["nbval-ignore-output"]
for dtype in (torch.float32, torch.float64):
    forward, backward = losses(dtype, 1), losses(dtype, -1)
    for step in (1, 10, 100, 300):
        there, back = forward[step - 1], backward[step - 1]
        relative = abs(there - back) / there
        print(f"{dtype}, step {step:3}: {there:.12f} {back:.12f}, relative difference {relative:.0e}")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# In step 1, the float32 losses agree in all, or nearly all, of their seven digits. But every later step starts from weights that already differ a little, and
# training can make such differences *grow*. Somewhere between step 10 and step 300, most of the seven digits are gone. (A relative difference of
# 10⁻² leaves about two.) Later, the two losses may come closer again: nothing is broken, and both networks learn. In float64, the differences start
# so much smaller that about ten digits still agree.
#
# How, then, do you check a parallel program against one process? A float32 loss after hundreds of steps proves nothing. Compare the losses of the first ten steps,
# in float64, with a small model that has no dropout and no batch norm. Give both programs the same samples per step, and let the parallel one split
# them into equal parts. Then a difference in the first ten digits is almost surely a bug. Do not stop after step 1, because its loss is computed
# before the first update.
#
# </details>

# %% [markdown]
# ## References
#
# - J. Davis, [Large Scale Deep Learning Using the High-Performance Computing Libraries OpenMPI and
#   DeepSpeed](https://opendatascience.com/large-scale-deep-learning-using-the-high-performance-computing-libraries-openmpi-and-deepspeed/), ODSC, 2022: parent and worker. The article prints `argos=` where
#   `args=` belongs, and one copy of it lost `Disconnect`.
# - L. Dalcin and others, [MPI for Python: dynamic process management](https://mpi4py.readthedocs.io/en/stable/tutorial.html#dynamic-process-management).
# - G. Amdahl, [Validity of the single processor approach](https://doi.org/10.1145/1465482.1465560), 1967: strong scaling. J. Gustafson, [Reevaluating Amdahl's
#   law](https://doi.org/10.1145/42411.42415), 1988: people with more processors run larger jobs.
# - D. Goldberg, [What every computer scientist should know about floating-point arithmetic](https://doi.org/10.1145/103162.103163), 1991.
