"""Quiz and prediction of lesson 03, arctan π: every wrong option is a belief that many hold."""

from mpi_classroom.exercises import Option, Prediction, Question

LAST_DIGITS = Question(
    id="03.q1",
    question="You add up a million terms on one rank, then the same million on four. What do you "
    "expect of the two sums?",
    options=(
        Option(
            "they are equal to the last bit: the terms are the same",
            reply="you take the order of a sum not to matter. On a computer it does: (0.1 + 0.2) + 0.3 "
            "is 0.6000000000000001, and 0.1 + (0.2 + 0.3) is 0.6. Four ranks add in another "
            "order.",
            belief="sums-are-bitwise-equal",
        ),
        Option(
            "they differ in the last digits, and neither is better",
            reply="every addition is rounded, and another order is rounded elsewhere. Compare with a "
            "tolerance.",
            right=True,
        ),
        Option(
            "they differ, so one of the two programs has a bug",
            reply="you take a sum to have one right result. Above there were several, from one program,"
            " all as far from π as the series is.",
            belief="other-digits-are-a-bug",
        ),
    ),
    objectives=(2,),
)

WEAK = Question(
    id="03.q2",
    question="One rank needs 10 s for its job, four ranks on four cores need 10 s for four times the "
    "job. Which statement is right?",
    options=(
        Option(
            "a speed-up of 1: the time has not changed, four ranks are no use",
            reply="you take weak scaling for strong scaling. The job has grown with the ranks: in the "
            "same 10 s, four times the work was done.",
            belief="weak-is-strong",
        ),
        Option(
            "perfect weak scaling; how the single job scales was not measured",
            reply="weak scaling asks for more work in the same time, strong scaling for the same work "
            "in less.",
            right=True,
        ),
        Option(
            "four ranks will do the single job in 2.5 s",
            reply="you take the work to be shared out without a remainder. If 2 s of the single job "
            "cannot be shared, four ranks need at least 2 s + 8 s / 4 = 4 s for it, and may still"
            " scale well weakly.",
            belief="n-ranks-n-times",
        ),
    ),
    objectives=(3,),
)

QUESTIONS = (LAST_DIGITS, WEAK)

PREDICTIONS = (
    Prediction(
        id="03.p1",
        question="Four ranks, four times the terms: how many times as long as one rank?",
        objectives=(3,),
        targets=("weak-is-strong", "n-ranks-n-times"),
    ),
)
