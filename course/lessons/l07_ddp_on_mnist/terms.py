"""The terms that lesson 07 introduces."""

from course.lessons.shared.glossary import Term

TERMS = (
    Term("DDP"),
    Term("DistributedDataParallel"),
    Term("DistributedSampler"),
    Term("sampler"),
    Term("set_epoch"),
    Term("torchrun"),
    Term("process group"),
)
