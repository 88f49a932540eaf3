"""Quiz and predictions of lesson 06, data parallelism by hand: each wrong option is a common belief."""

from mpi_classroom.exercises import Option, Prediction, Question

NO_BROADCAST = Question(
    id="06.q1",
    question="Every rank draws first weights with a seed of its own, and you forget the broadcast. "
    "What happens?",
    options=(
        Option(
            "nothing bad: the summed gradients make the networks equal soon",
            reply="you take skipping the broadcast to be harmless. Equal steps from different places "
            "lead to different places: weights 1 and 5, both moved by −1, are 0 and 4.",
            belief="no-broadcast-no-harm",
        ),
        Option(
            "no error; the ranks train networks that stay different",
            reply="equal steps keep the ranks as far apart as they began. Only a look at the hashes tells.",
            right=True,
        ),
        Option(
            "Allreduce raises an error: the networks do not match",
            reply="you take MPI to know what the numbers mean. Gradients of different networks have the"
            " same shapes, so they can be added: in section 4, too, the replicas parted without "
            "an error.",
            belief="mpi-knows-meaning",
        ),
    ),
    objectives=(1,),
)

WHICH_BATCH = Question(
    id="06.q2",
    question="A program for one process trains with batches of 64. You start it on four ranks: each "
    "takes 64 images of its own for every step, and the gradients are summed. What is the "
    "batch now?",
    options=(
        Option(
            "64, as before: the program still says 64",
            reply="you take 64 on each of 4 ranks to be still batch 64. A step now follows the gradient"
            " of 4 · 64 images: an epoch of 60 000 images has 235 steps in place of 938.",
            belief="still-batch-64",
        ),
        Option(
            "256",
            reply="the global batch is what one step sees. To compare with the one process, deal 16 to "
            "each rank.",
            right=True,
        ),
        Option(
            "16: the ranks share the 64",
            reply="you take data parallelism to divide the batch by itself. `shard` did that in section"
            " 3; this program gives every rank 64 images.",
            belief="ddp-splits-the-batch",
        ),
    ),
    objectives=(2,),
)

WHAT_TRAVELS = Question(
    id="06.q3",
    question="The broadcast is done. What do the ranks send each other in every step of training?",
    options=(
        Option(
            "their weights, which are averaged",
            reply="you take weights to be averaged, not gradients. In section 5 only `.grad` goes into "
            "Allreduce. Averaged weights are another algorithm: with Adam, one step already "
            "differs (More shows it).",
            belief="weights-are-averaged",
        ),
        Option(
            "their gradients, which are summed",
            reply="and then all take the same step, so no weight is ever sent again.",
            right=True,
        ),
        Option(
            "their shards of the batch",
            reply="you take the ranks to exchange images. In section 3 every rank found its shard "
            "without a message: the same seed gave all of them the same order.",
            belief="images-travel",
        ),
    ),
    objectives=(1,),
)

QUESTIONS = (NO_BROADCAST, WHICH_BATCH, WHAT_TRAVELS)

PREDICTIONS = (
    Prediction(
        id="06.p1",
        question="Networks after one step?",
        objectives=(3,),
        targets=("same-program-same-weights",),
    ),
    Prediction(
        id="06.p2",
        question="Percent of the ranks' time spent waiting?",
        objectives=(4,),
        targets=("short-wait-is-good",),
    ),
    Prediction(
        id="06.p3",
        question="Percent of a step saved by overlap?",
        objectives=(4,),
        targets=("started-moves-by-itself",),
    ),
    Prediction(
        id="06.p4",
        question="Updates by others before a gradient arrives, on average?",
        objectives=(3,),
        targets=("asynchronous-is-the-same",),
    ),
)
