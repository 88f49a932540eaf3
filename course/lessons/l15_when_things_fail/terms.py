"""The terms that lesson 15 introduces."""

from course.lessons.shared.glossary import Term

TERMS = (
    Term(
        "victim", "The rank that reports a timeout: it came in time and waited for the guilty rank.", forms=""
    ),
    Term(
        "flight recorder",
        "A log per rank of the collectives that it has begun. After a hang it shows which rank is missing.",
    ),
    Term(
        "atomic save",
        "A save after which a reader finds all old bytes or all new ones, whenever it is interrupted: write "
        "to another file, fsync, rename.",
        forms="",
    ),
    Term("fsync", "The call that waits until a file's bytes are on the disk, and not only in memory."),
    Term(
        "mean time between failures",
        "MTBF: how long a machine works between two failures, on average. Of n nodes it is an n-th of one "
        "node's.",
        forms=r"mean time between failures|MTBF",
    ),
    Term(
        "Young's formula",
        "The best work between two saves is √(2δM), if a save takes δ and the mean time between failures is "
        "M.",
    ),
    Term(
        "Daly's formula",
        "The best work between two saves, closer than Young's formula: it also counts failures while the "
        "machine saves and while it repeats lost work.",
    ),
    Term(
        "ULFM",
        "User-Level Failure Mitigation: an extension of MPI with which ranks go on after another one has "
        "died.",
    ),
    Term("elastic", "Of a training: it goes on when the number of its ranks changes.", forms=""),
    Term(
        "silent error",
        "A wrong result without an error message, as after a bit has flipped in memory.",
        forms=r"silent errors?",
    ),
    Term(
        "remote procedure call",
        "RPC: a function runs on another rank, and its result comes back.",
        forms=r"remote procedure calls?|RPC",
    ),
)
