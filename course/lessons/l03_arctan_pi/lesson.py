# ---
# title: arctan π and quadrature
# goal: Share one sum among ranks, and find out when that pays.
# able:
#   - fit a line to a program's times, and predict from it when more ranks pay
#   - tell strong scaling from weak scaling
# more:
#   - start workers from a running program, and debug big jobs
#   - say which digits of a parallel result to compare, and when
# before: >-
#   {01}, {02}
# minutes: {core: 20, more: 25}
# ranks: 4
# warm-up:
#   - ask: Four ranks share a job. Which rank decides how long it takes?
#     answer: The slowest. The others must wait for its part.
#   - ask: You want an estimate from darts that is ten times better. How many darts does that take?
#     answer: A hundred times as many. The error is 1.64/√N.
#   - ask: On rank 2 of 4 ranks, which numbers does `range(rank, 12, size)` give?
#     answer: 2, 6 and 10.
# ---

# %% [markdown] tags=["slide"]
# ## 1 · Half of the strips each
#
# π = 4 arctan(1) is the area under 4/(1 + x²) from 0 to 1. **Quadrature** computes areas; its **midpoint rule** uses N strips of width h = 1/N, each as
# high as the curve above its middle.

# %%
# %%px --save 03_quadrature.py
"""Quadrature of π on any number of ranks, and how its time depends on the number of strips."""

from timeit import repeat

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD

# %% [markdown] tags=["subslide"]
# Of four ranks, rank 1 takes strips 1, 5, 9, … NumPy gets up to `block` of them at a time, to fit the cache:

# %% tags=["source: course_lib.pi:midpoint_part"]
# %%px --save 03_quadrature.py

# %% [markdown] tags=["subslide"]
# `Allreduce` adds up arrays as `allreduce` adds up numbers (lesson 02), but faster:


# %%
# %%px --save 03_quadrature.py
def pi(team, strips):
    """π on every rank of `team`; the ranks share the strips."""
    area = np.array(midpoint_part(strips, team.rank, team.size))
    team.Allreduce(MPI.IN_PLACE, area)  # the sum replaces each rank's part
    return float(area)


# %% [markdown]
# Ten times the darts brought half a digit of π (lesson 02). **Guess:** what do ten times the strips bring?

# %%
# %%px
for strips in (10, 100, 1_000):
    estimate = pi(comm, strips)
    if comm.rank == 0:
        print(f"{strips:5,} strips: {estimate:.12f}, off by {estimate - np.pi:.1e}")

# %% [markdown] tags=["subslide"]
# Two digits! What do they cost? Of many runs we keep the fastest: other work only adds time. Rank 0 does each job alone (`COMM_SELF`),
# then ranks 0 and 1 share it. `Split` gives them a communicator, and ranks 2 and 3 one of their own.


# %%
# %%px --save 03_quadrature.py
pair = comm.Split(comm.rank < 2)


def time_of(team, strips):
    """The time of the slowest rank of `team`, in the best of 1,000 runs."""
    best = min(repeat(lambda: pi(team, strips), number=1, repeat=1_000))
    return team.allreduce(best, op=MPI.MAX)


def one_and_two(jobs):
    """Seconds by number of strips: of one rank, and of two."""
    one = {strips: time_of(MPI.COMM_SELF, strips) for strips in jobs if comm.rank == 0}
    two = {strips: time_of(pair, strips) for strips in jobs if comm.rank < 2}
    return one, two


# %%
predict("1,000 strips: how many times as fast are two ranks?", None)

# %% [markdown]
# Six jobs:

# %%
# %%px --save 03_quadrature.py
one, two = one_and_two((1_000_000, 200_000, 100_000, 10_000, 1_000, 100))

# %% tags=["nbval-ignore-output"]
from course.lessons.l03_arctan_pi.figures import draw_times

one, two = cluster["one"][0], cluster["two"][0]
outcome("1,000 strips: how many times as fast are two ranks?", one[1_000] / two[1_000])
draw_times({"one rank": one, "two ranks": two})

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# Below 1: two ranks are *slower*! With so few strips, nearly all the time is calling NumPy and exchanging a number. With a million strips, two ranks are up to twice
# as fast, if each has a core.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 2 · A line
#
# Both curves begin flat, then rise. On log axes, a line from above 0 looks like that:
#
# **t = a + b · N / p**
#
# N strips on p ranks take t seconds. Each strip costs b. Without any strips, t would be a, which depends on p.

# %% tags=["exercise: 03.4"]

# %% [markdown] tags=["notes"]
# Nine minutes up to here, six for the exercise. The usual slip is to forget p: ask how many strips a rank has.

# %% [markdown] tags=["subslide"]
# A strip costs the same on either line, so we take one rank's b:

# %% tags=["nbval-ignore-output"]
# %%px --save 03_quadrature.py
if __name__ == "__main__" and comm.rank == 0:
    a_one, b = fit(one, 1)
    a_two, _ = fit(two, pair.size)
    print(f"pi = {pi(MPI.COMM_SELF, 200_000):.10f}, b = {1e9 * b:.2f} ns per strip")
    print(f"a = {1e6 * a_one:.1f} µs on one rank, {1e6 * a_two:.1f} µs on {pair.size}")

# %% [markdown] tags=["subslide"]
# Where do the two lines cross? Set them equal, and **predict** up to how many strips one rank wins.

# %%
predict("Up to how many strips is one rank faster?", None)

# %% [markdown] tags=["subslide"]
# Eight jobs in equal steps decide. Dashed: your lines.

# %%
# %%px
crossing = comm.bcast(2 * (a_two - a_one) / b if comm.rank == 0 else None)
step = 1_000 * max(round(crossing / 4_000), 1)
one_near, two_near = one_and_two(range(8 * step, 0, -step))

# %% tags=["nbval-ignore-output"]
one_near, two_near = cluster["one_near"][0], cluster["two_near"][0]
lost = [strips for strips in one_near if one_near[strips] <= two_near[strips]]
crossing = f"Your lines cross at {cluster['crossing'][0]:.0f}."
outcome("Up to how many strips is one rank faster?", min(one_near) * len(lost), because=crossing)

(a_one, b), (a_two, _) = fit(one, 1), fit(two, 2)
lines = {"one rank": (a_one, b), "two ranks": (a_two, b / 2)}
draw_times({"one rank": one_near, "two ranks": two_near}, lines)

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# The second rank *costs* a₂ − a₁: an exchange, and waiting. It *saves* b · N / 2. They are equal at N = 2 (a₂ − a₁) / b.
#
# </details>

# %% [markdown] tags=["subslide"]
# Your program fits a and b for any two cores. Run it alone, as on a cluster:

# %% tags=["nbval-ignore-output"]
# !mpiexec -n 2 python code/03_quadrature.py

# %% [markdown] tags=["slide"]
# ## 3 · Sooner, or more?
#
# Give two ranks twice the strips. **Predict:**

# %%
predict("200,000 strips on two ranks: times as long as 100,000 on one?", None)

# %% tags=["nbval-ignore-output"]
outcome("200,000 strips on two ranks: times as long as 100,000 on one?", two[200_000] / one[100_000])

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# Over 1, as a₂ > a₁, even if each rank has a core: each does 100,000. In **weak scaling** the job grows with p: N/p stays, t grows with a.
#
# </details>
#
# In **strong scaling** the job stays. Take 100,000 strips, b = 3 ns, and a = 50 µs, constant:

# %%
predict("How many times as fast as 2 ranks are 1,024?", None)

# %%
times = {ranks: 50e-6 + 3e-9 * 100_000 / ranks for ranks in (2, 16, 128, 1024)}
outcome("How many times as fast as 2 ranks are 1,024?", times[2] / times[1024], word="calculated")
draw_times({"100,000 strips": times}, x="ranks", kind="predicted")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# 4 times, not 512: N/p shrinks until only a is left. **Efficiency** is the speed-up over one rank, divided by p: below 1 % on 1,024.
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# | | what changes |
# |---|---|
# | a | about 2 µs per message with InfiniBand, 30 µs with TCP; about 10 in a row on 1,024 ranks |
# | b | far smaller on a busy GPU: more ranks pay only for larger jobs |
# | training on shards of a batch (lesson 06) | a is mostly adding up gradients (lesson 04) |

# %% tags=["exercise: 03.q3", "subslide"]

# %% [markdown] tags=["slide"]
# ## Key points
#
# - t = a + b · N / p. More ranks pay when b · N / p falls by more than a grows.
# - Strong scaling: same job, t falls until a is left. Weak scaling: the job grows with p.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# A slide says: "1,024 GPUs, efficiency 95 %." Your job takes an hour on 8 GPUs, and you need it in a minute. What do you ask first? (a) Which
# network? (b) Did the job grow? (c) Which precision?
#
# <details><summary>What to listen for</summary>(b). A larger job (batch) keeps GPUs busy. Yours needs at least 480, each with 1/60 of today's work: a may dominate.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# ### Who can be a rank?
#
# Often only one process knows how large the job is. In the first case all ranks run already, and rank 0 knows the number of strips. `Bcast` (lesson 04) copies
# an array from one rank, the root, to all:

# %% tags=["exercise: 03.2"]

# %% [markdown]
# `Spawn` starts ranks from a running program. An **intercommunicator** connects two groups, the parent and its workers; `rank` and `size` count only your own group. In a call with a root,
# the parent passes `root=MPI.ROOT`: "I am the root". The workers pass `root=0`: rank 0 of the other group. `Disconnect` separates the two sides when all
# messages have arrived. First the worker; `%%writefile` writes a cell to a file:

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
# The parent first does the job alone, with the same loop:

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
print(f"π ≈ {total:.9f}; {workers} workers: {MPI.Wtime() - began:.2f} s; one process: {alone:.2f} s")

# %% [markdown]
# **Predict:** will two workers be faster than one process, with a thousand strips and with twenty million? (The loop is pure Python: b is 100 to 300 ns.)

# %% tags=["nbval-ignore-output"]
# !mpiexec --timeout 100 -n 1 python code/spawn_pi.py 2 1000
# !mpiexec --timeout 100 -n 1 python code/spawn_pi.py 2 20000000

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# A thousand: slower. Twenty million: up to twice as fast, if each worker has a core and the parent a third. On two cores it gains less or nothing: the waiting parent polls, and that takes a core. It is the same line, with a large a: two Pythons start, import
# NumPy and connect. On a cluster, ask for slots for the workers, too; some sites forbid `Spawn`.
#
# The two programs are from an article (below), repaired. There, six workers took 9.79 s for 10⁸ strips, and that was compared with 59.8 s for darts: two algorithms. Ours compares
# one loop with itself.
#
# </details>
#
# A rank need not run Python, either: MPI sees arrays, whatever language made them. A program in C and one in R add up π = 4 − 4/3 + 4/5 − 4/7 + … . First each rank adds one
# term, then the ranks share a million. After N terms the sum is about 1/N off: how many ranks with one term each would it take to be off by only 10⁻⁶?
#
# R's package Rmpi is usually built with the MPI of the operating system, so `run_r` uses that MPI's `mpirun`.

# %%
from course.paths import BUILD, NOTEBOOKS

in_c, in_r = (NOTEBOOKS / "code" / f"arctan_pi.{language}" for language in ("c", "R"))
print(in_c.read_text(), in_r.read_text(), sep="\n")

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
# One term per rank takes a million ranks, so we share. One more function for the series:

# %% tags=["exercise: 03.3"]

# %% [markdown]
# ### Which digits may differ?
#
# We add up the same 100,000 strips on 1, 2, 3 and 4 ranks. `midpoint_loop` is `midpoint_part` without NumPy; `allreduce` adds up numbers and gives
# the sum to all ranks.

# %%
predict("How many different sums on 1, 2, 3 and 4 ranks?", None)

# %%
# %%px
from course_lib.pi import midpoint_loop

sums = []
for n in (1, 2, 3, 4):
    team = comm.Split(comm.rank < n)  # the first n ranks, and the rest
    sums.append(team.allreduce(midpoint_loop(100_000, team.rank, team.size)))

# %%
sums = cluster["sums"][0]
outcome("How many different sums on 1, 2, 3 and 4 ranks?", len(set(sums)))
print(*(f"ranks: {n}, {estimate:.15f}" for n, estimate in enumerate(sums, 1)), sep="\n")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# A computer rounds after every addition. More ranks add the same strips in a different order, so other sums are rounded. All sums are
# right: they share 14 digits, and the midpoint rule is further from π. If p differs, compare with a tolerance, not with `==`.
#
# </details>

# %% tags=["exercise: 03.q2"]

# %% [markdown]
# Is rounding as harmless in training? We train a network twice, from the same weights, on the same batches, the second time with each batch in reverse order. The loss of a batch is
# a mean over its images, so their order should not matter. **Predict** for float32, which has about seven digits: how many do the two losses share in step 1, and how many in step 300?

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
        print(f"{dtype}, step {step:3}: {there:.12f} {back:.12f}, difference {abs(there - back):.0e}")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# In step 1 the float32 losses agree in all, or nearly all, of their seven digits. Every later step starts from weights that differ a little, and the differences can *grow*: after 300 steps hardly a digit
# may agree. Nothing is wrong: both networks learn. In float64 about ten digits survive.
#
# So in float32 a different loss in step 300 proves nothing. To check a parallel program against one process, compare its first ten steps in float64: the same samples in equal parts, a small model, no dropout, no
# batch norm. There, a difference in the first ten digits is almost surely a bug. (Step 1 alone is not enough: its loss has seen no gradient.) Later, compare accuracy over several seeds.
#
# </details>

# %% [markdown]
# ## References
#
# - J. Davis, [Large Scale Deep Learning Using the High-Performance Computing Libraries OpenMPI and
#   DeepSpeed](https://opendatascience.com/large-scale-deep-learning-using-the-high-performance-computing-libraries-openmpi-and-deepspeed/), ODSC, 2022: parent, worker and the published times. The article prints `argos=` where
#   `args=` belongs, and one copy of it lost `Disconnect`.
# - L. Dalcin and others, [MPI for Python: dynamic process management](https://mpi4py.readthedocs.io/en/stable/tutorial.html#dynamic-process-management).
# - G. Amdahl, [Validity of the single processor approach](https://doi.org/10.1145/1465482.1465560), 1967: strong scaling. J. Gustafson, [Reevaluating Amdahl's
#   law](https://doi.org/10.1145/42411.42415), 1988: people with more processors run larger jobs.
# - D. Goldberg, [What every computer scientist should know about floating-point arithmetic](https://doi.org/10.1145/103162.103163), 1991.
