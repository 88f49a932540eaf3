"""Live bytes against torch's own tracker."""

from pathlib import Path

import torch
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker

from course_lib.training.memory_use import LiveBytes


def model_and_optimizer() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(30, 40), nn.GELU(), nn.Linear(40, 20), nn.LayerNorm(20))
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def a_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
    model(x).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_the_peak_is_that_of_torchs_own_tracker() -> None:
    model, optimizer = model_and_optimizer()
    x = torch.randn(50, 30)
    with LiveBytes([*model.parameters(), x]) as ours:
        a_step(model, optimizer, x)
    model, optimizer = model_and_optimizer()
    theirs = MemTracker()
    theirs.track_external(model, optimizer, x)
    with theirs:
        a_step(model, optimizer, x)
    assert ours.peak == theirs.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]


def test_what_is_freed_or_emptied_is_not_counted() -> None:
    with LiveBytes() as memory:
        row = torch.zeros(1000)
        view = row[10:]
        assert memory.live == 4000  # a view has no memory of its own
        copy = row.clone()
        assert memory.live == 8000
        row.untyped_storage().resize_(0)
        assert memory.live == 4000
        del copy
        assert memory.live == 0
    assert memory.peak == 8000
    assert len(view) == 990


def test_look_is_called_after_every_operation() -> None:
    seen: list[int] = []
    with LiveBytes(look=lambda: seen.append(memory.live)) as memory:
        torch.ones(5) + 1
    assert seen == memory.history == [20, 40]


def test_what_is_in_files_is_not_counted(tmp_path: Path) -> None:
    in_file = torch.from_file(str(tmp_path / "moments"), shared=True, size=100)
    weights = torch.ones(100)
    with LiveBytes([weights], in_files=[in_file]) as memory:
        in_file.add_(weights)
        in_file[:50].mul_(2)
    assert memory.peak == weights.nbytes
