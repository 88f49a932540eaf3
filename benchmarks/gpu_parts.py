"""What `benchmarks.gpu` measures, part by part: each runs in processes of its own.

    python -m benchmarks.gpu_parts synthetic --device cuda

A part is a generator of rows. It needs torch, numpy and what this project's wheels bring, no network and no
data. `small`: sizes for a test on a CPU, whose numbers say nothing.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import pairwise, product
from typing import Any

import torch
from mpi4py import MPI
from torch import nn
from torch.nn import functional as F

from benchmarks.gpu import MARK, missing
from course.lessons.l16_choose_your_strategy.planner.memory import memory_of
from course.lessons.l16_choose_your_strategy.planner.models import TransformerShape
from course.lessons.l16_choose_your_strategy.planner.plan import Plan
from course_lib.rows import Label, Row, predicted, published
from course_lib.training.memory_use import LiveBytes
from course_lib.training.transformer import build_transformer

HOROVOD = "the published synthetic benchmark, one GPU"


class NotHere(Exception):
    """This machine lacks what a part needs; the sentence says what."""


# ---------------------------------------------------------------- what all parts use


class Bottleneck(nn.Module):
    """ResNet's block of three convolutions (He and others 2016, with the stride in the second)."""

    def __init__(self, maps_in: int, maps: int, stride: int) -> None:
        super().__init__()
        inner = [_convolution(maps_in, maps, 1), nn.ReLU(), _convolution(maps, maps, 3, stride), nn.ReLU()]
        self.layers = nn.Sequential(*inner, _convolution(maps, 4 * maps, 1))
        same = stride == 1 and maps_in == 4 * maps
        self.shortcut = nn.Identity() if same else _convolution(maps_in, 4 * maps, 1, stride)

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        return (self.layers(maps) + self.shortcut(maps)).relu()


def _convolution(maps_in: int, maps: int, size: int, stride: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(maps_in, maps, size, stride, size // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(maps))


def resnet50(width: int = 64, classes: int = 1000) -> nn.Module:
    """ResNet-50: with 64 maps and 1,000 classes it has 25,557,032 parameters."""
    blocks, maps_in = [], width
    for stage, count in enumerate((3, 4, 6, 3)):
        for block in range(count):
            blocks.append(Bottleneck(maps_in, width << stage, 2 if stage and not block else 1))
            maps_in = 4 * (width << stage)
    stem = [*_convolution(3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(maps_in, classes))


def images_per_second(
    device: torch.device,
    batch: int,
    side: int,
    *,
    small: bool,
    readings: int = 10,
    exchange: Callable[[nn.Module], object] | None = None,
) -> list[float]:
    """Readings of one process's images per second: 10 batches to warm up, then 10 batches a reading.

    `exchange` is called between backward and the update.
    """
    model = resnet50(8 if small else 64).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images = torch.randn(batch, 3, side, side, device=device)
    labels = torch.randint(1000, (batch,), device=device)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        if exchange is not None:
            exchange(model)
        optimizer.step()

    batches = 1 if small else 10
    times = [_now(device)]
    for reading in range(1 + (2 if small else readings)):
        for _ in range(batches):
            step()
        times.append(_now(device))
        if not reading:
            times = times[-1:]  # that was the warm-up
    return [batches * batch / (end - start) for start, end in pairwise(times)]


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def rate_row(readings: list[float], **labels: Label) -> Row:
    """The median of the readings, and the least and the greatest."""
    return Row(labels, statistics.median(readings), min(readings), max(readings), "images/s")


# ---------------------------------------------------------------- the parts


def device(device: torch.device, small: bool) -> Iterator[Row]:
    """Which device this is, and how much memory it has."""
    if device.type == "cuda":
        facts = torch.cuda.get_device_properties(device)
        name, nbytes = facts.name, facts.total_memory
    else:
        name, nbytes = "CPU", os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    versions = {"torch": torch.__version__, "cuda": str(torch.version.cuda)}
    yield Row({"case": "memory", "name": name, **versions}, nbytes, nbytes, nbytes, "bytes")


def synthetic(device: torch.device, small: bool) -> Iterator[Row]:
    """ResNet-50 on random images by Horovod's protocol, beside the published rate."""
    batch, side = (2, 32) if small else (32, 224)
    yield rate_row(
        images_per_second(device, batch, side, small=small), case="ResNet-50", batch=batch, side=side
    )
    yield published(334.0, source=HOROVOD, unit="images/s", case="ResNet-50", batch=32, side=224)


def throughput(device: torch.device, small: bool) -> Iterator[Row]:
    """Images per second against batch and image size, until memory is out."""
    for batch, side in [(2, 32), (2, 48)] if small else product((8, 32, 128), (32, 128, 256)):
        labels: dict[str, Label] = {"case": "ResNet-50", "batch": batch, "side": side}
        try:
            yield rate_row(images_per_second(device, batch, side, small=small, readings=3), **labels)
        except torch.OutOfMemoryError as reason:
            torch.cuda.empty_cache()
            yield missing(f"out of memory: {str(reason).splitlines()[0]}", **labels)


def sharing(device: torch.device, small: bool) -> Iterator[Row]:
    """Several processes on one device that add up their gradients by our backend, staged through the CPU.

    All ranks run it; the rate is that of all of them. AccDP (Alnaasan and others) published up to 62 % more
    than one process, for images of 256 × 256.
    """
    import torch_mpi4py

    torch_mpi4py.init_process_group()
    comm = MPI.COMM_WORLD

    def exchange(model: nn.Module) -> None:
        gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients]).cpu()
        torch.distributed.all_reduce(flat)
        flat = (flat / comm.size).to(device)
        for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))

    for batch, side in [(2, 32)] if small else product((8, 32), (32, 256)):
        mine = images_per_second(
            device, batch, side, small=small, readings=3, exchange=exchange if comm.size > 1 else None
        )
        total = [sum(readings) for readings in zip(*comm.allgather(mine), strict=True)]
        service = "on" if os.environ.get("CUDA_MPS_PIPE_DIRECTORY") else "off"
        yield rate_row(
            total, case="sharing a device", processes=comm.size, batch=batch, side=side, MPS=service
        )
    torch.distributed.destroy_process_group()


def staged(device: torch.device, small: bool) -> Iterator[Row]:
    """An all-reduce of the device's numbers by our backend: copied to the CPU, summed, copied back."""
    import torch_mpi4py

    torch_mpi4py.init_process_group()
    for nbytes in (1024,) if small else (1024, 2**20, 100 * 2**20):
        numbers = torch.ones(nbytes // 4, device=device)

        def once(numbers: torch.Tensor = numbers) -> None:
            there = numbers.cpu()
            torch.distributed.all_reduce(there)
            numbers.copy_(there)

        seconds = _seconds_of(once, device, 3 if small else 10)
        yield Row({"case": "all-reduce, staged", "bytes": nbytes}, *seconds)
    torch.distributed.destroy_process_group()


def nccl(device: torch.device, small: bool) -> Iterator[Row]:
    """An all-reduce over NCCL, one GPU per rank."""
    rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
    if torch.cuda.device_count() < 2:
        raise NotHere(f"NCCL needs two GPUs, and there are {torch.cuda.device_count()}")
    mine = torch.device("cuda", rank)
    torch.cuda.set_device(mine)
    torch.distributed.init_process_group("nccl", rank=rank, world_size=size, device_id=mine)
    for nbytes in (1024, 2**20, 100 * 2**20):
        numbers = torch.ones(nbytes // 4, device=mine)
        seconds = _seconds_of(lambda of=numbers: torch.distributed.all_reduce(of), mine, 10)  # type: ignore[misc]
        yield Row({"case": "all-reduce, NCCL", "bytes": nbytes, "GPUs": size}, *seconds)
    torch.distributed.destroy_process_group()


def _seconds_of(once: Callable[[], object], device: torch.device, times: int) -> tuple[float, float, float]:
    once()
    found = []
    for _ in range(times):
        MPI.COMM_WORLD.Barrier()
        start = _now(device)
        once()
        found.append(MPI.COMM_WORLD.allreduce(_now(device) - start, MPI.MAX))
    return statistics.median(found), min(found), max(found)


OFFLOAD = {"stage": 2, "offload_optimizer": {"device": "cpu"}}
STRATEGIES: dict[str, dict[str, Any]] = {
    "32 bits": {},
    "bfloat16": {"bf16": {"enabled": True}},
    "bfloat16, ZeRO-Offload": {"bf16": {"enabled": True}, "zero_optimization": OFFLOAD},
}


def deepspeed(device: torch.device, small: bool) -> Iterator[Row]:
    """A step of DeepSpeed with 32-bit numbers, with bfloat16, and with ZeRO-Offload: seconds and memory."""
    try:
        import deepspeed as library
    except ImportError as reason:
        raise NotHere(f"DeepSpeed is not installed: {reason}") from None
    library.utils.logger.setLevel("ERROR")
    if device.type == "cpu":
        library.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # else it compiles C++
        import torch_mpi4py

        torch_mpi4py.init_process_group()
    shape = _shape(small)
    for name, settings in STRATEGIES.items():
        yield from _deepspeed_rows(library, device, shape, name, settings)


def _deepspeed_rows(
    library: Any, device: torch.device, shape: TransformerShape, name: str, settings: dict[str, Any]
) -> Iterator[Row]:
    model, tokens = _transformer(shape), _tokens(shape)
    config = {
        "train_batch_size": len(tokens),
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,  # its own Adam for the CPU would have to be compiled
        **settings,
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    engine, *_ = library.initialize(model=model, optimizer=optimizer, config=config)
    tokens = tokens.to(device)

    def step() -> None:
        engine.backward(_loss(engine, tokens))
        engine.step()

    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    labels: dict[str, Label] = {"case": name, "parameters": sum(w.numel() for w in model.parameters())}
    yield Row(labels, *_seconds_of(step, device, 5))
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(device)
        yield Row({**labels, "what": "allocated"}, peak, peak, peak, "bytes")


def memory(device: torch.device, small: bool) -> Iterator[Row]:
    """The most memory that a step of AdamW holds, beside what the planner predicts."""
    for blocks in (1, 2) if small else (4, 8, 16):
        shape = _shape(small, blocks)
        model, tokens = _transformer(shape).to(device), _tokens(shape).to(device)
        optimizer = torch.optim.AdamW(model.parameters())

        def step(model: nn.Module = model, optimizer: Any = optimizer, tokens: torch.Tensor = tokens) -> None:
            optimizer.zero_grad()
            _loss(model, tokens).backward()
            optimizer.step()

        step()  # Adam's state exists from here on
        labels: dict[str, Label] = {"case": "training step", "blocks": blocks}
        nbytes = _peak(step, [*model.parameters(), *_state(optimizer), tokens], device)
        yield Row({**labels, "what": "allocated"}, nbytes, nbytes, nbytes, "bytes")
        foreseen = memory_of(shape, len(tokens), Plan()).value
        yield predicted(float(foreseen), unit="bytes", what="planner", **labels)


def _peak(step: Callable[[], object], there: list[torch.Tensor], device: torch.device) -> int:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        step()
        return torch.cuda.max_memory_allocated(device)
    with LiveBytes(there) as live:
        step()
    return live.peak


def _state(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]


def _shape(small: bool, blocks: int = 8) -> TransformerShape:
    if small:
        return TransformerShape(min(blocks, 2), 32, 16, 64, 4)
    return TransformerShape(blocks, 768, 512, 32_000, 12)


def _transformer(shape: TransformerShape) -> nn.Module:
    return build_transformer(
        vocabulary=shape.vocabulary,
        length=shape.length,
        width=shape.width,
        heads=shape.heads,
        layers=shape.blocks,
        seed=0,
    )


def _tokens(shape: TransformerShape) -> torch.Tensor:
    return torch.randint(shape.vocabulary, (8, shape.length + 1))


def _loss(model: Callable[[torch.Tensor], torch.Tensor], tokens: torch.Tensor) -> torch.Tensor:
    logits = model(tokens[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


# ---------------------------------------------------------------- the command that a process runs

PARTS: dict[str, Callable[[torch.device, bool], Iterator[Row]]] = {
    part.__name__: part for part in (device, synthetic, throughput, sharing, staged, nccl, deepspeed, memory)
}


def main() -> None:
    """Run one part; rank 0 prints its rows."""
    parser = argparse.ArgumentParser(description="One part of benchmarks.gpu")
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        rows: Iterator[Row] = iter([missing("PyTorch sees no GPU")])
    else:
        rows = PARTS[options.part](torch.device(options.device), options.small)
    try:
        for row in rows:
            say(row)
    except NotHere as reason:
        say(missing(str(reason)))


def say(row: Row) -> None:
    """Print a row, from rank 0 alone."""
    if MPI.COMM_WORLD.rank == 0:
        print(MARK + json.dumps(asdict(row)), flush=True)


if __name__ == "__main__":
    main()
