"""The report of `course study --zero`: one HTML file with a table and figures."""

import html
from collections.abc import Iterator, Sequence
from typing import Any

from course.lessons.l07_ddp_on_mnist.study_results import MEASURED, Study
from course.lessons.shared.figures.zero import held_bars
from course.tools.study.report import Sheet, as_html, beside, document, header
from course.tools.study.zero_results import ZeroRow, cases_of
from course_lib.rows import Label, Row, count
from course_lib.theory.memory import ADAM_FP32, STAGES
from mpi_classroom.figures import Picture, three_digits
from mpi_classroom.show import show

HEAD = ("stage", "ranks", "weights", "gradients", "optimizer", "held", "formula", "peak", "a step")


def zero_page(rows: Sequence[ZeroRow], about: dict[str, Any]) -> str:
    """The report of these rows as one HTML file."""
    return document("The measured study: ZeRO", [header(Study((), about)), *sections(rows)])


def sections(rows: Sequence[ZeroRow]) -> Iterator[str]:
    """For each model that was trained: the table, the figures."""
    for model in dict.fromkeys(model_of(row) for row in rows):
        ours = [row for row in rows if model_of(row) == model]
        yield f"<h2>{html.escape(model)}</h2>"
        yield "<p>" + (
            "Bytes of one rank, that with the most. Held: counted between two steps, tensor by tensor. Peak: "
            "of the whole process, above what it had before the model was built; activations, buffers and "
            "what the allocator keeps are in it. A step: forward, backward, update and all messages; median, "
            "± half of what lies between the fastest and the slowest.</p>"
        )
        yield as_html(zero_table(ours))
        yield beside(pictures(ours))


def model_of(row: ZeroRow) -> str:
    """Which training it was."""
    return (
        f"A Transformer of width {row.width} with {row.layers} layers, {row.parameters / 1e6:.2f} M"
        f" parameters, {row.batch} sequences of {row.length} tokens per rank"
    )


def largest(rows: Sequence[ZeroRow], stage: int, ranks: int) -> ZeroRow:
    """The rank of a case that holds most."""
    return max(
        (row for row in rows if (row.stage, row.ranks) == (stage, ranks)), key=lambda row: row.held.total
    )


def peak_of(rows: Sequence[ZeroRow]) -> int | None:
    """The highest peak of all ranks; None if one is not known."""
    peaks = [row.peak_bytes for row in rows]
    return None if None in peaks else max(peak for peak in peaks if peak is not None)


def zero_table(rows: Sequence[ZeroRow]) -> Sheet:
    """One line per case."""
    lines = []
    for case, group in cases_of(rows).items():
        most, peak = largest(group, case.stage, case.ranks), peak_of(group)
        kinds = (most.weights_bytes, most.gradients_bytes, most.optimizer_bytes, most.held.total)
        entries = [str(case.stage), str(case.ranks) + (f" ({most.label})" if most.label != MEASURED else "")]
        entries += [f"{nbytes / 1e6:.2f} MB" for nbytes in (*kinds, most.formula_bytes)]
        entries += [
            "" if peak is None else f"{peak / 1e6:.1f} MB",
            f"{1e3 * most.step_seconds:.4g} ± {500 * most.step_spread:.2g} ms",
        ]
        lines.append((most.label, entries))
    return Sheet("Bytes and seconds by stage and ranks", HEAD, lines)


def pictures(rows: Sequence[ZeroRow]) -> Iterator[Picture]:
    """Bytes and seconds against ranks; and what each rank holds, on the most ranks that have all stages."""
    held, peaks, seconds, crowded = [], [], [], set()
    for case, group in cases_of(rows).items():
        most, peak = largest(group, case.stage, case.ranks), peak_of(group)
        labels: dict[str, Label] = {"ranks": case.ranks, "stage": f"stage {case.stage}"}
        held.append(count(most.held.total, unit="bytes", **labels))
        seconds.append(Row(labels, most.step_seconds, most.step_seconds, most.step_seconds))
        if peak is not None:
            peaks.append(Row(labels, peak, peak, peak, "bytes"))
        if most.label != MEASURED:
            crowded.add(case.ranks)
    yield show(held, x="ranks", y="held by a rank", by="stage", title=least_held(rows))
    if peaks:
        yield show(peaks, x="ranks", y="peak of a rank", by="stage")
    more = f"On {', '.join(map(str, sorted(crowded)))} ranks: more than cores" if crowded else ""
    yield show(seconds, x="ranks", y="time of a step", by="stage", title=more)
    for ranks in sorted({row.ranks for row in rows}, reverse=True):
        of_all = [[row.held for row in rows if (row.stage, row.ranks) == (stage, ranks)] for stage in STAGES]
        if all(of_all):
            yield held_bars(of_all, rows[0].parameters, ADAM_FP32)
            return


def least_held(rows: Sequence[ZeroRow]) -> str:
    """Which stage holds least on the most ranks, and what its step takes beside the fastest."""
    ranks = max(row.ranks for row in rows)
    stages = sorted({row.stage for row in rows if row.ranks == ranks})
    there = [largest(rows, stage, ranks) for stage in stages]
    least = min(there, key=lambda row: row.held.total)
    held = three_digits(least.held.total / 1e6)
    slower = least.step_seconds / min(row.step_seconds for row in there)
    where = f"On {ranks} rank{'s' * (ranks != 1)} stage {least.stage} holds least, {held} MB"
    return f"{where}; its step takes {slower:.2f} times the fastest"
