"""What can go wrong, as exceptions of torch's own kind (all are RuntimeError)."""

import torch.distributed as dist


class MismatchError(dist.DistBackendError, ValueError):
    """The ranks did not ask for the same thing. Nothing was changed; the group can go on."""


class CollectiveTimeoutError(dist.DistBackendError, TimeoutError):
    """Not every rank came in time. The group is of no use any more."""


class BrokenGroupError(dist.DistBackendError):
    """A rank died, or MPI gave up. The group is of no use any more."""


class ClosedGroupError(dist.DistBackendError):
    """The group was destroyed."""
