"""The terms that lesson 14 introduces."""

from course.lessons.shared.glossary import Term

TERMS = (
    Term(
        "halving",
        "An all-reduce: partners exchange half of the array, then a quarter, and so on, then return the "
        "sums in reverse order. In full: recursive halving and doubling.",
        forms="",
    ),
    Term(
        "hierarchy",
        "Groups inside groups: an all-reduce sums inside each node, then between nodes, and returns the sum.",
        forms="",
    ),
    Term(
        "MPS",
        "NVIDIA's Multi-Process Service: several processes run their kernels on one GPU at the same time.",
    ),
    Term(
        "model FLOP utilization",
        "A model's operations per second in training, divided by the most that the device could do.",
        forms=r"MFU",
    ),
    Term("Slurm", "A program that gives nodes of a cluster to jobs, which wait for them in a queue."),
    Term("batch script", "A shell script that says which nodes a job needs, and what to run on them."),
    Term("Kubernetes", "A program that runs containers on the machines of a cluster and restarts them."),
    Term(
        "MPIJob",
        "What Kubernetes' MPI Operator reads: how many workers there are, and what mpiexec starts on them.",
    ),
)
