"""The terms that lesson 01 introduces."""

from course.lessons.shared.glossary import Term

TERMS = (
    Term(
        "SPMD", "Single program, multiple data: all ranks run one program, each with its own number and data."
    ),
    Term(
        "message",
        "Data that one rank sends and another receives, with a tag.",
        forms="",
    ),
    Term(
        "blocking",
        "A call that returns only when its arrays may be used again: after `Recv` the message is there; "
        "after `Send` the array may be changed.",
        forms=r"(?<!non-)blocking",
    ),
    Term(
        "non-blocking",
        "A call that only starts an operation and returns at once with a request; until the request is "
        "complete, the array belongs to MPI.",
    ),
    Term(
        "eager protocol",
        "How most MPI libraries send small messages: at once, whether the receiver is ready or not.",
        forms=r"eager|eagerly",
    ),
    Term(
        "rendezvous protocol",
        "How most MPI libraries send large messages: the sender announces the message and waits until the "
        "receiver is ready.",
        forms="rendezvous",
    ),
    Term(
        "buffered",
        "A message is buffered when MPI keeps a copy of it, so that the sender can go on before it is "
        "received.",
        forms=r"buffer(s|ed)?",
    ),
    Term(
        "hang report",
        "What is printed when a cell that hangs is stopped: for each rank its call, the line, and the rank "
        "that it waits for.",
    ),
    Term("deadlock", "Ranks that wait for each other in a circle, so that none can go on."),
    Term(
        "unsafe",
        "An MPI program that finishes only if MPI buffers messages, which the standard does not promise.",
    ),
    Term(
        "Sendrecv",
        "The MPI call that sends one message and receives another at the same time. A ring in which all "
        "ranks call it cannot deadlock.",
    ),
    Term(
        "request",
        "The handle of a non-blocking operation; `Wait` returns when the operation is complete.",
        forms="",
    ),
    Term("Isend", "The non-blocking `Send`; I stands for immediate."),
    Term("Irecv", "The non-blocking `Recv`; I stands for immediate."),
    Term("pickle", "Python's format that packs any object into bytes.", forms=r"pickle[sd]?"),
    Term("tag", "A number on a message, by which a receiver can choose which message to receive.", forms=""),
    Term("Ssend", "The synchronous `Send`: it returns only when the receiver has begun to receive."),
    Term("NCCL", "NVIDIA's library for communication between its GPUs."),
)
