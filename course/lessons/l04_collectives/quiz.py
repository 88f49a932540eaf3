"""Questions of lesson 04, collectives: every wrong option is a belief that many hold."""

from mpi_classroom.exercises import Option, Prediction, Question

WHO_CALLS = Question(
    id="04.q1",
    question="Rank 0 has read a file into the array `data`; ranks 1, 2 and 3 have an empty array of "
    "the same size. All are to have the numbers. Which ranks call `comm.Bcast(data, root=0)`?",
    options=(
        Option(
            "rank 0: it has the data",
            reply="you take Bcast for a call of the root alone. Then ranks 1 to 3 would never have "
            "asked for anything: in section 1 all four ran the same line, and `root=0` said who "
            "gives.",
            belief="only-root-calls",
        ),
        Option(
            "rank 0; the others call `comm.Recv(data, source=0)`",
            reply="you take Bcast for a Send to everyone. A collective is met by the same collective, "
            "not by a Recv; on the way, ranks that have the data pass it on, so even the senders "
            "are not only rank 0.",
            belief="bcast-meets-recv",
        ),
        Option(
            "all four, with the same line",
            reply="a collective is a call of all ranks; `root` tells them which part each has in it.",
            right=True,
        ),
    ),
    objectives=(1,),
)

TRAFFIC = Question(
    id="04.q2",
    question="Four ranks sum 100 MB by reduce-scatter and all-gather, and each of them sends 150 MB. "
    "You add ranks until there are 400. How much does each rank send now?",
    options=(
        Option(
            "about 15 000 MB: a hundred times as many ranks",
            reply="you take the traffic of a rank to grow with the ranks. It is 2(n−1)/n · 100 MB: 150 "
            "for 4 ranks, 175 for 8. The parts get smaller as there are more of them.",
            belief="traffic-grows-with-n",
        ),
        Option(
            "about 200 MB",
            reply="2(n−1)/n comes close to 2 and never gets there. What does grow is the number of messages.",
            right=True,
        ),
        Option(
            "about 1.5 MB: a hundred times as many share the work",
            reply="you take the traffic to be shared out. But every rank has to give all of its 100 MB "
            "away, and to get 100 MB of sums: nearly 200 MB, however many the others are.",
            belief="traffic-is-shared-out",
        ),
    ),
    objectives=(3,),
)

AFTER_REDUCE = Question(
    id="04.q3",
    question="Four ranks call `dist.reduce(tensor, dst=0)`. What is in `tensor` on rank 2 afterwards?",
    options=(
        Option(
            "the sum, as on every rank",
            reply="you take Reduce to fill every rank. In section 2 only the root had the sum; all have"
            " it after `all_reduce`.",
            belief="reduce-fills-every-rank",
        ),
        Option(
            "its own numbers, as before",
            reply="you take the tensors of the other ranks to be left alone. The library may add up in "
            "them on the way: with Gloo, in More, rank 2 ended with a number that is neither its "
            "own nor the sum.",
            belief="others-stay-as-they-were",
        ),
        Option(
            "nobody promises anything",
            reply="the sum is on rank 0. What the others hold is unspecified, so do not read it.",
            right=True,
        ),
    ),
    objectives=(1,),
)

QUESTIONS = (WHO_CALLS, TRAFFIC, AFTER_REDUCE)

PREDICTIONS = (
    Prediction(
        id="04.p1",
        question="Ranks that have the sums after Reduce?",
        objectives=(1,),
        targets=("reduce-fills-every-rank",),
    ),
    Prediction(
        id="04.p2",
        question="kB that each of four ranks sends, to sum 600 kB round the ring?",
        objectives=(3,),
        targets=("traffic-grows-with-n",),
    ),
    Prediction(
        id="04.p3",
        question="Of 16 operations, how many work on Gloo?",
        objectives=(5,),
        targets=("printed-tables-hold",),
    ),
    Prediction(
        id="04.p4",
        question="From how many kB on is the ring faster than recursive doubling?",
        objectives=(4,),
        targets=("fewest-bytes-wins",),
    ),
)
