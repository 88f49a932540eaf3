"""Quiz and predictions of lesson 10, spatial and hybrid: each wrong option is a common belief."""

from mpi_classroom.exercises import Option, Prediction, Question

HOW_WIDE = Question(
    id="10.q1",
    question="A convolution has a kernel of 5 × 5 and padding 2. How many rows does a strip in the "
    "middle need from each neighbour?",
    options=(
        Option(
            "5 rows",
            reply="Five rows would be the whole kernel. In section 2 a kernel of 3 needed one row: its "
            "centre lies on a row of our own, and (k−1)/2 rows reach beyond.",
            belief="halo-is-the-kernel",
        ),
        Option(
            "2 rows",
            reply="The kernel's centre lies on our last row, and (5−1)/2 = 2 rows reach beyond it.",
            right=True,
        ),
        Option(
            "0 rows",
            reply="Padding fills in zeros, and beside a cut there are real pixels. In section 1 zeros "
            "in their place made the rows at every cut wrong.",
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
            "no number, since backward uses what forward computed",
            reply="In section 3 a pixel beside a cut got 6 instead of 9: the three outputs on the other"
            " side never sent their share back.",
            belief="halos-are-forward-only",
        ),
        Option(
            "the outputs near the cuts, in the forward pass",
            reply="Outputs need pixels only, and those arrived. The error is in the gradients; the test"
            " with ⟨Hx, y⟩ and ⟨x, Hᵀy⟩ finds it.",
            belief="wrong-gradients-show",
        ),
        Option(
            "the gradients of all layers except the last one",
            reply="The last layer's weights see correct pixels and correct gradients. What it passes "
            "back lacks the ghost rows' share, and no error says so.",
            right=True,
        ),
    ),
    objectives=(2,),
)

SUM_OR_MEAN = Question(
    id="10.q3",
    question="An image is cut into 4 tiles, one per rank. After backward, every rank has a gradient of"
    " the same weights. Which gradient updates them?",
    options=(
        Option(
            "the mean of the four gradients",
            reply="The loss of an image is one number. In section 4 the mean of the tiles' parts was a "
            "quarter of its gradient.",
            belief="average-over-tiles",
        ),
        Option(
            "the sum of the four gradients",
            reply="A weight works at every pixel, and its gradient sums over all of them. Each tile has"
            " one part of that sum.",
            right=True,
        ),
        Option(
            "on each rank, its own gradient",
            reply="After one step the ranks would hold different weights, and four different networks "
            "would see the image.",
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
        question="What is the speed-up of GEMS, with two batches?",
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
