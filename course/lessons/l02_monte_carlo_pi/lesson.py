# %% [markdown]
# # 02 · Monte Carlo π
#
# *Share a computation among ranks with a single message each, and find out what the ranks really gained.*
#
# | | |
# |---|---|
# | **You will be able to** | add up one number from every rank with `Reduce`; give each rank its own random numbers; predict the error of a Monte Carlo estimate; tell what vectorising gained from what ranks gained |
# | **Before this** | [01 · MPI basics](01_mpi_basics.ipynb) |
# | **Time** | core 20 min · more 35 min |
# | **Ranks** | 4 |
#
# [← 01 · MPI basics](01_mpi_basics.ipynb) · [Course map](00_start_here.ipynb) · [03 · arctan π and quadrature →](03_arctan_pi.ipynb)

# %% [markdown]
# ## Warm-up
#
# Three questions from the lessons before. Answer each in your head, then open it.
#
# 1. You set `x = 5` in a cell without `%%px`. Do the ranks have an `x`?
#    <details><summary>Answer</summary>No. Such a cell runs in the notebook's kernel. The ranks are other processes, with variables of their own.</details>
# 2. `comm.Send` has returned. Has the message arrived?
#    <details><summary>Answer</summary>You cannot know. You only know that you may use your buffer again.</details>
# 3. Four ranks run on a machine with two cores. How many of them compute at the same moment?
#    <details><summary>Answer</summary>Two at most. The other two wait for their turn.</details>

# %% [markdown]
# ## Setup

# %% tags=["nbval-ignore-output"]
from mpi_classroom.cluster import start_cluster

cluster = start_cluster(n=4)

# %% [markdown]
# ## 1 · Throw darts
#
# Throw darts blindly at a square with a circle in it. The circle covers π/4 of the square, so four times the share
# that lands inside is an estimate of π. This is the loop of the article that this course grew from, repaired.

# %% tags=["source: course_lib.pi:sample"]

# %% [markdown]
# How long would 10⁸ darts take? We throw a million and multiply by a hundred. The article threw 10⁸:
# **published** 59.8 s, on another machine.

# %% tags=["nbval-ignore-output"]
import timeit

loop = 100 * min(timeit.repeat(lambda: sample(1_000_000), number=1, repeat=3))
print(f"10⁸ darts: {loop:.1f} s, scaled from 10⁶ (the best of 3)")

# %% [markdown]
# ## 2 · The same darts with NumPy
#
# No dart needs to know of another: the easiest job in the world to share out. Each rank throws its own, and not in a
# Python loop: `count_inside` throws 2¹⁴ darts in one call of NumPy, then the next 2¹⁴. (More shows it.)

# %%
# %%px --setup
import numpy as np
from mpi4py import MPI

from course_lib.pi import count_inside, rank_stream

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size

# %%
# %%px
inside = count_inside(rank_stream(7, rank, size), 1_000_000)
print(f"rank {rank}: {inside} inside, so π ≈ {4 * inside / 1_000_000}")

# %% [markdown]
# ## 3 · One sum: `Reduce`
#
# Four million darts are better than one million, so add up the counts. `Reduce` takes an array from every rank, adds
# them on the way, and leaves the sum on the `root`, and only there.

# %%
# %%px
mine = np.array(inside)
total = np.zeros_like(mine)
comm.Reduce(mine, total, root=0)
print(f"rank {rank}: {total}")

# %% [markdown]
# One message of 8 bytes a rank, however many darts: that is all the communication. After N darts, the estimate is
# typically 1.64/√N away from π: its **standard error**.

# %%
from course_lib.pi import standard_error

print(f"π ≈ {4 * cluster['total'][0] / 4_000_000:.5f} ± {standard_error(4_000_000):.5f}")

# %% tags=["exercise: 02.1"]

# %% [markdown]
# ## 4 · Every rank its own random numbers
#
# Random numbers on a computer are a fixed sequence that starts from a seed. What happens when all ranks start from
# the same one? It is an easy mistake, for all of them run the same program.

# %%
# %%px
same = count_inside(np.random.default_rng(7), 1_000_000)  # the same seed on every rank
darts = np.random.default_rng(7).uniform(-1, 1, size=(2, 200))
print(f"rank {rank}: {same} inside")

# %% tags=["nbval-ignore-output"]
from course.lessons.shared.figures.pi import darts_by_rank

darts_by_rank(cluster["darts"])

# %% [markdown]
# Four ranks did the same work four times. The result looks fine, and that is the danger: nothing fails. `rank_stream`
# has the repair: `SeedSequence(seed).spawn(size)` makes a child seed for each rank, and the streams have nothing to
# do with each other.

# %% tags=["source: course_lib.pi:rank_stream"]
# %%px

# %%
# %%px
darts = rank_stream(7, rank, size).uniform(-1, 1, size=(2, 200))

# %% tags=["nbval-ignore-output"]
darts_by_rank(cluster["darts"])

# %% [markdown]
# ## 5 · What NumPy gained, what ranks gained
#
# A fair comparison warms up, starts all ranks together, waits for the slowest, and repeats: `seconds_on` does. It
# takes no more ranks than there are cores: `one_rank_a_core` makes a communicator of so many, and `COMM_NULL` on the
# ranks that are left over. What will four ranks gain?

# %%
predict("Four ranks: how many times faster than one?", None)

# %%
# %%px
from course_lib.comm.timing import one_rank_a_core, seconds_on
from course_lib.pi import estimate_pi

alone, team = one_rank_a_core(comm, cores=1), one_rank_a_core(comm)

# %% [markdown]
# NumPy on one rank, then on one rank for every core, then on all four, even where there are fewer cores. Each has a
# cell of its own, so that ranks which are left out sleep.

# %%
# %%px
on_one = seconds_on(alone, lambda: estimate_pi(alone, 50_000_000, seed=1))

# %%
# %%px
on_team = seconds_on(team, lambda: estimate_pi(team, 50_000_000, seed=1))

# %%
# %%px
on_four = seconds_on(comm, lambda: estimate_pi(comm, 50_000_000, seed=1))

# %% [markdown]
# All times are for 10⁸ darts: NumPy's are doubled, the loop's is that of section 1. The axis is logarithmic: factors
# that multiply are lengths that add up.

# %% tags=["nbval-ignore-output"]
from course.lessons.shared.figures.pi import gains
from mpi_classroom.launch import available_cores

cores = min(available_cores(), 4)
numpy, on_team, on_four = (2 * cluster[name][0] for name in ("on_one", "on_team", "on_four"))
outcome("Four ranks: how many times faster than one?", numpy / on_four, because=f"They have {cores} cores.")
gains(loop, numpy, {cores: on_team, 4: on_four}, cores=cores, note="10⁸ darts, scaled from 10⁶ and 5 · 10⁷")

# %% [markdown]
# Read the bars as two factors of one product: NumPy makes one rank fast, and ranks multiply that. And count cores, not
# ranks: more ranks than cores share the same cores.

# %% [markdown]
# ## Key points
#
# - Independent work needs one message a rank: `Reduce` adds the results up, on rank 0 only.
# - One seed everywhere gives copies, not samples. Spawn a stream for every rank.
# - The error of Monte Carlo is 1.64/√N for π: ranks throw faster, they do not change the root.
# - Make one process fast first. Then ranks multiply, up to the number of cores.

# %% [markdown]
# ## Discuss
#
# Your colleague gives rank r the seed 7 + r. The results look right. Is that good enough? Vote, talk to
# your neighbour for two minutes, vote again.
#
# <details><summary>What to listen for</summary>NumPy hashes its seeds, so the four streams of this run are
# independent. But repeat the experiment with seed 8, and rank 0 throws what rank 1 threw before: two runs
# that were meant to be independent share three of four streams.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# ### Two questions
#
# Write your letter between the quotes, and run the cell.

# %% tags=["exercise: 02.q1"]

# %% tags=["exercise: 02.q2"]

# %% [markdown]
# ### How NumPy throws
#
# The loop spends its time on Python, not on darts. NumPy throws 2¹⁴ darts in one call, few enough to stay in
# the core's cache, then the next 2¹⁴: memory does not grow. Coordinates are now whole numbers, on a square
# 65 536 wide: they are quick to draw.

# %% tags=["source: course_lib.pi:count_inside"]
# %%px

# %% [markdown]
# Section 5 timed this function. `share` says how many darts a rank throws; they need not divide
# evenly: 10 darts are 3, 3, 2 and 2.

# %% tags=["source: course_lib.pi:estimate_pi"]
# %%px

# %% [markdown]
# Is its sum right? These are the darts of section 2 again, so we can add those four counts by hand.

# %%
# %%px
result = estimate_pi(comm, 4_000_000, seed=7)

# %%
print(sum(cluster["inside"]), "added by hand")
print(cluster["result"][0].inside, "added by Reduce")

# %% [markdown]
# ### How far off?
#
# Theory tells the error before you throw. A dart is a coin that lands inside with p = π/4. After N darts,
# the estimate is typically 4·√(p(1−p)/N) = 1.64/√N away from π. About two in three runs should be closer than
# that. We try 12 seeds for each of five sizes.

# %%
# %%px
sizes = [10**k for k in range(3, 8)]
results = [estimate_pi(comm, darts, seed=seed) for darts in sizes for seed in range(12)]

# %%
import math

results = cluster["results"][0]
within = [abs(r.estimate - math.pi) <= r.standard_error for r in results]
print(f"{sum(within)} of {len(results)} runs are closer to π than their standard error")

# %% tags=["nbval-ignore-output"]
from course.lessons.shared.figures.pi import error_against_samples

errors = {r.samples: [] for r in results}
for r in results:
    errors[r.samples].append(r.estimate - math.pi)
error_against_samples(errors, constant=standard_error(1))

# %% [markdown]
# The root is bad news: one more digit costs a hundred times the darts. Ranks cannot change that; they only
# throw faster.

# %% tags=["exercise: 02.2"]

# %% [markdown]
# ### Do copies help?
#
# Back to section 4. Let us repeat the experiment 200 times, 10 000 darts each, with own streams and with one
# seed everywhere, and compare how far off the estimates typically are. Theory says 1.64/√10 000 = 0.0164 for
# four ranks, and 1.64/√2 500 = 0.0328 for one.

# %%
# %%px
own = [count_inside(rank_stream(run, rank, size), 2_500) for run in range(200)]
same = [count_inside(rank_stream(run, 0, 1), 2_500) for run in range(200)]

# %%
import numpy as np


def typical_error(counts_by_rank):
    """The root mean square distance from π of 200 estimates from 10 000 darts each."""
    estimates = 4 * np.sum(counts_by_rank, axis=0) / 10_000
    return np.sqrt(np.mean((estimates - math.pi) ** 2))


print(f"a stream for every rank: {typical_error(cluster['own']):.4f}")
print(f"one seed everywhere:     {typical_error(cluster['same']):.4f}")

# %% [markdown]
# With one seed everywhere, the four ranks are as far off as one rank alone. The other 7 500 darts are
# copies.

# %% [markdown]
# ### How many ranks are worth it?
#
# Some part of every job cannot be shared: starting, communicating, waiting for the slowest. Call its share
# of the one-rank time s. Amdahl's law says that n ranks are then at most 1/(s + (1−s)/n) times faster, and
# that no number of ranks gets past 1/s.

# %% tags=["source: course_lib.theory.scaling:amdahl_speedup"]

# %%
for n in (2, 4, 64, 1024):
    print(f"{n:5} ranks, 5% not shared: at most {amdahl_speedup(0.05, n):.1f} times faster")

# %% [markdown]
# Turned round, the law reads your measurement of section 5: which share s would explain it (Karp and
# Flatt)? The point below is **measured**, the curves are **predicted**, and 1024 ranks are a long way from
# where you stand.

# %% tags=["nbval-ignore-output"]
from course.lessons.shared.figures.pi import amdahl
from course_lib.theory.scaling import parallel_efficiency

n, seconds = (cores, on_team) if cores > 1 else (4, on_four)
speedup = numpy / seconds
print(f"{n} ranks: {speedup:.2f} times faster, efficiency {parallel_efficiency(speedup, n):.0%}")
amdahl(speedup, n)

# %% [markdown]
# ### The article's own figures
#
# The article compares 59.8 s for the loop with 9.79 s for an MPI program on six processes, and calls it
# "almost 5x faster".

# %%
print(f"published: 59.8 s / 9.79 s = {59.8 / 9.79:.1f} times")

# %% [markdown]
# Two things are wrong. The quotient is 6.1. And the MPI program does not throw darts: it adds up the area
# under 4/(1 + x²), with no random number at all. Two algorithms were compared, so nobody can say what MPI
# gained. Compare one thing at a time, as in section 5, and put the figures side by side with their labels.

# %% tags=["nbval-ignore-output"]
print(f"the loop, 1 process            published 59.8 s     here {loop:5.1f} s, scaled")
print("other algorithm, 6 processes   published 9.79 s     not run here")
print(f"NumPy, same darts, {cores} ranks     not published        here {on_team:5.2f} s, scaled")

# %% [markdown]
# ### Past two thousand million darts
#
# The article keeps its number of darts in a 32-bit integer, `numpy.array(10**8, 'i')`. That holds up to 2³¹
# − 1. A cluster throws so many in seconds, and then a count does not stop: it starts again from below.

# %%
counts = np.array([1_500_000_000, 1_500_000_000])
print(counts.astype(np.int32).sum(dtype=np.int32), "in 32 bits")
print(counts.astype(np.int64).sum(dtype=np.int64), "in 64 bits")

# %% tags=["exercise: 02.3"]

# %% [markdown]
# ## On GPUs
#
# The same program, with CuPy or PyTorch in place of NumPy and one rank for each GPU: the chunk grows to
# millions of darts, so that the GPU has enough to do at once. `Reduce` stays as it is: with 8 bytes a rank,
# it does not matter whether MPI can read GPU memory.

# %% [markdown]
# ## Pitfalls
#
# - Using the result of `Reduce` on another rank than 0: it holds nothing of use there.
# - Timing more ranks than cores, or only rank 0: the job ends when the slowest rank does.
# - Counting in 32 bits.
# - Quoting a speed-up that compares two algorithms.

# %% [markdown]
# ## References
#
# - J. Davis, [Large Scale Deep Learning Using the High-Performance Computing Libraries OpenMPI and
#   DeepSpeed](https://opendatascience.com/large-scale-deep-learning-using-the-high-performance-computing-libraries-openmpi-and-deepspeed/), ODSC, 2022: the loop and the figures called published.
# - NumPy, [Parallel random number generation](https://numpy.org/doc/stable/reference/random/parallel.html).
# - G. Amdahl, [Validity of the single processor approach to achieving large scale computing
#   capabilities](https://doi.org/10.1145/1465482.1465560), 1967.
# - A. Karp and H. Flatt, [Measuring parallel processor performance](https://doi.org/10.1145/78607.78614), 1990.

# %% [markdown]
# ## Stretch
#
# The count of section 2 changes with the number of ranks, because each rank has its own stream. Change
# `estimate_pi` so that 1, 2, 3 and 4 ranks give exactly the same count. (Give streams to portions of darts,
# not to ranks.)

# %% [markdown]
# ## Teardown

# %%
cluster.stop()
