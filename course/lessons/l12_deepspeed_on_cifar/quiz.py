"""Quiz and predictions of lesson 12, DeepSpeed on CIFAR: each wrong option is a common belief."""

from mpi_classroom.exercises import Option, Prediction, Question

AN_UPDATE = Question(
    id="12.q1",
    question="The file says train_micro_batch_size_per_gpu 8 and gradient_accumulation_steps 4. On 4 "
    "ranks, how many samples make one update?",
    options=(
        Option(
            "8 samples",
            reply="8 is the micro-batch: what a rank computes at a time. It accumulates 4 of them, and "
            "4 ranks do so.",
            belief="micro-batch-is-global-batch",
        ),
        Option(
            "128 samples",
            reply="8 × 4 × 4. Start the same file on 8 ranks and it is 256: then the learning rate may "
            "need a change, too.",
            right=True,
        ),
        Option(
            "32 samples",
            reply="32 is what one rank contributes. The gradients of all 4 ranks go into one update.",
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
            "it falls, because each rank computes less",
            reply="ZeRO shards memory, not computation: every rank runs the full net, as section 3 measured.",
            belief="higher-stage-is-faster",
        ),
        Option(
            "it stays, because the volume is the same",
            reply="Stage 3 sends half as many bytes again: it gathers the weights twice, for forward "
            "and for backward, and does so layer by layer in many small messages.",
            belief="stage-3-is-free",
        ),
        Option(
            "it grows, because weights are gathered",
            reply="And nobody computes less. A higher stage is for nets that do not fit: take the "
            "lowest stage that does.",
            right=True,
        ),
    ),
    objectives=(3,),
)

WHO_SAVES = Question(
    id="12.q3",
    question="In stage 2 on 4 ranks, a script says `if rank == 0: engine.save_checkpoint(folder)`, "
    "over DeepSpeed's own Gloo. What happens?",
    options=(
        Option(
            "rank 0 writes the full checkpoint once",
            reply="From stage 1 on, each rank holds a part of the optimizer state that no other rank "
            "has, and each must write its own.",
            belief="only-rank-0-saves",
        ),
        Option(
            "rank 0 waits until its deadline",
            reply="Saving is a collective: all ranks have to call it. Until then rank 0 waits, and the "
            "optimizer state of three ranks is in no file.",
            right=True,
        ),
        Option(
            "DeepSpeed raises an error at once",
            reply="A rank cannot see that the others will never come. It waits. (This course's own "
            "backend compares the calls and raises.)",
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
