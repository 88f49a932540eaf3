"""Questions and predictions of lesson 05, training in one process: each wrong option is a common belief."""

from mpi_classroom.exercises import Option, Prediction, Question

LARGER_BATCH = Question(
    id="05.q1",
    question="You train with batches of 1024 instead of 64, because that keeps the machine busier. You "
    "keep the learning rate, which was good for 64. After three epochs, how does the training loss compare?",
    options=(
        Option(
            "it is about the same, because the same images were seen",
            reply="That would mean that only the images count. The weights change once per step, and an "
            "epoch "
            "of 60 000 images now has 59 steps instead of 938. In section 3, batches of 128 needed several "
            "times "
            "the images for the same loss.",
            belief="bigger-batch-is-free",
        ),
        Option(
            "it is higher, because there were 16 times fewer steps",
            reply="To get as far in 16 times fewer steps, each step has to be longer. A larger learning rate "
            "does that, until it is too large.",
            right=True,
        ),
        Option(
            "it is lower, because each gradient is more exact",
            reply="16 times the images make a gradient's noise a quarter as large. That helps little: "
            "even an "
            "exact gradient is only the direction at the present weights, and 15 of 16 steps are gone.",
            belief="exact-gradient-better-training",
        ),
    ),
    objectives=(2,),
)

ACCURACY = Question(
    id="05.q2",
    question="136 test images are classified in batches of 64, 64 and 8. In these batches, 50 %, 50 % and "
    "100 % are right. What is the accuracy on all 136?",
    options=(
        Option(
            "66.7 %",
            reply="This is the mean of the three percentages. It gives the 8 images as much weight as "
            "each 64. "
            "Count instead: 32 + 32 + 8 of 136 are right.",
            belief="mean-of-means",
        ),
        Option(
            "52.9 %",
            reply="32 + 32 + 8 = 72 of 136. Add up the counts first and divide once, at the end.",
            right=True,
        ),
        Option(
            "50.0 %",
            reply="This is the accuracy on 128 images: the batch of 8 was left out. Its images count "
            "like any "
            "others.",
            belief="short-batches-do-not-count",
        ),
    ),
    objectives=(3,),
)

FALLING_LOSS = Question(
    id="05.q3",
    question="You wrote a backward pass by hand. In training, the loss falls from 2.3 to 0.4. How do "
    "you check the gradients?",
    options=(
        Option(
            "not at all, since wrong ones would not lower the loss",
            reply="Wrong gradients often do lower it: any direction within 90 degrees of the right one leads "
            "downhill. Half of every gradient would do, or one layer that does not learn at all.",
            belief="falling-loss-right-gradient",
        ),
        Option(
            "by central differences, computed in float64",
            reply="Wrong gradients can lower the loss, too. In float64, right ones agree to nine or ten "
            "digits, so even a small mistake shows.",
            right=True,
        ),
        Option(
            "by central differences, computed in float32",
            reply="Two digits are all that float32 has left for a difference of losses. A gradient that "
            "is wrong "
            "by half a percent could pass. In float64 nine or ten digits agree.",
            belief="float32-checks-gradients",
        ),
    ),
    objectives=(4,),
)

QUESTIONS = (LARGER_BATCH, ACCURACY, FALLING_LOSS)

PREDICTIONS = (
    Prediction(
        id="05.p1",
        question="Learning rate with the lowest loss after 100 steps?",
        objectives=(1,),
        targets=("small-steps-are-safe",),
    ),
    Prediction(
        id="05.p2",
        question="At the same rate: how many times the images of batch 16 does batch 128 need?",
        objectives=(2,),
        targets=("bigger-batch-is-free",),
    ),
    Prediction(
        id="05.p3",
        question="Wrong gradients among the four?",
        objectives=(4,),
        targets=("falling-loss-right-gradient",),
    ),
    Prediction(
        id="05.p4",
        question="Speed-up of the CNN with threads?",
        objectives=(5,),
        targets=("n-threads-n-times",),
    ),
    Prediction(
        id="05.p5",
        question="Memory of 128 images in micro-batches of 32, in percent of all at once?",
        objectives=(6,),
        targets=("weights-are-all",),
    ),
)
