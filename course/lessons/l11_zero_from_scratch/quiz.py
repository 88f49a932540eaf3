"""Quiz and predictions of lesson 11, ZeRO from scratch: each wrong option is a common belief."""

from mpi_classroom.exercises import Option, Prediction, Question

WHO_COMPUTES = Question(
    id="11.q1",
    question="One process needs 80 ms to compute a step with 8 samples. Now four ranks train with "
    "stage 3, each with 8 samples of its own. How long does each rank compute, without "
    "communication?",
    options=(
        Option(
            "20 ms, with a quarter of the weights",
            reply="Before a layer runs, a rank gathers *all* of its weights and then computes as one "
            "process does. In section 4 each rank took its own samples through every layer.",
            belief="zero-splits-computation",
        ),
        Option(
            "80 ms, with all of the weights",
            reply="Every rank runs the full model on its own samples, as in data parallelism. Ownership"
            " decides what a rank keeps and updates, not what it computes.",
            right=True,
        ),
        Option(
            "20 ms, with the layers that it owns",
            reply="Layers that run on their owner are a pipeline (lesson 08): there activations travel."
            " Here weights travel, and every rank owns a slice of every layer.",
            belief="owner-runs-the-layer",
        ),
    ),
    objectives=(1,),
)

SIXTY_FOUR = Question(
    id="11.q2",
    question="A text claims: 'With 64 ranks, ZeRO needs a 64th of the memory.' Of what is that so?",
    options=(
        Option(
            "of weights, gradients and optimizer state, with any stage",
            reply="In float32, stage 1 leaves 8 bytes per parameter on each rank for weights and "
            "gradients, even on a thousand ranks; stage 2 leaves 4.",
            belief="every-stage-an-nth",
        ),
        Option(
            "of weights, gradients and optimizer state, with stage 3",
            reply="Even there one layer's full weights are in memory at any moment of a step, and "
            "activations come on top.",
            right=True,
        ),
        Option(
            "of everything that training keeps in memory, with stage 3",
            reply="Activations are not sharded: each rank keeps those of its own samples, as without ZeRO.",
            belief="zero-shards-activations",
        ),
    ),
    objectives=(1, 2),
)

THE_PRICE = Question(
    id="11.q3",
    question="You go from stage 2 to stage 3. How many bytes does a rank send per step?",
    options=(
        Option(
            "as many as before",
            reply="Stage 2 gathers the weights once, after the update. Stage 3 gathers them before "
            "forward and again before backward, because it released them in between: 3Ψ instead "
            "of 2Ψ.",
            belief="stage-3-is-free",
        ),
        Option(
            "half as many again",
            reply="One reduce-scatter and two all-gathers instead of one: 3Ψ instead of 2Ψ.",
            right=True,
        ),
        Option(
            "four times as many",
            reply="An all-gather does not grow with the ranks. However many there are, a rank receives "
            "the model once: (n−1)/n of it.",
            belief="gather-grows-with-n",
        ),
    ),
    objectives=(3,),
)

QUESTIONS = (WHO_COMPUTES, SIXTY_FOUR, THE_PRICE)

PREDICTIONS = (
    Prediction(
        id="11.p1",
        question="Bytes per parameter on each of four ranks, with stage 2?",
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
