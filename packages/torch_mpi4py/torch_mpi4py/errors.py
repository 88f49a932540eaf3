"""What can go wrong, as exceptions of torch's own kind (all are RuntimeError)."""

import torch.distributed as dist


class MismatchError(dist.DistBackendError, ValueError):
    """The ranks did not ask for the same thing. Nothing was changed; the group can go on."""


class LayoutError(dist.DistBackendError, ValueError):
    """The collective is done, but this rank's tensor cannot hold its result. The group can go on."""


class CollectiveTimeoutError(dist.DistBackendError, TimeoutError):
    """Not every rank came in time. The group cannot be used any more."""


class BrokenGroupError(dist.DistBackendError):
    """A rank died, gave up or was interrupted, or MPI failed. The group cannot be used any more."""


class ClosedGroupError(dist.DistBackendError):
    """The group was destroyed."""
