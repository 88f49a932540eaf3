"""Every way to split a training that the library has, beside the same training in one process.

    3 steps, float64      distributed  ─┐
                          one process  ─┴→  largest difference of any weight, over all ranks

python -m mpi_classroom.launch 4 -m course.lessons.l10_spatial_and_hybrid.strategies    prints all of them

Each strategy trains a copy of one of two small models on the same batches and returns how far its weights
are from those of one process. A strategy that shards a weight is compared with the same shard.
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from mpi4py import MPI
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

from course_lib.comm.regions import copy_to, reduce_from
from course_lib.fast.fused_halos import FusedHalos
from course_lib.parallel.context_parallel import ring_attention
from course_lib.parallel.data_parallel import GradientBucket
from course_lib.parallel.ddp import process_group, summing_ddp
from course_lib.parallel.dtensor_parallel import dtensor_loss_backward, dtensor_transformer
from course_lib.parallel.expert_parallel import Mixture, ParallelMixture
from course_lib.parallel.gems import place_replicas, sum_replicas
from course_lib.parallel.gradient_buckets import GradientBuckets
from course_lib.parallel.hybrid import Hybrid, Join
from course_lib.parallel.parameter_server import make_server_step
from course_lib.parallel.pipeline import Recomputed, run_schedule, split_batch, split_layers
from course_lib.parallel.spatial_parallel import make_tiles, sum_over_tiles, tile_model, tile_of
from course_lib.parallel.tensor_parallel import (
    ColumnConv,
    ColumnLinear,
    ParallelTransformer,
    RowConv,
    RowLinear,
    vocabulary_cross_entropy,
)
from course_lib.parallel.zero import Zero0, Zero1, Zero2, Zero3
from course_lib.theory.hybrid import HybridShape, StageShape
from course_lib.theory.partition import even_range
from course_lib.theory.schedules import (
    Schedule,
    gems_mast,
    gems_master,
    gpipe,
    interleaved_one_f_one_b,
    microbatch_count,
    naive,
    one_f_one_b,
)
from course_lib.training.loop import Batch, make_step, summed_cross_entropy
from course_lib.training.transformer import Transformer, build_transformer

STEPS, SAMPLES, CLASSES, SIDE = 3, 16, 4, 8
ROUNDING = 1e-10  # weights are about 0.1, in float64
Tensors = Iterable[torch.Tensor]
Difference = Callable[[MPI.Intracomm], float]  # of this rank's weights from one process's

# ---------------------------------------------------------------- the models and their batches


def images(step: int) -> Batch:
    """The global batch of a step: images (16, 2, 8, 8) and their classes."""
    generator = torch.Generator().manual_seed(step)
    pixels = torch.randn(SAMPLES, 2, SIDE, SIDE, generator=generator, dtype=torch.float64)
    return Batch(pixels, torch.arange(SAMPLES) % CLASSES, SAMPLES)


def small_net() -> nn.Sequential:
    """Four convolutions, and two fully connected layers."""
    torch.manual_seed(0)
    convolutions = [
        nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.Tanh())
        for inputs, outputs in ((2, 4), (4, 4), (4, 4), (4, 4))
    ]
    layers = [layer for pair in convolutions for layer in pair]
    head = [nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4 * 16, 8), nn.Tanh(), nn.Linear(8, CLASSES)]
    return nn.Sequential(*layers, *head).double()


def sgd(parameters: Tensors) -> torch.optim.Optimizer:
    """Plain SGD: a wrong factor in a gradient shows, which Adam would divide away."""
    return torch.optim.SGD([*parameters, torch.zeros(1)], lr=0.1, momentum=0.9)


def in_one_process(model: nn.Module) -> nn.Module:
    """`model`, trained."""
    step = make_step(model, summed_cross_entropy, sgd(model.parameters()))
    for index in range(STEPS):
        step(images(index))
    return model


def apart(ours: Tensors, theirs: Tensors) -> float:
    """The largest difference of two weights; infinite if there are none, or they are not alike in shape."""
    pairs = list(zip(ours, theirs, strict=True))
    alike = bool(pairs) and all(one.shape == other.shape for one, other in pairs)
    return max((a - b).abs().max().item() for a, b in pairs if a.numel()) if alike else torch.inf


# ---------------------------------------------------------------- the batch is split


def shard_of_batch(comm: MPI.Intracomm, batch: Batch) -> Batch:
    """This rank's samples."""
    mine = even_range(len(batch.targets), comm.size, comm.rank)
    part = slice(mine.start, mine.stop)
    return Batch(batch.inputs[part], batch.targets[part], batch.global_size)


def one_bucket(comm: MPI.Intracomm) -> float:
    """Data parallelism by hand: one all-reduce of all gradients."""
    model = small_net()
    bucket = GradientBucket(model)
    step = make_step(model, summed_cross_entropy, sgd(model.parameters()), lambda: bucket.sum(comm))
    return after_shards(comm, step, model)


def overlapped_buckets(comm: MPI.Intracomm) -> float:
    """Data parallelism whose buckets leave during backward."""
    model = small_net()
    buckets = GradientBuckets(comm, model, bucket_bytes=1000)
    step = make_step(model, summed_cross_entropy, sgd(model.parameters()), buckets.wait)
    found = after_shards(comm, step, model)
    buckets.close()
    return found


def pytorch_ddp(comm: MPI.Intracomm) -> float:
    """PyTorch's DistributedDataParallel, over MPI."""
    model = small_net()
    with process_group(comm, "mpi4py"):
        step = make_step(summing_ddp(model), summed_cross_entropy, sgd(model.parameters()))
        return after_shards(comm, step, model)


def server(comm: MPI.Intracomm) -> float:
    """A synchronous parameter server."""
    model = small_net()
    return after_shards(
        comm, make_server_step(comm, model, summed_cross_entropy, sgd(model.parameters())), model
    )


def after_shards(comm: MPI.Intracomm, step: Callable[[Batch], float], model: nn.Module) -> float:
    """Train `model` by `step` on this rank's shards, and compare."""
    for index in range(STEPS):
        step(shard_of_batch(comm, images(index)))
    return apart(model.parameters(), in_one_process(small_net()).parameters())


def zero(stage: type[Zero0 | Zero1 | Zero2 | Zero3], comm: MPI.Intracomm) -> float:
    """A stage of ZeRO."""
    model = small_net()
    layers = {"layers": list(model)} if stage is Zero3 else {}
    optimizer = stage(comm, model, partial(torch.optim.SGD, lr=0.1, momentum=0.9), **layers)  # type: ignore[arg-type]
    for index in range(STEPS):
        optimizer.zero_grad()
        batch = shard_of_batch(comm, images(index))
        (summed_cross_entropy(model(batch.inputs), batch.targets) / batch.global_size).backward()
        optimizer.step()
    theirs = in_one_process(small_net()).parameters()
    if isinstance(optimizer, Zero3):
        with optimizer.full_weights():
            return apart(model.parameters(), theirs)
    return apart(model.parameters(), theirs)


# ---------------------------------------------------------------- the layers are split


def pipeline(
    make: Callable[[int], Schedule],
    comm: MPI.Intracomm,
    chunks: int = 1,
    wrap: Callable[[nn.Module], nn.Module] = nn.Sequential,
) -> float:
    """Stages on ranks, run by a schedule for this many ranks."""
    stages = split_layers(small_net(), comm.size * chunks)
    mine = {(0, stage): wrap(stages[stage]) for stage in range(comm.rank, len(stages), comm.size)}
    train_stages(comm, make(comm.size), mine)
    trained = split_layers(in_one_process(small_net()), comm.size * chunks)  # type: ignore[arg-type]
    return of_stages(mine, trained)


def gems(make: Callable[[int], Schedule], comm: MPI.Intracomm) -> float:
    """Two replicas in opposite directions on the same ranks."""
    replicas = place_replicas(comm, split_layers(small_net(), comm.size))
    train_stages(comm, make(comm.size), replicas, lambda: sum_replicas(comm, replicas))
    return of_stages(replicas, split_layers(in_one_process(small_net()), comm.size))  # type: ignore[arg-type]


def train_stages(
    comm: MPI.Intracomm,
    schedule: Schedule,
    modules: dict[tuple[int, int], nn.Module],
    synchronize: Callable[[], None] = lambda: None,
) -> None:
    """All steps of `schedule`, each with an update."""
    optimizer = sgd(p for module in modules.values() for p in module.parameters())
    for index in range(STEPS):
        optimizer.zero_grad()
        parts = split_batch(images(index), microbatch_count(schedule))
        run_schedule(comm, schedule, modules, summed_cross_entropy, parts)
        synchronize()
        optimizer.step()


def of_stages(modules: dict[tuple[int, int], nn.Module], trained: Sequence[nn.Module]) -> float:
    """How far this rank's stages are from the same ones of one process; 0 for stages without weights."""
    return max(
        apart(module.parameters(), trained[stage].parameters())
        for (_, stage), module in modules.items()
        if list(module.parameters())
    )


class Branches(nn.Module):
    """The sum of branches, of which this rank computes its own: sub-graph parallelism."""

    def __init__(self, comm: MPI.Intracomm, branches: Sequence[nn.Module]) -> None:
        super().__init__()
        mine = even_range(len(branches), comm.size, comm.rank)
        self.comm = comm
        self.branches = nn.ModuleList(copy.deepcopy(branches[index]) for index in mine)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """All branches' sum, on every rank; one all-reduce forward, one backward."""
        x = copy_to(self.comm, x)
        return reduce_from(self.comm, torch.stack([branch(x) for branch in self.branches]).sum(0))


def sub_graphs(comm: MPI.Intracomm) -> float:
    """Branches of one layer on different ranks, as in an Inception block."""
    torch.manual_seed(1)
    branches = [nn.Conv2d(2, 3, kernel, padding="same") for kernel in (1, 3, 5, 7)]
    head = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE**2, CLASSES))
    whole = nn.Sequential(Branches(MPI.COMM_SELF, branches), head).double()

    def cut(model: nn.Module) -> nn.Module:
        return nn.Sequential(Branches(comm, model[0].branches), copy.deepcopy(model[1]))  # type: ignore[index]

    return cut_alike(cut, whole)


# ---------------------------------------------------------------- the layers' insides are split


def cut_alike(
    cut: Callable[[nn.Module], nn.Module],
    whole: nn.Module,
    mine: Callable[[torch.Tensor], torch.Tensor] = lambda x: x,
    synchronize: Callable[[nn.Module], None] = lambda ours: None,
) -> float:
    """Train `cut(whole)` on `mine` of each image; compare with the same cut of what one process trained."""
    ours = cut(whole)
    step = make_step(ours, summed_cross_entropy, sgd(ours.parameters()), lambda: synchronize(ours))
    for index in range(STEPS):
        batch = images(index)
        step(Batch(mine(batch.inputs), batch.targets, batch.global_size))
    return apart(ours.parameters(), cut(in_one_process(whole)).parameters())


def channels(comm: MPI.Intracomm) -> float:
    """Convolutions in pairs: the first cut by output channels, the second by input channels."""

    def cut(net: nn.Module) -> nn.Module:
        layers = list(copy.deepcopy(net).children())
        for index in (0, 4):
            layers[index] = ColumnConv(comm, layers[index])  # type: ignore[arg-type]
            layers[index + 2] = RowConv(comm, layers[index + 2])  # type: ignore[arg-type]
        return nn.Sequential(*layers)

    return cut_alike(cut, small_net())


def tensor(comm: MPI.Intracomm) -> float:
    """Two fully connected layers: columns, then rows."""

    def cut(net: nn.Module) -> nn.Module:
        *layers, column, between, row = copy.deepcopy(net).children()
        return nn.Sequential(*layers, ColumnLinear(comm, column), between, RowLinear(comm, row))  # type: ignore[arg-type]

    return cut_alike(cut, small_net())


def tokens(step: int) -> torch.Tensor:
    """Sequences (3, 9) of 16 different tokens."""
    return torch.randint(0, 16, (3, 9), generator=torch.Generator().manual_seed(step))


def trained_transformer(
    make: Callable[[Transformer], nn.Module], losses: Callable[..., torch.Tensor]
) -> nn.Module:
    """A small Transformer that `make` cut, after all steps; `losses` are of logits and targets."""
    sizes = {"vocabulary": 16, "length": 8, "width": 16, "heads": 4, "layers": 2}
    model = make(build_transformer(**sizes, seed=0).double())
    optimizer = sgd(model.parameters())
    for index in range(STEPS):
        optimizer.zero_grad()
        text = tokens(index)
        losses(model(text[:, :-1]), text[:, 1:]).mean().backward()
        optimizer.step()
    return model


def token_losses(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")


def transformer(sequence: bool, comm: MPI.Intracomm) -> float:
    """Megatron's Transformer; with `sequence`, what lies between the cut layers is cut along the tokens."""
    cut = partial(ParallelTransformer, comm, sequence=sequence)
    losses = partial(vocabulary_cross_entropy, comm)
    ours = trained_transformer(cut, lambda logits, targets: losses(logits, targets, 16))
    theirs = trained_transformer(lambda model: model, token_losses)
    return apart(ours.parameters(), cut(cast(Transformer, theirs)).parameters())


def dtensor(comm: MPI.Intracomm) -> float:
    """PyTorch's own tensor parallelism, over MPI."""
    with process_group(comm, "mpi4py"):
        mesh = init_device_mesh("cpu", (comm.size,))
        sizes = {"vocabulary": 16, "length": 8, "width": 16, "heads": 4, "layers": 2}
        ours = dtensor_transformer(mesh, build_transformer(**sizes, seed=0).double())
        optimizer = torch.optim.SGD(ours.parameters(), lr=0.1, momentum=0.9, foreach=False)
        for index in range(STEPS):
            optimizer.zero_grad()
            text = tokens(index)
            dtensor_loss_backward(ours(text[:, :-1]), text[:, 1:])
            optimizer.step()
        full = [p.full_tensor() if isinstance(p, DTensor) else p for p in ours.parameters()]
        return apart(full, trained_transformer(lambda model: model, token_losses).parameters())


def sequence_ring(comm: MPI.Intracomm) -> float:
    """Ring attention: outputs, and gradients of queries, keys and values."""
    generator = torch.Generator().manual_seed(0)
    whole = torch.randn(3, 2, 2, 12, 5, generator=generator, dtype=torch.float64).requires_grad_()
    expected = F.scaled_dot_product_attention(whole[0], whole[1], whole[2], is_causal=True)
    expected.square().sum().backward()
    mine = even_range(12, comm.size, comm.rank)
    part = slice(mine.start, mine.stop)
    ours = whole.detach()[..., part, :].clone().requires_grad_()
    mixed = ring_attention(comm, *ours)
    mixed.square().sum().backward()
    assert ours.grad is not None and whole.grad is not None
    return apart([mixed, ours.grad], [expected[..., part, :], whole.grad[..., part, :]])


def experts(comm: MPI.Intracomm) -> float:
    """Experts on different ranks, tokens too."""
    torch.manual_seed(0)
    nets = [nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4)) for _ in range(4)]
    whole = Mixture(4, nets).double()
    ours = ParallelMixture(comm, whole)
    optimizers = [sgd(net.parameters()) for net in (ours, whole)]
    mine = even_range(SAMPLES, comm.size, comm.rank)
    for index in range(STEPS):
        generator = torch.Generator().manual_seed(index)
        x = torch.randn(SAMPLES, 4, generator=generator, dtype=torch.float64)
        for net, optimizer, part in zip(
            (ours, whole), optimizers, (x[mine.start : mine.stop], x), strict=True
        ):
            optimizer.zero_grad()
            (net(part).square().sum() / SAMPLES).backward()
            optimizer.step()
    return apart(ours.parameters(), ParallelMixture(comm, whole).parameters())


def spatial(square: bool, fused: bool, comm: MPI.Intracomm) -> float:
    """Tiles: strips, or as square as the ranks allow; halos layer by layer, or fused over four layers."""
    rows = next(n for n in range(int(comm.size**0.5), 0, -1) if comm.size % n == 0) if square else comm.size
    tiles = make_tiles(comm, rows, comm.size // rows)

    def cut(net: nn.Module) -> nn.Module:
        layers = list(net.children())
        stack = nn.Sequential(*layers[:8])
        body = FusedHalos(tiles, stack) if fused else tile_model(tiles, copy.deepcopy(stack))
        return nn.Sequential(body, Join(tiles), copy.deepcopy(nn.Sequential(*layers[8:])))

    return cut_alike(cut, small_net(), partial(tile_of, tiles), lambda ours: sum_over_tiles(tiles, [ours]))


# ---------------------------------------------------------------- several at once


def hybrid(shape: HybridShape, comm: MPI.Intracomm) -> float:
    """A shape of `shape.ranks` ranks: two stages are the convolutions and the head."""
    ours = Hybrid(comm, shape, body_and_head(small_net(), len(shape.stages)))
    optimizer = sgd(ours.parameters())
    for index in range(STEPS):
        optimizer.zero_grad()
        ours.step(images(index), summed_cross_entropy, microbatches=2)
        optimizer.step()
    trained = body_and_head(in_one_process(small_net()), len(shape.stages))
    same_cut = {r: ours.build(group, trained[group.stage]) for r, group in ours.groups.items()}
    return max(apart(ours.modules[r].parameters(), same_cut[r].parameters()) for r in same_cut)


def body_and_head(net: nn.Module, stages: int) -> list[nn.Module]:
    """`net` in one stage or two; the second begins where the image gets smaller."""
    layers = list(net.children())
    return (
        [nn.Sequential(*layers)] if stages == 1 else [nn.Sequential(*layers[:8]), nn.Sequential(*layers[8:])]
    )


# ---------------------------------------------------------------- the table


@dataclass(frozen=True, slots=True)
class Strategy:
    """A row of the table: what is split, what is sent forward and per step, and on how many ranks it runs."""

    name: str
    splits: str
    sends: str
    difference: Difference
    ranks: tuple[int, ...] = (1, 2, 3, 4)


ONE, ROWS, SHARDS = StageShape(), StageShape(rows=2), StageShape(tensor=2)
MANY, STATE = "batch, optimizer state", "gradients, weights"
SHAPES = {
    "data × spatial (D&SP)": HybridShape((ROWS,), data=2),
    "data × pipeline": HybridShape((ONE, ONE), data=2),
    "data × tensor": HybridShape((SHARDS,), data=2),
    "GEMS-Hybrid: data × GEMS": HybridShape((ONE, ONE), data=2, replicas=2),
    "spatial × pipeline": HybridShape((ROWS, ROWS)),
    "spatial × tensor": HybridShape((StageShape(rows=2, tensor=2),)),
    "Hy-Fi without data": HybridShape((ROWS, SHARDS), replicas=2),
}
STRATEGIES = (
    Strategy("data, one all-reduce", "batch", "gradients", one_bucket),
    Strategy("data, overlapped buckets", "batch", "gradients", overlapped_buckets),
    Strategy("data, PyTorch's DDP", "batch", "gradients", pytorch_ddp),
    Strategy("data, parameter server", "batch", "gradients, weights", server),
    Strategy("ZeRO stage 0", "batch", "gradients", partial(zero, Zero0)),
    Strategy("ZeRO stage 1", "batch, optimizer state", STATE, partial(zero, Zero1)),
    Strategy("ZeRO stage 2", "batch, state, gradients", STATE, partial(zero, Zero2)),
    Strategy("ZeRO stage 3", "batch, state, gradients, weights", STATE, partial(zero, Zero3)),
    Strategy("layer (naive pipeline)", "layers", "activations", partial(pipeline, lambda p: naive(p, 1))),
    Strategy("pipeline, GPipe", "layers", "activations", partial(pipeline, lambda p: gpipe(p, 4))),
    Strategy("pipeline, 1F1B", "layers", "activations", partial(pipeline, lambda p: one_f_one_b(p, 4))),
    Strategy(
        "pipeline, recomputed",
        "layers",
        "activations",
        partial(pipeline, lambda p: one_f_one_b(p, 4), wrap=Recomputed),
    ),
    Strategy(
        "pipeline, interleaved",
        "layers",
        "activations",
        partial(pipeline, lambda p: interleaved_one_f_one_b(p, 2 * p, chunks=2), chunks=2),
    ),
    Strategy("GEMS-MAST", "layers, both ways", "activations, weight gradients", partial(gems, gems_mast)),
    Strategy(
        "GEMS-MASTER",
        "layers, both ways",
        "activations, weight gradients",
        partial(gems, lambda p: gems_master(p, 4)),
    ),
    Strategy("sub-graph", "branches of a layer", "activations", sub_graphs),
    Strategy("channel", "channels of convolutions", "activations", channels),
    Strategy("tensor, columns and rows", "weight matrices", "activations", tensor),
    Strategy("tensor, Transformer", "heads, weight matrices", "activations", partial(transformer, False)),
    Strategy("tensor, PyTorch's DTensor", "heads, weight matrices", "activations", dtensor, ranks=(1, 2, 4)),
    Strategy("tensor + sequence", "the same, and tokens", "activations", partial(transformer, True)),
    Strategy("sequence, ring attention", "tokens", "keys, values", sequence_ring),
    Strategy("expert", "experts, tokens", "tokens", experts),
    Strategy("spatial, strips", "image", "halos, weight gradients", partial(spatial, False, False)),
    Strategy("spatial, square tiles", "image", "halos, weight gradients", partial(spatial, True, False)),
    Strategy("spatial, fused halos", "image", "wide halos, weight gradients", partial(spatial, True, True)),
    *(
        Strategy(name, "two or more axes", "each axis its own", partial(hybrid, shape), ranks=(4,))
        for name, shape in SHAPES.items()
    ),
)


def measure(comm: MPI.Intracomm, strategy: Strategy) -> dict[int, float]:
    """The largest difference from one process by number of ranks, the same on all ranks of `comm`.

    The first n ranks of `comm` are a team for each n of `strategy.ranks` that is not larger than `comm`.
    """
    found: dict[int, float] = {}
    for n in (n for n in strategy.ranks if n <= comm.size):
        team = comm.Split(0 if comm.rank < n else MPI.UNDEFINED, comm.rank)
        mine = strategy.difference(cast(MPI.Intracomm, team)) if team != MPI.COMM_NULL else 0.0
        found[n] = comm.allreduce(mine, MPI.MAX)
    return found


def main() -> None:
    """Rank 0 prints the table: the largest difference on any number of ranks."""
    comm = MPI.COMM_WORLD
    for strategy in STRATEGIES:
        found = measure(comm, strategy)
        if comm.rank == 0 and found:
            print(f"{strategy.name:27}{strategy.splits:34}{strategy.sends:31}{max(found.values()):.0e}")


if __name__ == "__main__":
    main()
