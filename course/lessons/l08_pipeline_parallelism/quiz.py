"""Quiz and predictions of lesson 08, pipeline parallelism: each wrong option is a common belief."""

from mpi_classroom.exercises import Option, Prediction, Question

ONE_BATCH = Question(
    id="08.q1",
    question="One batch, not cut into micro-batches, goes through a model in four stages on four "
    "machines. How much sooner is its step done than on one machine?",
    options=(
        Option(
            "four times sooner: four machines work",
            reply="you take stages to make one batch faster. Stage 1 cannot begin before stage 0 has "
            "ended: the four work one after the other, as in the first figure, and each is idle "
            "for three quarters of the time.",
            belief="stages-speed-up-one-batch",
        ),
        Option(
            "not at all: rather a little later",
            reply="the stages wait for each other. What you gain is room: each machine holds a quarter "
            "of the model.",
            right=True,
        ),
        Option(
            "almost four times sooner: only the messages cost time",
            reply="you take the loss to be messages. In the simulation they took no time at all, and "
            "three of four ranks were idle at every moment.",
            belief="bubble-is-transfer",
        ),
    ),
    objectives=(2, 3),
)

WHAT_CHANGES = Question(
    id="08.q2",
    question="Four stages, 32 micro-batches. You replace GPipe by 1F1B. What changes?",
    options=(
        Option(
            "the ranks are idle for less of the time",
            reply="you take 1F1B to shrink the bubble. Both are idle for 3/35 of the time: with 8 "
            "micro-batches, too, the two ended at the same moment in section 4.",
            belief="one-f-one-b-shrinks-the-bubble",
        ),
        Option(
            "rank 0 holds 4 micro-batches at most, in place of 32",
            reply="and with the memory that it saves, you can afford more micro-batches: those shrink "
            "the bubble.",
            right=True,
        ),
        Option(
            "every rank holds 1 micro-batch at most, in place of 32",
            reply="you take 1F1B to hold one micro-batch. That is so on the last rank; rank 0 has to "
            "send 4 on their way before the first gradient comes back.",
            belief="one-f-one-b-holds-one",
        ),
    ),
    objectives=(4,),
)

THE_PACE = Question(
    id="08.q3",
    question="Forward and backward of a micro-batch take 1, 1, 1 and 3 ms on the four stages. Many "
    "micro-batches go through. How often is one done?",
    options=(
        Option(
            "every 1.5 ms: the average of the stages",
            reply="you take the average to set the pace. The last stage needs 3 ms for every "
            "micro-batch, so after 10 of them it has been busy for 30 ms, not for 15.",
            belief="average-sets-the-pace",
        ),
        Option(
            "every 3 ms",
            reply="the slowest stage sets the pace. Cut the layers so that the dearest stage is as "
            "cheap as can be.",
            right=True,
        ),
        Option(
            "every 6 ms: the stages work one after the other",
            reply="you take the ranks to work one after the other. That is so for one micro-batch; "
            "while the last stage has it, the others work on the next ones.",
            belief="one-after-the-other",
        ),
    ),
    objectives=(1,),
)

QUESTIONS = (ONE_BATCH, WHAT_CHANGES, THE_PACE)

PREDICTIONS = (
    Prediction(
        id="08.p1",
        question="Times faster, one batch in four stages on four ranks?",
        objectives=(2,),
        targets=("stages-speed-up-one-batch",),
    ),
    Prediction(
        id="08.p2",
        question="Percent of the ranks' time idle, eight micro-batches in four stages?",
        objectives=(3,),
        targets=("bubble-is-transfer",),
    ),
    Prediction(
        id="08.p3",
        question="Percent of time that 1F1B saves, compared with GPipe?",
        objectives=(3, 4),
        targets=("one-f-one-b-shrinks-the-bubble",),
    ),
)
