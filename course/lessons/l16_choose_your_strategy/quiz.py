"""Questions and predictions of lesson 16, Choose your strategy: each wrong option is a common belief."""

from mpi_classroom.exercises import Option, Prediction, Question

BEYOND_THE_ERROR = Question(
    id="16.q1",
    question="Predicted times were off by up to 15 % when you ran plans. Now you train two models. For each, "
    "the planner compares a plain plan with a combination, and all four plans fit. First model: 297 ms "
    "per step for the plain plan, 290 ms for the combination. Second model: 420 ms and 290 ms. Where do you "
    "run the combination?",
    options=(
        Option(
            "in both, since it is faster",
            reply="That would mean a difference of 2 % is real. Predicted times are off by more than "
            "that. So for the first model, they do not say which plan is faster.",
            belief="predictions-are-exact",
        ),
        Option(
            "in the second, since it saves enough",
            reply="It saves 31 % there, twice the error. The 2 % of the first model are less than the error: "
            "run the plan that is simpler to debug, or measure both.",
            right=True,
        ),
        Option(
            "in neither, since it is harder to debug",
            reply="That would mean a simple plan is worth any time. For the second model, it costs 130 ms in "
            "each of many thousand steps, and the error does not explain so much.",
            belief="an-error-makes-it-useless",
        ),
    ),
    objectives=(2,),
)

SLOWER_LINK = Question(
    id="16.q2",
    question="A colleague has ranks with the same memory and cores as yours, but a link that is ten times as "
    "slow. What happens to your plan there?",
    options=(
        Option(
            "it fits, and it stays the fastest plan",
            reply="That would mean all plans suffer alike. A plan that sends 57 MB per step loses more on a "
            "slow link than one that sends 4 MB.",
            belief="one-plan-for-every-machine",
        ),
        Option(
            "it needs more memory, so it may not fit",
            reply="That would mean the formula of the memory contains the speed of the link. Open it: it has "
            "sizes and numbers of ranks, and no seconds.",
            belief="memory-depends-on-speed",
        ),
        Option(
            "it fits, but all plans need a new ranking",
            reply="Memory depends on the model, the batch and the plan alone. Time depends on the machine: "
            "measure theirs, and rank the plans again.",
            right=True,
        ),
    ),
    objectives=(2,),
)

OTHER_MACHINES = Question(
    id="16.q3",
    question="The median error of 14 % was found on one machine with two cores. What do you know about "
    "the planner's numbers for a cluster of GPUs?",
    options=(
        Option(
            "the memory may hold; the times are untested there",
            reply="Memory is counted from what the library keeps, on any machine. Times depend on overlap, "
            "kernels and networks that were never compared.",
            right=True,
        ),
        Option(
            "the times will be off by about 14 % there as well",
            reply="That would mean an error belongs to the planner. It belongs to the planner *and* the "
            "machine: GPUs overlap what this planner adds up.",
            belief="an-error-holds-everywhere",
        ),
        Option(
            "the numbers will be right if its rates are measured",
            reply="That would mean only the rates can be wrong. The formulas can be, too: they know no "
            "overlap and no waiting for the slowest of many ranks.",
            belief="predictions-are-exact",
        ),
    ),
    objectives=(4,),
)

INSIDE_A_NODE = Question(
    id="16.q4",
    question="Why should the ranks that share each layer be in one node?",
    options=(
        Option(
            "since only ranks of one node can share a layer",
            reply="That would mean shards of a layer need a common memory. They exchange messages, which may "
            "go to any node; it only takes longer.",
            belief="a-layer-needs-one-memory",
        ),
        Option(
            "since every layer waits for messages between them",
            reply="Each block exchanges its activations several times, forward and backward, and no rank can "
            "go on before. So these messages need the fastest link.",
            right=True,
        ),
        Option(
            "since a rank would hold more of a layer otherwise",
            reply="That would mean memory depends on where the ranks are. Each holds the same shard on every "
            "node; only the time of the messages changes.",
            belief="memory-depends-on-speed",
        ),
    ),
    objectives=(5,),
)

ACCUMULATED = Question(
    id="16.q5",
    question="ZeRO-1 sends about 2 times the bytes of the weights per step, and ZeRO-3 about 3 times. Now "
    "you accumulate 8 micro-batches per step. How many times as much as ZeRO-1 does ZeRO-3 send?",
    options=(
        Option(
            "1.5 times as much",
            reply="That would mean ZeRO-3 gathers once per step. It frees the weights after each pass, so "
            "every micro-batch gathers them again.",
            belief="stage-3-gathers-once-per-step",
        ),
        Option(
            "8 times as much",
            reply="That would mean one micro-batch of ZeRO-3 costs what a whole step of ZeRO-1 costs. It "
            "costs 1.5 times that: two gathers and a sum.",
            belief="stage-3-is-free-per-micro-batch",
        ),
        Option(
            "12 times as much",
            reply="ZeRO-3 sends 3 times the weights per micro-batch, 24 times in all. ZeRO-1 still sends 2 "
            "times the weights, after the last micro-batch.",
            right=True,
        ),
    ),
    objectives=(5,),
)

QUESTIONS = (BEYOND_THE_ERROR, SLOWER_LINK, OTHER_MACHINES, INSIDE_A_NODE, ACCUMULATED)

PREDICTIONS = (
    Prediction(
        id="16.p1",
        question="How many of the four plans fit into 64 MB per rank?",
        objectives=(1,),
        targets=("state-is-all-memory",),
    ),
    Prediction(
        id="16.p2",
        question="How many times as long is a five-strategy step as one of the planner's choice?",
        objectives=(2,),
        targets=("combine-everything",),
    ),
    Prediction(
        id="16.p3",
        question="How many times as long is the fastest step with 32 as with 64 MB?",
        objectives=(3,),
        targets=("half-the-memory-twice-the-time",),
    ),
    Prediction(
        id="16.p4",
        question="In how many of 24 configurations was the planner's choice right?",
        objectives=(4,),
        targets=("predictions-are-exact",),
    ),
    Prediction(
        id="16.p5",
        question="How many times as long as plan B does a step of plan A take?",
        objectives=(5,),
        targets=("tensor-parallel-across-nodes",),
    ),
)
