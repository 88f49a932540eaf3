# ---
# title: Monte Carlo π
# goal: Let four ranks estimate π together, and find out where the speed comes from.
# able:
#   - add up one number from every rank with `Reduce`
#   - give every rank its own random numbers
#   - tell the speed-up of NumPy from the speed-up of ranks
# more:
#   - predict the error of a Monte Carlo estimate
#   - say what a measured speed-up means for many more ranks
# before: >-
#   {01}
# minutes: {core: 20, more: 30}
# ranks: 4
# warm-up:
#   - ask: Every rank has a variable `x`. How do you read all four in the kernel?
#     answer: <code>cluster["x"]</code> is a list, rank 0 first.
#   - ask: >-
#       `comm.Send` has returned. What do you know now?
#     answer: You may use your array again. The message may not have arrived yet.
#   - ask: All ranks send to the right, then receive from the left. It works with 80 bytes. What is wrong?
#     answer: >-
#       MPI buffers only small messages. A large <code>Send</code> waits for a <code>Recv</code> that no rank
#       reaches.
# ---

# %%
# %%px --setup
import numpy as np
from mpi4py import MPI

from course_lib.pi import count_inside, share

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size

# %% [markdown] tags=["slide"]
# ## 1 · Throw darts
#
# Draw the largest circle that fits into a square, and throw darts blindly at the square. The circle covers π/4 of it, so
# four times the fraction of darts inside is an estimate of π. This is a **Monte Carlo** method: it estimates a number
# from random samples. Here it is as a loop, from a published article:

# %% tags=["source: course_lib.pi:sample"]

# %% tags=["nbval-ignore-output"]
import timeit

loop = 100 * min(timeit.repeat(lambda: sample(1_000_000), number=1, repeat=3))
print(f"10⁸ darts: {loop:.0f} s here, scaled from 10⁶; published, on another machine: 59.8 s")

# %% [markdown] tags=["slide"]
# ## 2 · The same darts, without the loop
#
# Python looks up names, checks types and creates objects for every dart, which takes most of the time. NumPy does the
# arithmetic in compiled code, on whole arrays. To replace a loop by such calls is to **vectorise** it.

# %% tags=["nbval-ignore-output"]
import numpy as np


def count_plain(stream, darts):
    """Throw darts; return how many land inside."""
    x, y = stream.uniform(-1, 1, size=(2, darts))
    return np.count_nonzero(np.hypot(x, y) <= 1)


stream = np.random.default_rng(7)
plain = 100 * min(timeit.repeat(lambda: count_plain(stream, 1_000_000), number=1, repeat=5))
print(f"10⁸ darts: {plain:.1f} s, scaled from 10⁶: {loop / plain:.0f} times as fast")

# %% [markdown] tags=["notes"]
# Ask the room before this cell runs: how many times as fast will NumPy be? Take three guesses, no discussion. Some will
# say "then we need no MPI". Agree for now; section 7 comes back to it. One minute.

# %% [markdown] tags=["slide"]
# ## 3 · Four ranks throw
#
# No dart depends on another, so ranks can throw at the same time. All four call the library's `count_inside`: a faster
# `count_plain` that draws its darts differently (section 8). Each rank creates its generator with
# `np.random.default_rng(7)`. How many *different* counts will you see?

# %%
predict("How many different counts do four ranks print?", None)

# %%
# %%px
inside = count_inside(np.random.default_rng(7), 1_000_000)
darts = np.random.default_rng(7).uniform(-1, 1, size=(2, 200))  # 200 darts for the picture
print(f"rank {rank}: {inside} inside, so π ≈ {4 * inside / 1_000_000}")

# %% tags=["nbval-ignore-output"]
from course.lessons.shared.figures.pi import darts_by_rank

outcome("How many different counts do four ranks print?", len(set(cluster["inside"])))
darts_by_rank(cluster["darts"])

# %% [markdown]
# A random generator computes a fixed sequence from a number, its **seed**. With the seed 7 on every rank, all throw the
# same darts. There is no error message and the estimate is good, but three of the four ranks did nothing new.

# %% tags=["exercise: 02.q2"]

# %% [markdown] tags=["slide"]
# ## 4 · Different darts on every rank
#
# We want one seed for the whole experiment, but different numbers on every rank. NumPy's `SeedSequence` gives us both:
# `spawn(size)` derives one child seed per rank. Their sequences are independent **streams**.

# %%
# %%px
children = np.random.SeedSequence(7).spawn(size)  # the same list on every rank
stream = np.random.default_rng(children[rank])
darts = stream.uniform(-1, 1, size=(2, 200))
inside = count_inside(stream, 1_000_000)
print(f"rank {rank}: {inside} inside, so π ≈ {4 * inside / 1_000_000}")

# %% tags=["nbval-ignore-output"]
darts_by_rank(cluster["darts"])

# %% [markdown] tags=["slide"]
# ## 5 · One sum: `Reduce`
#
# Four million different darts give a better estimate than one million, so we add up the counts. MPI has one call for
# that. Every rank calls **`Reduce`** with an array. MPI adds up the arrays, element by element, and puts the sum on one
# rank, the **root**. Our count is one number, so each rank turns it into an array.

# %%
# %%px
mine = np.array(inside)
total = np.zeros_like(mine)
comm.Reduce(mine, total, root=0)
print(f"rank {rank}: {total}")

# %% [markdown]
# Only rank 0 has the sum. How good is the estimate? An estimate from N darts is typically 1.64/√N away from π. This
# distance is its **standard error**: about two in three estimates are closer.

# %%
from course_lib.pi import standard_error

estimated, typical = 4 * cluster["total"][0] / 4_000_000, standard_error(4_000_000)
off = abs(estimated - np.pi)
print(f"π ≈ {estimated} ± {typical:.5f}; true error {off:.5f}: {off / typical:.1f} standard errors")

# %% [markdown]
# 1.4 is nothing unusual: one experiment in three is off by more than one standard error.

# %% [markdown] tags=["slide"]
# ## 6 · Your turn

# %% tags=["exercise: 02.1"]

# %% [markdown] tags=["notes"]
# Six minutes. Two things go wrong: `Reduce` under `if comm.rank == 0` (the reply says who waits for whom), and dividing
# by `mine`. Whoever is done early explains to a neighbour why the other ranks return None.

# %% [markdown] tags=["slide"]
# ## 7 · The same job on more ranks
#
# So far four ranks threw four times the darts. Now one rank throws 5 · 10⁷ darts, then four ranks share as many.
# The time of one rank divided by the time of four is their **speed-up**. What will it be?

# %% tags=["nbval-ignore-output"]
from mpi_classroom.launch import available_cores

cores = cluster["cores"] = min(available_cores(), 4)  # in the kernel and on all ranks
continue_with("02.1")
predict("What is the speed-up of four ranks over one?", None)

# %% [markdown]
# To time fewer than four ranks, we need smaller communicators. `Split` puts all ranks that pass the same number into one
# new communicator. Ranks that pass `MPI.UNDEFINED` get `MPI.COMM_NULL`: they sit out. `alone` is rank 0, `team` has one
# rank per core.

# %%
# %%px
alone = comm.Split(0 if rank < 1 else MPI.UNDEFINED)
team = comm.Split(0 if rank < cores else MPI.UNDEFINED)

# %% [markdown]
# `seconds_on` runs the work once to warm up, then times it five times and returns the median. All ranks start together,
# and the clock stops when the slowest is done. Each timing has its own cell. The ranks that sit out finish it at once and
# use no core during the timing.

# %%
# %%px
from functools import partial

from course_lib.comm.timing import seconds_on

throw = partial(count_inside, stream)  # throw(n) counts n darts of this rank's stream
on_one = seconds_on(alone, lambda: estimate(alone, throw, 50_000_000))

# %%
# %%px
on_team = seconds_on(team, lambda: estimate(team, throw, 50_000_000))

# %%
# %%px
on_four = seconds_on(comm, lambda: estimate(comm, throw, 50_000_000))

# %% [markdown]
# The chart compares all programs at 10⁸ darts, so we double these times.

# %% tags=["nbval-ignore-output"]
from course.lessons.shared.explained import why_speedup
from course.lessons.shared.figures.pi import seconds_by_program
from course.lessons.shared.reference import reference

on_one, on_team, on_four = (2 * cluster[name][0] for name in ("on_one", "on_team", "on_four"))
why = why_speedup(on_one / on_four, 4, cores)
outcome("What is the speed-up of four ranks over one?", on_one / on_four, because=why)
idle = reference("pi", "darts, the ranks' share: 2 ranks for 1")
print(f"Reference machine, two otherwise idle cores: two ranks are {idle['ratio']:.2f}× as fast as one.")
seconds_by_program(loop, plain, {cores: on_team, 4: on_four, 1: on_one}, cores=cores)

# %% [markdown]
# NumPy made one process faster. Ranks can multiply that, up to the number of cores. **Count cores, not ranks:** on n
# cores, the job takes at least 1/n of the time, however many ranks share them. If your speed-up is well below the number
# of cores used, the cores were busy, or two are hardware threads of one physical core (lesson 00). The
# **reference machine** shows what two idle cores can do.

# %% [markdown] tags=["notes"]
# Let three people read out their own numbers: cores and speed-up. Laptops with four and more cores show it best. Where
# somebody has less than half of what the cores allow, ask what else is running (a video call is enough), and how
# many physical cores there are. Two minutes.

# %% tags=["exercise: 02.q1"]

# %% [markdown] tags=["slide"]
# ## Key points
#
# - `Reduce` adds up the results of all ranks in one call. Only the root has the sum.
# - The same seed on every rank gives copies, not samples. Spawn one stream per rank.
# - First make one process fast. Ranks multiply its speed, up to the number of cores.
#
# ## Discuss
#
# A colleague gives rank r the seed 7 + r, and all counts differ. Is that good enough? Vote, discuss it in pairs,
# vote again.
#
# <details><summary>What to listen for</summary>NumPy hashes its seeds, so the four streams are independent. But in the
# next experiment, with seed 8, rank 0 throws what rank 1 throws now: the experiments share three streams.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more", "slide"]
# ## More
#
# ### 8 · What more NumPy can gain
#
# `count_plain` has three weaknesses. It takes a square root per dart, although x² + y² ≤ 1 says the same. Its arrays of
# a million numbers do not fit into the core's cache. And it draws 64 random bits per coordinate. We repair them one
# after the other.

# %% tags=["nbval-ignore-output"]
from course_lib.pi import count_inside, rank_stream


def count_squares(stream, darts):
    x, y = stream.uniform(-1, 1, size=(2, darts))
    return np.count_nonzero(x * x + y * y <= 1)


def count_blocks(stream, darts, block=2**14):
    return sum(count_squares(stream, min(block, darts - first)) for first in range(0, darts, block))


def best(count):
    """Seconds for a million darts, the fastest of five runs."""
    stream = rank_stream(7, rank=0, size=1)
    return min(timeit.repeat(lambda: count(stream, 1_000_000), number=1, repeat=5))


for count in (count_plain, count_squares, count_blocks, count_inside):
    print(f"{count.__name__:13}  10⁸ darts would take {100 * best(count):5.2f} s")

# %% [markdown]
# These times can differ from those in section 2. Compare only times from the same table.
#
# `count_inside` is the library's function. Section 7 timed it. It draws 16 bits per coordinate and computes with integers. So
# darts land on a grid of 65 536 × 65 536 points, which makes π 9·10⁻⁷ too small.

# %% tags=["source: course_lib.pi:count_inside"]

# %% [markdown] tags=["slide"]
# ### 9 · How far off is an estimate?
#
# A dart lands inside with probability p = π/4, like an unfair coin. Theory says that the fraction inside is typically
# √(p(1−p)/N) off. The estimate of π is four times as far off: 1.64/√N. "Typically" means that 68% of all runs are
# closer. We make 100 runs: five numbers of darts, 20 seeds each. So expect 68 ± 5 of them within one standard error.

# %%
# %%px
from course_lib.pi import estimate_pi

sizes = [10**k for k in range(3, 8)]
results = [estimate_pi(comm, darts, seed=seed) for darts in sizes for seed in range(20)]

# %% tags=["nbval-ignore-output"]
from course.lessons.shared.figures.pi import error_against_samples

errors = {}
for result in cluster["results"][0]:
    errors.setdefault(result.samples, []).append(result.estimate - np.pi)
error_against_samples(errors, constant=standard_error(1))

# %% [markdown]
# The line falls slowly: one more digit takes 100 times the darts. Ranks cannot change that; they only throw faster.
#
# The standard error also shows what one seed everywhere costs. We repeat an experiment with 10 000 darts 200 times, and
# compare the typical error with 1.64/√10 000 = 0.0164 and with 1.64/√2 500 = 0.0328.

# %%
# %%px
from course_lib.pi import rank_stream

own = [count_inside(rank_stream(run, rank, size), 2_500) for run in range(200)]
same = [count_inside(rank_stream(run, 0, 1), 2_500) for run in range(200)]

# %%
for name in ("own", "same"):
    estimates = 4 * np.sum(cluster[name], axis=0) / 10_000
    error = np.sqrt(np.mean((estimates - np.pi) ** 2))
    print(f"{name:4} stream on every rank: typical error {error:.4f}")

# %% [markdown]
# With the same stream on every rank, 10 000 darts are worth 2 500: those of one rank.
#
# Now use the standard error the other way round: from the error that you accept to the number of darts.

# %% tags=["exercise: 02.2"]

# %% [markdown] tags=["slide"]
# ### 10 · From a few ranks to a thousand
#
# You measured a speed-up on a few ranks. What would 1024 ranks bring? In every job there is work that only one rank does
# while the others wait: starting the ranks, reading input, adding up. The time for that, as a fraction s of the time on
# one rank, is the **serial fraction**. **Amdahl's law** says that n ranks have a speed-up of at most 1/(s + (1−s)/n).
# Suppose that 5% of a job is serial.

# %%
predict("5% serial, 1024 ranks: what is the largest speed-up?", None)

# %% tags=["source: course_lib.theory.scaling:amdahl_speedup"]

# %%
for n in (2, 4, 64, 1024):
    print(f"{n:5} ranks, 5% serial: a speed-up of at most {amdahl_speedup(0.05, n):.1f}")
largest = amdahl_speedup(0.05, 1024)
why = "However many ranks, it stays below 1/s = 20."
outcome("5% serial, 1024 ranks: what is the largest speed-up?", largest, because=why, word="computed")

# %% [markdown]
# You can also use the law the other way round: compute the serial fraction that explains a measured speed-up (Karp and
# Flatt, 1990). But every measurement has an error. So we time ten runs on one rank and ten on several, and compute a low, a
# middle and a high speed-up from the quartiles of the times.

# %%
# %%px
from course_lib.comm.timing import seconds_of_each


def ten_runs(some):
    """Seconds of ten runs on the communicator `some`; None on ranks that sit out."""
    if some == MPI.COMM_NULL:
        return None
    return seconds_of_each(some, lambda: estimate(some, throw, 50_000_000), 10)


runs_on_one = ten_runs(alone)

# %% [markdown]
# Then the same on n ranks: one per core, or all four where there is only one core.

# %%
n = cluster["n"] = cores if cores > 1 else 4

# %%
# %%px
runs_on_n = ten_runs(comm.Split(0 if rank < n else MPI.UNDEFINED))

# %% tags=["nbval-ignore-output"]
from course.lessons.shared.explained import why_no_fraction
from course.lessons.shared.figures.pi import amdahl
from course.lessons.shared.reference import speedups_of

fast_one, one, slow_one = np.quantile(cluster["runs_on_one"][0], [0.25, 0.5, 0.75])
fast_n, on_n, slow_n = np.quantile(cluster["runs_on_n"][0], [0.25, 0.5, 0.75])
speedups = (fast_one / slow_n, one / on_n, slow_one / fast_n)
print("low, middle, high: " + ", ".join(f"{speedup:.2f}" for speedup in speedups))
machine = ""
if why := why_no_fraction(speedups, n, cores):
    machine = "reference machine"
    print(f"{why} The figure has the speed-ups of the {machine}.")
    speedups, n = speedups_of(idle), idle["ranks"]
amdahl(speedups, n, machine=machine)

# %% [markdown]
# A few percent on a few ranks become a wide band at 1024. It is widest near the ideal: by the law, a speed-up of 1.98 on
# two ranks means 90 on 1024 ranks, and one of 2.00 means 1024. So a few ranks say little about a thousand, however
# carefully you measure. Measure nearer to your goal: on 8 ranks, an error of 1% changes the prediction for 64 by about 8%
# at most.

# %% [markdown] tags=["slide"]
# ### 11 · The article's numbers
#
# The article reports 59.8 s for the loop "on a single GPU", 9.79 s for an MPI program with six processes, and says that
# this is "almost 5x faster".

# %% tags=["nbval-ignore-output"]
print(f"published: 59.8 s / 9.79 s = {59.8 / 9.79:.1f}")
print(f"the loop, 1 process               published 59.8 s   here {loop:5.1f} s, scaled")
print("another algorithm, 6 processes    published 9.79 s   not run here (lesson 03: on 2 workers)")
print(f"the same darts, NumPy, 1 rank     not published      here {on_one:5.2f} s, scaled")

# %% [markdown]
# 59.8 / 9.79 = 6.1: the MPI program is six times as fast. But the two cannot be compared. The loop is plain Python, which
# uses no GPU, even on a machine that has one. And the MPI program throws no darts: it adds up the area under 4/(1 + x²).
# With two algorithms compared, nobody can say what MPI gained. Change one thing at a time, as in section 7.

# %% tags=["exercise: 02.3"]

# %% [markdown]
# ## On GPUs
#
# The same method works with CuPy or PyTorch, with one rank per GPU. Only the calls for random numbers differ. Throw
# millions of darts per call, so that the GPU has enough to do. `Reduce` stays as it is.
#
# ## Pitfalls
#
# - Using the result of `Reduce` on a rank other than the root. The array there holds nothing of use.
# - Timing rank 0 only, or quoting the time of oversubscribed ranks as scaling. A job is done when its slowest rank is.
# - Quoting a speed-up that compares two algorithms.
#
# ## References
#
# - J. Davis, [Large Scale Deep Learning Using the High-Performance Computing Libraries OpenMPI and
#   DeepSpeed](https://opendatascience.com/large-scale-deep-learning-using-the-high-performance-computing-libraries-openmpi-and-deepspeed/), ODSC, 2022: the loop and the numbers called published.
# - NumPy, [Parallel random number generation](https://numpy.org/doc/stable/reference/random/parallel.html).
# - G. Amdahl, [Validity of the single processor approach to achieving large scale computing
#   capabilities](https://doi.org/10.1145/1465482.1465560), 1967.
# - A. Karp and H. Flatt, [Measuring parallel processor performance](https://doi.org/10.1145/78607.78614), 1990.
#
# ## Stretch
#
# The count of section 5 depends on the number of ranks, because every rank has its own stream. Write a version that gives
# exactly the same count on 1, 2, 3 and 4 ranks. (Spawn streams for blocks of darts, not for ranks.)
