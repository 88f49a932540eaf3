"""Stage 3 of ZeRO that gathers ahead: `parallel/zero3.py` is the plain one, and this one's oracle.

    plain       gather 0 │ run 0 │ free 0    gather 1 │ run 1 │ free 1    …
    prefetch    gather 0 │ run 0, gathering 1 │ free 0    run 1, gathering 2 │ free 1    …

A non-blocking all-gather fills the next layer's flat buffer while this layer runs. Less waiting, but two
layers are gathered at once. Without `prefetch` only the all-gather differs: non-blocking, with a timeout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpi4py import MPI
from torch import nn
from torch.optim import AdamW

from course_lib.comm.polling import wait_for
from course_lib.parallel import zero3
from course_lib.parallel.zero3 import in_backward
from course_lib.parallel.zero_shards import MakeOptimizer, gather_spec

TIMEOUT_SECONDS = 60.0


class LayerBucket(zero3.LayerBucket):
    """A layer's parameters, which may be gathered before they are needed."""

    def __init__(self, comm: MPI.Intracomm, parameters: Sequence[nn.Parameter]) -> None:
        self.request = MPI.REQUEST_NULL
        super().__init__(comm, parameters)

    def start(self) -> None:
        """Start to gather the full weights."""
        if not self.gathered and self.request == MPI.REQUEST_NULL:
            self.allocate()
            self.request = self.comm.Iallgatherv(MPI.IN_PLACE, gather_spec(self.comm, self.weights.flat))

    def gather(self) -> None:
        """Gather the full weights, or wait for them; TimeoutError when a rank does not come."""
        self.start()
        if not self.gathered:
            wait_for(self.request, TIMEOUT_SECONDS, "a layer's weights")
            self.weights.attach()
            self.gathered = True

    def free(self) -> None:
        """Free the full weights; what is being gathered and was not used, is waited for first."""
        if self.request != MPI.REQUEST_NULL:
            self.gather()
        super().free()


class Zero3(zero3.Zero3):
    """Stage 3, with the settings of the plain one; with `prefetch`, the next layer is gathered early."""

    layers: Sequence[tuple[nn.Module, Sequence[LayerBucket]]]
    layer_bucket = LayerBucket

    def __init__(
        self,
        comm: MPI.Intracomm,
        model: nn.Module,
        make_optimizer: MakeOptimizer = AdamW,
        *,
        prefetch: bool = False,
        **settings: Any,
    ) -> None:
        self.prefetch = prefetch
        super().__init__(comm, model, make_optimizer, **settings)

    def gather(self, index: int) -> None:
        """Gather layer `index`, which runs now, and start to gather the one that runs next."""
        super().gather(index)
        following = index - 1 if in_backward() else index + 1
        if self.prefetch and 0 <= following < len(self.layers):
            for bucket in self.layers[following][1]:
                bucket.start()
