"""Questions and predictions of lesson 15, When things fail: each wrong option is a common belief."""

from mpi_classroom.exercises import Option, Prediction, Question

WHO_TIMED_OUT = Question(
    id="15.q1",
    question="A training on 8 ranks ends with: 'rank 5: all-reduce timed out after 600 s'. No other rank reported "
    "anything. Where do you look first?",
    options=(
        Option(
            "on rank 5, for what it did in the 600 s",
            reply="That would mean the slow rank is the one that complains. Rank 5 was in the all-reduce in time, "
            "and waited there. Whoever did not come could not time out in it.",
            belief="timed-out-rank-is-guilty",
        ),
        Option(
            "on all ranks, for the one that did not come",
            reply="Rank 5 only says that it waited for 600 s. The others' last calls show which rank never began "
            "this all-reduce, or called something else.",
            right=True,
        ),
        Option(
            "on no rank, as it is the network that is slow",
            reply="A slow network makes every all-reduce longer, not one of them endless. A cut link is possible; "
            "but then, too, the ranks' last calls show between whom.",
            belief="a-timeout-is-the-network",
        ),
    ),
    objectives=(1, 2),
)

KILLED_WHILE_SAVING = Question(
    id="15.q2",
    question="Your training saves every 100 steps, with a saver like that of 15.1. It is killed in step 250, just "
    "while it writes a log file. From which step does it go on?",
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
            reply="That would mean the kill damages the checkpoint. Nobody was writing to it, and even a kill "
            "during the save would have left the old one at its name.",
            belief="a-kill-damages-all-files",
        ),
    ),
    objectives=(3,),
)

MORE_NODES = Question(
    id="15.q3",
    question="A node fails once in 264 days, on average. You move from 128 nodes to 2,048, and a save takes as long as "
    "before. How should the interval between two saves change?",
    options=(
        Option(
            "16 times as short",
            reply="That would keep the work lost per failure in proportion, but you would save 16 times as often. "
            "The sum of both costs is smallest when the interval shrinks with the square root.",
            belief="interval-follows-failures",
        ),
        Option(
            "4 times as short",
            reply="16 times the nodes fail 16 times as often, and the best interval goes with the square root of "
            "the mean time between failures.",
            right=True,
        ),
        Option(
            "not at all, each node is as reliable",
            reply="That would be right for a job per node. But one training needs all 2,048 nodes, and the first "
            "failure of any of them ends it.",
            belief="good-nodes-good-machine",
        ),
    ),
    objectives=(5,),
)

QUESTIONS = (WHO_TIMED_OUT, KILLED_WHILE_SAVING, MORE_NODES)

PREDICTIONS = (
    Prediction(
        id="15.p1",
        question="Of four failures, how many end the whole job within 2 seconds?",
        objectives=(1,),
        targets=("an-error-reaches-all",),
    ),
    Prediction(
        id="15.p2",
        question="How many times as long is a step with the straggler?",
        objectives=(2,),
        targets=("a-slow-rank-costs-its-share",),
    ),
    Prediction(
        id="15.p3",
        question="After how many of the kills is the file damaged?",
        objectives=(3,),
        targets=("a-kill-leaves-the-old-file",),
    ),
)
