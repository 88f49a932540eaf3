"""Which device a rank takes, and what it is told when there is none; GPUs are pretended."""

import pytest
import torch

from course_lib.training.device import NoGPU, backend_for, use_device


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A machine with two GPUs; the list of those that were made the current one."""
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    return chosen


def test_each_rank_of_a_machine_takes_a_gpu_of_its_own_and_nccl(gpus: list[int]) -> None:
    devices = [use_device("cuda", rank) for rank in (0, 1)]
    assert devices == [torch.device("cuda", 0), torch.device("cuda", 1)] and gpus == [0, 1]
    assert backend_for(devices[1], "mpi4py") == "nccl"


def test_more_ranks_than_gpus_are_refused(gpus: list[int]) -> None:
    with pytest.raises(
        NoGPU, match=r"too few GPUs for rank 2: each rank needs one\. Start at most 2 ranks here"
    ):
        use_device("cuda", 2)


def test_without_a_gpu_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(NoGPU, match=r"finds no GPU on this machine\. Leave out --device cuda"):
        use_device("cuda")
