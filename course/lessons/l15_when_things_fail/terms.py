"""The terms that lesson 15 introduces."""

from course.lessons.shared.glossary import Term

TERMS = (
    Term(
        "timeout",
        "How long a rank waits in a call before it gives up. Usually, the launcher then ends the job.",
        forms="",
    ),
    Term(
        "victim",
        "A rank that came in time and reports a timeout, because it waited for one that did not come.",
        forms="",
    ),
    Term("stack", "The functions that a process is in, each with its line, the innermost first.", forms=""),
    Term(
        "flight recorder",
        "A log per rank of the collectives that it has queued, started and completed.",
    ),
    Term("checkpoint", "What is saved so that training can resume: a file, or a folder of shards.", forms=""),
    Term(
        "SIGUSR1",
        "A signal whose meaning each program chooses. In the course it means: save, then end.",
        forms="",
    ),
    Term("heartbeat", "A sign of life that a process gives at regular intervals.", forms=""),
    Term("resharding", "Loading a checkpoint on more or fewer ranks than wrote it.", forms="resharding"),
    Term(
        "asynchronous",
        "Of a save: it returns with a copy in memory, which is written while the training goes on.",
        forms="",
    ),
    Term(
        "atomic save",
        "A save that leaves all old bytes or all new ones, whenever it is interrupted: write "
        "to another file, flush, fsync, rename.",
        forms="",
    ),
    Term("fsync", "The call that waits until a file's bytes are on the disk, and not only in memory."),
    Term(
        "mean time between failures",
        "MTBF: how long a machine works between two failures, on average. If nodes fail independently, and "
        "one failure stops all n, it is that of one node, divided by n.",
        forms=r"mean time between failures|MTBF",
    ),
    Term(
        "Young's formula",
        "The best work between two saves is about √(2δM), if a save takes δ, much less than the mean time "
        "between failures, M.",
    ),
    Term("elastic", "Of a training: it restarts by itself when the number of its nodes changes.", forms=""),
    Term(
        "remote procedure call",
        "RPC: a function runs on another rank, and its result comes back.",
        forms=r"remote procedure calls?|RPC",
    ),
)
