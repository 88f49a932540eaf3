# ---
# title: Monte Carlo π
# goal: Find out whether four ranks are four times as good as one.
# able:
#   - judge an estimate by its errors, not by its looks
#   - give every rank random numbers of its own
#   - compare a program's times on 1, 2 and 4 ranks
# more:
#   - say what a published speed-up compares
#   - say when a few measurements predict a thousand ranks, and when not
# before: >-
#   {01}
# minutes: {core: 20, more: 15}
# ranks: 4
# warm-up:
#   - ask: Four ranks divide ten items with `items[rank::4]`. Which items does rank 3 get?
#     answer: Numbers 3 and 7.
#   - ask: >-
#       `comm.Send` has returned. What do you know now?
#     answer: You may use your array again. The message may not have arrived yet.
#   - ask: You change a variable in the kernel. What happens to the copy on rank 2?
#     answer: Nothing. Only a message could change it.
# ---

# %% [markdown] tags=["slide"]
# ## 1 · Darts
#
# Throw random darts at the unit square. Each dart lands inside the quarter circle with probability π/4, so 4 · hits / darts estimates π.
# A method that estimates a number from random samples is called a **Monte Carlo** method.

# %%
# %%px --save 02_pi.py
"""Estimate π with darts, on any number of ranks."""

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD


def hits(rng, darts):
    """Count how many of `darts` random points of the unit square lie in the quarter circle."""
    x, y = rng.random(darts), rng.random(darts)
    return np.count_nonzero(x * x + y * y <= 1)


def estimate(comm, rng, darts):
    """Estimate π from `darts` darts per rank of `comm`; every rank gets the result."""
    return 4 * comm.allreduce(hits(rng, darts)) / (darts * comm.size)


# %% [markdown]
# `allreduce` gives every rank the sum of all counts. Four ranks throw 25,000 darts each:

# %%
# %%px
pi = estimate(comm, np.random.default_rng(0), 25_000)
if comm.rank == 0:
    print(f"π ≈ {pi:.5f}")

# %% [markdown] tags=["slide"]
# ## 2 · How good is it?
#
# It looks like π, but was that luck? We make a thousand estimates and look at their errors. First each rank works alone, with
# 25,000 darts per estimate. Then all four work together, with 100,000.


# %%
# %%px
def errors(comm, rng):
    """Return the errors of 1,000 estimates, each from 25,000 darts per rank."""
    return [estimate(comm, rng, 25_000) - np.pi for _ in range(1_000)]


SEED = 0
alone = errors(MPI.COMM_SELF, np.random.default_rng(SEED))  # a communicator of this rank only
together = errors(comm, np.random.default_rng(SEED))

# %% [markdown]
# The typical error is the standard deviation of the errors. Four ranks throw four times the darts of one rank. If the typical error of one rank is
# 1, what is theirs?

# %%
predict("Error of four ranks, if that of one is 1?", None)

# %%
import numpy as np

one = np.std(cluster["alone"][0])
four = np.std(cluster["together"][0])
print(f"one rank: typically off by {one:.4f}; four ranks: by {four:.4f}")
outcome("Error of four ranks, if that of one is 1?", four / one)

# %% [markdown]
# Why? Let us look at 40 darts of each rank:

# %%
# %%px
dots = np.random.default_rng(SEED).random((2, 40))  # x and y

# %%
from course.lessons.l02_monte_carlo_pi.figures import draw_darts

draw_darts(cluster["dots"])

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# Four ranks are no better than one. A random generator computes its numbers from a **seed**. All four ranks had the same seed, so they
# threw the *same* darts (four rings at each point), and we counted each dart four times. Our first estimate, 3.14384, looked good all the same.
#
# </details>

# %% [markdown] tags=["notes"]
# Write the room's predictions on the board: 1/4, 1/2, 1. Those who say 1/2 know statistics; ask them what must be true of the darts.

# %% [markdown] tags=["slide"]
# ## 3 · A stream for every rank
#
# Each rank needs its own **stream** of random numbers, independent of all other streams.

# %% tags=["exercise: 02.4"]

# %% [markdown] tags=["notes"]
# Six minutes. Most write `seed + comm.rank` first. It passes any test within one run; the reply says when it fails.

# %% [markdown]
# Now measure with your function.

# %%
predict("Error of four ranks with your streams, if it was 0.0106?", None)

# %%
# %%px
own = errors(comm, stream(comm, SEED))
dots = stream(comm, SEED).random((2, 40))

# %%
outcome("Error of four ranks with your streams, if it was 0.0106?", np.std(cluster["own"][0]))
draw_darts(cluster["dots"])

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# The error is halved. With N independent darts, an estimate is typically off by 1.64/√N. This is its **standard error**. So four times
# the darts make half the error.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 4 · How much faster?
#
# The last part of our program distributes 512 blocks of darts over its ranks. If two ranks share a core, they wait for each other. So the program
# prints two times of its slowest rank: seconds on the clock, and seconds of computing on a core.

# %% tags=["nbval-ignore-output"]
# %%px --save 02_pi.py
import time


def main(blocks=512, darts=100_000):
    rng = stream(comm)
    comm.Barrier()  # nobody goes on before all are here
    clock, core = MPI.Wtime(), time.process_time()
    mine = sum(hits(rng, darts) for _ in range(comm.rank, blocks, comm.size))
    core = comm.allreduce(time.process_time() - core, op=MPI.MAX)
    clock = comm.allreduce(MPI.Wtime() - clock, op=MPI.MAX)
    pi = 4 * comm.allreduce(mine) / (blocks * darts)
    if comm.rank == 0:
        print(f"ranks: {comm.size}, π ≈ {pi:.5f}, clock: {clock:.2f} s, on a core: {core:.2f} s")


if __name__ == "__main__":
    main()


# %% [markdown]
# Now one rank throws as many darts alone, then two ranks share them, then four. **Predict:** how does each of the two times change? The line
# below Setup counts your cores.

# %% tags=["nbval-ignore-output"]
# !mpiexec -n 1 python code/02_pi.py
# !mpiexec -n 2 python code/02_pi.py
# !mpiexec -n 4 python code/02_pi.py

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# Each of two ranks computes about half as long, and each of four a quarter. The clock's time falls only as far as you have cores: four ranks
# on two cores take about as long as two. (Any π is right to about 0.0002: other streams are other darts.)
#
# The **speed-up** of n ranks is one rank's time on the clock, divided by that of n ranks. What is yours?
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# | | with 256 ranks |
# |---|---|
# | time | with a core per rank, the same darts take about 1/256 of one rank's time |
# | error | in one rank's time, they throw 256 times the darts, and the error is 16 times smaller |

# %% tags=["exercise: 02.q3", "subslide"]

# %% [markdown] tags=["slide"]
# ## Key points
#
# - Ranks with the same seed draw the same numbers, and a single estimate does not show it.
# - Spawn one stream per rank from one seed. Then four times the darts halve the error.
# - Four ranks are nearly four times as fast if each has a core, an equal part of the work, and few messages.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# Your colleague's 16 ranks estimate π = 3.14159 in every run. Are you glad? What would you ask to see?
#
# <details><summary>What to listen for</summary>The seed is fixed, and that is good. But all 16 ranks may throw the same darts. Ask
# for each rank's count and the number of darts. Five correct decimals take about 10¹¹ darts, or luck.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more", "slide"]
# ## More
#
# ### How many darts can you count?
#
# **`Reduce`** adds up the arrays of all ranks and gives the sum to one rank only, the **root**. In a long run on many ranks, the sum below goes wrong.

# %% tags=["exercise: 02.3"]

# %% [markdown]
# ### Six times as fast as what?
#
# An article on MPI (Davis, below) estimates π with 10⁸ darts. This takes 59.8 s "on a single GPU". Then an MPI program on six processes takes
# 9.79 s, "almost 5x faster". What did MPI gain? We begin with the article's loop, on one process.

# %% tags=["source: course_lib.pi:sample"]

# %% [markdown]
# For every dart, Python looks up names, checks types and makes objects. NumPy computes whole arrays in compiled code instead. To
# **vectorise** a loop is to replace it by calls on whole arrays. Each function below changes *one* thing in the function before it. (Only
# the first changes two things, because arrays need NumPy's generator.)

# %%
from course_lib.pi import count_inside

rng = np.random.default_rng(7)


def vectorised(darts):  # whole arrays, and NumPy's generator instead of Python's
    x, y = rng.uniform(-1, 1, size=(2, darts))
    return np.count_nonzero(np.hypot(x, y) <= 1)


def squares(darts):  # no hypot, which takes care of overflow and takes a square root
    x, y = rng.uniform(-1, 1, size=(2, darts))
    return np.count_nonzero(x * x + y * y <= 1)


def blocks(darts, block=2**14):  # smaller arrays, which fit the core's own fast memory
    return sum(squares(min(block, darts - first)) for first in range(0, darts, block))


# %% [markdown]
# The last function comes from the course's library. It draws 16 random bits per coordinate instead of 53.
# So its darts land on a grid of 65,536 × 65,536 points. The grid makes π 9·10⁻⁷ too small, which is less than the error of 10⁸ darts.

# %% tags=["source: course_lib.pi:count_inside"]

# %% [markdown]
# The first step goes from the loop to whole arrays. How much faster is that?

# %%
predict("How many times as fast as the loop are whole arrays?", None)

# %% tags=["nbval-ignore-output"]
import timeit


def seconds(function):
    """Seconds for 10⁸ darts, from 10⁶: the fastest of three runs."""
    return 100 * min(timeit.repeat(lambda: function(1_000_000), number=1, repeat=3))


programs = {"the loop": sample, "arrays": vectorised, "no hypot": squares, "blocks": blocks}
programs["16 bits"] = lambda darts: count_inside(rng, darts)
times = {name: seconds(program) for name, program in programs.items()}
outcome("How many times as fast as the loop are whole arrays?", times["the loop"] / times["arrays"])
show(
    [{"labels": {"program": name}, "value": time} for name, time in times.items()],
    x="program",
    y="time for 10⁸ darts, from 10⁶",
)

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# With whole arrays, a single process is more than ten times as fast as with the loop. No further step gains as much. Ranks come on
# top: on n cores, n ranks can make the last program nearly n times as fast.
#
# </details>
#
# And the article? 59.8 / 9.79 is 6.1. But the loop is plain Python, which uses no GPU. And the MPI program throws no darts: it adds up
# the area under 4/(1 + x²), in a different loop (lesson 03 runs it). So two things changed at once, the method and the number of
# processes, and nobody can say what MPI gained.

# %% tags=["exercise: 02.q4"]

# %% [markdown]
# Now suppose that you run one program on more and more ranks. **What will 1,024 ranks gain?** Most jobs have work that more ranks do
# not shorten: starting, reading the input, writing the result. The fraction of the time that this work takes on one rank is called the
# **serial fraction** s. Suppose that s is 5%, and that the job keeps its size.

# %%
predict("5% serial, 1024 ranks: what is the largest speed-up?", None)


# %%
def largest(s, n):
    return 1 / (s + (1 - s) / n)


why = "However many ranks, it stays below 1/s = 20."
found = largest(0.05, 1024)
outcome("5% serial, 1024 ranks: what is the largest speed-up?", found, because=why, word="computed")

# %% [markdown]
# This is **Amdahl's law**: on n ranks, the serial fraction s stays, and the rest is divided by n. So the speed-up is at most
# 1/(s + (1−s)/n).
#
# Can a small measurement predict 1,024 ranks? Karp and Flatt solve the formula for s. So they compute s from a measured speed-up.

# %%
predict("Speed-up 1.98 on 2 ranks: how much, at most, on 1024?", None)

# %% [markdown]
# We invent three speed-ups on 2 ranks. Repeated runs of one program often differ as much:


# %%
def serial_fraction(speedup, n):
    return (1 / speedup - 1 / n) / (1 - 1 / n)


for speedup in (1.90, 1.98, 2.00):
    s = serial_fraction(speedup, 2)
    print(f"{speedup:.2f} on 2 ranks: s = {s:.3f}, so at most {largest(s, 1024):.0f} on 1024")
found = largest(serial_fraction(1.98, 2), 1024)
outcome("Speed-up 1.98 on 2 ranks: how much, at most, on 1024?", found, word="computed")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# The answer can be anything from 19 to 1,024. On two ranks, an error of 1% in the speed-up changes s by about 0.01.
#
# </details>
#
# The law also assumes that nothing but the serial part limits the speed-up. To test this, compute s for 2, 4 and 8 ranks, one per core. If s
# grows, time goes into messages, or into waiting for ranks or for memory. Then Amdahl's law is the wrong model.
#
# And measure near your goal: predict 1,024 ranks from 256 and 512, not from 2.

# %% [markdown]
# ## References
#
# - J. Davis, [Large Scale Deep Learning Using the High-Performance Computing Libraries OpenMPI and
#   DeepSpeed](https://opendatascience.com/large-scale-deep-learning-using-the-high-performance-computing-libraries-openmpi-and-deepspeed/), ODSC, 2022: the loop, the 59.8 s and the 9.79 s.
# - NumPy, [Parallel random number generation](https://numpy.org/doc/stable/reference/random/parallel.html).
# - G. Amdahl, [Validity of the single processor approach](https://doi.org/10.1145/1465482.1465560), 1967.
# - A. Karp and H. Flatt, [Measuring parallel processor performance](https://doi.org/10.1145/78607.78614), 1990.
