"""Questions and predictions of lesson 08, pipeline parallelism: each wrong option is a common belief."""

from mpi_classroom.exercises import Option, Prediction, Question

ONE_BATCH = Question(
    id="08.q1",
    question="One batch, not cut into micro-batches, passes through a model in four equal stages on four "
    "machines. Messages take no time. How long does the step take, compared with one machine that runs the "
    "whole model?",
    options=(
        Option(
            "a quarter of the time",
            reply="That would mean that the four stages compute at the same time. They cannot: stage 1 needs "
            "the output of stage 0. In the upper panel of section 2, at any moment one stage works and three "
            "are idle.",
            belief="stages-speed-up-one-batch",
        ),
        Option(
            "the same time",
            reply="The stages work one after the other. What you gain is memory: each machine holds about a "
            "quarter of the model.",
            right=True,
        ),
        Option(
            "half of the time",
            reply="That would mean that on average two stages work at the same time. But stage 1 cannot "
            "start before stage 0 has ended, and backward the other way round. Even with free messages, at "
            "any moment one stage works.",
            belief="bubble-is-transfer",
        ),
    ),
    objectives=(3,),
)

WHAT_CHANGES = Question(
    id="08.q2",
    question="Four stages take equally long, there are 32 micro-batches, and messages take no time. You "
    "replace GPipe by 1F1B. What changes?",
    options=(
        Option(
            "rank 0 is idle for less of the time",
            reply="That would mean that the step gets shorter. With equal stages and free messages the idle "
            "share of both schedules is 3/35. 1F1B changes the order of the work, and with it the memory.",
            belief="one-f-one-b-shrinks-the-bubble",
        ),
        Option(
            "rank 0 keeps activations of at most 4 micro-batches",
            reply="Stage 0 of 4 holds at most 4 − 0 micro-batches; with GPipe it holds all 32.",
            right=True,
        ),
        Option(
            "rank 0 keeps activations of at most 1 micro-batch",
            reply="That would mean that rank 0 waits for the gradient of micro-batch 0 before it starts "
            "micro-batch 1. Only the last rank holds one; rank 0 holds 4 before a gradient comes back.",
            belief="one-f-one-b-holds-one",
        ),
    ),
    objectives=(4,),
)

THE_PACE = Question(
    id="08.q3",
    question="A forward and a backward of a micro-batch together take 1, 1, 1 and 3 ms on the four stages. "
    "Many micro-batches go through, and messages take no time. How often is one finished?",
    options=(
        Option(
            "every 1.5 ms",
            reply="That is the average of the stages. But the last stage needs 3 ms for every micro-batch: "
            "after 10 of them it has been busy for 30 ms, not for 15.",
            belief="average-sets-the-pace",
        ),
        Option(
            "every 3 ms",
            reply="The slowest stage sets the pace. So cut the model so that the most expensive stage is as "
            "cheap as possible.",
            right=True,
        ),
        Option(
            "every 6 ms",
            reply="That is how long one micro-batch needs for all stages. While the last stage works on it, "
            "the others already work on the next ones.",
            belief="one-after-the-other",
        ),
    ),
    objectives=(6,),
)

QUESTIONS = (ONE_BATCH, WHAT_CHANGES, THE_PACE)

PREDICTIONS = (
    Prediction(
        id="08.p1",
        question="Speed-up of one batch through four stages on four ranks?",
        objectives=(3,),
        targets=("stages-speed-up-one-batch",),
    ),
    Prediction(
        id="08.p2",
        question="Percent idle with GPipe?",
        objectives=(3,),
        targets=("bubble-is-transfer",),
    ),
    Prediction(
        id="08.p3",
        question="Percent of time that 1F1B saves, compared with GPipe?",
        objectives=(3, 4),
        targets=("one-f-one-b-shrinks-the-bubble",),
    ),
    Prediction(
        id="08.p4",
        question="Largest difference from one process's gradients?",
        objectives=(1,),
        targets=("cut-is-another-model",),
    ),
    Prediction(
        id="08.p5",
        question="Times as many layers on 4 ranks as on 1?",
        objectives=(7,),
        targets=("ranks-add-no-memory",),
    ),
)
