"""Denoise pages cut into strips.

Start it with one of these:

    mpiexec -n 4 python code/10_halo.py                     on this machine
    mpiexec -n 8 --hostfile hosts python code/10_halo.py    on the hosts that a file lists, over ssh
    sbatch -n 8 --wrap "mpiexec python code/10_halo.py"     under Slurm
"""

# %%
import sys
from pathlib import Path

import numpy as np
import torch
from mpi4py import MPI

torch.set_num_threads(1)

comm = MPI.COMM_WORLD
digits = np.load(Path(__file__).with_name("data") / "digits.npz")["train_images"]


def new_page(lines, number=0):  # (1, 1, 8 * lines, 8 * lines), from 0 (ink) to 1 (paper)
    chosen = digits[np.random.default_rng(number).integers(len(digits), size=(lines, lines))]
    return torch.tensor(1 - np.vstack([np.hstack(line) for line in chosen]) / 16)[None, None]


# %%
def swap(comm: MPI.Intracomm, up: torch.Tensor, down: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Send `up` above and `down` below, of one shape; return what came from above and below, or zeros."""
    above, below = (r if 0 <= r < comm.size else MPI.PROC_NULL for r in (comm.rank - 1, comm.rank + 1))
    from_above, from_below = up.new_zeros(up.shape), up.new_zeros(up.shape)
    comm.Sendrecv(up.detach().contiguous(), above, recvbuf=from_below, source=below)
    comm.Sendrecv(down.detach().contiguous(), below, recvbuf=from_above, source=above)
    return from_above, from_below


# %%
def with_ghost_rows(comm: MPI.Intracomm, x: torch.Tensor, width: int) -> torch.Tensor:
    """`x` (N, C, h, W) with `width` rows of both neighbours. Every rank needs h >= width."""
    top, bottom = swap(comm, x.narrow(2, 0, width), x.narrow(2, x.shape[2] - width, width))
    return torch.cat([top, x, bottom], dim=2)  # (N, C, width + h + width, W)


# %%
class GhostRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, comm, x, width):  # `apply` calls this on the way to the loss
        ctx.comm, ctx.width = comm, width  # ctx keeps them for backward
        return with_ghost_rows(comm, x, width)

    @staticmethod
    def backward(ctx, gradient):  # autograd, on the way back; `gradient`: d loss / d output of forward
        return None, return_ghost_rows(ctx.comm, gradient, ctx.width), None  # one per input


def convolve(comm, x, kernel):  # 5 × 5, across the cuts
    return torch.conv2d(GhostRows.apply(comm, x, 2), kernel, padding=(0, 2))


# %%
# The course's solution of exercise 10.3: yours takes its place when it is right.
def return_ghost_rows(comm, gradient, width):
    """The gradients of this rank's own rows; those of its ghosts go to the owners."""
    own = gradient[:, :, width:-width].clone()
    from_above, from_below = swap(comm, gradient[:, :, :width], gradient[:, :, -width:])
    own[:, :, :width] += from_above
    own[:, :, -width:] += from_below
    return own


# %%
def train(comm, tiles=comm.size, lines=12, pages=2, steps=40, dtype=torch.float64):
    torch.manual_seed(2)  # the same pages, noise and kernels on every rank
    clean = torch.cat([new_page(lines, number) for number in range(pages)]).to(dtype)
    noisy = clean + 0.4 * torch.randn_like(clean)  # in full; on a cluster, each rank reads its tile
    kernels = [torch.nn.Conv2d(*shape, 5, dtype=dtype).weight for shape in ((1, 8), (8, 1))]
    optimizer = torch.optim.Adam(kernels, lr=0.01)
    replica, replicas = comm.rank // tiles, comm.size // tiles  # tiles must divide comm.size
    team = comm.Split(replica)  # this replica's ranks; below: its pages, this rank's rows
    x, wanted = (each[replica::replicas].tensor_split(tiles, dim=2)[team.rank] for each in (noisy, clean))
    for _ in range(steps):
        cleaned = x - convolve(team, convolve(team, x, kernels[0]).relu(), kernels[1])
        loss = (cleaned - wanted).square().sum() / clean.numel()  # all pixels: so gradients add up
        optimizer.zero_grad()
        loss.backward()
        for kernel in kernels:
            comm.Allreduce(MPI.IN_PLACE, kernel.grad)  # over tiles and replicas
        optimizer.step()
    loss = comm.allreduce(loss.item())
    if comm.rank == 0:
        print(f"tiles: {tiles}, replicas: {replicas}, last loss {loss:.6f}")
    return wanted, x, cleaned.detach()  # this rank's strips


# %%
if __name__ == "__main__":
    clean, noisy, cleaned = train(comm, *(int(n) for n in sys.argv if n.isdigit()))  # an argument: tiles
