"""The terms that lesson 04 introduces."""

from course.lessons.shared.glossary import Term

TERMS = (
    Term("collective", "A call that all ranks of a communicator must make, in the same order."),
    Term("broadcast", "A collective that copies the root's array to all ranks.", forms="broadcasts?|Bcast"),
    Term(
        "scatter",
        "A collective that cuts the root's array into parts and sends each rank one of them.",
        forms="Scatterv?",
    ),
    Term("gather", "A collective that collects one part from each rank on the root.", forms="Gatherv?"),
    Term(
        "all-reduce",
        "A collective that combines all ranks' arrays element by element and leaves the result on each rank.",
    ),
    Term("Gloo", "Meta's library for communication between CPUs, built into PyTorch."),
    Term("chunk", "One of the n parts into which each of n ranks cuts its array.", forms=""),
    Term(
        "reduce-scatter",
        "A collective that combines all ranks' arrays and leaves each rank one part of the result.",
    ),
    Term(
        "all-gather",
        "A collective that collects a part from each rank, and leaves all of them on every rank.",
    ),
    Term(
        "ring algorithm",
        "A way to run a collective in which each rank sends only to its right neighbour and receives only "
        "from its left one.",
    ),
    Term(
        "recursive doubling",
        "A way to run a collective on 2, 4, 8 … ranks: each exchanges with partners 1, 2, 4 … away.",
    ),
    Term("latency", "The time that even an empty message takes: alpha in the alpha-beta model."),
    Term("bandwidth", "The bytes per second at which a link carries a long message."),
    Term(
        "alpha-beta model",
        "A message of k bytes takes alpha + beta·k seconds (Hockney): its latency, and a time per byte.",
        forms="alpha-beta",
    ),
    Term("crossover", "The array size at which two algorithms are equally fast.", forms=""),
    Term(
        "tree",
        "A way to run a collective in which each rank passes data to its children, or sums to its parent.",
        forms="",
    ),
    Term(
        "hierarchical all-reduce",
        "An all-reduce in three steps: inside each node, between the nodes, inside each node again.",
    ),
    Term("leader", "The one rank of a node that exchanges messages with other nodes.", forms=""),
    Term(
        "communication library",
        "Software below the framework that moves data between ranks: MPI, Gloo, NCCL; communication runtime.",
    ),
    Term(
        "backend",
        "The library that moves the bytes of a group of ranks in PyTorch: Gloo, NCCL, or MPI.",
        forms="",
    ),
    Term(
        "store",
        "A small table that all ranks can reach, in which torch.distributed's ranks find each other.",
        forms="",
    ),
    Term("all-to-all", "A collective in which every rank sends a different part to every rank."),
)
