"""Questions and predictions of lesson 15, When things fail: each wrong option is a common belief."""

from mpi_classroom.exercises import Option, Prediction, Question

WHO_TIMED_OUT = Question(
    id="15.q1",
    question="A training on 8 ranks ends with: 'rank 5: all-reduce timed out after 600 s'. No other rank "
    "reported anything. Where do you look first?",
    options=(
        Option(
            "on rank 5, for what it did in the 600 s",
            reply="That would mean the slow rank is the one that complains. Rank 5 was in the all-reduce in "
            "time, and waited there. Whoever did not come could not time out in it.",
            belief="timed-out-rank-is-guilty",
        ),
        Option(
            "on all ranks, for the one that did not come",
            reply="Rank 5 only says that it waited for 600 s. The others' last calls show which rank never "
            "began this all-reduce, or called something else.",
            right=True,
        ),
        Option(
            "on no rank, as it is the network that is slow",
            reply="A slow network makes every all-reduce longer, not one of them endless. A cut link is "
            "possible; but then, too, the ranks' last calls show between whom.",
            belief="a-timeout-is-the-network",
        ),
    ),
    objectives=(1, 2),
)

KILLED_WHILE_SAVING = Question(
    id="15.q2",
    question="Your training saves every 100 steps, with a saver like that of 15.1. It is killed in step "
    "250, just while it writes a log file. From which step does it go on?",
    options=(
        Option(
            "from step 200",
            reply="The last complete checkpoint is the one after 200 steps. The 50 steps after it are taken "
            "again: at most 100 are lost, whenever the kill comes.",
            right=True,
        ),
        Option(
            "from step 250",
            reply="That would mean the state of step 250 is somewhere. It was in the memory of the killed "
            "process; the last state on the disk is that of step 200.",
            belief="a-kill-loses-nothing",
        ),
        Option(
            "from step 0",
            reply="That would mean the kill damages the checkpoint. Nobody was writing to it, and even a "
            "kill during the save would have left the old one at its name.",
            belief="a-kill-damages-all-files",
        ),
    ),
    objectives=(3, 4),
)

MORE_NODES = Question(
    id="15.q3",
    question="A node fails once in 264 days, on average. You move from 128 nodes to 2,048, and a save takes "
    "as long as before. How should the interval between two saves change?",
    options=(
        Option(
            "to a sixteenth of what it was",
            reply="That would keep the work lost per failure in proportion, but you would save 16 times as "
            "often. The sum of both costs is smallest when the interval shrinks with the square root.",
            belief="interval-follows-failures",
        ),
        Option(
            "to a quarter of what it was",
            reply="16 times the nodes fail 16 times as often, and the best interval goes with the square "
            "root of the mean time between failures.",
            right=True,
        ),
        Option(
            "not at all, as nodes stay as reliable",
            reply="That would be right for a job per node. But one training needs all 2,048 nodes, and the "
            "first failure of any of them ends it.",
            belief="good-nodes-good-machine",
        ),
    ),
    objectives=(6,),
)

STEP_DONE = Question(
    id="15.q4",
    question="Under ULFM, rank 1 dies during the all-reduce of a step. On rank 0 the call returned, on rank "
    "2 it raised an error. What must rank 0 know before it updates its weights?",
    options=(
        Option(
            "nothing more, since it holds the sum",
            reply="That would leave rank 2 with the old weights: it has no sum. From then on the replicas "
            "differ, and no error says so.",
            belief="my-call-returned-all-returned",
        ),
        Option(
            "that all survivors have the sum",
            reply="An agreement tells every survivor whether all of them have the sum. Here one has not, so "
            "all take the step again, on a smaller communicator.",
            right=True,
        ),
        Option(
            "whether the sum contains rank 1's part",
            reply="That would mean the sum on rank 0 may be wrong. But a call that returns has the parts of "
            "all ranks: rank 1 died after it had sent its own. What is missing is the sum on rank 2.",
            belief="a-death-spoils-the-sum",
        ),
    ),
    objectives=(7,),
)

FLIPPED_WHERE = Question(
    id="15.q5",
    question="The replicas' hashes are equal in every step, and the loss jumps. Where may a bit have "
    "flipped?",
    options=(
        Option(
            "in a weight, after the update",
            reply="That would be on one rank only, whose hash would differ from then on: nothing repairs a "
            "weight. Equal hashes rule it out.",
            belief="hashes-need-luck",
        ),
        Option(
            "in a gradient, before the all-reduce",
            reply="The all-reduce adds the wrong number for all ranks, and they take the same wrong step. "
            "The replicas stay equal.",
            right=True,
        ),
        Option(
            "nowhere, as equal replicas are right",
            reply="Equal only means that all hold the same. An error that comes before the all-reduce "
            "reaches every rank with the sum.",
            belief="equal-is-right",
        ),
    ),
    objectives=(8,),
)

NO_ANSWER = Question(
    id="15.q6",
    question="You call `add_to_total(5)` on another rank, and get no answer within 10 seconds. What do you "
    "know?",
    options=(
        Option(
            "the function has not run",
            reply="That would mean the call was lost on its way there. The answer may have been lost on its "
            "way back, or the function may still be running.",
            belief="no-answer-not-run",
        ),
        Option(
            "the function may have run",
            reply="Nobody can tell from here. If you call again, 5 may be added twice. So let a call say "
            "which one it is, and let the server skip those that it has done.",
            right=True,
        ),
        Option(
            "the other rank is dead",
            reply="It may only be slow, or busy with another call. A timeout cannot tell the two apart.",
            belief="timed-out-rank-is-guilty",
        ),
    ),
    objectives=(9,),
)

QUESTIONS = (WHO_TIMED_OUT, KILLED_WHILE_SAVING, MORE_NODES, STEP_DONE, FLIPPED_WHERE, NO_ANSWER)

PREDICTIONS = (
    Prediction(
        id="15.p1",
        question="In how many of the four jobs does the last message name rank 1?",
        objectives=(1,),
        targets=("timed-out-rank-is-guilty", "an-error-reaches-all"),
    ),
    Prediction(
        id="15.p2",
        question="Which rank is the straggler?",
        objectives=(2,),
        targets=("the-longest-wait-is-the-slowest",),
    ),
    Prediction(
        id="15.p3",
        question="Naive saver: how many of the four kills damage the file?",
        objectives=(3,),
        targets=("a-kill-leaves-the-old-file",),
    ),
    Prediction(
        id="15.p4",
        question="Steps computed by the killed and the resumed job in total?",
        objectives=(4,),
        targets=("a-kill-loses-nothing",),
    ),
    Prediction(
        id="15.p5",
        question="Weights alone: how many of the ten losses are right?",
        objectives=(5,),
        targets=("weights-suffice-to-resume",),
    ),
    Prediction(
        id="15.p6",
        question="Minutes of work between two saves, on 2,048 nodes?",
        objectives=(6,),
        targets=("good-nodes-good-machine",),
    ),
)
