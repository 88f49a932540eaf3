# ---
# title: arctan π and quadrature
# goal: Share one sum among ranks. When does that pay?
# able:
#   - fit a line to a program's times, and predict from it when more ranks pay
#   - tell strong scaling from weak scaling
# more:
#   - start workers from a running program; find bugs that only large jobs show
#   - say which digits of a parallel result to compare, and when
# before: >-
#   {01}, {02}
# minutes: {core: 20, more: 28}
# ranks: 4
# warm-up:
#   - ask: Four ranks share a job. Which rank decides how long it takes?
#     answer: The slowest. The others wait for it.
#   - ask: How many times as many darts make the error ten times smaller?
#     answer: A hundred times. The typical error is 1.64/√N.
#   - ask: On rank 2 of 4, which numbers does `range(rank, 12, size)` give?
#     answer: 2, 6 and 10.
# ---

# %% [markdown] tags=["slide"]
# ## 1 · Would a second rank help?
#
# Your job takes too long. It computes an area (**quadrature**). The area under 4/(1 + x²) from 0 to 1 is 4 arctan(1) = π.
# The **midpoint rule** replaces this area by N rectangular strips of width h, each as high as the curve above its middle.

# %%
# %%px --save 03_quadrature.py
"""Quadrature of π, timed on one rank and on two."""

from mpi4py import MPI

comm = MPI.COMM_WORLD

# %% [markdown] tags=["subslide"]
# Of four ranks, rank 1 takes strips 1, 5, 9, …:

# %% tags=["source: course_lib.pi:midpoint_loop"]
# %%px --save 03_quadrature.py

# %% [markdown] tags=["subslide"]
# `allreduce` adds up all ranks' parts:


# %%
# %%px --save 03_quadrature.py
def pi(team, strips):
    """π, on every rank of `team`."""
    return team.allreduce(midpoint_loop(strips, team.rank, team.size))


# %% [markdown] tags=["subslide"]
# Are two ranks faster? **Predict:**

# %%
predict("10 strips: how many times as fast are two ranks?", None)

# %% [markdown]
# Ranks 0 and 1 each measure five jobs alone, then as a `pair`. (The notebook's `comm` records calls, which takes time; `MPI.Intracomm(comm)` records nothing.)

# %%
# %%px --save 03_quadrature.py
pair = MPI.Intracomm(comm).Split(comm.rank < 2)  # other ranks: a second team


def time_job(team, strips):
    """Seconds until the slowest rank is done."""
    team.Barrier()
    start = MPI.Wtime()
    pi(team, strips)
    return team.allreduce(MPI.Wtime() - start, op=MPI.MAX)


# %% [markdown]
# Other programs can only slow a run, so we keep the fastest. (With many ranks, delays are normal: report the median.) Ranks 2 and 3 run once, then free the cores.


# %%
# %%px --save 03_quadrature.py
def fastest(team, jobs, runs=1_000):
    """Seconds of each job's fastest run."""
    rounds = [{N: time_job(team, N) for N in jobs} for _ in range(runs if comm.rank < 2 else 1)]
    return {N: min(times[N] for times in rounds) for N in jobs}


# %% tags=["subslide"]
# %%px --save 03_quadrature.py
jobs = (10, 100, 1_000, 5_000, 10_000)
one, two = fastest(MPI.COMM_SELF, jobs), fastest(pair, jobs)

# %% tags=["nbval-ignore-output"]
from course.lessons.l03_arctan_pi.figures import draw_times

one, two = cluster["one"][0], cluster["two"][0]
outcome("10 strips: how many times as fast are two ranks?", one[10] / two[10])
draw_times({"one rank": one, "two ranks": two})

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# Two ranks are *slower*: communicating takes longer than five strips. With 10,000
# strips and a core each, they are nearly twice as fast.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 2 · One line for every job
#
# At the **break-even point**, one and two ranks take equally long. Where is it?
#
# Each of p ranks computes N/p strips, in time *b* per strip. Everything else is **overhead**, even one rank's `allreduce`. The overhead *a* depends on p,
# not on N. With a core per rank, each p gives a straight line (on linear axes):
#
# ***t* = *a* + *b*·N/p**

# %% tags=["exercise: 03.4"]

# %% [markdown] tags=["notes"]
# Nine minutes up to here, six for the exercise. The usual slip is to forget p: ask how many strips a rank has.

# %% tags=["nbval-ignore-output"]
# %%px --save 03_quadrature.py
if __name__ == "__main__" and comm.rank == 0:
    print(f"pi = {pi(MPI.COMM_SELF, 100_000):.10f}")
    for ranks, times in (1, one), (pair.size, two):
        a, b = fit(times, ranks)
        print(f"ranks: {ranks}, a = {1e6 * a:.1f} µs, b = {1e9 * b:.2f} ns per strip")

# %% [markdown] tags=["subslide"]
# The second rank *saves* half of *b*·N. It *adds* overhead: *a*₂ − *a*₁.
# **Predict:**

# %%
predict("Up to how many strips is one rank faster?", None)

# %% [markdown] tags=["subslide"]
# We compute the break-even point, then time jobs around it in steps of a quarter:

# %%
(a_one, b), (a_two, _) = fit(one, 1), fit(two, 2)
break_even = 2 * (a_two - a_one) / b
cluster["jobs"] = jobs = [max(round(break_even * (k + 0.5) / 4), 1) for k in range(1, 16)]

# %%
# %%px
one_near, two_near = fastest(MPI.COMM_SELF, jobs, runs=3_000), fastest(pair, jobs, runs=3_000)

# %% tags=["nbval-ignore-output"]
one_near, two_near = cluster["one_near"][0], cluster["two_near"][0]
found = max((N for N in jobs if one_near[N] <= two_near[N]), default=0)
outcome("Up to how many strips is one rank faster?", found, because=f"From the lines: {break_even:.0f}.")

lines = {"one rank": {N: a_one + b * N for N in jobs}, "two ranks": {N: a_two + b * N / 2 for N in jobs}}
draw_times({"one rank": one_near, "two ranks": two_near}, lines)

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# With a core per rank, measured times cross near the prediction, although `fit` used only 10 and 10,000 strips.
#
# </details>

# %% [markdown] tags=["subslide"]
# On a slow network, two ranks' `allreduce` takes 100 µs longer. **Predict** the break-even point from *b*:

# %%
predict("And with 100 µs more per sum?", None)
cluster["jobs"] = jobs = [round(break_even + (k - 0.5) * 25e-6 / b) for k in range(1, 17)]


# %%
# %%px
class SlowNetwork(MPI.Intracomm):
    def allreduce(self, *given, **named):
        end = MPI.Wtime() + 100e-6
        while MPI.Wtime() < end:
            pass  # time.sleep oversleeps
        return super().allreduce(*given, **named)


one_far, two_far = fastest(MPI.COMM_SELF, jobs, runs=300), fastest(SlowNetwork(pair), jobs, runs=300)

# %% tags=["nbval-ignore-output"]
one_far, two_far = cluster["one_far"][0], cluster["two_far"][0]
found = max((N for N in jobs if one_far[N] <= two_far[N]), default=0)
outcome("And with 100 µs more per sum?", found, because=f"From the lines: {break_even + 200e-6 / b:.0f}.")
# !mpiexec -n 2 python code/03_quadrature.py  # your program outside the notebook

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# *a*₂ grew by at least 100 µs, so the break-even point by twice that / *b* (measured in steps of 25 µs / *b*). Faster cores (same *a*) raise it, too.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 3 · What are more ranks for?
#
# In **strong scaling**, p grows and N is fixed. In **weak scaling**, both grow: N/p is fixed.
# **Predict** from `fit`'s *a* and *b*:

# %%
predict("100 strips on two ranks: how many times as long as 50 on one?", None)

# %%
# %%px
short = fastest(pair, [100])[100] / fastest(MPI.COMM_SELF, [50])[50]

# %% tags=["nbval-ignore-output"]
outcome("100 strips on two ranks: how many times as long as 50 on one?", cluster["short"][0])

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# Each rank has 50 strips. Only the overhead differs.
#
# </details>
#
# Suppose *b*·N is 1,000 s, and the overhead *a* is log₂ p seconds. **Predict:**

# %%
predict("How many times as fast as one rank are 1,024 ranks?", None)

# %% [markdown]
# The **efficiency** is the speed-up divided by p (weak scaling: one rank's time for N/p, divided by *t*):

# %%
from math import log2

times = {p: log2(p) + 1_000 / p for p in (1, 4, 16, 64, 256, 512, 1_024, 2_048)}
outcome("How many times as fast as one rank are 1,024 ranks?", times[1] / times[1_024], word="calculated")
print(*(f"ranks: {p:4} {t:7.2f} s, efficiency {times[1] / t / p:.0%}" for p, t in times.items()), sep="\n")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# On 1,024 ranks, computing takes 0.98 s, overhead 10 s. Above about 700, more ranks take *longer*.
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# | | what changes |
# |---|---|
# | *a* | Larger between nodes. Grows with p: adding *one number* takes about log₂ p steps (trees, recursive doubling: lesson 04). For large gradients, bytes count, too. Computing during communication hides part of *a*, less for small N/p (overlap: lesson 06) |
# | *b* | Rises if a node's ranks wait for memory, or a GPU has too few images. The slowest rank's *b* counts |
# | training | With one rank and the full model per GPU, N is the batch (images per step). Weak scaling enlarges it, which changes training (lesson 05) |

# %% [markdown] tags=["slide"]
# ## Key points
#
# - p ranks with the same *b* are faster than one if the time saved, *b*·N·(1 − 1/p), exceeds the added overhead.
# - Strong scaling finishes a job sooner, until *a* grows faster than *b*·N/p falls.
# - Weak scaling runs larger jobs. With constant *b*, *t* grows only as much as *a*.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# A slide says: "1,024 GPUs, efficiency 95 %." Your job takes an hour on 8 GPUs. You need it in a minute, so you want 480. What do you ask
# first? (a) Which network? (b) Did the slide's job grow?
#
# <details><summary>What to listen for</summary>(b). If the slide's job grew, each GPU stayed busy. Yours keeps its batch, say
# 480 images: one per GPU.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# A training step is a job, too. Can you predict its time on 16 GPUs from two measurements?

# %% tags=["exercise: 03.q3"]

# %% [markdown]
# In this question, *a* is the same on 8 and 16 GPUs. And in practice? With a ring all-reduce (lesson 04), the time to send the bytes approaches a constant as p grows, but
# the number of steps grows with p (in a tree, with log p). Between nodes, each byte and each message takes longer.

# %% [markdown]
# ### Who can be a rank?
#
# So far, all ranks knew the number of strips, from the program or the notebook. Now suppose only rank 0 has read it from a
# file. If all ranks are running, one call is enough: `Bcast` (lesson 04) copies an array from one rank, the root, to all
# ranks. (`Reduce` adds up all ranks' arrays on the root.)

# %% tags=["exercise: 03.2"]

# %% [markdown]
# What if the other ranks are not running? Then one program, the parent, can start workers with `Spawn`. (On a cluster, reserve their cores first; under Slurm's `srun` (lesson 14), Open MPI's `Spawn` usually fails.) Parent and
# workers communicate through an **intercommunicator**: a communicator that connects two groups of ranks, here the parent and the workers. Each group numbers its
# own ranks from 0; `size` counts only these.
#
# So there are two ranks 0, and `Bcast` (lesson 04) and `Reduce` must know which of them is the root. The root is the parent, which passes `root=MPI.ROOT`. The
# workers pass `root=0`, which means rank 0 of the *other* group. `Disconnect` waits until all communication is complete, and then separates
# the two groups.
#
# Here is the worker. `%%writefile` writes the cell to a file:

# %%
# %%writefile code/cpi.py
"""A worker of spawn_pi.py: it receives the number of strips and sends back its area."""

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
# The parent first times the job alone, with the worker's own loop. Then it times workers, including
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
worker = ["-m", "mpi4py", str(Path(__file__).with_name("cpi.py"))]  # -m mpi4py: one error ends all
team = MPI.COMM_SELF.Spawn(sys.executable, args=worker, maxprocs=workers)
team.Bcast(np.array(strips, dtype=np.int64), root=MPI.ROOT)
total = np.zeros(())
team.Reduce(None, total, root=MPI.ROOT)
team.Disconnect()
shared = MPI.Wtime() - began
print(f"π ≈ {total:.9f}; {workers} workers: {1e3 * shared:,.1f} ms; one process: {1e3 * alone:,.1f} ms")

# %% [markdown]
# You measured *b* in the core. Estimate how long a thousand strips take, and twenty million. (This loop's *b* is up to
# twice as large.) Two workers start faster than Setup did: Setup also starts the notebook's tools. **Predict:** are two workers faster
# than one process with a thousand strips? And with twenty million?

# %% tags=["nbval-ignore-output"]
# !mpiexec --timeout 100 -n 1 python code/spawn_pi.py 2 1000
# !mpiexec --timeout 100 -n 1 python code/spawn_pi.py 2 20000000

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# With a thousand strips, two workers are far slower. They must first start Python, import NumPy and connect to the parent. All of this is
# overhead, so *a* is much larger than for ranks that run already.
#
# With twenty million strips, the computing takes much longer than the start. Then two workers can be up to twice as fast, if they and the
# parent have a core each. Why does the parent need a core when it only waits? Open MPI polls: it checks again and again whether a message has arrived.
# This course sets `mpi_yield_when_idle`: between checks, a waiting rank lets others run. The start costs time, and on two cores the parent
# slows the workers, so the speed-up is smaller, or none.
#
# </details>
#
# So ranks can start later. Must they run Python? No. MPI has interfaces in C and Fortran. Other languages call these. Here are a program in C and one in R.
# Both add up the series π = 4 − 4/3 + 4/5 − 4/7 + …
#
# Which line of C does the work of our `allreduce`, and what differs?

# %%
from course.paths import BUILD, NOTEBOOKS

in_c, in_r = (NOTEBOOKS / "code" / f"arctan_pi.{language}" for language in ("c", "R"))
print(in_c.read_text(), in_r.read_text(), sep="\n")

# %% [markdown]
# <details><summary>Open after you have looked</summary>
#
# `MPI_Reduce` adds up the parts. Unlike `allreduce`, it returns the sum only on rank 0. In C, you also state how many numbers you
# send, and of which type; mpi4py's `Reduce` reads both from the array.
#
# </details>
#
# We run each program twice. In the first run, every rank adds one term. In the second, the ranks share a million terms. **Guess:** if each rank
# adds one term, how many ranks do you need for an error of 10⁻⁶?
#
# (`run_r` uses the MPI that Rmpi was built with. Your Python may use a different one.)

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
# Two terms miss π by about a half, four by a quarter, a million by a millionth. After N terms, the sum is off by about 1/N. So
# with one term per rank, you would need a million ranks.
#
# </details>
#
# For many digits, each rank must add very many terms. Will the sum still be right? This function adds up terms from anywhere in the series:

# %% tags=["exercise: 03.3"]

# %% [markdown]
# ### Is it still the same sum?
#
# On paper, a sum does not depend on which rank adds which
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
# Four different sums, and no bug. A computer rounds after every addition. With more ranks, the same strips are added in a different
# order, so the rounding differs. (On GPUs, even two equal runs can differ.) The differences are small: the four sums share 14 digits, and the midpoint rule's own error (8·10⁻¹²) is larger. So when
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
# 10⁻² leaves about two.) Later, the two losses may come closer again: nothing is broken, and both networks learn. In float64, the first differences are
# so much smaller (by chance, a step may show none) that about ten digits still agree.
#
# How do you check a parallel program against one process? Two float32 losses that differ after hundreds of steps prove nothing. Use float64 and a small model without dropout or batch norm. Use plain SGD: Adam rescales gradients, which hides a wrong factor.
# Give both programs the same first weights and the same samples per step, and let the parallel one split
# them into equal parts. Average its loss over all ranks' samples. Compare the losses of the first ten steps. (The first loss alone tests no gradient.)
# A difference in their first ten digits is almost surely a bug.
#
# </details>

# %% [markdown]
# ## References
#
# - J. Davis, [Large Scale Deep Learning Using the High-Performance Computing Libraries OpenMPI and
#   DeepSpeed](https://opendatascience.com/large-scale-deep-learning-using-the-high-performance-computing-libraries-openmpi-and-deepspeed/), ODSC, 2022: parent and worker. The article prints `argos=` where
#   `args=` belongs.
# - L. Dalcin and others, [MPI for Python: dynamic process management](https://mpi4py.readthedocs.io/en/stable/tutorial.html#dynamic-process-management).
# - G. Amdahl, [Validity of the single processor approach](https://doi.org/10.1145/1465482.1465560), 1967: the limit of strong scaling. J. Gustafson, [Reevaluating Amdahl's
#   law](https://doi.org/10.1145/42411.42415), 1988: people with more processors run larger jobs.
# - D. Goldberg, [What every computer scientist should know about floating-point arithmetic](https://doi.org/10.1145/103162.103163), 1991.
