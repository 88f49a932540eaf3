"""Quiz and prediction of lesson 02, Monte Carlo π: every wrong option is a belief that many hold."""

from mpi_classroom.exercises import Option, Prediction, Question

SAME_SEED = Question(
    id="02.q1",
    question="Four ranks each draw 1 000 000 darts with `np.random.default_rng(7)`, and `Reduce` adds "
    "the counts. How good is the estimate?",
    options=(
        Option(
            "as good as from 4 000 000 darts: every rank has drawn its own",
            reply="you take the same seed everywhere to add samples still. In section 4, all four ranks"
            " counted the very same number of darts inside: four copies of one sample.",
            belief="same-seed-adds-samples",
        ),
        Option(
            "as good as from 1 000 000 darts",
            reply="each dart is counted four times, which changes the sums but not their ratio.",
            right=True,
        ),
        Option(
            "worse than from 1 000 000 darts: the ranks disturb each other",
            reply="you take ranks to share one stream of random numbers. They share no memory: in "
            "section 4, each counted what a rank counts that is alone.",
            belief="ranks-share-a-stream",
        ),
    ),
    objectives=(2,),
)

FOUR_TIMES = Question(
    id="02.q2",
    question="On a machine with two cores, one rank throws 10⁸ darts in one second. How long do four "
    "ranks take to throw the same 10⁸ darts together?",
    options=(
        Option(
            "a quarter of a second",
            reply="you take four ranks to be four times as fast. They take turns on two cores: in "
            "section 5, the bar of four ranks was no shorter than cores allow.",
            belief="n-ranks-n-times",
        ),
        Option(
            "half a second, or a little more",
            reply="two cores compute at most twice as much in the same time, however many ranks take "
            "turns on them.",
            right=True,
        ),
        Option(
            "one second: the darts are as many as before",
            reply="you take the ranks to work one after the other. On two cores two of them always "
            "compute at once: compare the bars of one and of two ranks in section 5.",
            belief="one-after-the-other",
        ),
    ),
    objectives=(4,),
)

QUESTIONS = (SAME_SEED, FOUR_TIMES)

PREDICTIONS = (
    Prediction(
        id="02.p1",
        question="Four ranks: how many times faster than one?",
        objectives=(4,),
        targets=("n-ranks-n-times",),
    ),
)
