"""Questions and predictions of lesson 03, arctan π: every wrong option is a belief that many hold."""

from mpi_classroom.exercises import Option, Prediction, Question

WEAK = Question(
    id="03.q1",
    question="One rank needs 10 s for its job. Four ranks on four cores need 10 s for four times the job. "
    "What follows from that?",
    options=(
        Option(
            "Four ranks have a speed-up of 1, so no gain.",
            reply="A speed-up of 1 would mean that four ranks need 10 s for the *same* job. In these 10 s "
            "they did four times as much.",
            belief="weak-is-strong",
        ),
        Option(
            "The weak scaling of the four ranks is perfect.",
            reply="Four times the work in the same time is all that weak scaling can ask for. How long they "
            "need for the single job was not measured.",
            right=True,
        ),
        Option(
            "Four ranks would do the single job in 2.5 s.",
            reply="That would mean that every part of the job can be distributed. If 2 s of it are a "
            "start-up that no rank can shorten, four ranks need 2 s + 8 s / 4 = 4 s.",
            belief="n-ranks-n-times",
        ),
    ),
    objectives=(2,),
)

LAST_DIGITS = Question(
    id="03.q2",
    question="You add up the same million terms on one rank, then on four ranks. What do you expect?",
    options=(
        Option(
            "two sums that are equal in every digit",
            reply="That would mean that the order of a sum does not matter. On a computer it does: "
            "(0.1 + 0.2) + 0.3 is 0.6000000000000001, and 0.1 + (0.2 + 0.3) is 0.6.",
            belief="sums-are-bitwise-equal",
        ),
        Option(
            "two sums that differ in the last digits",
            reply="Every addition is rounded, and another order rounds elsewhere. Compare with a tolerance.",
            right=True,
        ),
        Option(
            "two sums, one of them from a wrong program",
            reply="That would mean that one order of the additions is the right one. Above, one program gave "
            "several sums, and all were right but for their last digits.",
            belief="other-digits-are-a-bug",
        ),
    ),
    objectives=(3,),
)

QUESTIONS = (WEAK, LAST_DIGITS)

PREDICTIONS = (
    Prediction(
        id="03.p1",
        question="Four ranks, four times the strips: how many times as long as one rank?",
        objectives=(2,),
        targets=("weak-is-strong", "n-ranks-n-times"),
    ),
    Prediction(
        id="03.p2",
        question="How many different sums on 1, 2, 3 and 4 ranks?",
        objectives=(3,),
        targets=("sums-are-bitwise-equal",),
    ),
)
