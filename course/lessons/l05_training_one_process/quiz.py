"""Quiz and predictions of lesson 05, training in one process: each wrong option is a common belief."""

from mpi_classroom.exercises import Option, Prediction, Question

ACCURACY = Question(
    id="05.q1",
    question="136 test images are classified in batches of 64, 64 and 8. Right are 50 %, 50 % and 100 "
    "% of them. What is the accuracy?",
    options=(
        Option(
            "66.7 %, the mean of the three",
            reply="you take the mean of the means to be the mean. It gives eight images as much say as "
            "64. Count instead: 32 + 32 + 8 of 136 are right.",
            belief="mean-of-means",
        ),
        Option(
            "52.9 %",
            reply="32 + 32 + 8 = 72 of 136. Add up counts, and divide once, at the end.",
            right=True,
        ),
        Option(
            "50 %: a batch of 8 is too short to count",
            reply="you take a short batch for one that does not count. Its images count as much as any:"
            " leave them out, and you report on 128 images of 136.",
            belief="short-batches-do-not-count",
        ),
    ),
    objectives=(3,),
)

LARGER_BATCH = Question(
    id="05.q2",
    question="You train with batches of 1024 in place of 64, because the machine is busier that way, "
    "and change nothing else, neither learning rate nor epochs. What becomes of the loss at "
    "the end?",
    options=(
        Option(
            "it is the same, only sooner: the same images were seen",
            reply="you take a bigger batch to be free. Weights change once a step, and an epoch now has"
            " 59 steps in place of 938: in section 3, big batches needed many more images for the"
            " same loss.",
            belief="bigger-batch-is-free",
        ),
        Option(
            "it is higher: there were 16 times fewer steps, each about as long as before",
            reply="to go as far in fewer steps, each must be longer: that works until the learning rate"
            " is too large.",
            right=True,
        ),
        Option(
            "it is lower: the gradients are far more exact",
            reply="you take exact gradients for better training. A gradient is the direction at one "
            "place; 16 times the images make it a quarter as noisy, and cost 15 of 16 steps.",
            belief="exact-gradient-better-training",
        ),
    ),
    objectives=(2,),
)

FALLING_LOSS = Question(
    id="05.q3",
    question="You have written a backward pass by hand. In training, the loss falls from 2.3 to 0.4. "
    "What does that say of your gradients?",
    options=(
        Option(
            "they are right: a wrong gradient would not lower the loss",
            reply="you take a falling loss to prove the gradient. Any direction within 90 degrees of "
            "the right one goes downhill: half of each gradient would do, or a layer that does "
            "not learn at all.",
            belief="falling-loss-right-gradient",
        ),
        Option(
            "that they point downhill, roughly; they may be wrong",
            reply="only a check against differences tells, in float64.",
            right=True,
        ),
        Option(
            "they are right if differences in float32 agree with them to two digits",
            reply="you take float32 to be fine enough. Two digits are all it has left for differences; "
            "a gradient that is wrong by half a percent passes. In float64 there are eight or "
            "nine.",
            belief="float32-checks-gradients",
        ),
    ),
    objectives=(4,),
)

QUESTIONS = (ACCURACY, LARGER_BATCH, FALLING_LOSS)

PREDICTIONS = (
    Prediction(
        id="05.p1",
        question="Learning rate with the lowest loss after 100 steps?",
        objectives=(1,),
        targets=("small-steps-are-safe",),
    ),
    Prediction(
        id="05.p2",
        question="Batches of 256: how many times the images that batches of 16 need?",
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
        question="All cores: how many times the CNN's images a second on one thread?",
        objectives=(5,),
        targets=("n-threads-n-times",),
    ),
)
