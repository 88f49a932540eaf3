"""The picture of More: test errors of the CNN by ranks, ours under two rules and the published ones."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from course_lib.rows import Kind, Row
from mpi_classroom.figures import Picture
from mpi_classroom.show import show

TITLE = "Errors rise with 128 images per rank; with 128 in total, they stay level up to four ranks"


def draw_errors(
    same_global: Mapping[int, Sequence[float]],
    per_rank: Mapping[int, Sequence[float]],
    published: Mapping[int, float],
) -> Picture:
    """Draw test errors by ranks, from accuracies (0 to 1): the mean of the seeds, the best, the worst."""
    rows = [error_row(seeds, ranks, "global batch of 128") for ranks, seeds in same_global.items()]
    rows += [error_row(seeds, ranks, "128 per rank") for ranks, seeds in per_rank.items()]
    rows += [error_row([one], ranks, "Jakovac & Pichler", "published") for ranks, one in published.items()]
    return show(rows, x="ranks", y="test error", by="batch", title=TITLE)


def error_row(accuracies: Sequence[float], ranks: int, batch: str, kind: Kind = "measured") -> Row:
    """The mean error of the seeds, the least and the greatest, in percent, from their accuracies."""
    errors = [100 * (1 - one) for one in accuracies]
    return Row({"ranks": ranks, "batch": batch}, fmean(errors), min(errors), max(errors), "%", kind)
