"""Questions and predictions of lesson 14, scaling out: every wrong option is a belief that many hold."""

from mpi_classroom.exercises import Option, Prediction, Question

WHAT_TO_KNOW = Question(
    id="14.q1",
    question="Suppose that you time a ring all-reduce of 1.7 MB over a fast link, on 2 and on 4 ranks. What "
    "hardly shows in these two times, but makes up most of the time forecast for 2,048 ranks?",
    options=(
        Option(
            "nothing, each doubling takes the same factor",
            reply="Then 2,048 ranks would take 1.5 to the power of 10 times as long as 2, which is 58 times. "
            "But the bytes per rank approach two arrays: they grow by half from 2 to 4 ranks, and by next "
            "to nothing from 1,024 to 2,048.",
            belief="two-to-four-predicts-2048",
        ),
        Option(
            "the latency, which every step pays once",
            reply="On 2,048 ranks there are 4,094 steps, and each of them pays α. Over a fast link that is "
            "nearly all of the forecast. On 2 and 4 ranks α adds less than the noise of these two "
            "measurements.",
            right=True,
        ),
        Option(
            "the bandwidth, at which the bytes travel",
            reply="The bandwidth shows in both: nearly all of their time is for bytes. By bytes alone, 2,048 "
            "ranks would take twice as long as 2, since a rank sends at most two arrays. But each step sends "
            "a chunk of only 824 bytes and pays a whole α. The faster the link, the more α decides.",
            belief="bandwidth-explains-small-messages",
        ),
    ),
    objectives=(2,),
)

THREE_LAUNCHERS = Question(
    id="14.q2",
    question="The same training script runs from a hostfile, from a batch script and as an MPIJob. What do "
    "you change in its Python code?",
    options=(
        Option(
            "the lines that read rank and size, as each launcher names them differently",
            reply="That holds for scripts that read variables such as SLURM_PROCID or RANK. Ours asks MPI, "
            "and mpiexec starts the ranks in all three cases.",
            belief="one-script-per-launcher",
        ),
        Option(
            "the list of hosts, which the script reads first",
            reply="Then the script would have to start its ranks itself. mpiexec does that, and it gets the "
            "hosts from the hostfile, from Slurm, or from the MPI Operator.",
            belief="script-finds-its-hosts",
        ),
        Option(
            "nothing, because MPI tells every rank its number and who else is there",
            reply="Rank, size and the other ranks come from `comm`. The launchers differ in who provides the "
            "nodes.",
            right=True,
        ),
    ),
    objectives=(7,),
)

QUESTIONS = (WHAT_TO_KNOW, THREE_LAUNCHERS)

PREDICTIONS = (
    Prediction(
        id="14.p1",
        question="Over the slow link, how many times as long is a step as on one node?",
        objectives=(1,),
        targets=("slower-link-slower-step",),
    ),
    Prediction(
        id="14.p2",
        question="Over the slow link, on 2,048 ranks: how many times as long as on 2?",
        objectives=(2,),
        targets=("two-to-four-predicts-2048", "bandwidth-explains-small-messages"),
    ),
    Prediction(
        id="14.p3",
        question="How many MB does the ring send between the nodes, both ways together?",
        objectives=(3,),
        targets=("placement-does-not-matter",),
    ),
    Prediction(
        id="14.p4",
        question="Your choice, how many times as fast as plain?",
        objectives=(4,),
        targets=("half-the-bytes-half-the-time",),
    ),
    Prediction(
        id="14.p5",
        question="Thousands of images per second, on 1,536 V100 GPUs?",
        objectives=(5,),
        targets=("two-to-four-predicts-2048",),
    ),
    Prediction(
        id="14.p6",
        question="Two jobs of the small network: how many percent more images per second?",
        objectives=(6,),
        targets=("one-job-fills-a-device",),
    ),
)
