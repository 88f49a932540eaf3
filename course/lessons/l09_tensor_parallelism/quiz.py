"""Questions and predictions of lesson 09, tensor parallelism: each wrong option is a common belief."""

from mpi_classroom.exercises import Option, Prediction, Question

BETWEEN = Question(
    id="09.q1",
    question="Four ranks hold a column-parallel layer, then GeLU, then a row-parallel layer. What do the "
    "ranks send each other between the two layers in the forward pass?",
    options=(
        Option(
            "an all-gather of the hidden numbers",
            reply="Then every rank would hold all 32 hidden numbers, and its rows of B would use only 8 of "
            "them. Those 8 are the ones that it has computed itself.",
            belief="gather-after-every-column",
        ),
        Option(
            "no message at all before the next product",
            reply="The columns that a rank computed are the inputs of its rows of B, and GeLU treats each "
            "number separately.",
            right=True,
        ),
        Option(
            "an all-reduce of the hidden numbers",
            reply="A sum is needed where ranks hold parts of a sum. A hidden number comes from all of x and "
            "one whole column of A, so it is complete on its rank. Only the row-parallel layer leaves parts.",
            belief="every-layer-needs-a-sum",
        ),
    ),
    objectives=(1, 2),
)

ROW_FIRST = Question(
    id="09.q2",
    question="A program splits the *first* layer by rows, applies GeLU to the part on each rank, and then "
    "sums with one all-reduce. The parts of one hidden number are 3 on rank 0 and −3 on rank 1. What is the "
    "sum?",
    options=(
        Option(
            "0, which is also what one process computes",
            reply="That would need GeLU(3) + GeLU(−3) to equal GeLU(3 − 3) = 0. The left side is about 3: "
            "GeLU is not linear, so the sum has to come first.",
            belief="gelu-before-the-row-sum",
        ),
        Option(
            "about 3, where one process computes 0",
            reply="GeLU(3) + GeLU(−3) is about 3, and GeLU(3 − 3) is 0. After a row-parallel layer the sum "
            "comes first, so this way of splitting needs one more all-reduce.",
            right=True,
        ),
        Option(
            "3 on rank 0 and −3 on rank 1, a shard each",
            reply="After an all-reduce every rank has the same number. And 3 and −3 are no shards: a shard "
            "is correct by itself, while a part of a sum means nothing before it is added to the others.",
            belief="parts-of-a-sum-are-shards",
        ),
    ),
    objectives=(1,),
)

FORGOTTEN = Question(
    id="09.q3",
    question="You forget the all-reduce of the backward pass. The one of the forward pass is there. Other "
    "layers stand before these two. What is wrong after the first backward pass?",
    options=(
        Option(
            "the loss that this first step reports",
            reply="The forward pass is complete, so the first loss is right. From the second step on the "
            "training drifts away, and no error says so.",
            belief="wrong-gradients-wrong-loss",
        ),
        Option(
            "nothing yet, as every rank has a gradient of x",
            reply="It has one, and that covers only what its own columns of A did with x. The other ranks' "
            "parts are missing, and every layer before these two goes on with them.",
            belief="gradient-of-a-shard-is-whole",
        ),
        Option(
            "the gradients of the layers before these two",
            reply="They also differ from rank to rank. The gradients of A and B are right, so a test that "
            "looks only at these two layers' weights would not find it.",
            right=True,
        ),
    ),
    objectives=(2, 3),
)

QUESTIONS = (BETWEEN, ROW_FIRST, FORGOTTEN)

PREDICTIONS = (
    Prediction(
        id="09.p1",
        question="All-reduces in the forward pass of both layers?",
        objectives=(2,),
        targets=("gather-after-every-column", "every-layer-needs-a-sum"),
    ),
    Prediction(
        id="09.p2",
        question="All-reduces in the backward pass of both layers?",
        objectives=(2,),
        targets=("gradient-of-a-shard-is-whole",),
    ),
    Prediction(
        id="09.p3",
        question="All-reduces in one block, forward and backward together?",
        objectives=(4,),
        targets=("every-layer-needs-a-sum",),
    ),
    Prediction(
        id="09.p4",
        question="Percent of the activations that one of four ranks keeps?",
        objectives=(5,),
        targets=("four-ranks-a-quarter",),
    ),
    Prediction(
        id="09.p5",
        question="How many times as long does DTensor's step take?",
        objectives=(6,),
        targets=("same-cut-same-time",),
    ),
)
