"""Quiz and predictions of lesson 08, pipeline parallelism: each wrong option is a common belief."""

from mpi_classroom.exercises import Option, Prediction, Question

ONE_BATCH = Question(
    id="08.q1",
    question="One batch, not cut into micro-batches, passes through a model in four stages on four "
    "machines. How long does its step take, compared with one machine that holds the whole "
    "model?",
    options=(
        Option(
            "about a quarter of the time",
            reply="A quarter would mean that the four stages compute at the same moment. They cannot: "
            "stage 1 needs the output of stage 0. In the first figure one stage works and three "
            "wait, at every moment.",
            belief="stages-speed-up-one-batch",
        ),
        Option(
            "about the same time",
            reply="The stages wait for each other. What you gain is memory: each machine holds a "
            "quarter of the model.",
            right=True,
        ),
        Option(
            "half of the time",
            reply="That would need two stages at work on average. In the simulation messages took no "
            "time at all, and still only one of the four ranks worked at any moment.",
            belief="bubble-is-transfer",
        ),
    ),
    objectives=(2, 3),
)

WHAT_CHANGES = Question(
    id="08.q2",
    question="Four stages of equal length, 32 micro-batches, messages that take no time. You replace "
    "GPipe by 1F1B. What changes?",
    options=(
        Option(
            "every rank is idle for less of the time",
            reply="Both schedules are idle for 3/35 of the time. In section 4, with 8 micro-batches, "
            "the two also ended at the same moment.",
            belief="one-f-one-b-shrinks-the-bubble",
        ),
        Option(
            "rank 0 keeps activations of at most 4 micro-batches",
            reply="GPipe keeps those of all 32. With the memory that 1F1B saves you can afford more "
            "micro-batches, and those do shrink the bubble.",
            right=True,
        ),
        Option(
            "every rank keeps activations of at most 1 micro-batch",
            reply="That holds for the last rank only. Rank 0 must start 4 micro-batches before the "
            "first gradient comes back to it.",
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
            "every 1.5 ms",
            reply="1.5 ms is the average of the stages. But the last stage needs 3 ms for every "
            "micro-batch: after 10 of them it has been busy for 30 ms, not for 15.",
            belief="average-sets-the-pace",
        ),
        Option(
            "every 3 ms",
            reply="The slowest stage sets the pace. So cut the model where the most expensive stage is "
            "as cheap as possible.",
            right=True,
        ),
        Option(
            "every 6 ms",
            reply="6 ms is how long one micro-batch takes to pass all stages. While the last stage has "
            "it, the others already work on the next ones.",
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
