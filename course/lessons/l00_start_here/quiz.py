"""Questions and prediction of lesson 00, start here: each wrong option is a belief that many hold."""

from mpi_classroom.exercises import Option, Prediction, Question

KERNEL_OR_RANKS = Question(
    id="00.q1",
    question="You run `x = 5` in a cell without `%%px`. Then you run `print(x)` in a cell with `%%px`. What "
    "do you see?",
    options=(
        Option(
            "The number 5, printed by each of the four ranks",
            reply="That would mean the ranks can read the kernel's variables. They cannot: each rank found "
            'no variable `base` until `cluster["base"] = base` sent it.',
            belief="kernel-on-ranks",
        ),
        Option(
            "The number 5, printed once, and only by rank 0",
            reply="That would mean the kernel is rank 0. It is a fifth process: rank 0 did not know the "
            "kernel's `base` either.",
            belief="kernel-is-rank-0",
        ),
        Option(
            "A NameError on each of the four ranks",
            reply="The kernel and the ranks are separate processes, and nothing has sent x to the ranks.",
            right=True,
        ),
    ),
    objectives=(2,),
)

RANKS_AND_CORES = Question(
    id="00.q2",
    question="`start_cluster(n=4)` runs on a laptop with two cores, and all four ranks compute. What "
    "happens?",
    options=(
        Option(
            "Two ranks compute; the other two get no core",
            reply="Then two of the four hellos would be missing. The operating system schedules every "
            "process on some core.",
            belief="rank-is-core",
        ),
        Option(
            "All four compute; each gets half a core on average",
            reply="The operating system lets the processes share the cores, so all four make progress.",
            right=True,
        ),
        Option(
            "All four compute; each gets a core of its own",
            reply="That would take four cores. Two cores do the work of two ranks at a time, however many "
            "ranks share them.",
            belief="rank-is-core",
        ),
        Option(
            "Two ranks compute; the other two start afterwards",
            reply="Then a rank that waits for a message from one of the later two would wait for ever. In "
            "this course such ranks do finish: the operating system switches between them all the time.",
            belief="rank-is-core",
        ),
    ),
    objectives=(3,),
)

QUESTIONS = (KERNEL_OR_RANKS, RANKS_AND_CORES)

PREDICTIONS = (
    Prediction(
        id="00.p1",
        question="GB to train 7 billion parameters?",
        objectives=(4,),
        targets=("weights-are-all",),
    ),
    Prediction(
        id="00.p2",
        question="Times the memory, for an image with twice the side?",
        objectives=(6,),
        targets=("memory-grows-with-the-side",),
    ),
)
