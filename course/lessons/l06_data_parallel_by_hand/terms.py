"""The terms that lesson 06 introduces."""

from course.lessons.shared.glossary import Term

TERMS = (
    Term(
        "data parallelism",
        "Training in which every rank processes a part of every batch; in its plain form, each rank has a "
        "full copy of the network.",
        forms=r"data[- ]parallel(ism)?",
    ),
    Term("replica", "A complete copy of the network, here one per rank."),
    Term(
        "global batch",
        "The samples of one training step on all ranks together.",
        forms=r"global "
        "batch(es)?",
    ),
    Term("shard", "The part of a batch, or of a tensor, that one rank holds."),
    Term(
        "bucket",
        "A flat buffer that holds the gradients of several parameters, so that one all-reduce sums them.",
    ),
    Term(
        "straggler",
        "A rank that is later than the others, without any error; in synchronous training, all wait for it.",
        forms=r"stragglers?",
    ),
    Term("overlap", "Communication that runs while the rank computes.", forms=""),
    Term(
        "batch norm",
        "A layer that, in training, normalises each feature with its mean and variance over the samples "
        "at hand.",
        forms="",
    ),
    Term("tensor fusion", "Putting several small tensors into one message."),
    Term("fusion threshold", "The largest size, in bytes, of a bucket with several tensors."),
    Term(
        "parameter server",
        "A rank that keeps the weights and the optimizer; workers send it gradients and receive weights.",
    ),
    Term("Horovod", "A library for data parallelism over MPI, NCCL or Gloo: tensor fusion, compression."),
    Term(
        "staleness",
        "The number of updates a server made between sending weights and receiving the gradient computed "
        "with them.",
    ),
)
