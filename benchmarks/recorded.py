"""The tables of docs/several-machines/measured.md, from the recorded results: no figure is written twice.

    python -m benchmarks.recorded            replace the tables of the page

A table stands between `<!-- recorded: NAME -->` and `<!-- end -->`. What is between them is replaced when
the results that NAME needs are in benchmarks/results; without them it stays.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import slow_link_training
from benchmarks.allreduce import MIB, say_bytes
from benchmarks.several_machines import (
    AT_RATE,
    CONTENDERS,
    MODEL,
    MODELLED,
    OF_RANKS_IN_TURN,
    PEERS,
    PREDICTED,
    PREDICTED_RATES,
    PREDICTED_SIZES,
    PREDICTION,
    RENDEZVOUS,
    SENT,
    SHOWN_RATES,
    SHOWN_SIZES,
    message_case,
    where,
)
from course.lessons.l07_ddp_on_mnist.study_results import load
from course.lessons.l07_ddp_on_mnist.study_tables import Timing, timings
from course.paths import ROOT
from mpi_classroom.network_commands import parse_rate

PAGE = ROOT / "docs" / "several-machines" / "measured.md"
RESULTS = ROOT / "benchmarks" / "results"
STUDY, STUDY_BOTH_WAYS = "study_100mbit", "study_100mbit_both_ways"
BLOCK = re.compile(r"(<!-- recorded: (\S+) -->\n)(.*?)(\n<!-- end -->)", re.DOTALL)
FLAT, EAGER, HAN = PEERS
WITH = {(MODEL, "fast"): "", (MODEL, "ring"): ", eager", (RENDEZVOUS, "ring"): ", rendezvous from 64 KiB"}
LIBRARY = {  # where a remedy is
    slow_link_training.PLAIN: "parallel/ddp.py",
    "one message per parameter": "parallel/data_parallel.py",
    "one bucket": "parallel/data_parallel.py",
    "overlapped buckets": "parallel/gradient_buckets.py",
    "bfloat16 gradients": "parallel/gradient_buckets.py",
    "accumulation": "training/loop.py",
    "local SGD": "parallel/local_sgd.py",
    "top-k": "parallel/compression.py",
    "PowerSGD": "parallel/compression.py",
}

Rows = dict[tuple[str, str], dict[str, Any]]  # by case and peer


def messages(folder: Path) -> str:
    """One message from node to node: milliseconds, and the part of the link's rate that it reached."""
    rows, source = recorded(folder, "several_machines")
    names = [rate_name(rate) for rate in SHOWN_RATES]
    lines = []
    for nbytes in SHOWN_SIZES:
        found = [rows[message_case(2, 1, parse_rate(rate), nbytes), AT_RATE] for rate in SHOWN_RATES]
        lines.append([say_bytes(nbytes), *(f"{value(each)} ({each['ratio']:.0%})" for each in found)])
    said = "In brackets: how much of the link's rate that is."
    return f"{table(['message', *names], lines)}\n\n{said} {source}"


def all_reduces(folder: Path) -> str:
    """4 MiB on two nodes with two ranks each, at 100 Mbit/s: bytes that leave a node, and milliseconds."""
    rows, source = recorded(folder, "several_machines")
    place, size = where(2, 2, parse_rate("100mbit")), say_bytes(4 * MIB)

    def line(title: str, contender: str, peer: str, side: str) -> list[str]:
        seconds = rows[f"{place}: {CONTENDERS[contender]}, {size}", peer]
        sent = rows[f"{place}: {SENT}{CONTENDERS[contender]}, {size}", peer]
        return [title, f"{sent[side] / (4 * MIB):.2f} × the array", value(seconds, side)]

    lines = [
        line("Open MPI's flat one (`--mca coll ^han`), neighbours on one node", "fast", FLAT, "peer"),
        line(f"the same, with {settings(EAGER)}", "fast", EAGER, "peer"),
        line("flat, ranks placed in turn (`mpiexec --map-by node`)", "fast", FLAT + OF_RANKS_IN_TURN, "peer"),
        line("Open MPI's hierarchical one (han, which it chooses by itself)", "fast", HAN, "peer"),
        line("ring, neighbours on one node", "ring", FLAT, "ours"),
        line("hierarchical, as lesson 04 shows it", "plain", FLAT, "ours"),
        line("hierarchical, `course_lib.fast`", "fast", FLAT, "ours"),
    ]
    return f"{table(['all-reduce', 'leaves the node', 'time'], lines)}\n\n{source}"


def model(folder: Path) -> str:
    """What the link that was fitted at two rates predicts for two others, beside what was measured there."""
    rows, source = recorded(folder, "several_machines")
    lines, missed = [], []
    for rate in PREDICTED_RATES:
        for (nodes, slots), kind, name in [
            (shape, *job) for shape, jobs in PREDICTED.items() for job in jobs
        ]:
            for nbytes in PREDICTED_SIZES:
                place = where(nodes, slots, parse_rate(rate))
                found = rows[f"{kind} {place}: {MODELLED[name]}, {say_bytes(nbytes)}", PREDICTION]
                off = found["peer"] / found["ours"] - 1
                if kind == MODEL:
                    missed.append(abs(off))
                title = MODELLED[name].removeprefix("all-reduce, ") + WITH.get((kind, name), "")
                ends = [value(found), f"{found['peer']:.3g} ms", f"{off:+.0%}"]
                lines.append([rate_name(rate), f"{nodes} × {slots}", title, say_bytes(nbytes), *ends])
    heads = ["link", "nodes × ranks", "all-reduce", "array", "measured", "predicted", "off by"]
    said = f"Of the {len(missed)} predictions (the ring by rendezvous apart) "
    said += f"the worst is off by {max(missed):.0%}."
    return f"{table(heads, lines)}\n\n{said} {source}"


def remedies(folder: Path) -> str:
    """Each remedy on two nodes, beside PyTorch's DDP."""
    rows, source = recorded(folder, "slow_link_training")
    titles = list(dict.fromkeys(case.partition(": ")[0] for case, _ in rows))
    heads = ["remedy", "in the library", "over the link per batch", "time per batch"]
    heads += ["to equal accuracy", "right after one epoch"]
    parts = []
    for title in titles:
        lines = [remedy_line(rows, title, name) for name in slow_link_training.CONTENDERS]
        parts.append(f"**{title}**\n\n{table(heads, lines)}")
    said = "Medians of the seeds, ± half the distance from the lowest to the highest."
    return "\n\n".join([*parts, f"{said} {source}"])


def remedy_line(rows: Rows, title: str, name: str) -> list[str]:
    """What a contender did; DDP itself is the peer of every other one."""
    plain = name == slow_link_training.PLAIN
    side, asked = ("peer", "one bucket") if plain else ("ours", name)

    def entry(what: str, unit: str, scale: float = 1.0) -> str:
        peer = slow_link_training.PLAIN
        found = rows.get((f"{title}: {what}, {asked}", peer))
        if found is None and plain:  # one bucket has not reached the accuracy with every seed
            found = next(row for (case, _), row in rows.items() if case.startswith(f"{title}: {what}, "))
        return value(found, side, unit, scale) if found else "not with every seed"

    module = next(path for start, path in LIBRARY.items() if name.startswith(start))
    return [
        name,
        f"`{module}`",
        entry("over the link per batch", "MB", 1e-6),
        entry("per batch", "ms", 1e3),
        entry("to equal accuracy", "s"),
        entry("after equal epochs", "%"),
    ]


def study(folder: Path) -> str:
    """The study of lesson 07 on two nodes of the lab, whose results are in `folder`."""
    found = load(folder)
    machine = found.about["machine"]
    lines = [study_line(each) for each in timings(found.rows)]
    heads = ["way of training", "seconds per epoch", "speed-up", "waiting", "transfer"]
    where_ran = f"Ranks on {machine['hosts']}; network: {machine['link']}"
    speed = f", {machine['link_mbit_per_s']:g} Mbit/s measured" if "link_mbit_per_s" in machine else ""
    return f"{table(heads, lines)}\n\n{where_ran}{speed}. {source_of(found.about)}"


def study_line(each: Timing) -> list[str]:
    """One way to train."""
    way = f"{each.model}, {each.name}"
    speedup = f"{each.speedup:.2f} ×" if each.speedup else ""
    return [way, f"{each.epoch_seconds:.3g}", speedup, f"{each.wait:.0%}", f"{each.transfer:.0%}"]


BLOCKS: dict[str, tuple[str, Callable[[Path], str]]] = {  # by name: what has to be there, who makes it
    "messages": ("several_machines.json", messages),
    "all-reduces": ("several_machines.json", all_reduces),
    "model": ("several_machines.json", model),
    "remedies": ("slow_link_training.json", remedies),
    "study": (STUDY, lambda folder: study(folder / STUDY)),
    "study-both-ways": (STUDY_BOTH_WAYS, lambda folder: study(folder / STUDY_BOTH_WAYS)),
}

# ---------------------------------------------------------------- helpers


def recorded(folder: Path, name: str) -> tuple[Rows, str]:
    """The rows of a benchmark, by case and peer, and a sentence that says where they were measured."""
    rows = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    about = json.loads((folder / f"{name}.machine.json").read_text(encoding="utf-8"))
    return {(row["case"], row["peer_name"]): row for row in rows}, source_of(about)


def source_of(about: dict[str, Any]) -> str:
    """Where, when and how."""
    machine = about["machine"]
    cores = f"{machine['cores']} core{'s' * (machine['cores'] != 1)}"
    command = " ".join(about["command"].split()[: 3 if about["command"].startswith("python") else 2])
    return f"Recorded on {about['date']} by `{command}`: {machine['processor']}, {cores}."


def value(row: dict[str, Any], side: str = "ours", unit: str = "ms", scale: float = 1.0) -> str:
    """A median and half its spread: `394 ± 25 ms`."""
    median, half = row[side] * scale, row[f"{side}_spread"] * scale / 2
    digits = max(0, 3 - len(str(int(median)))) if median >= 1 else 3
    return f"{median:.{digits}f} ± {half:.{digits}f} {unit}"


def settings(peer: str) -> str:
    """The settings in which a job differs from the flat one, as mpiexec's arguments."""
    more = PEERS[peer].items() - PEERS[FLAT].items()
    return " ".join(f"`--mca {name.removeprefix('OMPI_MCA_')} {each}`" for name, each in sorted(more))


def rate_name(rate: str) -> str:
    return where(1, 1, parse_rate(rate)).partition(", ")[2]


def table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    rows = [heads, ["---"] * len(heads), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """The names of the blocks of a page, and what they contain."""
    for found in BLOCK.finditer(text):
        yield found[2], found[3]


def rendered(text: str, folder: Path) -> str:
    """`text` with its blocks replaced by what `folder` has; blocks without results stay."""

    def replace(found: re.Match[str]) -> str:
        needed, make = BLOCKS[found[2]]
        return found[1] + make(folder) + found[4] if (folder / needed).exists() else found[0]

    return BLOCK.sub(replace, text)


def main() -> int:
    """Rewrite the page; say which results are missing."""
    PAGE.write_text(rendered(PAGE.read_text(encoding="utf-8"), RESULTS), encoding="utf-8")
    for name in dict.fromkeys(needed for needed, _ in BLOCKS.values() if not (RESULTS / needed).exists()):
        print(f"{RESULTS / name} is missing; its tables stay as they are", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
