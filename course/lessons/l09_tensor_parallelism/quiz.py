"""Questions and predictions of lesson 09, tensor parallelism: each wrong option is a common belief."""

from mpi_classroom.exercises import Option, Prediction, Question

BETWEEN = Question(
    id="09.q1",
    question="Somebody splits both A and B by columns. What do the ranks have to send between the two "
    "layers in the forward pass?",
    options=(
        Option(
            "no message at all before the next product",
            reply="Each hidden number is complete, but on one rank only. A column of B needs all 32 of them.",
            belief="complete-is-everywhere",
        ),
        Option(
            "an all-gather of the hidden numbers",
            reply="A column-parallel layer needs all of its input. That is why Megatron splits the second "
            "layer by rows.",
            right=True,
        ),
        Option(
            "an all-reduce of the hidden numbers",
            reply="An all-reduce adds parts of a sum. Here each rank has different, complete numbers.",
            belief="every-layer-needs-a-sum",
        ),
    ),
    objectives=(1, 2),
)

FORGOTTEN = Question(
    id="09.q2",
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
            reply="It has one, but only with the contribution of its own columns of A. The other ranks' "
            "contributions are missing, and every layer before these two then computes from this incomplete "
            "gradient.",
            belief="gradient-of-a-shard-is-whole",
        ),
        Option(
            "the gradients of the layers before these two",
            reply="These gradients are incomplete and differ from rank to rank. The gradients of A and B are "
            "right, so a test that looks only at these two layers' weights would not find it.",
            right=True,
        ),
    ),
    objectives=(2, 3),
)

ROW_FIRST = Question(
    id="09.q3",
    question="A program splits the *first* layer by rows, applies GeLU to the part on each rank, and then "
    "sums with one all-reduce. The parts of one hidden number are 3 on rank 0 and −3 on rank 1. What does "
    "every rank have after the all-reduce?",
    options=(
        Option(
            "0, which is also what one process computes",
            reply="That would need GeLU(3) + GeLU(−3) to equal GeLU(3 − 3) = 0. The left side is about 3: "
            "GeLU is not linear, so the sum has to come first.",
            belief="gelu-before-the-row-sum",
        ),
        Option(
            "about 3, where one process computes 0",
            reply="GeLU(3) + GeLU(−3) is about 3, and GeLU(3 − 3) is 0. After a row-parallel layer the "
            "all-reduce has to come before GeLU. After a column-parallel layer GeLU needs none.",
            right=True,
        ),
        Option(
            "about 3, which is also what one process computes",
            reply="One process adds first: 3 − 3 = 0, and GeLU(0) = 0.",
            belief="gelu-before-the-row-sum",
        ),
    ),
    objectives=(1,),
)

QUESTIONS = (BETWEEN, FORGOTTEN, ROW_FIRST)

PREDICTIONS = (
    Prediction(
        id="09.p1",
        question="All-reduces in the forward pass?",
        objectives=(2,),
        targets=("gather-after-every-column", "every-layer-needs-a-sum"),
    ),
    Prediction(
        id="09.p2",
        question="All-reduces in the backward pass?",
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
        question="What percent of one process's activations does a tensor-parallel rank keep at most?",
        objectives=(5,),
        targets=("four-ranks-a-quarter",),
    ),
    Prediction(
        id="09.p5",
        question="How many times as long as ours does DTensor's step take?",
        objectives=(6,),
        targets=("same-cut-same-time",),
    ),
)
