"""The report: one HTML file with figures, tables and the published figures beside them. It needs no network.

    page(study)                                      the whole page as text
    timing_table(…), accuracy_table(…) -> Sheet      its tables, which a terminal can show, too

A study without a part has no section for it.
"""

import base64
import html
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from course.lessons.l07_ddp_on_mnist import study_pictures as pictures
from course.lessons.l07_ddp_on_mnist.study_published import REMARKS, SOURCE, TABLE, Published
from course.lessons.l07_ddp_on_mnist.study_results import (
    MEASURED,
    OVERSUBSCRIBED,
    REPLAYED,
    THREADS,
    Study,
)
from course.lessons.l07_ddp_on_mnist.study_tables import NAMES, Final, Timing, finals, timings
from mpi_classroom.figures import Picture

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff; padding: 1.5rem;
       max-width: 84rem; margin: 0 auto; }
h1 { margin-bottom: 0.2rem; }
h2 { margin-top: 2.5rem; border-bottom: 2px solid #0072B2; }
h3 { margin-top: 1.8rem; }
p, ul { max-width: 60rem; }
li { margin: 0.25rem 0; }
.about { color: #555; font-size: 0.93rem; }
.beside { display: flex; flex-wrap: wrap; gap: 1rem 2rem; align-items: flex-start; }
.scroll { overflow-x: auto; max-width: 100%; }
table { border-collapse: collapse; font-size: 0.82rem; margin: 0.5rem 0; }
caption { text-align: left; font-weight: 600; padding: 0.3rem 0; }
th, td { padding: 0.2rem 0.5rem; text-align: right; border-bottom: 1px solid #ddd; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
thead th { border-bottom: 2px solid #222; }
tr.oversubscribed td, tr.replayed td { color: #555; font-style: italic; }
figure { margin: 1rem 0; flex: 1 1 31rem; min-width: 0; max-width: 44rem; }
img { width: 100%; height: auto; }
"""


def page(study: Study) -> str:
    """The report of `study` as one HTML file."""
    body = [header(study), *time_section(study), *thread_section(study)]
    body += [*accuracy_section(study), *remarks()]
    return document("The measured study: data parallelism on MNIST", body)


def document(title: str, body: Iterable[str]) -> str:
    """An HTML file of its own with this title and this body."""
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{title}</title>\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<style>{STYLE}</style>\n'
        f"</head>\n<body>\n<h1>{title}</h1>\n" + "\n".join(body) + "\n</body>\n</html>\n"
    )


def header(study: Study) -> str:
    """Where, with what, on which data, by which command, when."""
    machine, versions = study.about["machine"], study.about["versions"]
    cores = f"{machine['cores']} core{'s' * (machine['cores'] != 1)}"
    lines = [
        f"{machine['processor']}, {cores}, {machine['memory_gb']} GB, {machine['system']}",
        *host_lines(machine),
        ", ".join(f"{name} {value}" for name, value in versions.items()),
        f"Data: {study.about['data']}. Command: {study.about['command']}. {study.about['date']}.",
        *(
            f"Accuracy also measured on: {one['machine']['processor']}. "
            f"Command: {one['command']}. {one['date']}."
            for one in study.about.get("others", ())
        ),
    ]
    labels = (
        f"<b>{MEASURED}</b>: on this machine, a core for each rank and thread. <b>{OVERSUBSCRIBED}</b>: "
        "measured, but there were more of them than cores, so they shared cores. "
        f"<b>{REPLAYED}</b>: not run; put together from steps and messages that were measured one by one."
    )
    return f'<p class="about">{"<br>".join(map(html.escape, lines))}</p>\n<p>{labels}</p>'


def host_lines(machine: Mapping[str, Any]) -> Iterator[str]:
    """Where the ranks ran, and the link between them, if the study ran on several hosts."""
    if "hosts" in machine:
        speed = machine.get("link_mbit_per_s")
        measured = f"; a message of 1 MiB went from host to host at {speed:g} Mbit/s" if speed else ""
        yield f"Ranks on {machine['hosts']}. Network: {machine['link']}{measured}."


# ---------------------------------------------------------------- sections


def time_section(study: Study) -> Iterator[str]:
    """For each model: the table, the published one beside it, and two figures."""
    found = timings(study.rows)
    if not found:
        return
    yield "<h2>Time</h2>\n<p>" + (
        "One thread per rank, except where it says more. Seconds of an epoch are those of the slowest rank, "
        "the median of all epochs and seeds, ± half of what lies between the fastest and the slowest. "
        "Compute, wait and transfer are shares of the ranks' time; what DDP transfers while backward still "
        "computes counts as computing. Efficiency is the speed-up divided by ranks × threads.</p>"
    )
    for model in dict.fromkeys(one.model for one in found):
        ours = [one for one in found if one.model == model]
        yield f"<h3>{html.escape(model)}</h3>\n" + '<div class="beside">'
        yield as_html(timing_table(ours))
        if theirs := [row for row in TABLE if row.model == model]:
            yield as_html(published_table(theirs))
        yield "</div>"
        yield beside(pictures.time_pictures(ours, cores=study.cores))


def thread_section(study: Study) -> Iterator[str]:
    """Ranks × threads."""
    found = timings(study.rows, THREADS)
    if found:
        yield f"<h2>More ranks and threads than cores: {html.escape(found[0].model)}</h2>"
        yield as_html(timing_table(found))


def accuracy_section(study: Study) -> Iterator[str]:
    """For each model: the table of final accuracies and the figures."""
    found = finals(study.rows)
    if found:
        yield "<h2>Accuracy</h2>\n<p>" + (
            "Same global batch: more ranks share the same batches, so they compute the same training. Same "
            "batch per rank: the global batch grows with the ranks, and there are fewer steps. The learning "
            "rate stays, or grows as well; then it is raised gradually during the first epoch. In all of "
            "them it falls along a line to zero.</p>"
        )
    for model in dict.fromkeys(one.model for one in found):
        yield f"<h3>{html.escape(model)}</h3>"
        yield as_html(accuracy_table([one for one in found if one.model == model]))
        yield beside(pictures.accuracy_pictures(study, model))


def remarks() -> Iterator[str]:
    """On the published figures."""
    lines = "".join(f"<li>{html.escape(remark)}</li>" for remark in REMARKS)
    yield f"<h2>On the published figures</h2>\n<p>{html.escape(SOURCE)}.</p>\n<ul>{lines}</ul>"


# ---------------------------------------------------------------- tables and figures


class Sheet(NamedTuple):
    """A table; each line has what its times are (measured, oversubscribed, replayed) and its entries."""

    caption: str
    head: Sequence[str]
    lines: Sequence[tuple[str, Sequence[str]]]


def timing_table(found: Sequence[Timing]) -> Sheet:
    """One line per way of training."""
    head = ["way", "epoch", "images/s", "speed-up", "efficiency", "compute", "wait", "transfer"]
    lines = [
        (
            one.label,
            [
                one.name + (f" ({one.label})" if one.label != MEASURED else ""),
                f"{one.epoch_seconds:.3g} ± {one.spread / 2:.2g} s"
                if one.epochs > 1
                else f"{one.epoch_seconds:.3g} s",
                f"{one.images_per_s:.0f}",
                f"{one.speedup:.2f}×" if one.speedup else "",
                f"{one.efficiency:.0%}" if one.efficiency else "",
                f"{one.compute:.0%}",
                f"{one.wait:.1%}",
                f"{one.transfer:.1%}",
            ],
        )
        for one in found
    ]
    return Sheet("Here", head, lines)


def published_table(found: Sequence[Published]) -> Sheet:
    """What the slides say of the same model."""
    head = ["way", "epoch", "images/s", "speed-up", "accuracy"]
    lines = [
        (
            MEASURED,
            [
                f"{NAMES[one.engine]}, {one.ranks} rank{'s' * (one.ranks > 1)}"
                + (f", {one.threads} threads" if one.threads > 1 else ""),
                f"{one.epoch_seconds:g} s" if one.epoch_seconds else "",
                f"{one.images_per_s:g}" if one.images_per_s else "",
                f"{one.speedup:.2f}×" if one.speedup else "",
                f"{100 * one.accuracy:.4g} %" if one.accuracy else "",
            ],
        )
        for one in found
    ]
    return Sheet("Published: 8-core laptop, 2025", head, lines)


def accuracy_table(found: Sequence[Final]) -> Sheet:
    """One line per rule and number of ranks."""
    head = [
        "rule",
        "ranks",
        "global batch",
        "learning rate",
        "accuracy, mean",
        "deviation",
        "of each seed",
        "loss",
    ]
    lines = [
        (
            MEASURED,
            [
                one.rule,
                str(one.ranks),
                str(one.batch_size),
                f"{one.learning_rate:g}",
                f"{100 * one.mean:.2f} %",
                f"{100 * one.deviation:.2f}" if one.deviation is not None else "",
                ", ".join(f"{100 * value:.2f}" for value in one.accuracies),
                f"{one.loss:.4f}",
            ],
        )
        for one in found
    ]
    return Sheet("Test accuracy after the last epoch", head, lines)


def as_html(sheet: Sheet) -> str:
    """The table for the page; the class of a line is what its times are."""
    heads = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in sheet.head)
    body = "\n".join(
        f'<tr class="{kind}">' + "".join(f"<td>{html.escape(entry)}</td>" for entry in entries) + "</tr>"
        for kind, entries in sheet.lines
    )
    return (
        f'<div class="scroll"><table><caption>{html.escape(sheet.caption)}</caption>\n'
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )


def beside(shown: Iterable[Picture]) -> str:
    """The pictures beside each other where there is room."""
    return '<div class="beside">' + "\n".join(map(figure, shown)) + "</div>"


def figure(picture: Picture) -> str:
    """The picture inside the page, sharp at any size, with its alt text."""
    buffer = io.BytesIO()
    picture.figure.savefig(buffer, format="svg", facecolor="white", metadata={"Date": None})
    data = base64.b64encode(buffer.getvalue()).decode()
    alt = html.escape(picture.alt, quote=True)
    return f'<figure><img alt="{alt}" src="data:image/svg+xml;base64,{data}"></figure>'
