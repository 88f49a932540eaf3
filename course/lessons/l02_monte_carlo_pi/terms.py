"""The terms that lesson 02 introduces."""

from course.lessons.shared.glossary import Term

TERMS = (
    Term("Monte Carlo", "A method that estimates a number from random samples."),
    Term(
        "vectorise",
        "To replace a loop over numbers by calls that work on whole arrays, as NumPy's do.",
        forms=r"vectoris(?:e[sd]?|ing)",
    ),
    Term(
        "seed", "The number that a random generator starts from. Equal seeds give equal sequences.", forms=""
    ),
    Term(
        "stream",
        "One sequence of random numbers. Spawned streams practically never overlap.",
        forms="",
    ),
    Term(
        "Reduce",
        "An MPI call in which every rank passes an array; their sum arrives on one rank, the root.",
    ),
    Term(
        "standard error",
        "How far an estimate typically is from the true value; about two in three are closer.",
    ),
    Term(
        "speed-up",
        "How many times as fast a program has become: the time before, divided by the time after.",
    ),
    Term(
        "serial fraction", "The fraction of a job's time on one rank that more ranks do not make any shorter."
    ),
    Term(
        "Amdahl's law",
        "With a serial fraction s, the speed-up on n ranks is at most 1/(s + (1−s)/n), never more than 1/s.",
        forms=r"Amdahl('s)?",
    ),
)
