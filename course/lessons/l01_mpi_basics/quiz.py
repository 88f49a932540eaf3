"""Quiz and prediction of lesson 01, MPI basics: every wrong option is a belief that many hold."""

from mpi_classroom.exercises import Option, Prediction, Question

SEND_RETURNED = Question(
    id="01.q1",
    question="Rank 0 calls `comm.Send(numbers, dest=1)`, and the call returns. What do you know for certain?",
    options=(
        Option(
            "rank 1 has received the numbers",
            reply='you take "Send returned" for "received". In section 3, Send of the small message '
            "returned while rank 1 was still asleep; it received the message half a second later.",
            belief="returned-is-received",
        ),
        Option(
            "rank 0 may change `numbers`",
            reply="MPI has the numbers, or a copy of them; where they are now it does not say.",
            right=True,
        ),
        Option(
            "rank 1 has called `Recv`",
            reply="you take Send to wait for the other side. It may, with large messages; in section 3,"
            " the small one was sent before rank 1 came to its Recv.",
            belief="send-always-waits",
        ),
    ),
    objectives=(2,),
)

SMALL_AND_LARGE = Question(
    id="01.q2",
    question="A program sends round a ring, first `Send`, then `Recv`, and has run for a year with 4 "
    "kB. Today the arrays have 1 MB, and a hang report has four lines: rank 0 waiting in Send"
    " to rank 1, rank 1 to rank 2, rank 2 to rank 3, rank 3 to rank 0. What is wrong?",
    options=(
        Option(
            "nothing in the program: it ran for a year, and with more time it would end",
            reply="you take what works at 4 kB to work at 1 MB. In section 4 these very lines, with 1 "
            "MB, ended in such a report. Nobody in a circle comes to Recv, however long you wait.",
            belief="small-works-large-works",
        ),
        Option(
            "rank 0: it is named first, and the others wait because of it",
            reply="you take the rank that is named first to be the cause. A report goes by number: "
            "follow who waits for whom, from any rank, and you come back to where you began.",
            belief="first-to-wait-is-guilty",
        ),
        Option(
            "the program: every Send waits for a Recv that no rank comes to",
            reply="the program relied on copies that nobody had promised; it was wrong with 4 kB, too.",
            right=True,
        ),
        Option(
            "MPI: it had no room left for its copies",
            reply="you take MPI to keep copies of everything. It promises none: when a Send returns "
            "early, as in section 3 with 8 bytes, that is a present.",
            belief="mpi-keeps-copies",
        ),
    ),
    objectives=(3, 4),
)

CERTAIN = Question(
    id="01.q3",
    question="Rank 0 runs `x = 5`, then `comm.send(x, dest=1)`; rank 1 runs `y = comm.recv(source=0)`;"
    " then both print. On the screen, the line of rank 1 stands first. What is certain?",
    options=(
        Option(
            "rank 1 printed before rank 0",
            reply="you take the order on the screen for the order in time. In section 7, the token went"
            " from 3 to 0, and the lines on the screen said nothing about it.",
            belief="print-order-is-time-order",
        ),
        Option(
            "rank 1 has an `x` now",
            reply="you take a name that one rank sets to exist on all. What came is called y there; in "
            "section 1, three ranks raised NameError for a name that only rank 0 had set.",
            belief="set-on-one-is-set-on-all",
        ),
        Option(
            "rank 1 printed after rank 0 had begun to send",
            reply="only a message orders what two ranks do: after recv comes after the beginning of send.",
            right=True,
        ),
    ),
    objectives=(1,),
)

QUESTIONS = (SEND_RETURNED, SMALL_AND_LARGE, CERTAIN)

PREDICTIONS = (
    Prediction(
        id="01.p1", question="Seconds in Send, with 1 MB?", objectives=(2,), targets=("mpi-keeps-copies",)
    ),
)
