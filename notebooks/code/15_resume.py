"""A training that resumes.

mpiexec -n 4 python -m mpi4py 15_resume.py FOLDER    # -m mpi4py: an error ends all ranks
"""

# %%
import io
import os
import signal
import sys
import tempfile
from pathlib import Path

import torch
from mpi4py import MPI
from torch import nn

comm = MPI.COMM_WORLD


# %%
# The course's solution of exercise 15.1: yours takes its place when it is right.
def atomic_save(path: Path, data: bytes) -> None:
    """Write beside the old file, wait for the disk, take the name, wait again."""
    aside = path.with_name(path.name + ".new")
    with open(aside, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())  # the bytes, before a name points to them
    os.replace(aside, path)
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)  # wait until the disk has the new name
    os.close(folder)


# %%
asked = []  # filled by a signal
_ = signal.signal(signal.SIGUSR1, lambda *_: asked.append(True))


# %%
def train(path, steps=60, every=20):
    """Resume from `path` if it exists; yield after each step."""
    torch.manual_seed(0)  # the same weights on every rank
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1)).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    done, stop = 0, False
    if comm.bcast(path.exists()):  # only rank 0's answer counts; it reads for all
        done, weights, state = comm.bcast(torch.load(path) if comm.rank == 0 else None)
        model.load_state_dict(weights)
        optimizer.load_state_dict(state)
    while done < steps and not stop:
        x = torch.randn(128, 8, generator=torch.manual_seed(done))[comm.rank :: comm.size].double()
        loss = (model(x) - x[:, :1] * x[:, 1:2]).square().sum() / 128  # it learns to multiply
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            comm.Allreduce(MPI.IN_PLACE, parameter.grad.numpy())
        optimizer.step()
        yield (done := done + 1), comm.allreduce(loss.item())
        stop = comm.allreduce(len(asked)) > 0
        if comm.rank == 0 and (stop or done % every == 0):
            torch.save([done, model.state_dict(), optimizer.state_dict()], file := io.BytesIO())
            atomic_save(path, file.getvalue())


# %%
SLURM = """
sbatch -n 64 --time=1:00:00 --requeue --open-mode=append --signal=B:USR1@60 --wrap '
    stop() { kill -USR1 $!; again=1; }; trap stop USR1
    mpiexec python -m mpi4py code/15_resume.py FOLDER & wait $! || wait $!
    code=$?; if [ $again ]; then scontrol requeue $SLURM_JOB_ID; fi; exit $code'
"""


# %%
if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:  # if no FOLDER is given
        losses = dict(train(Path(sys.argv[1] if len(sys.argv) == 2 else scratch, "training.pt")))
    if comm.rank == 0 and losses:  # none if the training was complete
        print(f"ranks: {comm.size}, steps {min(losses)} to {max(losses)}, loss {losses[max(losses)]:.6f}")
