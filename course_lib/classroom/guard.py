"""`%%px` with a deadline."""

from typing import Any

from ipyparallel.client.magics import ParallelMagics


class GuardedMagics(ParallelMagics):
    """ipyparallel's magics on a cluster."""

    def __init__(self, shell: Any, cluster: Any) -> None:
        self.cluster = cluster
        super().__init__(shell, cluster.view)
