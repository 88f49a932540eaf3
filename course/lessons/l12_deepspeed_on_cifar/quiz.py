"""Quiz and predictions of lesson 12, DeepSpeed on CIFAR: each wrong option is a common belief."""

from mpi_classroom.exercises import Option, Prediction, Question

AN_UPDATE = Question(
    id="12.q1",
    question="The file says train_micro_batch_size_per_gpu 8 and gradient_accumulation_steps 4. On 4 "
    "ranks, how many samples is one update made from?",
    options=(
        Option(
            "8: that is the batch size",
            reply="you take the micro-batch for the global batch. It is what a rank computes at a time:"
            " 4 of them are added up, on each of 4 ranks.",
            belief="micro-batch-is-global-batch",
        ),
        Option(
            "128",
            reply="8 × 4 × 4. Start the same file on 8 ranks, and it is 256: then the learning rate is "
            "due, too.",
            right=True,
        ),
        Option(
            "32: 8 samples, 4 times",
            reply="you take a rank's batch for all. Each rank trains on its own 32, and all go into one"
            " update.",
            belief="still-batch-64",
        ),
    ),
    objectives=(2,),
)

SMALL_NET = Question(
    id="12.q2",
    question="Your net fits on every rank as it is, in stage 0. A colleague sets the stage to 3. What "
    "happens to the time of a step?",
    options=(
        Option(
            "it falls: each rank has only its part of the work",
            reply="you take a higher stage to be faster. ZeRO shares memory, not computation: every "
            "rank runs the whole net, as section 3 measured.",
            belief="higher-stage-is-faster",
        ),
        Option(
            "it stays: stage 3 sends no more than stage 0",
            reply="you take stage 3 to be free. It sends half as much again: the weights twice, for "
            "forward and for backward, and the gradients; and it sends them layer by layer, in "
            "many small messages.",
            belief="stage-3-is-free",
        ),
        Option(
            "it grows: weights are gathered before they are used, and nobody computes less",
            reply="a higher stage is for nets that do not fit. Take the lowest that does.",
            right=True,
        ),
    ),
    objectives=(3,),
)

WHO_SAVES = Question(
    id="12.q3",
    question="In stage 2 on 4 ranks, a script says: if rank == 0: engine.save_checkpoint(folder). What"
    " happens?",
    options=(
        Option(
            "rank 0 writes the checkpoint, once instead of four times",
            reply="you take rank 0 to have everything. From stage 1 on each rank has a part of the "
            "optimizer that nobody else has, and writes it itself.",
            belief="only-rank-0-saves",
        ),
        Option(
            "rank 0 waits for the others; the optimizer of three ranks is in no file",
            reply="saving is a collective: all ranks call it, or the job hangs until its deadline.",
            right=True,
        ),
        Option(
            "DeepSpeed raises an error, for the call is wrong",
            reply="you take such mistakes to raise errors. A rank cannot see that nobody else comes; it"
            " waits.",
            belief="mistakes-raise-errors",
        ),
    ),
    objectives=(4,),
)

QUESTIONS = (AN_UPDATE, SMALL_NET, WHO_SAVES)

PREDICTIONS = (
    Prediction(
        id="12.p1",
        question="A step in stage 3, in steps of stage 0?",
        objectives=(3,),
        targets=("higher-stage-is-faster",),
    ),
)
