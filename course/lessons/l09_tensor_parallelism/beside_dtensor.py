"""Our step beside DTensor's, both over MPI: what the measurement says, and the reference machine's rows."""

from course.lessons.shared.reference import rows

PEER = "DTensor over mpi4py"
WHAT = "median (slowest minus fastest)"


def explain_dtensor(ratio: float, ours: int, theirs: int) -> str:
    """Why DTensor's step takes `ratio` times as long; `ours` and `theirs` are collectives per step."""
    counted = f"A step of ours has {ours} all-reduces, one of DTensor's has {theirs}."
    if theirs > ours:
        counted += " It splits query, key and value as three layers, each with a sum in the backward pass."
    if ratio > 1.1:
        return f"{counted} The products are the same; DTensor also looks up the layouts at every operation."
    if ratio < 0.9:
        return f"{counted} In this run DTensor was faster all the same; try it on a quiet machine."
    return f"{counted} In this run that made no clear difference."


def reference_table() -> str:
    """The committed rows of the benchmark in which both sides use MPI, as lines of text."""
    found = [
        row for row in rows("tensor_parallel") if row["peer_name"] == PEER and "sequence" not in row["case"]
    ]
    lines = [f"reference machine, {found[0]['ranks']} ranks, both over MPI, ms per step: {WHAT}"]
    for row in found:
        model = row["case"].partition("Transformer ")[2]
        ours, theirs = (f"{row[side]:.0f} ({row[side + '_spread']:.0f})" for side in ("ours", "peer"))
        lines.append(f"  {model}: ours {ours}, DTensor {theirs}, {row['ratio']:.2f} times as long")
    if any(row["ours_spread"] > row["ours"] or row["peer_spread"] > row["peer"] for row in found):
        lines.append("In a row whose slowest minus fastest exceeds a median, the ratio says little.")
    return "\n".join(lines)
