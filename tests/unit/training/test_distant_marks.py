"""Images whose label hangs on two distant marks."""

import pytest
import torch

from course.lessons.l10_spatial_and_hybrid.distant_marks import (
    MARK,
    STRENGTH,
    TileJudge,
    accuracy_with_tiles,
    distant_marks,
)


def test_labels_say_whether_the_marks_are_alike() -> None:
    images, labels = distant_marks(60, seed=1)
    assert images.shape == (60, 1, 32, 32) and set(labels.tolist()) == {0, 1}
    for image, label in zip(images, labels, strict=True):
        bright, dark = ((sign * image > STRENGTH / 2).sum().item() for sign in (1, -1))
        assert bright + dark == 2 * MARK**2
        assert (bright in (0, 2 * MARK**2)) == bool(label)


def test_the_same_seed_gives_the_same_images() -> None:
    (one, _), (other, _), (third, _) = (distant_marks(3, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one, other) and not torch.equal(one, third)


def test_an_images_logits_are_the_mean_of_its_tiles() -> None:
    torch.manual_seed(0)
    judge, images = TileJudge(16), torch.randn(2, 1, 32, 32)
    parts = [
        judge(images[:, :, row : row + 16, column : column + 16]) for row in (0, 16) for column in (0, 16)
    ]
    assert torch.allclose(judge(images), torch.stack(parts).mean(dim=0), atol=1e-6)
    with pytest.raises(ValueError, match="do not divide"):
        TileJudge(5)(images)


def test_the_whole_image_is_judged_better_than_its_tiles() -> None:
    whole, cut = (accuracy_with_tiles(tile, images=384, epochs=14, rate=0.01) for tile in (32, 8))
    assert whole > 0.9 > 0.7 > cut
