# %% [markdown]
# # 03 · arctan π and quadrature
#
# *Deal out a long sum to any number of ranks, and measure what more ranks gain: the same job sooner, or a larger job.*
#
# | | |
# |---|---|
# | **You will be able to** | deal out the terms of a sum in strides; say which digits of a parallel sum to trust; tell strong scaling from weak scaling, and measure both; share out a quadrature, also to workers that a running program starts |
# | **Before this** | [02 · Monte Carlo π](02_monte_carlo_pi.ipynb) |
# | **Time** | core 20 min · more 35 min |
# | **Ranks** | 4 |
#
# [← 02 · Monte Carlo π](02_monte_carlo_pi.ipynb) · [Course map](00_start_here.ipynb) · [04 · Collectives →](04_collectives.ipynb)

# %% [markdown]
# ## Warm-up
#
# Three questions from the lessons before. Answer each in your head, then open it.
#
# 1. Every rank calls `Reduce` with one number. Where is the sum?
#    <details><summary>Answer</summary>On rank 0, the root, and only there.</details>
# 2. Ten thousand darts more, or a hundred times as many: what makes an estimate of π ten times better?
#    <details><summary>Answer</summary>A hundred times as many. The error is 1.64/√N.</details>
# 3. Why do the timed cells use as many ranks as cores, and no more?
#    <details><summary>Answer</summary>Further ranks take turns on the same cores. Their times would tell of the turns.</details>

# %% [markdown]
# ## Setup

# %% tags=["nbval-ignore-output"]
from mpi_classroom.cluster import start_cluster

cluster = start_cluster(n=4)

# %%
# %%px --setup
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size

# %% [markdown]
# ## 1 · One term a rank
#
# π is four times arctan(1), and that is a sum that never ends: π = 4 − 4/3 + 4/5 − 4/7 + … Here is a program
# that one of the course's sources prints in C: every rank computes the term of its own number, and `Reduce`
# adds them up.

# %%
# %%px
term = np.array((-1) ** rank * 4 / (2 * rank + 1))
total = np.zeros_like(term)
comm.Reduce(term, total, root=0)
print(f"rank {rank}: term {term:+.4f}, sum {total:.4f}")

# %% [markdown]
# 2.8952 is a poor π, from four processes. After N terms the sum is 1/N away from π: six right digits would take a
# million ranks. The number of terms and the number of ranks must have nothing to do with each other.

# %% [markdown]
# ## 2 · Terms in strides
#
# So rank r begins with term r and goes on in steps of `size`. Nobody asks whether the terms divide
# evenly, and ranks past the last term add up nothing. It is the `range` in this loop that deals out the
# work:

# %% tags=["source: course_lib.pi:arctan_loop"]
# %%px

# %%
# %%px
mine = list(range(rank, 42, size))
part = np.array(arctan_loop(100_000, rank, size))
comm.Reduce(part, total, root=0)

# %% tags=["nbval-ignore-output"]
from course.lessons.shared.figures.shares import owner_map

owner = {k: rank for rank, terms in enumerate(cluster["mine"]) for k in terms}
print(f"π ≈ {float(cluster['total'][0]):.6f} from 100 000 terms")
owner_map([owner[k] for k in range(42)])

# %% [markdown]
# ## 3 · An area
#
# **Quadrature** is finding an area, and it deals out the same way. The *midpoint rule* cuts the area under a curve
# into strips of width h; strip i is as high as the curve is in its middle, at x = h·(i + ½). (Under
# 4/(1 + x²), from 0 to 1, the area is π.)

# %% tags=["exercise: 03.1"]

# %% [markdown]
# ## 4 · Strong and weak scaling
#
# There are two reasons to want more ranks. **Strong scaling**: the same job, sooner. **Weak scaling**: n times the
# job on n ranks, in the same time. First the same ten million terms on one rank, on a rank for every
# core, and on all four. `arctan_pi` is your sum of section 2, with NumPy in place of the loop.

# %%
# %%px
from course_lib.comm.timing import one_rank_a_core, seconds_on
from course_lib.pi import arctan_pi

alone, team = one_rank_a_core(comm, cores=1), one_rank_a_core(comm)
on_one = seconds_on(alone, lambda: arctan_pi(alone, 10_000_000))

# %%
# %%px
on_team = seconds_on(team, lambda: arctan_pi(team, 10_000_000))

# %%
# %%px
on_four = seconds_on(comm, lambda: arctan_pi(comm, 10_000_000))

# %% [markdown]
# Now the picture: how many times as fast, and how much of the ideal that is.

# %% tags=["nbval-ignore-output"]
from course.lessons.l03_arctan_pi.figures import strong_scaling, weak_scaling
from mpi_classroom.launch import available_cores

cores = min(available_cores(), 4)
one, strong_team, strong_four = (cluster[name][0] for name in ("on_one", "on_team", "on_four"))
strong_scaling({1: one, cores: strong_team, 4: strong_four}, cores=cores)

# %% [markdown]
# The grey band is what cores allow; no number of ranks gets above it. Now the other question: every rank gets
# ten million terms *of its own*.

# %%
predict("Four ranks, four times the terms: how many times as long as one rank?", None)

# %%
# %%px
on_team = seconds_on(team, lambda: arctan_pi(team, 10_000_000 * team.size))

# %%
# %%px
on_four = seconds_on(comm, lambda: arctan_pi(comm, 10_000_000 * size))

# %% [markdown]
# In this picture, the ideal is n times the work in one rank's time.

# %% tags=["nbval-ignore-output"]
weak_team, weak_four = cluster["on_team"][0], cluster["on_four"][0]
why = f"Four ranks' work takes turns on {cores} cores." if cores < 4 else "Every rank has a core."
outcome("Four ranks, four times the terms: how many times as long as one rank?", weak_four / one, because=why)
weak_scaling({1: one, cores: weak_team, 4: weak_four}, cores=cores)

# %% [markdown]
# A flat time is what weak scaling asks for, a time that falls is what strong scaling asks for; a figure that does
# not say which of the two it shows says little. This job has almost no part that cannot be shared: where each
# rank has a core of its own, and nobody else uses it, both should go well.

# %% [markdown]
# ## Key points
#
# - `range(rank, N, size)` deals out N items to any number of ranks: none lost, none twice, counts that differ by one
#   at most.
# - Another number of ranks is another order of additions: the last digits change. Compare with a tolerance.
# - Strong scaling: the same job, less time. Weak scaling: more job, the same time. Say which.
# - A better formula first, then a faster program, then more ranks.

# %% [markdown]
# ## Discuss
#
# Your colleague's training gives other losses on four GPUs than on two, from the third digit on. "Rounding," he says.
# Do you believe him? Vote, talk to your neighbour for two minutes, vote again.
#
# <details><summary>What to listen for</summary>Rounding changes the sixth or seventh digit of one step in float32. It may
# grow over thousands of steps, but from the third digit on it needs proof: take one step from equal weights in
# float64. If the difference is still there, it is a bug, often a mean that was taken over the wrong count.</details>

# %% [markdown]
# **Stop here in a short workshop.** What follows takes the same sum further: to workers that a program
# starts by itself, to numbers past 2³¹, to C and to R.

# %% [markdown] tags=["more"]
# ## More
#
# ### The last digits
#
# The same million terms on 1, 2, 3 and 4 ranks: will it be the same π? `Split` makes a communicator of the
# first n ranks.

# %%
# %%px
sums = []
for n in (1, 2, 3, 4):
    first = comm.Split(0 if rank < n else MPI.UNDEFINED, rank)
    if rank < n:
        sums.append(arctan_pi(first, 1_000_000))

# %% tags=["nbval-ignore-output"]
import math

for n, pi in enumerate(cluster["sums"][0], 1):
    print(f"ranks: {n}   π ≈ {pi!r}")
print(f"{len(set(cluster['sums'][0]))} different sums; π itself is {math.pi!r}")

# %% [markdown]
# The computer rounds after every addition. Four ranks add the same terms in another order, so other digits are
# rounded away: (0.1 + 0.2) + 0.3 is not 0.1 + (0.2 + 0.3). None of these sums is the right one, and the terms
# that we left out matter far more. So compare parallel results with a tolerance, never with `==`.

# %% [markdown]
# ### Two questions
#
# Write your letter between the quotes, and run the cell.

# %% tags=["exercise: 03.q1"]

# %% tags=["exercise: 03.q2"]

# %% [markdown]
# ### The law behind weak scaling
#
# Amdahl (lesson 02) asks how much sooner *the same* job is done; on many ranks, the part that cannot be shared is
# all that is left. Gustafson replied that people with more processors take larger jobs. Let s be the share of
# the time on n ranks in which only one of them works. Then n ranks do n − s·(n − 1) times what one would
# have done in that time, the **scaled speed-up**.

# %% tags=["source: course_lib.theory.scaling:gustafson_speedup"]

# %%
from course_lib.theory.scaling import amdahl_speedup

for n in (2, 4, 64, 1024):
    same, larger = amdahl_speedup(0.05, n), gustafson_speedup(0.05, n)
    print(f"{n:5} ranks, a share of 5%: the same job {same:4.1f}×, a larger job {larger:6.1f}×")

# %% [markdown]
# ### Which sum to take
#
# The series is 1/N away from π, the midpoint rule 1/(12 N²): its error is a hundred times smaller for ten times
# the strips. We measure both, up to a hundred thousand terms, and draw what theory predicts as lines.

# %% tags=["source: course_lib.pi:midpoint_loop"]

# %% tags=["nbval-ignore-output"]
from course.lessons.shared.figures.pi import error_against_terms
from course_lib.pi import arctan_error, arctan_part, midpoint_error

counts = [10, 100, 1_000, 10_000, 100_000]
measured = {
    "arctan": {n: arctan_part(n) - math.pi for n in counts},
    "midpoint": {n: midpoint_loop(n) - math.pi for n in counts},
}
predicted = {
    "arctan": {n: arctan_error(n) for n in counts},
    "midpoint": {n: midpoint_error(n) for n in counts},
}
error_against_terms(measured, predicted)

# %% [markdown]
# A better formula beats any number of ranks: a hundred strips are closer to π than a hundred thousand terms of
# the series. The law of the midpoint rule holds until rounding takes over, some 10⁻¹⁵ from π.

# %% [markdown]
# ### One rank knows how many
#
# Often one rank alone knows the size of the job: it has read it from a file, or asked a person. Before the others can
# take their share, they have to be told. `Bcast` (lesson 04) copies an array from the root to all.

# %% tags=["exercise: 03.2"]

# %% [markdown]
# ### Workers on demand: `Spawn`
#
# So far the ranks were there before the program began. MPI can also start processes *from* a running program, which need
# not have been started by `mpiexec` itself. The article behind this course does so: a parent spawns workers, tells them how
# many strips there are, and collects their parts. Here is its worker, `cpi.py`, repaired:

# %% tags=["source: course.lessons.l03_arctan_pi.pi_worker:work"]
# %%px

# %% [markdown]
# And the parent. Between the two there is a communicator with two groups, so each side has to say where the root
# is: for the parent, `MPI.ROOT` means "me"; for the workers, rank 0 is the parent's. `Disconnect` waits until all
# messages are through and lets the two sides go. The article's first listing had lost it: Open MPI lets workers end
# without it, but the standard allows them to wait for their parent.

# %% tags=["source: course.lessons.l03_arctan_pi.spawn:spawn_pi"]
# %%px

# %% [markdown]
# A worker that dies takes its parent along, or lets it wait for ever. So do not spawn from a process that you
# need: `spawned_pi` gives the parent a process of its own, and a deadline.

# %% tags=["nbval-ignore-output"]
from course.lessons.l03_arctan_pi.spawn import SpawnError, spawned_pi

broken = ["-m", "mpi4py", "-c", "from mpi4py import MPI; raise OSError('no space left')"]
print(f"π ≈ {spawned_pi(2, 1_000_000).pi:.12f}")
try:
    spawned_pi(2, 1_000_000, worker=broken, timeout=15)
except SpawnError as error:
    print(error)

# %% [markdown]
# What did two workers gain? The article compared 9.79 s for this program with 59.8 s for the darts of lesson
# 02, another algorithm. Let us compare the *same* loop: in this process alone, and by two workers. A run with one
# strip shows what starting them costs.

# %% tags=["nbval-ignore-output"]
import time

begun = time.perf_counter()
midpoint_loop(10_000_000)
serial = time.perf_counter() - begun
starting, whole = spawned_pi(2, 1).seconds, spawned_pi(2, 10_000_000).seconds
print(f"10⁷ strips: 1 process {serial:.2f} s, 2 spawned workers {whole:.2f} s: {serial / whole:.1f}×")
print(f"of these, starting the workers took about {starting:.2f} s")

# %% [markdown]
# | 10⁸ points or strips, pure Python | time | |
# |---|---|---|
# | darts, 1 process | **published** 59.8 s | compared with the next line: two algorithms |
# | strips, 6 spawned processes | **published** 9.79 s | one instance with 32 cores |
# | the same strips, 1 process | not published | ten times the figure above, on your machine |
#
# Starting processes has a price, and it is paid once: spawn for minutes of work, not for milliseconds.

# %% [markdown]
# ### Past two thousand million terms
#
# The function that you timed adds up blocks of 2¹⁴ terms with NumPy: the memory that it needs does not grow with
# the terms.

# %% tags=["source: course_lib.pi:arctan_part"]
# %%px

# %% [markdown]
# The article's worker keeps N in 32 bits, `dtype='i'`, which hold up to 2³¹ − 1 = 2 147 483 647. A rank adds
# up that many terms in seconds. So N, and every number on the way, needs 64 bits.

# %% tags=["exercise: 03.3"]

# %% [markdown]
# ### The same in C, and in R
#
# MPI is not Python's. The series in C, with terms in strides in place of one term a rank; the file is
# `notebooks/code/arctan_pi.c`. Without a compiler, the cell says so.

# %% tags=["nbval-ignore-output"]
from course.lessons.shared.programs import compile_c, run_program, why_no_c
from course.paths import BUILD, NOTEBOOKS

if reason := why_no_c():
    print("Skipped:", reason)
else:
    program = compile_c(NOTEBOOKS / "code" / "arctan_pi.c", BUILD / "arctan_pi")
    print(run_program(4, [program]), "· one term a rank")
    print(run_program(4, [program, "1000000"]))

# %% [markdown]
# And in R, where `mpi.reduce` is the same call. R has an MPI of its own on most systems, with its own `mpirun`:
# two MPIs do not talk to each other, so `run_r` starts the ranks with the one that R was built with.

# %%
print((NOTEBOOKS / "code" / "arctan_pi.R").read_text())

# %% tags=["nbval-ignore-output"]
from course.lessons.l03_arctan_pi.rmpi import run_r, why_no_r

if reason := why_no_r():
    print("Skipped:", reason)
else:
    print(run_r(2, NOTEBOOKS / "code" / "arctan_pi.R", ["1000000"]))

# %% [markdown]
# ## On GPUs
#
# The sum over a block is one call of CuPy or PyTorch, with blocks of millions of terms. Keep float64, which
# consumer GPUs do at a small fraction of their speed. Thousands of GPU threads add in an order that may change from run to run,
# so even one GPU need not repeat its last digits.

# %% [markdown]
# ## Pitfalls
#
# - The whole range on every rank: the result is `size` times too large, and right on one rank.
# - `N // size` items each: the remainder is lost.
# - Counting in 32 bits; a formula may leave them before the count does.
# - Spawning from a process that must not die, or without `Disconnect`.

# %% [markdown]
# ## References
#
# - J. Davis, [Large Scale Deep Learning Using the High-Performance Computing Libraries OpenMPI and
#   DeepSpeed](https://opendatascience.com/large-scale-deep-learning-using-the-high-performance-computing-libraries-openmpi-and-deepspeed/), ODSC, 2022: the parent, its worker, and the published times.
# - L. Dalcin and others, [MPI for Python: dynamic process management](https://mpi4py.readthedocs.io/en/stable/tutorial.html#dynamic-process-management).
# - J. Gustafson, [Reevaluating Amdahl's law](https://doi.org/10.1145/42411.42415), 1988.
# - D. Goldberg, [What every computer scientist should know about floating-point
#   arithmetic](https://doi.org/10.1145/103162.103163), 1991.

# %% [markdown]
# ## Stretch
#
# Make the sum bitwise equal on 1, 2, 3 and 4 ranks. (The blocks, not the ranks, must decide the order: give whole blocks
# to ranks, collect one number for each block on rank 0, and add those up in the order of the blocks. What does it
# cost?)

# %% [markdown]
# ## Teardown

# %%
cluster.stop()
