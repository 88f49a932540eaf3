"""The terms that lesson 14 introduces."""

from course.lessons.shared.glossary import Term

TERMS = (
    Term(
        "lab",
        "One machine that plays several nodes: each has a network of its own, and links as slow as you like.",
        forms="",
    ),
    Term(
        "throttle",
        "To limit the rate of a connection on purpose, so that its effect can be measured.",
        forms=r"throttle[ds]?",
    ),
    Term(
        "remedy",
        "On a slow link: what makes a step send fewer bytes, send less often, or compute meanwhile.",
        forms="",
    ),
    Term(
        "extrapolation",
        "A statement about sizes or ranks beyond those that were measured; it holds if its model does.",
        forms="",
    ),
    Term(
        "flat algorithm",
        "A collective that knows nothing of nodes: it sends alike to ranks of its own node and of others.",
    ),
    Term(
        "MPS",
        "NVIDIA's Multi-Process Service: several processes run their kernels on one GPU at the same time.",
    ),
    Term("Slurm", "A program that gives nodes of a cluster to jobs, which wait for them in a queue."),
    Term("batch script", "A shell script that says which nodes a job needs, and what to run on them."),
    Term("Kubernetes", "A program that runs containers on the machines of a cluster and restarts them."),
    Term(
        "MPIJob",
        "What Kubernetes' MPI Operator reads: how many workers there are, and what mpiexec starts on them.",
    ),
)
