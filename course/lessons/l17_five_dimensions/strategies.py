"""Ways to split a training, each beside the same training in one process, and beside itself with a mistake.

    3 steps, float64      distributed  ─┐
                          one process  ─┴→  largest difference of any weight, over all ranks

python -m mpi_classroom.launch 4 -m course.lessons.l17_five_dimensions.strategies    prints all of 4 ranks

Each strategy trains a copy of one of two small models on the same batches and returns how far its weights
are from those of one process. A strategy that shards a weight is compared with the same shard. With its
mistake it has to be far from them: a comparison that passes everything would prove nothing.
"""

import argparse
import copy
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, cast
from unittest.mock import patch

import torch
from mpi4py import MPI
from torch import nn
from torch.nn import functional as F

from course_lib.comm.halo import return_halo
from course_lib.comm.regions import copy_to, reduce_from
from course_lib.fast.fused_halos import FusedHalos
from course_lib.parallel.context_parallel import ring_attention
from course_lib.parallel.data_parallel import GradientBucket
from course_lib.parallel.expert_parallel import Mixture, ParallelMixture
from course_lib.parallel.gems import place_replicas, sum_replicas
from course_lib.parallel.hybrid import Hybrid, Join, build_stage
from course_lib.parallel.parameter_server import make_server_step
from course_lib.parallel.pipeline import Modules, Neighbours, run_schedule, split_batch, split_layers
from course_lib.parallel.spatial_parallel import make_tiles, sum_over_tiles, tile_model, tile_of
from course_lib.parallel.tensor_parallel import (
    ColumnConv,
    ColumnLinear,
    ParallelTransformer,
    RowConv,
    RowLinear,
    vocabulary_cross_entropy,
)
from course_lib.parallel.zero3 import Zero3
from course_lib.theory.hybrid import HybridShape, StageShape
from course_lib.theory.partition import even_range
from course_lib.theory.schedules import (
    Schedule,
    gems_basic,
    gems_mast,
    gems_master,
    microbatch_count,
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


def data(comm: MPI.Intracomm) -> float:
    """Data parallelism by hand: one all-reduce of all gradients."""
    model = small_net()
    bucket = GradientBucket(model)
    step = make_step(model, summed_cross_entropy, sgd(model.parameters()), lambda: bucket.sum(comm))
    return after_shards(comm, step, model)


def server(comm: MPI.Intracomm) -> float:
    """A synchronous parameter server."""
    model = small_net()
    step = make_server_step(comm, model, summed_cross_entropy, sgd(model.parameters()))
    return after_shards(comm, step, model)


def after_shards(comm: MPI.Intracomm, step: Callable[[Batch], float], model: nn.Module) -> float:
    """Train `model` by `step` on this rank's shards, and compare."""
    for index in range(STEPS):
        step(shard_of_batch(comm, images(index)))
    return apart(model.parameters(), in_one_process(small_net()).parameters())


def zero(comm: MPI.Intracomm) -> float:
    """Stage 3 of ZeRO."""
    model = small_net()
    optimizer = Zero3(comm, model, partial(torch.optim.SGD, lr=0.1, momentum=0.9), layers=list(model))
    for index in range(STEPS):
        optimizer.zero_grad()
        batch = shard_of_batch(comm, images(index))
        (summed_cross_entropy(model(batch.inputs), batch.targets) / batch.global_size).backward()
        optimizer.step()
    with optimizer.full_weights():
        return apart(model.parameters(), in_one_process(small_net()).parameters())


# ---------------------------------------------------------------- the layers are split


def pipeline(make: Callable[[int], Schedule], comm: MPI.Intracomm) -> float:
    """Stages on ranks, run by a schedule for this many ranks."""
    mine = {(0, comm.rank): split_layers(small_net(), comm.size)[comm.rank]}
    train_stages(comm, make(comm.size), mine)
    return of_stages(mine, split_layers(in_one_process(small_net()), comm.size))  # type: ignore[arg-type]


def gems(make: Callable[[int], Schedule], comm: MPI.Intracomm) -> float:
    """Two replicas in opposite directions on the same ranks."""
    replicas = place_replicas(comm, split_layers(small_net(), comm.size))
    train_stages(comm, make(comm.size), replicas, lambda: sum_replicas(comm, replicas))
    return of_stages(replicas, split_layers(in_one_process(small_net()), comm.size))  # type: ignore[arg-type]


def train_stages(
    comm: MPI.Intracomm,
    schedule: Schedule,
    modules: Modules,
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


def of_stages(modules: Modules, trained: Sequence[nn.Module]) -> float:
    """How far this rank's stages are from the same ones of one process; 0 for stages without weights."""
    return max(
        (
            apart(module.parameters(), trained[stage].parameters())
            for (_, stage), module in modules.items()
            if list(module.parameters())
        ),
        default=0.0,
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


def trained_transformer(
    make: Callable[[Transformer], nn.Module], losses: Callable[..., torch.Tensor]
) -> nn.Module:
    """A small Transformer that `make` cut, after all steps; `losses` are of logits and targets."""
    sizes = {"vocabulary": 16, "length": 8, "width": 16, "heads": 4, "layers": 2}
    model = make(build_transformer(**sizes, seed=0).double())
    optimizer = sgd(model.parameters())
    for index in range(STEPS):
        optimizer.zero_grad()
        text = torch.randint(0, 16, (3, 9), generator=torch.Generator().manual_seed(index))
        losses(model(text[:, :-1]), text[:, 1:]).mean().backward()
        optimizer.step()
    return model


def transformer(comm: MPI.Intracomm) -> float:
    """Megatron's Transformer, with the tokens cut between its cut layers."""
    cut = partial(ParallelTransformer, comm, sequence=True)
    losses = partial(vocabulary_cross_entropy, comm)
    ours = trained_transformer(cut, lambda logits, targets: losses(logits, targets, 16))
    theirs = trained_transformer(
        lambda model: model,
        lambda logits, targets: F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none"),
    )
    return apart(ours.parameters(), cut(cast(Transformer, theirs)).parameters())


def ring(comm: MPI.Intracomm) -> float:
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


def spatial(fused: bool, comm: MPI.Intracomm) -> float:
    """Tiles as square as the ranks allow; halos layer by layer, or fused over four layers."""
    rows = next(n for n in range(int(comm.size**0.5), 0, -1) if comm.size % n == 0)
    tiles = make_tiles(comm, rows, comm.size // rows)

    def cut(net: nn.Module) -> nn.Module:
        layers = list(net.children())
        stack = nn.Sequential(*layers[:8])
        body = FusedHalos(tiles, stack) if fused else tile_model(tiles, copy.deepcopy(stack))
        return nn.Sequential(body, Join(tiles), copy.deepcopy(nn.Sequential(*layers[8:])))

    return cut_alike(cut, small_net(), partial(tile_of, tiles), lambda ours: sum_over_tiles(tiles, [ours]))


# ---------------------------------------------------------------- several at once


def hybrid(shape: HybridShape, comm: MPI.Intracomm) -> float:
    """A shape of `shape.ranks` ranks, with two micro-batches for each replica."""
    return max(off for off, _ in hybrid_by_stage(shape, comm).values())


def hybrid_by_stage(shape: HybridShape, comm: MPI.Intracomm) -> dict[int, tuple[float, float]]:
    """Of this rank's stages: how far weights are from one process's, and how far that moved them."""
    ours = Hybrid(comm, shape, cut_in(len(shape.stages), small_net()))
    optimizer = sgd(ours.parameters())
    for index in range(STEPS):
        optimizer.zero_grad()
        ours.step(images(index), summed_cross_entropy, microbatches=2)
        optimizer.step()
    before, after = small_net(), in_one_process(small_net())
    stages = {}
    for replica, group in ours.groups.items():
        cuts = (cut_in(len(shape.stages), net)[group.stage] for net in (before, after))
        first, last = (build_stage(group, stage) for stage in cuts)
        off = apart(ours.modules[replica].parameters(), last.parameters())
        stages[group.stage] = off, apart(first.parameters(), last.parameters())
    return stages


def cut_in(stages: int, net: nn.Module) -> list[nn.Module]:
    """`net` in one stage, or in two or three; the last begins where the image gets smaller."""
    layers = list(net.children())
    cuts = {1: [0, 13], 2: [0, 8, 13], 3: [0, 4, 8, 13]}[stages]
    return [nn.Sequential(*layers[begin:end]) for begin, end in pairwise(cuts)]


# ---------------------------------------------------------------- mistakes, one for each row


def nothing(*_: Any, **__: Any) -> None:
    """In place of a sum: none."""


def unchanged(comm: MPI.Intracomm, x: torch.Tensor) -> torch.Tensor:
    """In place of a collective: what this rank has."""
    return x


def by_own_size(batches: Any) -> Any:
    """The same batches, whose losses are divided by their own sizes and not by the global one."""
    if isinstance(batches, list):
        return [by_own_size(batch) for batch in batches]
    return Batch(batches.inputs, batches.targets, len(batches.targets))


def no_gradient(
    neighbours: Any, action: Any, other_stage: int, real: Any = Neighbours.receive
) -> torch.Tensor:
    """Activations as they come; in place of gradients, zeros."""
    got: torch.Tensor = real(neighbours, action, other_stage)
    return got if action.kind == "F" else torch.zeros_like(got)


def halved(comm: MPI.Intracomm, replicas: Any) -> None:
    """The mean of two replicas' gradients."""
    sum_of_replicas(comm, replicas)
    for parameter in (p for module in replicas.values() for p in module.parameters()):
        parameter.grad /= 2


def mean_over_tiles(tiles: Any, modules: Any) -> None:
    """The mean of the tiles' gradients."""
    sum_of_tiles(tiles, modules)
    for parameter in (p for module in modules for p in module.parameters()):
        parameter.grad /= tiles.comm.size


def only_own(comm: MPI.Intracomm, gradient: torch.Tensor, dim: int, halo: Any) -> torch.Tensor:
    """The gradients of own pixels; those of ghosts are lost."""
    with patch(
        "course_lib.comm.halo.exchange", lambda _, __, views, ___: [torch.zeros_like(v) for _, v in views]
    ):
        return return_halo(comm, gradient, dim, halo)


sum_of_replicas, sum_of_tiles, real_shard, real_split = (
    sum_replicas,
    sum_over_tiles,
    shard_of_batch,
    split_batch,
)

# ---------------------------------------------------------------- the table


@dataclass(frozen=True, slots=True)
class Strategy:
    """A row of the table: what it trains, a mistake in words and as a replacement, and on how many ranks."""

    name: str
    difference: Difference
    mistake: str
    replaces: str  # a name of this module, or one of `course_lib` with its module
    wrong: Callable[..., Any]
    ranks: tuple[int, ...] = (2, 3, 4)


HERE, LIBRARY = f"{__name__}.", "course_lib.parallel."
ONE, ROWS = StageShape(), StageShape(rows=2)
NOT_SUMMED = "replicas' gradients are not summed"
HY_FI = HybridShape((ROWS, ONE, ONE), data=2, replicas=2)
SUMS = ("sum_over_tiles", "sum_replicas", "sum_gradients")  # of a hybrid: tiles, directions, data ranks
STRATEGIES = (
    Strategy("data", data, "gradients are not summed", LIBRARY + "data_parallel.GradientBucket.sum", nothing),
    Strategy(
        "data, server",
        server,
        "a rank divides by its own samples",
        HERE + "shard_of_batch",
        lambda *given: by_own_size(real_shard(*given)),
    ),
    Strategy(
        "data, ZeRO stage 3",
        zero,
        "a rank divides by its own samples",
        HERE + "shard_of_batch",
        lambda *given: by_own_size(real_shard(*given)),
    ),
    Strategy(
        "layer",
        partial(pipeline, lambda p: gems_basic(p, 4)),
        "no gradient is sent back",
        LIBRARY + "pipeline.Neighbours.receive",
        lambda *given: no_gradient(*given),
    ),
    Strategy(
        "pipeline",
        partial(pipeline, lambda p: one_f_one_b(p, 4)),
        "a micro-batch divides by its own samples",
        HERE + "split_batch",
        lambda *given: by_own_size(real_split(*given)),
    ),
    Strategy("GEMS-MAST", partial(gems, gems_mast), NOT_SUMMED, HERE + "sum_replicas", nothing),
    Strategy(
        "GEMS-MASTER",
        partial(gems, lambda p: gems_master(p, 4)),
        "the mean over replicas, not the sum",
        HERE + "sum_replicas",
        halved,
    ),
    Strategy("sub-graph", sub_graphs, "branches are not summed", HERE + "reduce_from", unchanged),
    Strategy(
        "channel",
        channels,
        "inputs' gradients are not summed",
        LIBRARY + "tensor_parallel.copy_to",
        unchanged,
    ),
    Strategy(
        "tensor",
        tensor,
        "products are not summed",
        LIBRARY + "tensor_parallel.reduce_from",
        unchanged,
    ),
    Strategy(
        "tensor and sequence",
        transformer,
        "norms' gradients are not summed",
        LIBRARY + "tensor_parallel.copy_to",
        unchanged,
    ),
    Strategy(
        "sequence, ring",
        ring,
        "keys stay where they are",
        LIBRARY + "context_parallel.ring_shift",
        lambda comm, x, shape: x,
    ),
    Strategy(
        "expert",
        experts,
        "the router's gradients are not summed",
        LIBRARY + "expert_parallel.copy_to",
        unchanged,
    ),
    Strategy(
        "spatial",
        partial(spatial, False),
        "ghosts' gradients are lost",
        "course_lib.comm.halo.return_halo",
        only_own,
    ),
    Strategy(
        "spatial, fused halos",
        partial(spatial, True),
        "outside the image is not zero again",
        "course_lib.fast.fused_halos.zero_outside",
        lambda x, *_: x,
    ),
    Strategy(
        "hybrid: D&SP",
        partial(hybrid, HybridShape((ROWS,), data=2)),
        "the mean over tiles, not the sum",
        LIBRARY + "hybrid.sum_over_tiles",
        mean_over_tiles,
        (4,),
    ),
    Strategy(
        "hybrid: GEMS-Hybrid",
        partial(hybrid, HybridShape((ONE, ONE), data=2, replicas=2)),
        NOT_SUMMED,
        LIBRARY + "hybrid.sum_replicas",
        nothing,
        (4,),
    ),
    Strategy(
        "hybrid: Hy-Fi",
        partial(hybrid, HY_FI),
        "data ranks do not sum",
        LIBRARY + "hybrid.sum_gradients",
        nothing,
        (8,),
    ),
)


def measure(comm: MPI.Intracomm, strategy: Strategy, *, mistaken: bool = False) -> float:
    """The largest difference from one process, on all ranks of `comm` alike; with its mistake, if asked."""
    if not mistaken:
        return comm.allreduce(strategy.difference(comm), MPI.MAX)
    with patch(strategy.replaces, strategy.wrong):
        return comm.allreduce(strategy.difference(comm), MPI.MAX)


def main(arguments: Sequence[str]) -> None:
    """Rank 0 prints the rows that run on this many ranks, below a header, or Hy-Fi's stages without a sum."""
    parser = argparse.ArgumentParser(description="Compare ways to split a training with one process.")
    parser.add_argument("--omit", choices=SUMS, help="train Hy-Fi on 8 ranks without this sum")
    missing = parser.parse_args(arguments).omit
    comm = MPI.COMM_WORLD
    torch.set_num_threads(1)
    if missing:
        if comm.size != HY_FI.ranks:
            parser.error(f"--omit needs {HY_FI.ranks} ranks, not {comm.size}")
        without_sum(comm, missing)
        return
    if comm.rank == 0:
        print(f"a weight's largest difference from one process: below {ROUNDING:.0e} (equal), or off by …")
    for strategy in (one for one in STRATEGIES if comm.size in one.ranks):
        right, wrong = measure(comm, strategy), measure(comm, strategy, mistaken=True)
        if comm.rank == 0:
            verdicts = "equal" if right < ROUNDING else "DIFFERS", f"{wrong:.0e}"
            print(f"{strategy.name:21}{verdicts[0]:7} off by {verdicts[1]}: {strategy.mistake}", flush=True)


def without_sum(comm: MPI.Intracomm, name: str) -> None:
    """Rank 0 prints how far weights of each of Hy-Fi's stages are off, with all sums and without one."""
    right = comm.allgather(hybrid_by_stage(HY_FI, comm))
    with patch(f"{LIBRARY}hybrid.{name}", nothing):
        wrong = comm.allgather(hybrid_by_stage(HY_FI, comm))
    if comm.rank == 0:
        print(f"         largest change   all sums   without {name}")
        for stage in range(len(HY_FI.stages)):
            off, moved = (max(rank[stage][i] for rank in right if stage in rank) for i in (0, 1))
            mistaken = max(rank[stage][0] for rank in wrong if stage in rank)
            verdict = "equal" if off < ROUNDING else f"off by {off:.1g}"
            print(f"stage {stage}  {moved:10.1g} {verdict:>13}   off by {mistaken:.1g}")


if __name__ == "__main__":
    main(sys.argv[1:])
