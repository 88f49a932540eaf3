"""The figure of the watched training: what was measured today and earlier is labelled so."""

import json
from dataclasses import replace
from pathlib import Path

from course.lessons.l12_deepspeed_on_cifar.curves import (
    Training,
    explain_lines,
    learning_curves,
    long_trainings,
)
from tests.unit.figures.pictures import check_legible, title_of

TODAY = Training("drawn shapes", 2, 100, [2.3 - 0.01 * step for step in range(60)], [0.3, 0.5], 60)
SAVED = {
    "data": "CIFAR-10, 40000 images",
    "ranks": 2,
    "batch_size": 128,
    "losses": [2.0, 1.0],
    "validation": [60.0, 80.0],
    "updates_per_epoch": 312,
    "model": "convnet",
    "seed": 0,
}


def test_the_long_trainings_are_read_as_they_were_saved(tmp_path: Path) -> None:
    path = tmp_path / "curves.json"
    assert long_trainings(path) == []
    path.write_text(json.dumps([SAVED]))
    (training,) = long_trainings(path)
    assert training.accuracies == [0.6, 0.8] and training.epochs == 2
    assert training.images == 2 * 312 * 128


def test_the_title_names_the_data_of_both(tmp_path: Path) -> None:
    (tmp_path / "curves.json").write_text(json.dumps([SAVED, SAVED | {"ranks": 1}]))
    picture = learning_curves(TODAY, long_trainings(tmp_path / "curves.json"))
    check_legible(picture)
    title = " ".join(title_of(picture).split())
    assert "50.0% correct after 2 short epochs (drawn shapes)" in title
    assert "earlier (CIFAR-10, 40000 images): 80.0% on 2 ranks, 80.0% in one process" in title


def test_without_long_trainings_only_todays_is_drawn() -> None:
    picture = learning_curves(replace(TODAY, data="CIFAR-10"), [])
    check_legible(picture)
    assert "measured earlier" not in picture.alt
    assert explain_lines([]).startswith("The black lines are today's training.")
    assert "earlier" not in explain_lines([])


def test_the_text_names_the_comparisons_that_the_file_allows(tmp_path: Path) -> None:
    other = {"seed": 1, "validation": [60.0, 82.0]}
    saved = [
        SAVED,
        SAVED | other,
        SAVED | {"ranks": 1},
        SAVED | {"model": "cifar", "validation": [50.0, 55.0]},
    ]
    (tmp_path / "curves.json").write_text(json.dumps(saved))
    said = explain_lines(long_trainings(tmp_path / "curves.json"))
    assert "CIFAR-10, 40000 images" in said and "81.0% on 2 ranks, 80.0% in one process" in said
    assert "the seed alone changes that by up to 2.0 points" in said
    assert "ends at 55.0%" in said
    assert "one process" not in explain_lines(long_trainings(tmp_path / "curves.json")[:1])
