"""The figures of a study, each from the rows that it shows; the drawing is in `figures/study.py`."""

import math
from collections.abc import Sequence

from course.lessons.l07_ddp_on_mnist.figures import study as plots
from course.lessons.l07_ddp_on_mnist.study_results import FIXED, GLOBAL, MEASURED, REPLAYED, SEQUENTIAL, Study
from course.lessons.l07_ddp_on_mnist.study_tables import (
    NAMES,
    Timing,
    curves,
    finals,
    grouped,
)
from mpi_classroom.figures import Picture


def time_pictures(found: Sequence[Timing], *, cores: int) -> list[Picture]:
    """Where an epoch goes, and what ranks gain, for the timings of one model."""
    model, gains = found[0].model, speedups_of(found)
    pictures = [epoch_picture(found)]
    return [*pictures, plots.speedups(gains, cores=cores, what=model)] if gains else pictures


def epoch_picture(found: Sequence[Timing]) -> Picture:
    """A bar per way of training; those of replays last."""
    bars = {
        one.name + (", replayed" if one.label == REPLAYED else ""): plots.Bar(
            one.compute * one.epoch_seconds,
            one.wait * one.epoch_seconds,
            one.transfer * one.epoch_seconds,
            one.label,
        )
        for one in found
    }
    return plots.epoch_bars(bars, what=found[0].model)


def speedups_of(found: Sequence[Timing]) -> dict[str, plots.Gains]:
    """Speed-up over one thread and label, by engine and ranks; replays are a line of their own."""
    gains: dict[str, plots.Gains] = {}
    for one in found:
        if one.engine != SEQUENTIAL and one.speedup:
            name = NAMES[one.engine] + (", replayed" if one.label == REPLAYED else "")
            line = gains.setdefault(name, plots.Gains(plots.WAYS[one.engine], {}))
            line.points[one.ranks] = one.speedup, one.label
    return gains


def rule_picture(study: Study, model: str) -> Picture:
    """What ranks, batch and rate do to the accuracy of one model."""
    found = [one for one in finals(study.rows) if one.model == model]
    values = {
        rule: {one.ranks: one.accuracies for one in group}
        for rule, group in grouped(found, lambda one: one.rule).items()
    }
    alone = [one for one in found if (one.batch_rule, one.rate_rule, one.ranks) == (GLOBAL, FIXED, 1)]
    return plots.accuracy_by_rule(values, what=model, first=alone[0].accuracies if alone else ())


def curve_pictures(study: Study, model: str) -> list[Picture]:
    """Errors and losses against seconds, for one model with the same global batch; none without seconds."""
    lines = {
        curve.name + ("" if curve.label == MEASURED else f", {curve.label}"): curve
        for curve in curves(study.rows, model=model)
        if not math.isnan(curve.seconds[-1])
    }
    return plots.learning_curves(lines, what=model) if lines else []


def accuracy_pictures(study: Study, model: str) -> list[Picture]:
    """All on the accuracy of one model."""
    return [rule_picture(study, model), *curve_pictures(study, model)]
