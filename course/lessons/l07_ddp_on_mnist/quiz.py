"""Quiz and predictions of lesson 07, DDP on MNIST: each wrong option is a common belief."""

from mpi_classroom.exercises import Option, Prediction, Question

NO_SAMPLER = Question(
    id="07.q1",
    question="Four ranks wrap the model in DDP. Each has a DataLoader with batch_size=128, no sampler "
    "and no shuffling. What does one step train on?",
    options=(
        Option(
            "on 128 images: DDP gives 32 of them to each rank",
            reply="you take DDP to divide the batch. It never touches the inputs: whatever a rank hands"
            " to the model goes through whole. In section 3 the sampler did the dividing.",
            belief="ddp-splits-the-batch",
        ),
        Option(
            "on the same 128 images, four times over",
            reply="four ranks do the same work for one gradient, and nothing tells you. Only a sampler "
            "deals.",
            right=True,
        ),
        Option(
            "on 512 images: every loader takes the share of its rank",
            reply="you take a DataLoader to know its rank. It goes through the dataset from the front, "
            "on every rank alike, unless a sampler says otherwise.",
            belief="loader-knows-its-rank",
        ),
    ),
    objectives=(1, 2),
)

NO_SET_EPOCH = Question(
    id="07.q2",
    question="A DistributedSampler with shuffle=True, ten epochs, and nobody calls set_epoch. What happens?",
    options=(
        Option(
            "each epoch is shuffled anew: that is what shuffle=True means",
            reply="you take set_epoch to be optional. The order is made from seed + epoch, so that all "
            "ranks agree on it without a message; and the epoch stays 0 until you say otherwise.",
            belief="set-epoch-is-optional",
        ),
        Option(
            "all ten epochs have one order, and the same global batches",
            reply="it even trains, a little worse. Print the first five samples of two epochs: they tell.",
            right=True,
        ),
        Option(
            "torch raises an error in the second epoch",
            reply="you take such mistakes to raise errors. All ranks agree on the order, so there is "
            "nothing to notice: it is a valid training, only not the one you meant.",
            belief="mistakes-raise-errors",
        ),
    ),
    objectives=(2,),
)

LOWER_ACCURACY = Question(
    id="07.q3",
    question="One process reaches 99.1 % with batches of 128. Eight ranks, each with batches of 128 "
    "and the same learning rate, reach 98.7 %. What is the likeliest reason?",
    options=(
        Option(
            "what is lost when gradients are sent and added up",
            reply="you take communication to lower accuracy. Sums are exact up to rounding: in section "
            "2, four ranks ended with the weights of one process.",
            belief="communication-costs-accuracy",
        ),
        Option(
            "the global batch: 1024 in place of 128, so an eighth of the steps",
            reply="one process with batches of 1024 would do the same. Fix the global batch before you "
            "compare.",
            right=True,
        ),
        Option(
            "the backend: Gloo is less exact than MPI",
            reply="you take another backend to train another network. In section 2 Gloo and MPI gave "
            "the same weights to rounding; both add 32-bit numbers.",
            belief="backend-changes-results",
        ),
    ),
    objectives=(4,),
)

QUESTIONS = (NO_SAMPLER, NO_SET_EPOCH, LOWER_ACCURACY)

PREDICTIONS = (
    Prediction(
        id="07.p1",
        question="Percent of the time in the sum that is waiting?",
        objectives=(3,),
        targets=("waiting-is-transfer",),
    ),
    Prediction(
        id="07.p2",
        question="Points of accuracy that four ranks lose?",
        objectives=(4,),
        targets=("communication-costs-accuracy",),
    ),
)
