"""Quiz and predictions of lesson 09, tensor parallelism: each wrong option is a common belief."""

from mpi_classroom.exercises import Option, Prediction, Question

BETWEEN = Question(
    id="09.q1",
    question="Four ranks hold a column-parallel layer, then GeLU, then a row-parallel layer. What do "
    "they send each other between the two layers in the forward pass?",
    options=(
        Option(
            "an all-gather of the hidden vector",
            reply="The next layer is cut by rows: rank 2 holds exactly those rows of B that meet its "
            "own columns of x @ A. In section 2 it worked without any message.",
            belief="gather-after-every-column",
        ),
        Option(
            "no message at all",
            reply="The columns that a rank computed are the ones its rows of B need, and GeLU looks at "
            "one number at a time.",
            right=True,
        ),
        Option(
            "an all-reduce of the hidden vector",
            reply="A sum is needed where ranks hold parts of a sum. The columns of a rank are complete:"
            " in section 1 each was computed from all of x. Only a row-parallel layer leaves "
            "parts of a sum.",
            belief="every-layer-needs-a-sum",
        ),
    ),
    objectives=(1, 2),
)

ROW_FIRST = Question(
    id="09.q2",
    question="A program cuts the *first* layer by rows, applies GeLU to the part on each rank, and "
    "then sums with one all-reduce. The parts of one number are 3 on rank 0 and −3 on rank 1."
    " What comes out?",
    options=(
        Option(
            "0, the value that one process computes",
            reply="That would need GeLU(3) + GeLU(−3) to equal GeLU(3 − 3). The left side is about 3: "
            "GeLU is not linear, so the sum has to come before it.",
            belief="gelu-before-the-row-sum",
        ),
        Option(
            "about 3, where one process computes 0",
            reply="GeLU(3) + GeLU(−3) is about 3, and GeLU(3 − 3) is 0. After a row-parallel layer the "
            "sum comes first, so this cut needs two all-reduces instead of one.",
            right=True,
        ),
        Option(
            "3 on rank 0 and 0 on rank 1, two valid shards",
            reply="These are not shards of a result. A shard is correct by itself; a part of a sum "
            "means nothing before it is added to the others.",
            belief="parts-of-a-sum-are-shards",
        ),
    ),
    objectives=(1,),
)

FORGOTTEN = Question(
    id="09.q3",
    question="You forget the second all-reduce, the one in the backward pass. The one in the forward "
    "pass is there. What is wrong after the first step?",
    options=(
        Option(
            "the loss of this first step, on every rank",
            reply="The forward pass is unchanged, so the first loss is right. Training drifts away "
            "afterwards, and no error says so.",
            belief="wrong-gradients-wrong-loss",
        ),
        Option(
            "no number, because each rank has the gradient of x",
            reply="Each rank knows only what *its* columns of A did with x. In section 3 the four parts"
            " differed, and only their sum was right.",
            belief="gradient-of-a-shard-is-whole",
        ),
        Option(
            "the gradients of the layers before these two",
            reply="They are also different on each rank. The gradients of A and B themselves are right,"
            " so only a comparison with one process finds this bug.",
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
