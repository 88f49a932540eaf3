"""Quiz and predictions of lesson 11, ZeRO from scratch: each wrong option is a common belief."""

from mpi_classroom.exercises import Option, Prediction, Question

WHO_COMPUTES = Question(
    id="11.q1",
    question="One process needs 80 ms to compute a step with 8 samples. Now four ranks train with "
    "stage 3, each with 8 samples of its own. How long does each of them compute, messages "
    "aside?",
    options=(
        Option(
            "20 ms: each has a quarter of the weights to compute with",
            reply="you take ZeRO to split the computation. Before a layer runs, a rank gathers *all* "
            "its weights, and then computes as one process does: in section 4 each rank took its "
            "own samples through every layer.",
            belief="zero-splits-computation",
        ),
        Option(
            "80 ms",
            reply="every rank runs the whole model on its own samples, as in data parallelism. What it "
            "owns says what it keeps and updates.",
            right=True,
        ),
        Option(
            "20 ms on average: a layer runs on the rank that owns it",
            reply="you take the owner to run the layer. That is a pipeline, lesson 08, and there "
            "activations travel. Here weights travel, and a layer has no owner: each rank has a "
            "slice of it.",
            belief="owner-runs-the-layer",
        ),
    ),
    objectives=(1,),
)

SIXTY_FOUR = Question(
    id="11.q2",
    question="A text promises: 'With 64 ranks, ZeRO needs a 64th of the memory.' Of what is that so?",
    options=(
        Option(
            "of weights, gradients and optimizer state, with any stage",
            reply="you take every stage to divide everything. In float32, stage 1 leaves 8 bytes a "
            "parameter on each rank, weights and gradients, even on a thousand ranks; stage 2 "
            "leaves 4.",
            belief="every-stage-an-nth",
        ),
        Option(
            "of weights, gradients and optimizer state, with stage 3",
            reply="and even there some layer is whole at any moment of a step, and activations come on top.",
            right=True,
        ),
        Option(
            "of everything that training keeps in memory, with stage 3",
            reply="you take ZeRO to shard activations. Each rank keeps those of its own samples, as "
            "without ZeRO: below, 'Within a step' counts them.",
            belief="zero-shards-activations",
        ),
    ),
    objectives=(1, 2),
)

THE_PRICE = Question(
    id="11.q3",
    question="You go from stage 2 to stage 3. What does a rank send in a step?",
    options=(
        Option(
            "as much as before: only what is kept has changed",
            reply="you take stage 3 to be free. Stage 2 gathers the weights once, after the update; "
            "stage 3 before forward, and once more before backward, for it has let them go in "
            "between: 3Ψ and not 2Ψ.",
            belief="stage-3-is-free",
        ),
        Option(
            "half as much again",
            reply="a reduce-scatter and two all-gathers, in place of one: 3Ψ and not 2Ψ.",
            right=True,
        ),
        Option(
            "four times as much on four ranks: it needs everybody's weights",
            reply="you take an all-gather to grow with the ranks. However many they are, a rank "
            "receives the model once, and nearly that on two ranks already: (n−1)/n of it.",
            belief="gather-grows-with-n",
        ),
    ),
    objectives=(3,),
)

QUESTIONS = (WHO_COMPUTES, SIXTY_FOUR, THE_PRICE)

PREDICTIONS = (
    Prediction(
        id="11.p1",
        question="Bytes a parameter on each of four ranks, with stage 2?",
        objectives=(2,),
        targets=("every-stage-an-nth",),
    ),
    Prediction(
        id="11.p2",
        question="Bytes moved in stage 3, for each byte in stage 2?",
        objectives=(3,),
        targets=("stage-3-is-free",),
    ),
    Prediction(
        id="11.p3",
        question="Percent of the activations that stage 3 saves?",
        objectives=(1,),
        targets=("zero-shards-activations",),
    ),
    Prediction(
        id="11.p4",
        question="Times as long, a step of stage 3 compared with stage 2?",
        objectives=(3,),
        targets=("stage-3-is-free",),
    ),
)
