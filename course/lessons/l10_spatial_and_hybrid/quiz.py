"""Quiz and predictions of lesson 10, spatial and hybrid: each wrong option is a common belief."""

from mpi_classroom.exercises import Option, Prediction, Question

HOW_WIDE = Question(
    id="10.q1",
    question="A convolution has a kernel of 5 × 5 and padding 2. How many rows does a strip in the "
    "middle need of each neighbour?",
    options=(
        Option(
            "5: the kernel has five rows",
            reply="you take the halo to be as large as the kernel. In section 2 a kernel of 3 needed "
            "one row: its centre stands on a row of my own, and (k−1)/2 rows stick out.",
            belief="halo-is-the-kernel",
        ),
        Option(
            "2",
            reply="the kernel's centre stands on my last row, and (5−1)/2 = 2 rows stick out.",
            right=True,
        ),
        Option(
            "none: the padding of 2 is there for that",
            reply="you take padding to be enough at a cut. Padding is zeros; beside a cut there are "
            "pixels. In section 1 zeros in their place made the rows at every cut wrong.",
            belief="padding-is-enough",
        ),
    ),
    objectives=(1,),
)

NO_WAY_HOME = Question(
    id="10.q2",
    question="A library exchanges halos forward, and does nothing about them backward. The network has"
    " five convolutions. What is wrong?",
    options=(
        Option(
            "nothing: backward works with what forward computed",
            reply="you take halos to be for the forward pass only. In section 3 a pixel beside a cut "
            "got 6 in place of 9: the three outputs on the other side did not report back.",
            belief="halos-are-forward-only",
        ),
        Option(
            "the outputs, near the cuts",
            reply="you take wrong gradients to show in the outputs. Outputs need pixels only, and those"
            " came; the test with ⟨Hx, y⟩ and ⟨x, Hᵀy⟩ finds it.",
            belief="wrong-gradients-show",
        ),
        Option(
            "no output; the gradients of all layers but the last, and no error tells",
            reply="the last layer's weights see correct pixels and correct gradients; what it passes on"
            " has lost the ghosts' share.",
            right=True,
        ),
    ),
    objectives=(2,),
)

SUM_OR_MEAN = Question(
    id="10.q3",
    question="An image is cut into 4 tiles, one a rank. After backward, every rank has a gradient of "
    "the same weights. What are the weights to be updated with?",
    options=(
        Option(
            "the mean of the four: every rank computed the same layer",
            reply="you take gradients to be averaged over tiles. The loss of an image is one number; in"
            " section 4 the mean of the tiles' parts was a quarter of its gradient.",
            belief="average-over-tiles",
        ),
        Option(
            "the sum of the four",
            reply="a weight works at every pixel, and its gradient adds up over all of them; each tile "
            "has a part of them.",
            right=True,
        ),
        Option(
            "each rank with its own: every tile trains its weights",
            reply="you take tiles to train by themselves. After one step the ranks would have different"
            " weights, and the image would be seen by four networks.",
            belief="tiles-train-alone",
        ),
    ),
    objectives=(3,),
)

QUESTIONS = (HOW_WIDE, NO_WAY_HOME, SUM_OR_MEAN)

PREDICTIONS = (
    Prediction(
        id="10.p1",
        question="Of 12 rows, how many are wrong without the neighbours' pixels?",
        objectives=(1,),
        targets=("padding-is-enough",),
    ),
    Prediction(
        id="10.p2",
        question="The mean of the tiles' gradients, as a share of the gradient of the image?",
        objectives=(3,),
        targets=("average-over-tiles",),
    ),
    Prediction(
        id="10.p3",
        question="How many times as fast is GEMS, with two batches?",
        objectives=(5,),
        targets=("two-replicas-twice-as-fast",),
    ),
    Prediction(
        id="10.p4",
        question="Of 8 ranks in five dimensions, how many hold a part of the first stage?",
        objectives=(6,),
        targets=("one-rank-one-place",),
    ),
)
