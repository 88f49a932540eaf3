# ---
# title: arctan π and quadrature
# goal: >-
#   Distribute a long sum over any number of ranks, and measure what more ranks bring: the same job sooner, or a
#   larger job.
# able:
#   - distribute a sum over any number of ranks
#   - tell strong scaling from weak scaling, and measure both
# more:
#   - say which digits of a parallel sum to trust
#   - start workers from a running program
# before: >-
#   {02}
# minutes: {core: 20, more: 28}
# ranks: 4
# warm-up:
#   - ask: Every rank calls `Reduce` with one number. Where is the sum?
#     answer: On the root, here rank 0, and only there.
#   - ask: You want an estimate from darts that is ten times better. How many darts does that take?
#     answer: >-
#       A hundred times as many: the standard error is 1.64/√N.
#   - ask: What does `seconds_on` return?
#     answer: The median of five times, each until the slowest rank is done.
# ---

# %%
# %%px --setup
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size

# %% [markdown] tags=["slide"]
# ## 1 · One term per rank
#
# π = 4 · arctan(1), and arctan(1) is an infinite sum. So π = 4 − 4/3 + 4/5 − 4/7 + … Here is a parallel program for it.
# Rank r computes term r, and `Reduce` adds up the terms.

# %%
# %%px
term = np.array((-1) ** rank * 4 / (2 * rank + 1))
total = np.zeros_like(term)
comm.Reduce(term, total, root=0)
print(f"rank {rank}: term {term:+.4f}, sum {total:.4f}")

# %% [markdown]
# Four terms are a poor π. After N terms the sum is about 1/N away from π, so six digits would take a million ranks. We
# need a program in which the number of terms does not depend on the number of ranks.

# %% [markdown] tags=["slide"]
# ## 2 · Terms in strides
#
# Rank r starts at term r and continues in strides of `size`. That is a `range` with three arguments:

# %% tags=["source: course_lib.pi:arctan_loop"]
# %%px

# %%
# %%px
part = np.array(arctan_loop(100_000, rank, size))
comm.Reduce(part, total, root=0)
mine = list(range(rank, 42, size))  # for the picture

# %% tags=["nbval-ignore-output"]
from course.lessons.shared.figures.shares import owner_map

print(f"π ≈ {float(cluster['total'][0]):.6f} from 100 000 terms")
owner = {term: rank for rank, terms in enumerate(cluster["mine"]) for term in terms}
owner_map([owner[term] for term in range(42)])

# %% [markdown]
# The picture shows 42 terms. 42 is not a multiple of 4, yet the code needs no special case: the ranks' counts differ by
# at most one. If there are more ranks than terms, the extra ranks add up nothing.

# %% [markdown] tags=["notes"]
# Ask: what would `N // size` terms per rank do to the remainder? Lost, without an error. One minute.

# %% [markdown] tags=["slide"]
# ## 3 · A better sum
#
# Before we use more ranks, let us look for a better sum. π is also an area: the one under 4/(1 + x²) from 0 to 1. Computing
# an area is called **quadrature**. The **midpoint rule** cuts it into N strips of width h = 1/N. The height of strip i
# is that of the curve at the middle of the strip, x = h·(i + ½). How close do both sums come to π?

# %% tags=["nbval-ignore-output"]
import math

from course.lessons.shared.figures.pi import error_against_terms
from course_lib.pi import arctan_error, arctan_loop, midpoint_error, midpoint_loop

counts = [10, 100, 1_000, 10_000, 100_000]
sums = {"series": (arctan_loop, arctan_error), "midpoint": (midpoint_loop, midpoint_error)}
measured = {name: {n: add_up(n) - math.pi for n in counts} for name, (add_up, _) in sums.items()}
predicted = {name: {n: error(n) for n in counts} for name, (_, error) in sums.items()}
error_against_terms(measured, predicted, count="terms or strips N")

# %% [markdown]
# The series is 1/N away from π, the midpoint rule 1/(12 N²). A hundred strips are closer than a hundred thousand terms. To
# come as close as 100 000 strips, the series needs 1.2 · 10¹¹ terms. So we distribute the better formula.

# %% [markdown] tags=["slide"]
# ## 4 · Your turn

# %% tags=["exercise: 03.1"]

# %% [markdown] tags=["notes"]
# Six minutes. Most forget one of the two gaps: with `range(strips)` left, the reply says "4 times the area". Whoever is done
# early tries blocks in place of strides, and sees which strips the reply calls missing.

# %% [markdown] tags=["slide"]
# ## 5 · The same job, sooner
#
# There are two reasons to want more ranks: to finish the same job sooner, or to do a larger job. How the time of the
# *same* job changes with more ranks is its **strong scaling**: ideally, n ranks take 1/n of the time. We time half a
# million strips on one rank, on one rank per core, and on all four. The library's `one_rank_per_core` makes the
# communicators that you made with `Split` in lesson 02.

# %%
continue_with("03.1")
predict("Speed-up of four ranks, same job?", None)

# %%
# %%px
from course_lib.comm.timing import one_rank_per_core, seconds_on


def curve(x):
    return 4 / (1 + x * x)


alone = one_rank_per_core(comm, cores=1)  # rank 0 only
team = one_rank_per_core(comm)
on_one = seconds_on(alone, lambda: area(alone, curve, 500_000))

# %%
# %%px
on_team = seconds_on(team, lambda: area(team, curve, 500_000))

# %% [markdown]
# Ranks that are not in `team` sat out. Now all four take part:

# %%
# %%px
on_four = seconds_on(comm, lambda: area(comm, curve, 500_000))

# %% tags=["nbval-ignore-output"]
from course.lessons.shared.explained import why_longer, why_speedup
from course.lessons.shared.reference import reference
from mpi_classroom.launch import available_cores

cores = min(available_cores(), 4)
one, on_team, on_four = (cluster[name][0] for name in ("on_one", "on_team", "on_four"))
same = {cores: on_team, 4: on_four, 1: one}
for n, seconds in sorted(same.items()):
    speedup = one / seconds
    crowded = " (oversubscribed)" * (n > cores)
    print(
        f"{n} rank{'s' * (n > 1)}: {seconds:.3f} s, speed-up {speedup:.2f}, "
        f"efficiency {speedup / n:.0%}{crowded}"
    )
outcome("Speed-up of four ranks, same job?", one / on_four, because=why_speedup(one / on_four, 4, cores))
idle = reference("pi", "10,000,000 strips, pure Python: 2 ranks for 1")
print(
    "Reference machine, two otherwise idle cores, such a loop over 10⁷ strips: "
    f"2 ranks have a speed-up of {idle['ratio']:.2f}."
)

# %% [markdown]
# The **efficiency** is the speed-up divided by the number of ranks: 100% when n ranks are n times as fast as one. If yours
# is low with one rank per core, compare it with the last line, measured on two idle cores.

# %% [markdown] tags=["slide"]
# ## 6 · A larger job
#
# The second reason is a larger job: n times the strips on n ranks. How the time then changes is **weak scaling**:
# ideally, it stays the same. Here every rank gets half a million strips *of its own*.

# %%
predict("Four ranks, four times the strips: how many times as long as one rank?", None)

# %%
# %%px
on_team = seconds_on(team, lambda: area(team, curve, 500_000 * team.size))

# %%
# %%px
on_four = seconds_on(comm, lambda: area(comm, curve, 500_000 * size))

# %% [markdown]
# Left: strong scaling. Right: weak scaling. The percentage at each point is its efficiency. On the right, that is the time
# of one rank divided by the time of n.

# %% tags=["nbval-ignore-output"]
from course.lessons.l03_arctan_pi.figures import scaling

grown = {cores: cluster["on_team"][0], 4: cluster["on_four"][0], 1: one}
ratio = grown[4] / one
why = why_longer(ratio, 4, cores)
outcome("Four ranks, four times the strips: how many times as long as one rank?", ratio, because=why)
scaling(same, grown, cores=cores)

# %% [markdown]
# Both ideals end at one rank per core: beyond that, the same job gets no faster, and n times the job takes longer.
# Four ranks on two cores take at least twice as long.
#
# Strong scaling is the harder of the two. Each rank's part of the job shrinks, but the part that cannot be distributed
# does not. In our program the latter is one short `Reduce`; in training it can be long. When somebody says "it scales",
# ask which of the two is meant.

# %% [markdown] tags=["notes"]
# Ask for the numbers of a laptop with two cores and of one with eight. On both the same question: where does the time stop
# falling on the left, and where does it begin to rise on the right? At the number of cores. Two minutes.

# %% tags=["exercise: 03.q1"]

# %% [markdown] tags=["slide"]
# ## Key points
#
# - `range(rank, N, size)` distributes N items over any number of ranks: each item once, and counts that differ by at most
#   one.
# - A better formula first, then a faster program, then more ranks.
# - Strong scaling: the same job in less time. Weak scaling: a larger job in the same time.
#
# ## Discuss
#
# A training takes ten hours on one GPU, and you get eight GPUs. Finish the same training sooner, or train on eight times
# the data in ten hours? Which of the two will scale better, and why? Vote, discuss it in pairs, vote again.
#
# <details><summary>What to listen for</summary>The first is strong scaling: each GPU has an eighth of the work per step,
# and the messages do not shrink with it (every step, the GPUs exchange one number per weight). The second is weak scaling,
# and easier. But is more data what you need?</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more", "slide"]
# ## More
#
# ### 7 · The last digits
#
# We add up the same million terms of the series on 1, 2, 3 and 4 ranks. `arctan_pi` is section 2 with NumPy instead of the
# loop. How many different sums will come out?

# %%
predict("How many different sums on 1, 2, 3 and 4 ranks?", None)

# %%
# %%px
from course_lib.pi import arctan_pi

sums = []
for n in (1, 2, 3, 4):
    first = one_rank_per_core(comm, cores=n)  # the first n ranks
    if first != MPI.COMM_NULL:
        sums.append(arctan_pi(first, 1_000_000))

# %% tags=["nbval-ignore-output"]
from course_lib.pi import arctan_term

sums = cluster["sums"][0]
outcome("How many different sums on 1, 2, 3 and 4 ranks?", len(set(sums)))
exact = math.fsum(arctan_term(k) for k in range(1_000_000))  # exact additions, one rounding at the end
for n, total in enumerate(sums, 1):
    print(f"{n} rank{'s' * (n > 1)}: {total!r:18}  off from the exact sum by {total - exact:+.0e}")
print(f"π itself: {math.pi!r:17}  off from the exact sum by {math.pi - exact:+.0e}")

# %% [markdown]
# A computer rounds after every addition. With a different number of ranks, the same terms are added in a different order
# and rounded at different points. All four sums are right: which one comes closest is chance. The terms that we left out
# (10⁻⁶) matter far more than the rounding (at most about 10⁻¹⁴). So compare parallel results with a tolerance, never with
# `==`.

# %% tags=["exercise: 03.q2"]

# %% [markdown]
# You will meet rounding in training, too. In float32, the losses of two runs on different numbers of ranks differ in about
# the seventh digit after the first step. A difference in the third digit is not rounding. Look for a bug, unless the
# model has layers that depend on the number of ranks, such as dropout and batch normalisation.

# %% [markdown] tags=["slide"]
# ### 8 · The law behind weak scaling
#
# Amdahl's law (lesson 02) fixes the job: with more and more ranks the serial part is all that is left. Gustafson (1988)
# replied that people with more cores run larger jobs. Let s be the fraction of the time on n ranks during which only one
# rank works. Then, by **Gustafson's law**, n ranks do n − s·(n − 1) times the work that one rank does in the same time.

# %%
from course_lib.theory.scaling import amdahl_speedup, gustafson_speedup

for n in (2, 4, 64, 1024):
    same_job, larger_job = amdahl_speedup(0.05, n), gustafson_speedup(0.05, n)
    print(f"{n:4} ranks, 5% serial: the same job {same_job:5.2f}×, a larger job {larger_job:6.2f}×")

# %% [markdown]
# The two do not contradict each other: 5% of the time on *one* rank is not 5% of the time on 1024.

# %% [markdown] tags=["slide"]
# ### 9 · Workers on demand: `Spawn`
#
# So far our ranks were there before the program began. MPI can also start ranks *from* a running program. Then one process
# knows the size of the job, and has to tell the others: `Bcast` (lesson 04) copies an array from the root to all ranks.

# %% tags=["exercise: 03.2"]

# %% [markdown]
# Now the pair of programs from the article, repaired. First a worker, `cpi.py` in the article:

# %% tags=["source: course.lessons.l03_arctan_pi.pi_worker:work"]
# %%px

# %% [markdown]
# And the parent, which starts the workers. Parent and workers are connected by an **intercommunicator**, which has two
# groups. In every call with a root, each side says where the root is. The parent passes `root=MPI.ROOT`: "I am the root."
# The workers pass `root=0`: rank 0 of the other group.

# %% tags=["source: course.lessons.l03_arctan_pi.spawn:spawn_pi"]
# %%px

# %% [markdown]
# `Disconnect` waits until all messages have arrived, and separates the two sides. (The article prints `argos=` where `args=`
# belongs, and one copy of it lost `Disconnect`.) If a worker dies, its parent may wait for ever. So `spawned_pi` runs the
# parent in a process of its own, with a deadline. How long do two workers take, and one process with the *same* loop?

# %% tags=["nbval-ignore-output"]
import time

from course.lessons.l03_arctan_pi.spawn import spawned_pi

began = time.perf_counter()
midpoint_loop(10_000_000)
serial = time.perf_counter() - began
start_up, whole = spawned_pi(2, 1).seconds, spawned_pi(2, 10_000_000).seconds
print(f"10⁷ strips, 1 process           {serial:5.2f} s")
print(f"10⁷ strips, 2 spawned workers   {whole:5.2f} s: speed-up {serial / whole:.2f}")
print(f"of these, start and end         {start_up:5.2f} s (measured with 1 strip)")
print(f"10⁸ strips, 1 process           {10 * serial:5.1f} s, scaled from 10⁷")
print("10⁸ strips, 6 spawned workers    9.79 s, published; not run here")

# %% [markdown]
# The article compares its 9.79 s with the 59.8 s of the darts in lesson 02: two algorithms. The fourth line is the same
# algorithm in one process, but on your machine; the published time is from another. Each spawn costs a fixed time, which
# the third line shows. Spawning pays off for minutes of work, not for milliseconds.

# %% [markdown] tags=["slide"]
# ### 10 · The same in C and in R
#
# MPI is not tied to Python. `notebooks/code/arctan_pi.c` is the series in C. We run it with one term per rank, then with a
# million terms in strides. Without a compiler, the cell says so.

# %% tags=["nbval-ignore-output"]
from course.lessons.shared.programs import compile_c, run_program, why_no_c
from course.paths import BUILD, NOTEBOOKS

if reason := why_no_c():
    print("Skipped:", reason)
else:
    program = compile_c(NOTEBOOKS / "code" / "arctan_pi.c", BUILD / "arctan_pi")
    print(run_program(4, [program]))
    print(run_program(4, [program, "1000000"]))

# %% [markdown]
# And in R, from `notebooks/code/arctan_pi.R`, where the call is `mpi.reduce`. R's package Rmpi is usually built with the MPI
# of the operating system, which is not the one that our Python uses. Ranks of different MPIs cannot talk to each other,
# so `run_r` starts R's ranks with the system's `mpirun`.

# %% tags=["nbval-ignore-output"]
from course.lessons.l03_arctan_pi.rmpi import run_r, why_no_r

if reason := why_no_r():
    print("Skipped:", reason)
else:
    print(run_r(2, NOTEBOOKS / "code" / "arctan_pi.R", ["1000000"]))

# %% [markdown]
# Back to Python. Is this program right?

# %% tags=["exercise: 03.3"]

# %% [markdown]
# ## On GPUs
#
# The sum over a block of terms is one call of CuPy or PyTorch, with millions of terms per block. Use float64, which is slow
# on consumer GPUs. A GPU adds in yet another order. Where its threads add with atomic operations, the order changes from
# run to run, so even one GPU need not repeat its last digits.
#
# ## Pitfalls
#
# - The whole range on every rank: the result is `size` times too large. A test on a single rank does not show it.
# - `N // size` items per rank: the remainder is lost.
# - Comparing sums from different numbers of ranks with `==`.
# - Spawning from a process that must not die, or without `Disconnect`.
#
# ## References
#
# - J. Davis, [Large Scale Deep Learning Using the High-Performance Computing Libraries OpenMPI and
#   DeepSpeed](https://opendatascience.com/large-scale-deep-learning-using-the-high-performance-computing-libraries-openmpi-and-deepspeed/), ODSC, 2022: the parent, its worker, and the published times.
# - L. Dalcin and others, [MPI for Python: dynamic process management](https://mpi4py.readthedocs.io/en/stable/tutorial.html#dynamic-process-management).
# - J. Gustafson, [Reevaluating Amdahl's law](https://doi.org/10.1145/42411.42415), 1988.
# - D. Goldberg, [What every computer scientist should know about floating-point
#   arithmetic](https://doi.org/10.1145/103162.103163), 1991.
#
# ## Stretch
#
# Make the sum of section 7 bitwise equal on 1, 2, 3 and 4 ranks. (The order of additions must not depend on the ranks. Cut
# the terms into blocks, give whole blocks to ranks, collect one number per block on rank 0, and add those in the order of
# the blocks. What does it cost?)
