"""Questions and predictions of lesson 06, data parallelism by hand: each wrong option is a common belief."""

from mpi_classroom.exercises import Option, Prediction, Question

WHICH_BATCH = Question(
    id="06.q1",
    question="A program for one process trains with batches of 64. On four ranks, each rank takes 64 images "
    "per step, and the gradients are averaged. What is the global batch?",
    options=(
        Option(
            "64",
            reply="64 is what each rank takes. A step now follows the gradient of 4 · 64 images, and an "
            "epoch of 60 000 "
            "images has 235 steps instead of 938.",
            belief="still-batch-64",
        ),
        Option(
            "256",
            reply="The global batch is all that one step sees. To repeat the training of the one "
            "process, give each rank "
            "16 images.",
            right=True,
        ),
        Option(
            "16",
            reply="That would mean somebody divides the 64 among the ranks. `shard` did so in section 2. "
            "This program does "
            "not call it, so every rank has 64.",
            belief="ddp-splits-the-batch",
        ),
    ),
    objectives=(2,),
)

WHY_NO_WEIGHTS = Question(
    id="06.q2",
    question="After the first broadcast, the loop of section 5 sends no weights. Why do the ranks not need "
    "them?",
    options=(
        Option(
            "Allreduce averages the weights and the gradients",
            reply="Then every message would hold two numbers per weight. Inside the loop, only the gradients "
            "go into `Allreduce`. From equal weights and equal gradients, every rank computes the same new "
            "weights by itself.",
            belief="weights-are-averaged",
        ),
        Option(
            "equal weights that take equal steps stay equal",
            reply="All ranks hold the same mean gradient after phase 5, so phase 6 is the same step on each.",
            right=True,
        ),
        Option(
            "the ranks send each other their images instead",
            reply="No image was sent in this lesson. The same seed gives every rank the same order of "
            "images, so each rank finds its shard alone.",
            belief="images-travel",
        ),
    ),
    objectives=(1,),
)

NO_BROADCAST = Question(
    id="06.q3",
    question="Every rank draws its first weights with a seed of its own, and you forget the broadcast. "
    "What happens?",
    options=(
        Option(
            "the replicas become equal, because their gradients are averaged",
            reply="Equal steps from different weights lead to different weights: 1 and 5, both moved by "
            "−1, become 0 and 4.",
            belief="no-broadcast-no-harm",
        ),
        Option(
            "the replicas stay different, and no error is raised",
            reply="Equal steps keep them as far apart as they started. The loss falls more slowly; comparing "
            "the weights shows why.",
            right=True,
        ),
        Option(
            "the program stops, because Allreduce finds different networks",
            reply="MPI adds arrays and knows nothing of networks. Gradients of different replicas have "
            "the same shapes, so "
            "the sum succeeds.",
            belief="mpi-knows-meaning",
        ),
    ),
    objectives=(6,),
)

QUESTIONS = (WHICH_BATCH, WHY_NO_WEIGHTS, NO_BROADCAST)

PREDICTIONS = (
    Prediction(
        id="06.p1",
        question="Different networks after one step?",
        objectives=(3,),
        targets=("same-program-same-weights",),
    ),
    Prediction(
        id="06.p2",
        question="Speed-up of the training with one rank per core?",
        objectives=(4,),
        targets=("n-ranks-n-times",),
    ),
    Prediction(
        id="06.p3",
        question="Percent of the ranks' time spent waiting?",
        objectives=(4,),
        targets=("short-wait-is-good",),
    ),
    Prediction(
        id="06.p4",
        question="Percent of a step saved by overlap?",
        objectives=(5,),
        targets=("started-moves-by-itself",),
    ),
    Prediction(
        id="06.p5",
        question="Updates by others before a gradient is used, on average?",
        objectives=(7,),
        targets=("asynchronous-is-the-same",),
    ),
)
