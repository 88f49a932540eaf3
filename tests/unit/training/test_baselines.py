"""Baselines of threads: every number of threads, every model, and torch left as it was."""

import pytest
import torch

from course.lessons.l05_training_one_process import baselines
from course.lessons.l05_training_one_process.baselines import thread_baselines


def test_there_is_a_baseline_for_each_model_on_each_number_of_threads() -> None:
    before = torch.get_num_threads()
    found = thread_baselines(("mlp", "lstm"), (1, 2), batch_size=4, repetitions=1)
    assert [(each.name, each.threads) for each in found] == [("mlp", 1), ("lstm", 1), ("mlp", 2), ("lstm", 2)]
    assert all(each.images_per_second > 0 for each in found)
    assert torch.get_num_threads() == before


def test_the_steps_are_timed_with_that_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def noted(name: str, batch_size: int, repetitions: int) -> float:
        seen.append((name, torch.get_num_threads()))
        return 0.5

    monkeypatch.setattr(baselines, "seconds_per_step", noted)
    found = thread_baselines(("cnn",), (2, 1), batch_size=64)
    assert seen == [("cnn", 2), ("cnn", 1)]
    assert [each.images_per_second for each in found] == [128, 128]


def test_torch_keeps_its_threads_when_a_model_is_not_known() -> None:
    before = torch.get_num_threads()
    with pytest.raises(ValueError, match="no model 'vgg'"):
        thread_baselines(("vgg",), (before + 1,))
    assert torch.get_num_threads() == before
