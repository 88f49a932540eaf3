"""Questions and predictions of lesson 02, Monte Carlo π: every wrong option is a belief that many hold."""

from mpi_classroom.exercises import Option, Prediction, Question

FOUR_TIMES = Question(
    id="02.q1",
    question="On a machine with two otherwise idle cores, one rank throws 10⁸ darts in 1 s. Four ranks throw "
    "the same 10⁸ darts together. About how long do they take?",
    options=(
        Option(
            "0.25 s",
            reply="That would take four cores. Two cores finish the same darts in half the time of one: "
            "0.5 s.",
            belief="n-ranks-n-times",
        ),
        Option(
            "0.5 s",
            reply="Two cores do in 0.5 s what one core does in 1 s, however many ranks share them.",
            right=True,
        ),
        Option(
            "1 s",
            reply="That would mean that only one core works. Two ranks compute at any moment, one on each "
            "core, so the job takes half as long.",
            belief="one-after-the-other",
        ),
    ),
    objectives=(3,),
)

SAME_SEED = Question(
    id="02.q2",
    question="Four ranks each draw 1 000 000 darts with `np.random.default_rng(7)`, and we add up their "
    "counts. How good is the estimate?",
    options=(
        Option(
            "as good as one from 4 000 000 darts",
            reply="That would need 4 000 000 different darts. In section 3 all four ranks counted the same "
            "number inside: they threw one million darts, four times.",
            belief="same-seed-adds-samples",
        ),
        Option(
            "as good as one from 1 000 000 darts",
            reply="Every dart is counted four times. That multiplies the count by four, and the number of "
            "darts too, so the estimate is the one that rank 0 has alone.",
            right=True,
        ),
        Option(
            "not as good as one from 1 000 000 darts",
            reply="Counting the same million darts four times adds no information, and loses none: the "
            "mean of four equal estimates is that estimate.",
            belief="copies-spoil-an-estimate",
        ),
    ),
    objectives=(2,),
)

QUESTIONS = (FOUR_TIMES, SAME_SEED)

PREDICTIONS = (
    Prediction(
        id="02.p1",
        question="How many different counts do four ranks print?",
        objectives=(2,),
        targets=("same-seed-adds-samples",),
    ),
    Prediction(
        id="02.p2",
        question="What is the speed-up of four ranks over one?",
        objectives=(3,),
        targets=("n-ranks-n-times",),
    ),
    Prediction(
        id="02.p3",
        question="5% serial, 1024 ranks: what is the largest speed-up?",
        objectives=(5,),
        targets=("n-ranks-n-times",),
    ),
)
