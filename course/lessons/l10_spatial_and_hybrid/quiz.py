"""Quiz and predictions of lesson 10, spatial and hybrid: each wrong option is a common belief."""

from mpi_classroom.exercises import Option, Prediction, Question

HOW_WIDE = Question(
    id="10.q1",
    question="A convolution has a kernel of 5 × 5 and padding 2. How many rows does a strip in the "
    "middle need from each neighbour?",
    options=(
        Option(
            "5 rows",
            reply="Five rows would be the whole kernel. A kernel of 3 needed one row in section 2: its "
            "centre stays on our own rows, and (k−1)/2 rows reach beyond them.",
            belief="halo-is-the-kernel",
        ),
        Option(
            "2 rows",
            reply="When the kernel's centre is on our last row, (5−1)/2 = 2 of its rows reach beyond it.",
            right=True,
        ),
        Option(
            "0 rows",
            reply="Then padding would stand where the neighbour has pixels. In section 1 that made both rows "
            "at every cut wrong.",
            belief="padding-is-enough",
        ),
    ),
    objectives=(1,),
)

LOST_GRADIENTS = Question(
    id="10.q2",
    question="A library exchanges halos forward, and does nothing about them backward. The network has"
    " five convolutions. What is wrong?",
    options=(
        Option(
            "nothing, since backward uses what forward computed",
            reply="In section 3 a pixel beside a cut got 6 instead of 9: the three outputs on the other"
            " side never sent their gradients back.",
            belief="halos-are-forward-only",
        ),
        Option(
            "the outputs near the cuts, in the forward pass",
            reply="Outputs need only pixels, and all of those arrived. The error is in the gradients; the "
            "test with ⟨Hx, y⟩ and ⟨x, Hᵀy⟩ finds it.",
            belief="wrong-gradients-show",
        ),
        Option(
            "the gradients of all layers except the last one",
            reply="The last layer's weights see correct pixels and correct gradients. What that layer passes "
            "back lacks the ghosts' gradients, and no error is raised.",
            right=True,
        ),
    ),
    objectives=(2,),
)

WHICH_SUM = Question(
    id="10.q3",
    question="Eight ranks form a grid of 2 data × 4 tiles. Each rank sums the loss over its tile and "
    "divides by the size of the global batch. What is the gradient for the update?",
    options=(
        Option(
            "the sum over the 4 tiles of one image",
            reply="Then the two rows of the grid would update with the gradients of different images, and "
            "their weights would drift apart.",
            belief="tiles-train-alone",
        ),
        Option(
            "the sum over all 8 ranks",
            reply="Each rank has one part of the sum: its tile of its images. On the grid of four "
            "ranks, one sum per axis added up all of them.",
            right=True,
        ),
        Option(
            "the mean over all 8 ranks",
            reply="The loss was already divided by the global batch, so the mean is an eighth of the "
            "gradient. In section 4 the mean over four tiles was a quarter.",
            belief="average-over-tiles",
        ),
        Option(
            "the sum over the 2 ranks of one tile",
            reply="Then the four columns of the grid would update with the gradients of different tiles, "
            "and their weights would drift apart.",
            belief="tiles-train-alone",
        ),
    ),
    objectives=(4,),
)

QUESTIONS = (HOW_WIDE, LOST_GRADIENTS, WHICH_SUM)

PREDICTIONS = (
    Prediction(
        id="10.p1",
        question="Of 12 rows, how many are wrong?",
        objectives=(1,),
        targets=("padding-is-enough",),
    ),
    Prediction(
        id="10.p2",
        question="The mean, as a share of the image's gradient?",
        objectives=(3,),
        targets=("average-over-tiles",),
    ),
    Prediction(
        id="10.p3",
        question="What is the speed-up of GEMS, with two batches?",
        objectives=(6,),
        targets=("two-replicas-twice-as-fast",),
    ),
    Prediction(
        id="10.p4",
        question="Of 8 ranks in five dimensions, how many hold a part of the first stage?",
        objectives=(7,),
        targets=("one-rank-one-place",),
    ),
)
