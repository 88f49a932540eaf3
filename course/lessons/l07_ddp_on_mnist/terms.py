"""The terms that lesson 07 introduces."""

from course.lessons.shared.glossary import Term

TERMS = (
    Term(
        "DDP",
        "Short for DistributedDataParallel: PyTorch's data parallelism. You wrap a model in it, and then "
        "train the wrapped model on all ranks.",
    ),
    Term("DistributedDataParallel", "The class of PyTorch that DDP stands for."),
    Term(
        "process group",
        "The processes that talk to each other through torch.distributed, with a backend that moves the "
        "bytes: PyTorch's word for a communicator.",
    ),
    Term(
        "DistributedSampler",
        "Gives each rank its shard of a data set: all ranks use one order, and each of n ranks keeps every "
        "n-th sample.",
    ),
    Term("sampler", "What tells a DataLoader which samples to read, and in which order."),
    Term(
        "set_epoch",
        "The call that gives a DistributedSampler the number of the epoch, so that each epoch has a "
        "different order.",
        forms="set_epoch",
    ),
    Term("DataLoader", "PyTorch's class that reads samples and puts them together in batches."),
    Term(
        "waiting",
        "The time that a rank spends in a collective before the last rank has arrived.",
        forms="",
    ),
    Term("profiler", "A tool that records what a program runs, when, and for how long.", forms=""),
    Term(
        "communication hook",
        "A function that DDP calls with each bucket of gradients, in place of its own all-reduce.",
    ),
    Term(
        "no_sync",
        "DDP's context manager: inside it, backward adds to this rank's gradients, and sends nothing.",
        forms="no_sync",
    ),
    Term(
        "torchrun", "PyTorch's launcher: it starts the ranks and sets RANK, WORLD_SIZE and where they meet."
    ),
)
