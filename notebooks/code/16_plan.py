"""Which plan, on which machine? One page of arithmetic; it needs no GPU.

Start it with one of these:

    mpiexec -n 4 python code/16_plan.py                     on this machine
    mpiexec -n 8 --hostfile hosts python code/16_plan.py    on the hosts that a file lists, over ssh
    sbatch -n 8 --wrap "mpiexec python code/16_plan.py"     under Slurm
"""

# %%
from mpi4py import MPI

rank = MPI.COMM_WORLD.rank
job = {"params": 6.9e9, "depth": 32, "width": 4096, "seq": 2048, "batch": 64}  # seq: in tokens
node = {"gpus": 8, "room": 72e9, "rate": 218e12, "link": 235e9}  # bytes, flop/s, bytes/s


# %%
def memory(params, depth, width, seq, batch, data=1, zero=0, pipeline=1, tensor=1, microbatches=1, **_):
    """The bytes on the fullest GPU, every number by its name."""
    mine = params / pipeline / tensor
    weights = 2 * mine / (data if zero == 3 else 1)
    gradients = 2 * mine / (data if zero >= 2 else 1)
    optimizer = 12 * mine / (data if zero >= 1 else 1)
    sequences = batch / data / microbatches
    held = min(pipeline, microbatches)  # micro-batches that wait for backward on the first stage (1F1B)
    activations = held * sequences * seq * depth / pipeline * 2 * width * (4 + 12 / tensor)
    total = weights + gradients + optimizer + activations
    return locals()


# %%
# The course's solution of exercise 16.7: yours takes its place when it is right.
def step(
    params, depth, width, seq, batch, rate, link, data=1, zero=0, pipeline=1, tensor=1, microbatches=1, **_
):
    """The seconds of a step at best, every number by its name."""
    computing = 6 * params * seq * batch / data / pipeline / tensor / rate
    # 4 all-reduces per block, each sends 2 (t - 1) / t of the activations
    inside = 4 * depth / pipeline * 2 * (tensor - 1) / tensor * 2 * width * seq * batch / data / link
    idle = (computing + inside) * (pipeline - 1) / microbatches
    rounds = (2, 2, microbatches + 1, 3 * microbatches)[zero]  # per ZeRO stage 0-3: numbers' journeys
    sums = rounds * 2 * params / pipeline / tensor * (data - 1) / data / link
    last = 2 / 3 / microbatches  # backward of the last micro-batch, as a part of computing
    behind = computing * (last, last, 2 / 3, 1)[zero]  # last backward, last, all backwards, everything
    left = max(0, sums - behind)
    total = computing + idle + left + inside
    return locals()


# %%
if __name__ == "__main__" and rank == 0:
    for name, plan in (
        ("ZeRO-3", {"data": 8, "zero": 3, "microbatches": 8}),
        ("pipeline", {"pipeline": 8, "microbatches": 64}),
        ("tensor", {"tensor": 8, "microbatches": 8}),
    ):
        gigabytes, seconds = memory(**job, **plan)["total"] / 1e9, step(**job, **node, **plan)["total"]
        print(f"{name:9}{gigabytes:5.1f} GB {seconds:5.2f} s")
