"""Quiz and predictions of lesson 12, DeepSpeed on CIFAR: each wrong option is a common belief."""

from mpi_classroom.exercises import Option, Prediction, Question

AN_UPDATE = Question(
    id="12.q1",
    question="The file says train_micro_batch_size_per_gpu 8 and gradient_accumulation_steps 4. On 4 "
    "ranks, how many samples make one update?",
    options=(
        Option(
            "8 samples",
            reply="8 is the micro-batch, what one rank computes at a time. Each rank adds up 4 of them, and "
            "4 ranks do so.",
            belief="micro-batch-is-global-batch",
        ),
        Option(
            "128 samples",
            reply="8 × 4 × 4. On 8 ranks the same two keys make 256, unless the file also has "
            "`train_batch_size`: then DeepSpeed stops, because the keys do not agree. A larger batch may "
            "need a different learning rate.",
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
    question="Your net fits on every rank in stage 0. A colleague sets the stage to 3. What do forward and "
    "backward then do on each rank?",
    options=(
        Option(
            "they compute less and send as much",
            reply="Then the layers would be divided among the ranks. They are not: every rank runs its "
            "samples through the whole net. Only the update is divided.",
            belief="higher-stage-is-faster",
        ),
        Option(
            "they compute as much and send as much",
            reply="Stage 3 sent 1.5 times as many bytes in section 4: it gathers the weights twice, for "
            "forward and for backward.",
            belief="stage-3-is-free",
        ),
        Option(
            "they compute as much and send more",
            reply="What you gain is memory, which you did not need. A higher stage is for nets that do "
            "not fit.",
            right=True,
        ),
    ),
    objectives=(3,),
)

WHO_SAVES = Question(
    id="12.q3",
    question="In stage 2, 4 ranks save a checkpoint. Somebody copies only the files that rank 0 wrote. "
    "What is missing in the copy?",
    options=(
        Option(
            "nothing, because rank 0 writes it all",
            reply="Then the folder would hold two files. It holds one more for every other rank: each writes "
            "the shard of the optimizer state that only it has.",
            belief="only-rank-0-saves",
        ),
        Option(
            "three quarters of the optimizer state",
            reply="The weights are complete, because stage 2 does not shard them. But nobody can resume: "
            "the moments of ranks 1 to 3 are in no file of the copy.",
            right=True,
        ),
        Option(
            "three quarters of the network's weights",
            reply="That is so in stage 3. In stage 2 every rank holds all weights, and rank 0 has written "
            "them. The optimizer state is what is sharded.",
            belief="every-stage-an-nth",
        ),
    ),
    objectives=(4,),
)

QUESTIONS = (AN_UPDATE, SMALL_NET, WHO_SAVES)

PREDICTIONS = (
    Prediction(
        id="12.p1",
        question="Bytes per parameter, stage 1 on four ranks?",
        objectives=(3,),
        targets=("every-stage-an-nth",),
    ),
    Prediction(
        id="12.p2",
        question="Stage 3: how many times as long as stage 0?",
        objectives=(3,),
        targets=("higher-stage-is-faster",),
    ),
    Prediction(
        id="12.p3",
        question="Stage 2, bytes sent with 4 micro-batches instead of 1: how many times as many?",
        objectives=(3,),
        targets=("stage-3-is-free",),
    ),
)
