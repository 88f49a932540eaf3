"""Questions and predictions of lesson 04, collectives: every wrong option is a belief that many hold."""

from mpi_classroom.exercises import Option, Prediction, Question

WHO_CALLS = Question(
    id="04.q1",
    question="Rank 0 has read a file into the array `data`. Ranks 1, 2 and 3 have an empty array of the same "
    "size. Who has to call what, so that all four have the numbers?",
    options=(
        Option(
            "rank 0 calls `comm.Bcast(data, root=0)`; nobody else calls anything",
            reply="Then MPI would have to write into the arrays of ranks 1, 2 and 3 without being asked. It "
            "doesn't: it writes only into an array that a call names. In section 1, all ranks called Bcast.",
            belief="only-root-calls",
        ),
        Option(
            "rank 0 calls `comm.Bcast(data, root=0)`; the others call `comm.Recv(data)`",
            reply="Then rank 0 would have to call Send for each of them: a Recv waits for a Send, and there "
            "is none. In a broadcast, ranks that have the data pass it on, so all make the same call.",
            belief="bcast-meets-recv",
        ),
        Option(
            "all ranks call `comm.Bcast(data, root=0)`; nobody calls anything else",
            reply="All ranks of the communicator make a collective call; `root=0` says who has the data.",
            right=True,
        ),
    ),
    objectives=(1,),
)

TRAFFIC = Question(
    id="04.q2",
    question="Four ranks sum 100 MB in a ring, and each of them sends 150 MB. You repeat it with 400 ranks. "
    "How much does each rank send now?",
    options=(
        Option(
            "about 15 000 MB",
            reply="That would mean that each rank sends a hundred times as much. But with more ranks the "
            "chunks get smaller: 2(n−1)/n · 100 MB is 150 MB for 4 ranks and 175 MB for 8.",
            belief="traffic-grows-with-n",
        ),
        Option(
            "about 200 MB",
            reply="2(n−1)/n · 100 MB is 199.5 MB for 400 ranks. What does grow is the number of messages.",
            right=True,
        ),
        Option(
            "about 1.5 MB",
            reply="That would mean that 400 ranks together send no more than 4 do. But each of them sends "
            "nearly 100 MB of partial sums in the first half, and nearly 100 MB of sums in the second.",
            belief="traffic-is-shared-out",
        ),
    ),
    objectives=(3,),
)

AFTER_REDUCE = Question(
    id="04.q3",
    question="Four ranks call `dist.reduce(tensor, dst=0)`. What does `tensor` hold on rank 2 afterwards?",
    options=(
        Option(
            "the sum over all four ranks",
            reply="That is what `all_reduce` leaves. `reduce` promises the sum on rank 0 only.",
            belief="reduce-fills-every-rank",
        ),
        Option(
            "the numbers it had before",
            reply="The documentation promises nothing for rank 2. A backend may use its tensor for partial "
            "sums. Look at what Gloo leaves there, below.",
            belief="others-stay-as-they-were",
        ),
        Option(
            "whatever the backend left there",
            reply="The sum is on rank 0. The documentation promises nothing for the others, so do not "
            "read them.",
            right=True,
        ),
    ),
    objectives=(7,),
)

QUESTIONS = (WHO_CALLS, TRAFFIC, AFTER_REDUCE)

PREDICTIONS = (
    Prediction(
        id="04.p1",
        question="After how many of the five do all ranks hold the same four numbers?",
        objectives=(1,),
        targets=("reduce-fills-every-rank",),
    ),
    Prediction(
        id="04.p2",
        question="From how many KiB on is the ring faster, on four ranks?",
        objectives=(4,),
        targets=("fewest-bytes-wins",),
    ),
    Prediction(
        id="04.p3",
        question="How many kB does the ring send between the two nodes, all ranks together?",
        objectives=(6,),
        targets=("placement-does-not-matter",),
    ),
    Prediction(
        id="04.p4",
        question="Of 16 operations, how many work on Gloo?",
        objectives=(7,),
        targets=("printed-tables-hold",),
    ),
)
