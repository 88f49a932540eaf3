"""The terms that lesson 00 introduces."""

from course.lessons.shared.glossary import Term

TERMS = (
    Term(
        "cluster",
        "Machines that exchange messages to work on one task; in this course, one machine with several "
        "processes.",
        forms="",
    ),
    Term(
        "MPI", "The Message Passing Interface: the standard for programs whose processes exchange messages."
    ),
    Term("mpi4py", "The Python library for MPI."),
    Term("Open MPI", "An implementation of MPI, the one that this course uses."),
    Term("rank", "The number of a process in a communicator, and in this course also the process itself."),
    Term("communicator", "A group of ranks that can exchange messages; `MPI.COMM_WORLD` holds all of them."),
    Term("kernel", "The process behind a notebook; it runs the cells that do not go to the ranks.", forms=""),
    Term("core", "The part of a CPU that runs the instructions of one process at a time.", forms=""),
    Term("oversubscribed", "With more ranks than cores, so that ranks share cores."),
    Term(
        "mixed precision",
        "Training that computes with numbers of 16 bits and keeps a 32-bit copy of each weight to update.",
        forms=r"mixed\s+precision",
    ),
    Term(
        "optimizer state",
        "What an optimizer keeps per parameter between steps: Adam keeps two running averages, and in mixed "
        "precision also the 32-bit copy of the weight.",
        forms=r"optimizer states?",
    ),
    Term(
        "node",
        "One machine of a cluster. Its ranks use the same physical memory, but each still has its own "
        "variables.",
    ),
    Term("local rank", "A rank's number within its node."),
    Term("world size", "The number of all ranks of a program."),
    Term("root", "The rank that sends to all others in an operation, or collects from them.", forms=""),
    Term(
        "activation",
        "A result of a layer in the forward pass; training keeps it until the backward pass has used it.",
    ),
)
