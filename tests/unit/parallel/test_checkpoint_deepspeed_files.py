"""What DeepSpeed keeps besides tensors is written so that it can be read safely, by every Python."""

from pathlib import Path

import pytest
from deepspeed.runtime.zero.config import ZeroStageEnum

from course_lib.parallel.checkpoint import CheckpointError
from course_lib.parallel.deepspeed_checkpoint import SafeFiles


def as_before_python_3_11_4(member: ZeroStageEnum, protocol: int) -> tuple[object, tuple[object, str]]:
    return getattr, (type(member), member.name)


def test_a_stage_is_written_by_its_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ZeroStageEnum, "__reduce_ex__", as_before_python_3_11_4)
    files, path = SafeFiles(engine=None), str(tmp_path / "optimizer.pt")
    files.save({"zero_stage": ZeroStageEnum.gradients}, path)
    assert files.error is None
    assert files.load(path) == {"zero_stage": ZeroStageEnum.gradients}


def test_what_is_written_by_a_call_is_not_read(tmp_path: Path) -> None:
    files, path = SafeFiles(engine=None), str(tmp_path / "optimizer.pt")
    files.save({"zero_stage": print}, path)
    with pytest.raises(CheckpointError, match="not a file of tensors that can be read safely"):
        files.load(path)
