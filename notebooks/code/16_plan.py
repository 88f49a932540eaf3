"""Memory per GPU and step time of a plan.

Start it with one of these:

    mpiexec -n 4 python code/16_plan.py                     on this machine
    mpiexec -n 8 --hostfile hosts python code/16_plan.py    on the hosts that a file lists, over ssh
    sbatch -n 8 --wrap "mpiexec python code/16_plan.py"     under Slurm
"""

# %%
from mpi4py import MPI

rank = MPI.COMM_WORLD.rank
job = {"params": 6.9e9, "depth": 32, "width": 4096, "seq": 2048, "batch": 64}  # 64 sequences
# the usable part of an A100's 80 GB, 312 Tflop/s and 300 GB/s (NVLink)
node = {"gpus": 8, "capacity": 72e9, "rate": 218e12, "link": 235e9}
plans = {"data": {"data": 8}}  # an eighth of the batch
plans["ZeRO-3"] = {"data": 8, "zero": 3}  # an eighth of batch and model states
plans["pipeline"] = {"pipeline": 8}  # four of the 32 blocks
plans["tensor"] = {"tensor": 8}  # an eighth of every block


# %%
def memory(params, depth, width, seq, batch, data=1, zero=0, pipeline=1, tensor=1, microbatches=1, **_):
    """Return a dict of bytes on a first stage's GPU. `zero` is 0, 1 or 3; `**_` ignores other names."""
    mine = params / pipeline / tensor
    weights = 2 * mine / (data if zero == 3 else 1)
    gradients = weights
    optimizer = 12 * mine / (data if zero else 1)
    tokens = seq * batch / data / microbatches  # in a data rank's micro-batch
    held = min(pipeline, microbatches)  # micro-batches kept (1F1B)
    # MLP of 4 · width, FlashAttention, no dropout, no sequence parallelism
    activations = held * tokens * depth / pipeline * 2 * width * (4 + 12 / tensor)
    states = weights + gradients + optimizer
    total = states + activations
    return locals()  # arguments, too


# %%
# The course's solution of exercise 16.7: yours takes its place when it is right.
def step(
    params, depth, width, seq, batch, rate, link, data=1, zero=0, pipeline=1, tensor=1, microbatches=1, **_
):
    """Return a dict: `total` seconds per step and its parts."""
    tokens = seq * batch / data  # in a data rank's step
    # flop per token: 6 per parameter, and attention (no causal mask)
    computing = (6 * params + 12 * depth * width * seq) * tokens / pipeline / tensor / rate
    # 4 all-reduces per block; each sends 2 (t - 1) / t vectors of 2 * width bytes per token; none hidden
    tensor_messages = 4 * depth / pipeline * 2 * (tensor - 1) / tensor * 2 * width * tokens / link
    # stages wait while pipelines fill and drain (1F1B, equal stages; their messages left out)
    idle = (computing + tensor_messages) * (pipeline - 1) / microbatches
    # ring trips of 2-byte numbers: all-reduce 2 per step; ZeRO-3 3 per micro-batch (lesson 11)
    trips = 3 * microbatches if zero == 3 else 2
    data_messages = trips * 2 * params / pipeline / tensor * (data - 1) / data / link
    # ZeRO-3 sends during all computing; others in the last micro-batch's backward (2/3 of its computing)
    # (simplified: so does ZeRO-1's all-gather)
    cover = computing if zero == 3 else computing * 2 / 3 / microbatches
    exposed = max(0, data_messages - cover)
    total = computing + idle + tensor_messages + exposed
    return locals()


# %%
if __name__ == "__main__" and rank == 0:
    for name, microbatches in {"ZeRO-3": 8, "pipeline": 64, "tensor": 8}.items():
        part = step(**job | node | plans[name] | {"microbatches": microbatches})
        seconds = {of: round(part[of], 2) for of in ("computing", "idle", "tensor_messages", "total")}
        print(f"{name:8}", seconds)
