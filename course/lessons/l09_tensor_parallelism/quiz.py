"""Quiz and predictions of lesson 09, tensor parallelism: each wrong option is a common belief."""

from mpi_classroom.exercises import Option, Prediction, Question

BETWEEN = Question(
    id="09.q1",
    question="Four ranks have a column layer, then GeLU, then a row layer. What do the ranks send each"
    " other between the two layers, on the way forward?",
    options=(
        Option(
            "an all-gather: the next layer needs the whole hidden vector",
            reply="you take every column layer to need an all-gather after it. The next layer is cut by"
            " rows: rank 2 has just those rows of B that its own columns of x @ A meet. In "
            "section 2 it worked without.",
            belief="gather-after-every-column",
        ),
        Option(
            "nothing",
            reply="the columns of a rank are what its rows of B take; and GeLU looks at one number at a"
            " time.",
            right=True,
        ),
        Option(
            "an all-reduce: every layer ends with one",
            reply="you take every layer to need a sum. The columns of a rank are complete: in section 1"
            " each was computed from all of x. Only a row layer leaves parts of a sum.",
            belief="every-layer-needs-a-sum",
        ),
    ),
    objectives=(1, 2),
)

ROW_FIRST = Question(
    id="09.q2",
    question="Somebody cuts the *first* layer by rows, applies GeLU to each rank's part, and sums "
    "then: with one all-reduce. The parts of one number are 3 on rank 0 and −3 on rank 1. "
    "What is wrong?",
    options=(
        Option(
            "nothing: a sum of parts is the whole, before GeLU or after it",
            reply="you take GeLU to be allowed before the sum. GeLU(3) + GeLU(−3) is about 3 + 0, and "
            "GeLU(3 − 3) is 0: it is not linear, so the sum has to come first.",
            belief="gelu-before-the-row-sum",
        ),
        Option(
            "the sum would be about 3; right is GeLU(0) = 0",
            reply="GeLU(3) + GeLU(−3) is not GeLU(3 − 3). After a row layer the sum comes first, and "
            "then it takes two all-reduces in place of one.",
            right=True,
        ),
        Option(
            "nothing but the time: the parts are as large as the whole",
            reply="you take a part of a sum for a shard of the result. A shard is right as it is, and "
            "GeLU of it too; of a part of a sum, only the sum means something.",
            belief="parts-of-a-sum-are-shards",
        ),
    ),
    objectives=(1,),
)

FORGOTTEN = Question(
    id="09.q3",
    question="You forget the second all-reduce, the one on the way back. The first works. What happens?",
    options=(
        Option(
            "the loss is wrong from the first step on",
            reply="you take wrong gradients to show in the loss at once. The way forward is as it was, "
            "and so is the first loss; training just goes somewhere else afterwards, without an "
            "error.",
            belief="wrong-gradients-wrong-loss",
        ),
        Option(
            "nothing: each rank's gradient of x is that of x",
            reply="you take a rank's gradient for the whole one. It knows only what *its* columns of A "
            "did with x: in section 3 the four parts were different, and their sum was right.",
            belief="gradient-of-a-shard-is-whole",
        ),
        Option(
            "the first loss is right; the layers *before* these two get wrong gradients, "
            "different on each rank",
            reply="and the gradients of A and B themselves are right. Only a comparison with one "
            "process tells.",
            right=True,
        ),
    ),
    objectives=(2,),
)

QUESTIONS = (BETWEEN, ROW_FIRST, FORGOTTEN)

PREDICTIONS = (
    Prediction(
        id="09.p1",
        question="All-reduces on the way forward through both layers?",
        objectives=(2,),
        targets=("gather-after-every-column", "every-layer-needs-a-sum"),
    ),
    Prediction(
        id="09.p2",
        question="All-reduces in a step through one block, forward and backward?",
        objectives=(2, 3),
        targets=("every-layer-needs-a-sum",),
    ),
    Prediction(
        id="09.p3",
        question="Percent of the activations that one of four ranks keeps?",
        objectives=(4,),
        targets=("four-ranks-a-quarter",),
    ),
    Prediction(
        id="09.p4",
        question="How many times as long does DTensor's step take?",
        objectives=(5,),
        targets=("same-cut-same-time",),
    ),
)
