"""Tensor parallelism by hand: trains on data/digits.npz a network whose middle is cut over the ranks.

Start it with one of these:

    mpiexec -n 4 python code/09_tensor.py                     on this machine
    mpiexec -n 8 --hostfile hosts python code/09_tensor.py    on the hosts that a file lists, over ssh
    sbatch -n 8 --wrap "mpiexec python code/09_tensor.py"     under Slurm
"""

# %%
from pathlib import Path

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
digits = np.load(Path(__file__).with_name("data") / "digits.npz")  # __file__: what the cell is saved to
images, new_images = (digits[f"{part}_images"].reshape(-1, 64) / 16 for part in ("train", "test"))
targets = np.eye(10)[digits["train_labels"]]  # 1 for the right digit, 0 for the others


# %%
def mlp_forward(comm: MPI.Comm, x: np.ndarray, up: np.ndarray, down: np.ndarray) -> list[np.ndarray]:
    """relu(x @ up) @ down, from our columns of `up` and rows of `down`: our hidden numbers, all of y."""
    hidden = np.maximum(x @ up, 0)
    y = hidden @ down
    comm.Allreduce(MPI.IN_PLACE, y)
    return [hidden, y]


# %%
def network(comm, weights, pixels):
    """Forward: what goes into the pair, its hidden numbers, and ten outputs per image."""
    first, up, down = weights
    x = np.maximum(pixels @ first, 0)
    return x, *mlp_forward(comm, x, up, down)


def gradients(comm, weights, pixels, targets):
    """Backward: the gradients of the loss, half the squared error per image, averaged over the images."""
    _, up, down = weights
    x, hidden, y = network(comm, weights, pixels)
    d_x, d_up, d_down = mlp_backward(comm, x, hidden, up, down, (y - targets) / len(pixels))
    return pixels.T @ (d_x * (x > 0)), d_up, d_down


# %%
WIDTH, HIDDEN = 54, 202  # numbers of `x` and of the hidden layer, per image


def new_weights(comm):
    """The matrix `first`, this rank's columns of `up`, and its rows of `down`."""
    draw = np.random.default_rng(0)
    shapes = (64, WIDTH), (WIDTH, HIDDEN), (HIDDEN, 10)
    first, up, down = (draw.normal(0, shape[0] ** -0.5, shape) for shape in shapes)
    mine = np.array_split(np.arange(HIDDEN), comm.size)[comm.rank]
    return first, up[:, mine], down[mine]


def train(comm):
    """Train on 400 batches of 100 images; return this rank's weights."""
    draw, weights = np.random.default_rng(1), new_weights(comm)
    for _ in range(400):
        batch = draw.integers(len(images), size=100)
        for weight, gradient in zip(weights, gradients(comm, weights, images[batch], targets[batch])):
            weight -= 0.1 * gradient
    return weights


# %%
def right(comm, weights):
    """How many new images the network reads correctly."""
    return np.count_nonzero(network(comm, weights, new_images)[-1].argmax(1) == digits["test_labels"])


def collected(comm, weights):
    """The complete matrices."""
    return weights[0], np.hstack(comm.allgather(weights[1])), np.vstack(comm.allgather(weights[2]))


# %%
# The course's solution of exercise 09.4: yours takes its place when it is right.
def mlp_backward(comm, x, hidden, up, down, d_y):
    """Gradients, from that of y: of x, and of this rank's columns of `up` and rows of `down`."""
    d_hidden = (d_y @ down.T) * (hidden > 0)
    d_up, d_down = x.T @ d_hidden, hidden.T @ d_y
    d_x = d_hidden @ up.T
    comm.Allreduce(MPI.IN_PLACE, d_x)
    return d_x, d_up, d_down


# %%
weights = collected(comm, train(comm))
if comm.rank == 0:
    n_right, one = right(MPI.COMM_SELF, weights), weights[0][20, 0]
    print(f"ranks: {comm.size}, a weight of `first`: {one:.9f}, {n_right} of 297 new images right")
