"""What many believe, and is not so: the reason for every wrong option, prediction and spot-the-bug.

By lesson, name → belief. The lesson has to target each of its own: `beliefs` of a question, `targets` of an
exercise or prediction name it. The lint of the lessons fails when one is left out.
"""

from collections.abc import Mapping

MISCONCEPTIONS: Mapping[str, Mapping[str, str]] = {
    "00": {
        "kernel-on-ranks": "variables of the kernel exist on the ranks",
        "kernel-is-rank-0": "the kernel is rank 0",
        "nodes-divide-ranks": "the number of nodes, not of ranks per node, tells where a rank is",
        "ranks-take-turns-on-nodes": "neighbouring ranks are always on different nodes",
        "weights-are-all": "training takes as much memory as the weights",
        "rank-0-serves-all-nodes": "what rank 0 of the world puts on its disk, every node has",
    },
    "01": {
        "returned-is-received": "Send has returned, so the message has been received",
        "send-always-waits": "Send waits for the receiver",
        "small-works-large-works": "what works with 4 kB works with 1 MB",
        "mpi-keeps-copies": "MPI keeps copies of everything that is sent",
        "print-order-is-time-order": "the order on the screen is the order in time",
        "set-on-one-is-set-on-all": "an x set under `if rank == 0` exists everywhere",
        "tags-sort-themselves": "a message finds its Recv by what it holds",
        "first-senders-always-hang": "ranks that all send first hang with large messages",
    },
    "02": {
        "same-seed-adds-samples": "the same seed everywhere still adds samples",
        "n-times-the-samples-an-nth": "four times as many samples make a quarter of the error",
        "n-ranks-n-times": "4 ranks are 4 times as fast",
        "the-rest-is-the-other": "when two things changed, what one does not explain is the other's",
        "counts-fit-32-bits": "a count fits into 32 bits",
    },
    "03": {
        "sums-are-bitwise-equal": "another number of ranks gives the same sum, to the last bit",
        "other-digits-are-a-bug": "a result with other last digits than yesterday's is wrong",
        "rounding-explains-it": "rounding explains every difference between two parallel sums",
        "weak-is-strong": "weak scaling is strong scaling",
        "efficiency-is-a-wall": "when the efficiency has fallen to a half, more ranks bring nothing",
    },
    "04": {
        "only-root-calls": "only the root calls Bcast",
        "reduce-fills-every-rank": "Reduce leaves the result on every rank",
        "traffic-grows-with-n": "what a rank sends in an all-reduce grows with the number of ranks",
        "traffic-is-shared-out": "the more ranks share an all-reduce, the less each of them sends",
        "others-stay-as-they-were": "a rank that gets no result of a reduce keeps its numbers",
        "fewest-bytes-wins": "the algorithm that sends the fewest bytes is the fastest at every size",
        "placement-does-not-matter": "it makes no difference which ranks share a node",
    },
    "05": {
        "mean-of-means": "the mean of the means is the mean",
        "every-norm-looks-around": "whatever computes a norm looks at the other samples",
        "a-piece-is-a-step": "every micro-batch is a step of the optimizer",
        "longer-steps-get-further": "steps that are k times as long get k times as far",
        "exact-gradient-better-training": "a more exact gradient makes better training",
        "divergence-is-rounding": "a training diverges because its numbers have too few bits",
        "falling-loss-right-gradient": "when the loss falls, the gradient is right",
        "float32-checks-gradients": "float32 is fine enough to check a gradient",
        "n-threads-n-times": "n threads are n times as fast",
    },
    "06": {
        "no-broadcast-no-harm": "skipping the broadcast is harmless",
        "still-batch-64": "64 on each of 4 ranks is still batch 64",
        "ranks-multiply-the-step": "more ranks always take larger steps",
        "mpi-knows-meaning": "MPI notices that it adds what does not belong together",
        "short-wait-is-good": "the rank that waits least is the one that does best",
        "collective-time-is-transfer": "the time in a collective call is the time its bytes take",
        "started-is-done": "what a call has started is done when the call returns",
        "sending-comes-after": "gradients can be sent only when backward is over",
        "a-slow-worker-is-only-late": "a slow worker's gradients are late, but belong to the present weights",
    },
    "07": {
        "ddp-splits-the-batch": "data parallelism divides the batch by itself",
        "communication-costs-accuracy": "communication lowers accuracy",
        "set-epoch-is-optional": "set_epoch is optional",
        "waiting-is-transfer": "time in a collective is time of transfer",
        "loader-knows-its-rank": "a DataLoader takes the share of its rank by itself",
        "mistakes-raise-errors": "a mistake in distributed training raises an error",
        "own-seed-own-share": "another seed on every rank gives each its own shard of the images",
        "ddp-sums": "DDP adds up the gradients of the ranks",
        "ranks-want-a-larger-rate": "more ranks want a larger rate, even if the global batch stays",
        "seconds-travel": "seconds on two machines can be compared",
        "replays-are-measured": "a replayed time is as good as a measured one",
        "step-is-communication": "a faster network shortens the whole step",
    },
    "08": {
        "stages-speed-up-one-batch": "stages make one batch faster",
        "one-after-the-other": "the ranks work one after the other",
        "small-pieces-need-less": "smaller micro-batches of the same batch need less memory in GPipe",
        "sent-is-not-needed": "an activation that was sent is not needed by its sender any more",
        "average-sets-the-pace": "a pipeline goes as fast as its average stage",
    },
    "09": {
        "gelu-before-the-row-sum": "ReLU or GeLU may come before the sum of a row layer",
        "every-layer-needs-a-sum": "every layer that is cut ends with a sum over the ranks",
        "any-split-can-be-summed": "however two matrices are split, the parts of their product add up",
        "gradient-of-a-shard-is-whole": "what a rank computes as its input's gradient is all of it",
        "batch-is-texts": "tensor parallelism's bytes grow with the texts of a batch, not with tokens",
        "width-decides-the-bytes": "the width decides whether tensor or data parallelism sends more",
    },
    "10": {
        "halos-are-forward-only": "halos are exchanged in the forward pass only",
        "average-over-tiles": "gradients are averaged over tiles",
        "halo-is-the-kernel": "a tile needs as many rows of its neighbour as the kernel has",
        "padding-is-enough": "the padding of a convolution is enough at a cut, too",
        "padding-stays-zero": "what is outside the image stays zero from layer to layer",
        "halo-is-symmetric": "a tile needs as many rows from below as from above",
        "fused-work-is-an-edge": "a wide halo adds hardly any work, however many layers it serves",
        "halos-bring-accuracy": "what tiles lose in accuracy, they lose because they have no halos",
    },
    "11": {
        "zero-splits-computation": "ZeRO splits the computation",
        "zero-shards-activations": "ZeRO shards activations",
        "stage-3-is-free": "stage 3 sends no more bytes than stage 2",
        "every-stage-an-nth": "with n ranks, every stage needs an n-th of the memory",
        "owner-runs-the-layer": "a layer runs on the rank that owns its weights",
        "gather-grows-with-n": "what a rank receives in an all-gather grows with the number of ranks",
        "slices-follow-layers": "a rank owns whole layers",
    },
    "12": {
        "micro-batch-is-global-batch": "the micro-batch is the global batch",
        "higher-stage-is-faster": "a higher stage is faster",
        "only-rank-0-saves": "only rank 0 saves the checkpoint",
    },
    "13": {
        "backward-adds-means": "gradients of the means of micro-batches add up to that of the batch",
        "rouge-up-facts-right": "a higher ROUGE means that the facts are right",
        "token-counts-do-not-matter": "the loss is the mean of the ranks' losses, whatever their tokens",
        "rouge-is-accuracy": "ROUGE is the share of summaries that are right",
        "low-loss-can-write": "a model with a low training loss can write",
    },
    "14": {
        "bandwidth-explains-small-messages": "bandwidth explains the time of small messages",
        "two-to-four-predicts-2048": "the step from 2 to 4 ranks predicts 2048",
        "a-remedy-keeps-its-factor": "what saves bytes on two ranks saves as many on thousands",
        "what-gathers-never-pays": "what cannot be added on the way never saves bytes",
        "one-job-fills-a-device": "one job uses all of a device",
        "the-network-took-it": "what many devices lose together, the network took",
        "one-script-per-launcher": "each launcher needs a script of its own",
        "script-finds-its-hosts": "a script has to know the hosts that it runs on",
    },
    "15": {
        "timed-out-rank-is-guilty": "the rank that timed out is the guilty one",
        "weights-suffice-to-resume": "the weights alone suffice to resume",
        "a-timeout-is-the-network": "a timeout means that the network is slow",
        "least-received-is-guilty": "whoever received least is the broken one",
        "late-ranks-average-out": "ranks that are late now and then make the job late now and then",
        "a-kill-leaves-the-old-file": "a save that is killed leaves the old file",
        "written-is-on-disk": "what write has returned from is on the disk",
        "good-nodes-good-machine": "a machine of reliable nodes is reliable",
        "interval-follows-failures": "with twice as many failures, save twice as often",
        "no-answer-not-run": "a remote call without an answer has not run",
        "sent-is-done": "a remote call that was sent has run",
    },
    "16": {
        "one-plan-for-every-machine": "the best plan is the same on every machine",
        "messages-hide-or-not": "all messages hide behind computing, or none",
        "most-saving-is-best": "the plan that keeps least is the best",
        "ranks-are-devices": "ranks that share a core take the times of ranks on devices of their own",
        "right-order-right-size": "a formula that orders plans rightly also gets their differences right",
    },
    "17": {
        "two-replicas-twice-the-activations": "two replicas on a rank hold twice the activations",
        "ours-is-your-ours": "what my partner sends first belongs to what I send first",
        "any-baseline-will-do": "a speed-up over another method says how well ranks are used",
        "data-ranks-scale-ideally": "data parallelism on top of anything scales ideally",
    },
}


def belief(name: str) -> str:
    """The belief of this name in words; raises LookupError when there is none."""
    for beliefs in MISCONCEPTIONS.values():
        if name in beliefs:
            return beliefs[name]
    raise LookupError(f"there is no misconception {name!r} in course/lessons/shared/misconceptions.py")
