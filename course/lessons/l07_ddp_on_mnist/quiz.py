"""Questions and predictions of lesson 07, DDP on MNIST: each wrong option is a common belief."""

from mpi_classroom.exercises import Option, Prediction, Question

NO_SAMPLER = Question(
    id="07.q1",
    question="Four ranks wrap their model in DDP. Each has a DataLoader with batch_size=128, no sampler and "
    "no shuffling. What does one step train on?",
    options=(
        Option(
            "128 images, because DDP gives 32 of them to each rank",
            reply="That would mean DDP touches the inputs. It doesn't: the model gets whatever its rank "
            "passes to it, here 128 images. In section 3 it was the sampler that gave each rank its shard.",
            belief="ddp-splits-the-batch",
        ),
        Option(
            "128 images, because all ranks read the same ones",
            reply="Four ranks do the same work and average four equal gradients. Nothing reports it: only a "
            "sampler gives each rank images of its own.",
            right=True,
        ),
        Option(
            "512 images, because a loader takes its rank's shard",
            reply="That would mean a DataLoader knows about ranks. It doesn't: without a sampler and "
            "without shuffling, every rank's loader begins with image 0.",
            belief="loader-knows-its-rank",
        ),
    ),
    objectives=(2,),
)

FASTER_NETWORK = Question(
    id="07.q2",
    question="Two ranks take a step of 30 ms. Nothing overlaps. Rank 0 spends 12 ms of it in the all-reduce, "
    "rank 1 only 2 ms. How long is the step if transfer takes half as long?",
    options=(
        Option(
            "24 ms, because 12 ms become 6",
            reply="That would mean rank 0 transfers for 12 ms. The all-reduce itself takes 2 ms, as rank 1 "
            "shows; the other 10 ms rank 0 waits for rank 1 to arrive, and no network shortens that.",
            belief="waiting-is-transfer",
        ),
        Option(
            "29 ms, because 2 ms become 1",
            reply="Rank 1 arrives last, so its 2 ms are pure transfer. The 10 ms that rank 0 waits stay: "
            "they end when rank 1 has computed.",
            right=True,
        ),
        Option(
            "15 ms, because 30 ms become 15",
            reply="That would mean a step is all communication. Rank 1 computes for 28 of its 30 ms, and "
            "the network does not compute.",
            belief="step-is-communication",
        ),
    ),
    objectives=(3,),
)

LOWER_ACCURACY = Question(
    id="07.q3",
    question="One process with batches of 128 reaches 99.1 %. Eight ranks, each with batches of 128 and the "
    "same learning rate, reach 98.7 % after as many epochs. What is the likeliest reason?",
    options=(
        Option(
            "gradients lose precision when eight ranks average them",
            reply="Then four ranks with the same global batch would lose accuracy too. They don't: they end "
            "with the weights of one process, up to rounding.",
            belief="communication-costs-accuracy",
        ),
        Option(
            "the optimizer takes an eighth as many steps per epoch",
            reply="The global batch is 1024. One process with batches of 1024 takes the same few steps; fix "
            "the global batch before you compare numbers of ranks.",
            right=True,
        ),
        Option(
            "gradients that arrive late belong to an earlier step",
            reply="That would mean a rank updates its weights before all gradients are there. It doesn't: "
            "backward ends when every bucket is averaged, so a late gradient costs time, not accuracy.",
            belief="late-gradients-are-stale",
        ),
    ),
    objectives=(4,),
)

QUESTIONS = (NO_SAMPLER, FASTER_NETWORK, LOWER_ACCURACY)

PREDICTIONS = (
    Prediction(
        id="07.p1",
        question="Gradient on rank 2 after backward?",
        objectives=(2,),
        targets=("ddp-sums",),
    ),
    Prediction(
        id="07.p2",
        question="DDP over Gloo: how many times as long as by hand?",
        objectives=(3,),
        targets=("framework-beats-hand",),
    ),
    Prediction(
        id="07.p3",
        question="Points of accuracy lost at batch 1024?",
        objectives=(4,),
        targets=("communication-costs-accuracy",),
    ),
)
