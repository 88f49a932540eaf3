"""Questions and predictions of lesson 03, arctan π: every wrong option is a belief that many hold."""

from mpi_classroom.exercises import Option, Prediction, Question

WEAK = Question(
    id="03.q1",
    question="One rank needs 10 s for its job. Four ranks on four cores need 10 s for four times the job. "
    "What follows from these two times **alone**?",
    options=(
        Option(
            "Four ranks bring nothing; the speed-up is 1.",
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
    question="A colleague adds up the same million terms in float64, on one rank and on four. The sums "
    "differ in the 4th digit. Rounding, or a bug?",
    options=(
        Option(
            "a bug, because correct sums agree in every digit",
            reply="That would make the sums above wrong, too. They are correct, and differ from about the "
            "15th digit on, because the order of the additions differs. The 4th digit is far from there.",
            belief="other-digits-are-a-bug",
        ),
        Option(
            "a bug, because rounding shows in the last digits",
            reply="Above, rounding changed about the 15th digit. Terms that are missing or counted twice "
            "change larger ones: look there first.",
            right=True,
        ),
        Option(
            "rounding, because four ranks add in a different order",
            reply="Above, a different order changed about the 15th digit. To reach the 4th digit, rounding "
            "would have to be a hundred billion times as large.",
            belief="rounding-explains-it",
        ),
    ),
    objectives=(3,),
)

QUESTIONS = (WEAK, LAST_DIGITS)

PREDICTIONS = (
    Prediction(
        id="03.p1",
        question="Speed-up of four ranks, same job?",
        objectives=(2,),
        targets=("n-ranks-n-times",),
    ),
    Prediction(
        id="03.p2",
        question="Four ranks, four times the strips: how many times as long as one rank?",
        objectives=(2,),
        targets=("weak-is-strong", "n-ranks-n-times"),
    ),
    Prediction(
        id="03.p3",
        question="How many different sums on 1, 2, 3 and 4 ranks?",
        objectives=(3,),
        targets=("sums-are-bitwise-equal",),
    ),
)
