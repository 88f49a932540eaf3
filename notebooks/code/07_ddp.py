"""DDP: trains a network on data/digits.npz, and saves it as 07_ddp.pt.

    mpiexec -n 4 python code/07_ddp.py
    torchrun --standalone --nproc-per-node 4 code/07_ddp.py
    Slurm: sbatch -n 4 --wrap "mpiexec python code/07_ddp.py"

Environment: IMAGES (the global batch), LR, EPOCHS.
"""

# %%
import atexit
import os
import socket
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)  # no mistake can hide behind rounding


# %%
if "RANK" not in os.environ:  # not torchrun
    from mpi4py import MPI

    comm, host = MPI.COMM_WORLD, socket.gethostname()
    with socket.create_server(("", 0)) as free:  # 0: any free port
        address, port = comm.bcast((host, free.getsockname()[1]))
    os.environ |= {"RANK": str(comm.rank), "WORLD_SIZE": str(comm.size), "MASTER_PORT": str(port)}
    os.environ["MASTER_ADDR"] = "localhost" if address == host else address
    os.environ["LOCAL_RANK"] = str(comm.Split_type(MPI.COMM_TYPE_SHARED).rank)  # on this machine
if not dist.is_initialized():
    dist.init_process_group("gloo")
    atexit.register(dist.destroy_process_group)
rank, size = dist.get_rank(), dist.get_world_size()


# %%
digits = np.load(Path(__file__).with_name("data") / "digits.npz")
images, new_images = (torch.from_numpy(digits[f"{part}_images"] / 16) for part in ("train", "test"))
labels, new_labels = (torch.from_numpy(digits[f"{part}_labels"]).long() for part in ("train", "test"))


def network():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


# %%
# The course's solution of exercise 07.1: yours takes its place when it is right.
def train(model, dataset, batch_size, epochs, lr=0.05):
    """Train `model` on all ranks, on `batch_size` images per step together."""
    replica = DistributedDataParallel(model)
    sampler = DistributedSampler(dataset, shuffle=True)
    loader = DataLoader(dataset, batch_size=batch_size // size, sampler=sampler)
    optimizer = torch.optim.SGD(replica.parameters(), lr=lr, momentum=0.9)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            F.cross_entropy(replica(inputs), targets).backward()
            optimizer.step()


# %%
def main(batch_size, lr, epochs):
    assert batch_size % size == 0, f"{size} ranks cannot share {batch_size} images equally"
    torch.manual_seed(rank)  # as in section 2
    model = network()
    train(model, TensorDataset(images, labels), batch_size, epochs, lr)
    if rank == 0:
        outputs = model.eval()(new_images).detach()  # a replica's forward may wait for all ranks
        loss = F.cross_entropy(outputs, new_labels)
        right = (outputs.argmax(1) == new_labels).double().mean()
        print(f"ranks: {size}, images per step: {batch_size}, loss {loss:.6f}, {right:.1%} right")
        torch.save(model.state_dict(), Path(__file__).with_suffix(".pt"))


if __name__ == "__main__":
    get = os.environ.get
    main(int(get("IMAGES", 120)), float(get("LR", 0.05)), int(get("EPOCHS", 5)))
    dist.barrier()  # no rank leaves while others still exchange
