"""What `python -m benchmarks.pipeline` measured on the reference machine, as the lesson prints it."""

from course.lessons.shared.reference import rows


def table() -> str:
    """The times of a step of our fast pipeline and of other programs, and how far single steps varied."""
    found = [row for row in rows("pipeline") if "Transformer" in row["case"] and row["unit"] == "ms"]
    model = found[0]["case"].partition(", ")[2]
    lines = [
        f"reference machine, {found[0]['ranks']} ranks on 2 cores, {model}; median seconds of a step",
        f"{'schedule':9}{'ours':>6}{'other':>7}{'ratio':>7}   the other program",
    ]
    for row in found:
        schedule, ours, peer = row["case"].partition(",")[0], row["ours"] / 1000, row["peer"] / 1000
        lines.append(f"{schedule:9}{ours:6.2f}{peer:7.2f}{row['ratio']:7.2f}   {row['peer_name']}")
    spread = max(row[f"{who}_spread"] / row[who] for row in found for who in ("ours", "peer"))
    lines.append(f"Slowest and fastest step of one program were up to {spread:.0%} of a step apart:")
    lines.append("ratios near 1 do not say which program is faster.")
    return "\n".join(lines)
