"""Quiz and prediction of lesson 00, start here: every wrong option is a belief that many hold."""

from mpi_classroom.exercises import Option, Prediction, Question

KERNEL_OR_RANKS = Question(
    id="00.q1",
    question="You run `x = 5` in a cell without `%%px`, then a cell with `%%px` and `print(x)`. What "
    "happens?",
    options=(
        Option(
            "5 is printed four times",
            reply="you take variables of the kernel to exist on the ranks. In section 2, `answer` was "
            'in the kernel, and every rank said that it did not know it, until cluster["answer"] '
            "= answer sent it there.",
            belief="kernel-on-ranks",
        ),
        Option(
            "5 is printed once, by rank 0",
            reply="you take the kernel to be rank 0. It is a fifth process: in section 2 rank 0, too, "
            "did not know the kernel's `answer`.",
            belief="kernel-is-rank-0",
        ),
        Option(
            "NameError on all four ranks",
            reply="the kernel and the ranks are separate processes, and nobody has sent x.",
            right=True,
        ),
    ),
    objectives=(2,),
)

RANKS_AND_CORES = Question(
    id="00.q2",
    question="Your machine has two cores. What happens when you start four ranks?",
    options=(
        Option(
            "MPI refuses: there can be no more ranks than cores",
            reply="you take a rank to be a core. It is a process, and a machine with two cores runs "
            "hundreds of those: section 4 showed which core each rank was on, and it changed from"
            " run to run.",
            belief="rank-is-core",
        ),
        Option(
            "four ranks run and take turns on two cores",
            reply="a rank is a process; the operating system lends it a core, again and again.",
            right=True,
        ),
        Option(
            "four ranks run, and the work is done four times as fast as by one",
            reply="you take every rank to bring a core of its own. Two cores compute at most twice as "
            "much as one, whoever takes turns on them.",
            belief="rank-is-core",
        ),
        Option(
            "ranks 0 and 1 run; ranks 2 and 3 begin when those have ended",
            reply="you take a rank to keep its core to the end. If it did, four ranks that wait for "
            "each other could never finish here; but they do, in every lesson.",
            belief="rank-is-core",
        ),
    ),
    objectives=(3,),
)

QUESTIONS = (KERNEL_OR_RANKS, RANKS_AND_CORES)

PREDICTIONS = (
    Prediction(
        id="00.p1",
        question="How many GB for 7 billion parameters?",
        objectives=(4,),
        targets=("weights-are-all",),
    ),
)
