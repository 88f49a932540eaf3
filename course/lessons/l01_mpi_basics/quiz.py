"""Questions and prediction of lesson 01, MPI basics: each wrong option is a belief that many hold."""

from mpi_classroom.exercises import Option, Prediction, Question

SEND_RETURNED = Question(
    id="01.q1",
    question="Rank 0 calls `comm.Send(numbers, dest=1)`, and the call returns. Which of these is certain?",
    options=(
        Option(
            "Rank 1 has received the numbers",
            reply="That would mean Send waits until the receiver is done. The Send of the small message "
            "returned while rank 1 was still asleep; rank 1 received it half a second later.",
            belief="returned-is-received",
        ),
        Option(
            "Rank 0 may change the numbers",
            reply="This is all that a blocking call promises. MPI has sent the numbers or keeps a copy of "
            "them.",
            right=True,
        ),
        Option(
            "Rank 1 has begun its call of Recv",
            reply="That would mean Send always waits for a Recv. With a large message Open MPI does wait; "
            "the small one was sent before rank 1 called Recv.",
            belief="send-always-waits",
        ),
    ),
    objectives=(2,),
)

SMALL_AND_LARGE = Question(
    id="01.q2",
    question="A program sends around a ring, `Send` first, then `Recv`. It has run for a year with 80 "
    "bytes. Today the arrays are larger, and a hang report says: rank 0 waits in Send for rank 1, rank 1 "
    "for rank 2, rank 2 for rank 3, rank 3 for rank 0. What is wrong?",
    options=(
        Option(
            "The timeout: large messages take longer to send",
            reply="More time would not help: in a circle, each rank waits for the next one, for ever. That "
            "it ran for a year with small messages proves nothing about large ones.",
            belief="small-works-large-works",
        ),
        Option(
            "Rank 0: it was the first one that had to wait",
            reply="All four ranks run the same lines, and each waits for the next. The report is sorted by "
            "rank; rank 0 being on top says nothing about the cause.",
            belief="first-to-wait-is-guilty",
        ),
        Option(
            "The program: all ranks send before they receive",
            reply="As long as all ranks send first, the program depends on buffers that MPI does not "
            "promise.",
            right=True,
        ),
        Option(
            "The settings of MPI: its buffers are too small",
            reply="Larger buffers would hide the circle until messages grow again. The MPI standard lets "
            "Send wait for its Recv at any size, so a correct program does not need buffers.",
            belief="mpi-keeps-copies",
        ),
    ),
    objectives=(3,),
)

CERTAIN = Question(
    id="01.q3",
    question="Rank 0 runs `x = 5` and `comm.send(x, dest=1)`. Rank 1 runs `y = comm.recv(source=0)`. Then "
    "both print. In the notebook you see the output of rank 0 above that of rank 1. Which of these is "
    "certain?",
    options=(
        Option(
            "Rank 0 printed before rank 1 did",
            reply="That would mean the page sorts its blocks by time. It does not: the token went from "
            "rank 3 to rank 0, and rank 3 printed first, wherever its line stood.",
            belief="print-order-is-time-order",
        ),
        Option(
            "Rank 1 has a variable `x` as well",
            reply="That would mean a message carries the name of a variable. It carries the value, and "
            "rank 1 stored it in `y`. Rank 1 has no `x`, as three ranks had no `secret`.",
            belief="set-on-one-is-set-on-all",
        ),
        Option(
            "Rank 1 printed after rank 0 set `x`",
            reply="Rank 0 set x before it sent it, and rank 1 printed after it had received it. A message "
            "puts events of two ranks in order.",
            right=True,
        ),
    ),
    objectives=(6,),
)

QUESTIONS = (SEND_RETURNED, SMALL_AND_LARGE, CERTAIN)

PREDICTIONS = (
    Prediction(
        id="01.p1", question="Seconds in Send, with 1 MB?", objectives=(2,), targets=("mpi-keeps-copies",)
    ),
)
