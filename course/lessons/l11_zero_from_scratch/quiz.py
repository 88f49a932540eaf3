"""Questions and predictions of lesson 11, ZeRO from scratch: each wrong option is a common belief."""

from mpi_classroom.exercises import Option, Prediction, Question

WHO_COMPUTES = Question(
    id="11.q1",
    question="Four ranks train with stage 3, each on 8 samples of its own. What does each rank compute in a "
    "step?",
    options=(
        Option(
            "a quarter of every layer, on its own samples",
            reply="That would mean a rank computes with its shard only. It doesn't: before a layer runs, "
            "each rank gathers all of the layer's weights, and computes as one process would.",
            belief="zero-splits-computation",
        ),
        Option(
            "all layers in full, on its own samples",
            reply="Every rank runs the full model on its own samples, as in data parallelism. Owners keep "
            "and update numbers; computing is not divided among them.",
            right=True,
        ),
        Option(
            "all layers that it owns, on all samples",
            reply="That would be a pipeline, as in lesson 08: its ranks own layers, and activations "
            "travel. In ZeRO every rank owns a shard of every layer, and weights travel.",
            belief="owner-runs-the-layer",
        ),
    ),
    objectives=(1,),
)

SIXTY_FOUR = Question(
    id="11.q2",
    question="A text claims: 'ZeRO on 64 ranks needs a 64th of the memory.' Of which memory is this true?",
    options=(
        Option(
            "what each rank holds between steps, in stages 1 to 3",
            reply="That would mean stages 1 and 2 shard the weights. They don't: in float32, stage 1 keeps 8 "
            "bytes per parameter on every rank and stage 2 keeps 4, even on a thousand ranks.",
            belief="every-stage-an-nth",
        ),
        Option(
            "what each rank holds between steps, in stage 3",
            reply="Only stage 3 shards weights, gradients and optimizer state. Within a step, activations, "
            "gathered weights and full gradients of a layer come on top.",
            right=True,
        ),
        Option(
            "the most that each rank needs in a step, in stage 3",
            reply="That would mean activations are sharded, too. They aren't: each rank keeps those of its "
            "own samples. In section 7 the peak fell by less than what was held.",
            belief="zero-shards-activations",
        ),
    ),
    objectives=(1, 2),
)

THE_PRICE = Question(
    id="11.q3",
    question="You go from stage 2 to stage 3, on many ranks. How many bytes does each rank receive per step?",
    options=(
        Option(
            "as many as before",
            reply="That would mean both stages gather the weights once. Stage 2 does, after the update. "
            "Stage 3 gathers them before forward and, as it freed them, again before backward.",
            belief="stage-3-is-free",
        ),
        Option(
            "1.5 times as many",
            reply="Stage 2 has one reduce-scatter and one all-gather, stage 3 one reduce-scatter and two "
            "all-gathers: 3Ψ in place of 2Ψ, for Ψ parameters.",
            right=True,
        ),
        Option(
            "N times as many on N ranks",
            reply="That would mean an all-gather brings the model once per rank. It brings it once: of N "
            "shards, a rank receives the N − 1 that it does not own.",
            belief="gather-grows-with-n",
        ),
    ),
    objectives=(3,),
)

QUESTIONS = (WHO_COMPUTES, SIXTY_FOUR, THE_PRICE)

PREDICTIONS = (
    Prediction(
        id="11.p1",
        question="Of the three runs, how many have enough memory?",
        objectives=(2,),
        targets=("every-stage-an-nth",),
    ),
    Prediction(
        id="11.p2",
        question="Bytes per parameter that each of four ranks holds in stage 2?",
        objectives=(2,),
        targets=("every-stage-an-nth",),
    ),
    Prediction(
        id="11.p3",
        question="How many times as many bytes does a rank receive in stage 3 as in stage 2?",
        objectives=(3,),
        targets=("stage-3-is-free",),
    ),
    Prediction(
        id="11.p4",
        question="By how many percent does the peak of a step fall, from stage 0 to stage 3?",
        objectives=(2,),
        targets=("zero-shards-activations",),
    ),
    Prediction(
        id="11.p5",
        question="How many times as long is a stage-3 step as a stage-2 step?",
        objectives=(3,),
        targets=("stage-3-is-free",),
    ),
    Prediction(
        id="11.p6",
        question="How many steps do the killed and the resumed job both take?",
        objectives=(5,),
        targets=("a-kill-loses-nothing",),
    ),
)
