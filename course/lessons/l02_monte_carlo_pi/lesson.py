# ---
# title: Monte Carlo π
# goal: You pay for four ranks instead of one. What do you get?
# able:
#   - judge an estimate by its errors, not by its looks
#   - use random numbers on many ranks
#   - compare a program's times on 1, 2 and 4 ranks
# more:
#   - say what a published speed-up compares
#   - say when a few measurements predict a thousand ranks, and when not
# before: >-
#   {01}
# minutes: {core: 20, more: 18}
# ranks: 4
# warm-up:
#   - ask: Four ranks divide ten items with `items[rank::4]`. Which items does rank 3 get?
#     answer: Items 3 and 7, counted from 0.
#   - ask: >-
#       `comm.Send` has returned. What do you know now?
#     answer: You may change your array again. You do not know whether anybody has received the message.
#   - ask: You change a variable in the kernel. What happens to the copy on rank 2?
#     answer: Nothing. Rank 2 has its own memory, so only a message could change its copy.
# ---

# %% [markdown] tags=["slide"]
# ## 1 · Darts
#
# Throw random darts at the unit square. Each lands inside the quarter circle with probability π/4, so 4 · hits / darts estimates π. This
# is a **Monte Carlo** method: it estimates a number from random samples.

# %%
# %%px --save 02_pi.py
"""Estimate π with darts, on any number of ranks."""

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD


def hits(rng, darts):
    """Throw `darts` darts at the unit square; return how many land in the quarter circle."""
    x, y = rng.random(darts), rng.random(darts)
    return np.count_nonzero(x * x + y * y <= 1)


def estimate(comm, rng, darts):
    """Estimate π from `darts` darts per rank of `comm`; every rank gets the result."""
    return 4 * comm.allreduce(hits(rng, darts)) / (darts * comm.size)


# %% [markdown]
# `allreduce` adds up the hits of all ranks. Four ranks throw 25,000 darts each:

# %%
# %%px
pi = estimate(comm, np.random.default_rng(0), 25_000)
if comm.rank == 0:
    print(f"π ≈ {pi:.5f}")

# %% [markdown] tags=["slide"]
# ## 2 · How good is it?
#
# 3.14384 looks like π, but one estimate can be lucky. So we make a thousand. First each rank works alone, with 25,000
# darts per estimate, then all four together, with 100,000.


# %%
# %%px
def errors(comm, rng):
    """Return the errors of 1,000 estimates, each from 25,000 darts per rank."""
    return [estimate(comm, rng, 25_000) - np.pi for _ in range(1_000)]


SEED = 0
alone = errors(MPI.COMM_SELF, np.random.default_rng(SEED))  # a communicator of this rank only
together = errors(comm, np.random.default_rng(SEED))

# %% [markdown]
# The standard deviation of these errors is the **standard error**: the size of a typical error. Four ranks throw four times as many darts. By which factor does the error change?

# %%
predict("Error of four ranks, if that of one is 1?", None)

# %%
import numpy as np

one, four = np.std(cluster["alone"][0]), np.std(cluster["together"][0])
print(f"one rank: typically off by {one:.4f}; four ranks: by {four:.4f}")
outcome("Error of four ranks, if that of one is 1?", four / one)

# %% [markdown]
# An unlucky seed? Change `SEED` and rerun from that cell. Then draw 40 darts of each rank. How many points will you see?

# %%
# %%px
dots = np.random.default_rng(SEED).random((2, 40))  # x and y

# %%
from course.lessons.l02_monte_carlo_pi.figures import draw_darts

draw_darts(cluster["dots"])

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# Each point has four colours, one per rank: all ranks threw the *same* darts, and we counted each dart four times.
#
# A random generator computes its numbers from a **seed**, and equal seeds give equal numbers. Our ranks' seeds were equal.
# One estimate, 3.14384, hid the mistake. The spread of a thousand shows it.
#
# </details>

# %% [markdown] tags=["notes"]
# Write the room's predictions on the board: 1/4, 1/2, 1. Those who say 1/2 know statistics; ask them what must be true of the darts.

# %% [markdown] tags=["slide"]
# ## 3 · A stream for every rank
#
# So each rank needs its own **stream**: a sequence of random numbers that is independent of the others. To repeat a run, you
# need the same streams again.

# %% tags=["exercise: 02.4"]

# %% [markdown] tags=["notes"]
# Six minutes. Most write `seed + comm.rank` first. It passes any test within one run. Let them run into the reply, which says when it fails:
# rank 1 with seed 0 throws the darts of rank 0 with seed 1.

# %% [markdown]
# And with your streams?

# %%
predict("Error of four ranks with your streams, if that of one is 1?", None)

# %%
# %%px
own = errors(comm, stream(comm, SEED))
dots = stream(comm, SEED).random((2, 40))

# %%
outcome("Error of four ranks with your streams, if that of one is 1?", np.std(cluster["own"][0]) / one)
draw_darts(cluster["dots"])

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# About half. Why only half? Independent errors partly cancel: one rank has too many hits, another too few. Their variances add, so the
# error of all hits is √4 = 2 times one rank's. We divide by four times as many darts: half remains.
#
# For N independent darts, the standard error is 1.64/√N, here 0.0052. (One dart counts 4 or 0, with a
# standard deviation of 1.64.)
#
# </details>

# %% [markdown] tags=["slide"]
# ## 4 · How much faster?
#
# If one rank's answer is good enough, how much sooner are four ranks done? `main` divides 512 blocks of 100,000 darts among the ranks, and gives each *block* its own stream.
# **Predict** the **speed-up** of two and of four ranks: one rank's time divided by theirs. (The line below Setup counts your cores.) And do their π agree?


# %% tags=["nbval-ignore-output"]
# %%px --save 02_pi.py
def main(blocks=512, darts=100_000):  # one array for all the darts would take too much memory
    streams = [stream(MPI.COMM_SELF, block) for block in range(comm.rank, blocks, comm.size)]  # its seed
    comm.Barrier()  # no rank starts before all have arrived
    start = MPI.Wtime()
    mine = sum(hits(rng, darts) for rng in streams)
    pi = 4 * comm.allreduce(mine) / (blocks * darts)  # waits for the slowest rank
    if comm.rank == 0:
        print(f"ranks: {comm.size}, π ≈ {pi:.5f}, time: {MPI.Wtime() - start:.2f} s")


if __name__ == "__main__":
    main()


# %% [markdown]
# That run used the notebook's ranks. Compare only the next three: they start fresh ranks.

# %% tags=["nbval-ignore-output"]
# !mpiexec -n 1 python code/02_pi.py
# !mpiexec -n 2 python code/02_pi.py
# !mpiexec -n 4 python code/02_pi.py

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# On two cores, two ranks take roughly half as long as one. Four gain little or nothing more, because each core runs two of them. On four free
# cores, they take about a quarter. What is your speed-up?
#
# The three π agree to the last digit: a block's darts are the same on any rank, and whole numbers add up exactly.
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# | | with 256 ranks, each on its own core |
# |---|---|
# | time | About 1/256, if shares are equal, memory and clock rate keep up, and throwing takes much longer than `allreduce` |
# | error | In the same time, 256 ranks throw 256 times the darts. With separate streams, the error is 16 times smaller |
# | seeds | Use `spawn`, not `seed + rank`: runs with seeds 0 and 1 would share 255 streams. Equal first weights need one seed |
# | training | With 256 times as many independent samples, a gradient's error is 16 times smaller (no batch norm). How many steps that saves depends on the batch size (lesson 05) |

# %% tags=["exercise: 02.q3", "subslide"]

# %% [markdown] tags=["slide"]
# ## Key points
#
# - Ranks with the same seed draw the same numbers, and one estimate does not show it.
# - For different numbers, spawn streams from one seed. Then four times the darts halve the error.
# - Independent work on n cores takes about 1/n of the time, if shares are equal, messages few, and memory and clock keep up.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# Your colleague's 16 ranks estimate π = 3.14159 in every run. For more digits, she wants 256 ranks. What do you ask to see first?
#
# <details><summary>What to listen for</summary>Equal runs may only show a fixed seed. Ask for each rank's hits: if they are equal, all
# ranks throw the same darts. An error of 0.000005 takes about 10¹¹ darts (1.64/√N), or luck. And 16 times the darts only quarter the
# error. One more digit takes 100 times as many darts.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more", "slide"]
# ## More
#
# If one rank alone needs the sum, you do not need `allreduce`. By default, **`Reduce`**
# adds up the arrays of all ranks and gives the sum to that one rank, the **root**. The next function adds up counts with `Reduce`.

# %% tags=["exercise: 02.3"]

# %% [markdown]
# ### Six times as fast as what?
#
# An article on MPI (Davis, see References) estimates π twice. Its first program throws 10⁸ darts and takes 59.8 s "on a single GPU". Its second program
# uses MPI on six processes and takes 9.79 s. The article calls that "almost 5x faster", but 59.8 / 9.79 is 6.1.
#
# Six processes, and more than six times as fast? Would you cite that? Let us first find out where the 59.8 s went. Here is the loop of the first
# program. We will run it on one process:

# %% tags=["source: course_lib.pi:sample"]

# %% [markdown]
# For every dart, Python looks up names, checks types and creates objects. All of that takes longer than the arithmetic. NumPy avoids it: one call
# works on a whole array, in compiled code. To **vectorise** a loop is to replace it by such calls.
#
# How fast can *one* process become? Each step changes little, so we can say what it gains. (The first also changes the generator.)

# %%
rng = np.random.default_rng(7)


def vectorised(darts):  # whole arrays, and NumPy's generator instead of Python's
    x, y = rng.uniform(-1, 1, size=(2, darts))
    return np.count_nonzero(np.hypot(x, y) <= 1)


def squares(darts):  # no hypot: it guards against overflow and takes a square root
    x, y = rng.uniform(-1, 1, size=(2, darts))
    return np.count_nonzero(x * x + y * y <= 1)


def blocks(darts, block=2**14):  # smaller arrays: they fit the core's cache, and memory is reused
    return sum(squares(min(block, darts - first)) for first in range(0, darts, block))


# %% [markdown]
# The last step comes from the course's library. `count_inside` draws only 16 random bits per coordinate instead of 53, because fewer bits cost less
# time. But then the darts can only land on a grid of 65,536 × 65,536 points.
#
# Does the grid spoil the estimate? It makes π too small by 0.0000009. But 10⁸ darts are typically off by 0.00016 anyway, more than a hundred times as
# much. So nobody would notice the grid.

# %% tags=["source: course_lib.pi:count_inside"]

# %% [markdown]
# Now we time all five programs on one process. The first step replaces the loop by whole arrays, with equally many darts. How many
# times as fast is it?

# %%
predict("How many times as fast as the loop are whole arrays?", None)

# %% tags=["nbval-ignore-output"]
import timeit

from course_lib.pi import count_inside


def seconds(function):
    """Seconds for 10⁸ darts: the fastest of three runs of 10⁶, times 100."""
    return 100 * min(timeit.repeat(lambda: function(1_000_000), number=1, repeat=3))


programs = {"the loop": sample, "arrays": vectorised, "no hypot": squares, "blocks": blocks}
programs["16 bits"] = lambda darts: count_inside(rng, darts)
times = {name: seconds(program) for name, program in programs.items()}
outcome("How many times as fast as the loop are whole arrays?", times["the loop"] / times["arrays"])
show(
    [{"labels": {"program": name}, "value": time} for name, time in times.items()],
    x="program",
    y="100 × time for 10⁶ darts",
)

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# Whole arrays are ten times as fast or more, because Python's checks now happen once per array, not once per dart. No later step gains as
# much, but the gains multiply. All four steps together make one process 50 to over 100 times as fast. Six processes can make the loop at most six
# times as fast.
#
# Ranks bring a further factor: on n free cores, n ranks can make the last program nearly n times as fast, because its arrays fit each core's cache. So make one process fast first, then add ranks.
#
# </details>
#
# And the article? Its first program is the loop above. Plain Python uses no GPU. Its MPI program throws no darts at all: it adds up the
# area under 4/(1 + x²), in a different loop (lesson 03 runs it). So two things changed at once: the method and the number of processes. Nobody can say
# how much of the 6.1 is due to MPI.
#
# Reports on training often change two things, too. What would you ask this team for?

# %% tags=["exercise: 02.q4"]

# %% [markdown]
# ### What will 1,024 ranks gain?
#
# Suppose you compare fairly: the same fast program on more and more ranks. How large can the speed-up become?
#
# Our darts were easy to distribute. Most jobs also have work that more ranks do not shorten, such as starting, reading the input or writing the result. The
# **serial fraction** s is this work's fraction of the time on one rank.
#
# Your job takes 100 minutes on one rank, and s is 5%. The other 95 minutes can be divided among as many ranks as you like. You ask for 1,024 ranks, for
# the same job. How many times as fast can it become?

# %%
predict("5% serial, 1024 ranks: what is the largest speed-up?", None)


# %%
def largest(s, n):
    """The largest speed-up on n ranks with the serial fraction s."""
    return 1 / (s + (1 - s) / n)


outcome("5% serial, 1024 ranks: what is the largest speed-up?", largest(0.05, 1024), word="computed")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# Not even 20. The 95 minutes shrink to less than 0.1, but the 5 minutes stay, and 100 / 5 is 20. So with s = 5%, no number of ranks gets to 20.
#
# This is **Amdahl's law**. On n ranks, the serial fraction s takes as long as before, and only the rest, 1 − s, is divided by n. So the speed-up is at
# most 1/(s + (1−s)/n), which stays below 1/s (if n ranks do the rest no more than n times as fast).
#
# </details>
#
# Everything depends on s. But who knows the s of a program? Karp and Flatt turn the formula around: measure the speed-up on a few ranks and compute s
# from it. Can the law then predict the speed-up on many?
#
# Say you measure 1.98 on 2 ranks, which is nearly perfect. What does the law then allow on 1,024?

# %%
predict("Speed-up 1.98 on 2 ranks: how much, at most, on 1024?", None)

# %% [markdown]
# How far can we trust the law's answer? If you repeat a measurement, the speed-up often changes by a few percent. So we also try two speed-ups close to
# 1.98, as if the same program had run three times. (All three are invented.)


# %%
def serial_fraction(speedup, n):
    """Solve speedup = 1 / (s + (1 - s) / n) for s."""
    return (1 / speedup - 1 / n) / (1 - 1 / n)


for speedup in (1.90, 1.98, 2.00):
    s = serial_fraction(speedup, 2)
    print(f"{speedup:.2f} on 2 ranks: s = {s:.3f}, so at most {largest(s, 1024):.0f} on 1024")
found = largest(serial_fraction(1.98, 2), 1024)
outcome("Speed-up 1.98 on 2 ranks: how much, at most, on 1024?", found, word="computed")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# A speed-up of 1.90 allows at most 19, 1.98 allows 90, and 2.00 allows 1,024. Why so different? On two ranks, an error of 1% in the speed-up changes s by
# about 0.01, and here s itself is about 0.01. So the measurement cannot tell whether there is any serial work, and on 1,024 ranks, s decides.
#
# </details>
#
# There is a second reason for doubt. The law assumes that only the serial work limits the speed-up. But ranks also exchange messages, and they wait for
# each other and for memory.
#
# You can test this: compute s for 4, 8 and 16 ranks, one per core. If s stays the same, the law fits so far. If s grows with the number of ranks, time goes into
# messages, waiting, unequal shares, memory or a lower clock rate, and Amdahl's law is the wrong model. So measure near your goal: predict 1,024 ranks from 256 and 512 on the same machine, not
# from 2.
#
# All this holds for a job that keeps its size. With more ranks, people often run a larger job. Lesson 03 measures what they gain then.

# %% [markdown]
# ## References
#
# - J. Davis, [Large Scale Deep Learning Using the High-Performance Computing Libraries OpenMPI and
#   DeepSpeed](https://opendatascience.com/large-scale-deep-learning-using-the-high-performance-computing-libraries-openmpi-and-deepspeed/), ODSC, 2022: the loop, the 59.8 s and the 9.79 s.
# - NumPy, [Parallel random number generation](https://numpy.org/doc/stable/reference/random/parallel.html).
# - G. Amdahl, [Validity of the single processor approach](https://doi.org/10.1145/1465482.1465560), 1967.
# - A. Karp and H. Flatt, [Measuring parallel processor performance](https://doi.org/10.1145/78607.78614), 1990.
