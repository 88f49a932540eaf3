"""What a learner reads while a cluster starts: one line that is rewritten, and what else is running here."""

import os
from typing import Any

from IPython.core.getipython import get_ipython
from IPython.display import display

from mpi_classroom import processes
from mpi_classroom.folders import remove_leftovers


def other_clusters(stop: bool) -> list[str]:
    """End clusters that were left behind, with `stop` all others too; return a sentence on each.

    Also removes the folders of killed processes, without a word.
    """
    notes = []
    for cluster in processes.running_clusters():
        if cluster.owner_pid == os.getpid() or (cluster.exercise and cluster.owner_alive):
            continue  # an exercise's throwaway job ends by itself
        name = cluster.notebook or "another notebook"
        if not cluster.owner_alive:
            processes.stop_cluster(cluster.id)
            notes.append(f"Stopped the cluster of {name}, which was killed.")
        elif stop:
            processes.stop_cluster(cluster.id)
            notes.append(f"Stopped the cluster of {name}.")
        else:
            notes.append(
                f"{name} also has a running cluster, and both share the cores. "
                f"To stop it: start_cluster(n=…, stop_others=True)"
            )
    remove_leftovers()
    return notes


class StatusLine:
    """One line that is rewritten while things start, and stays as the result."""

    def __init__(self) -> None:
        self._live = get_ipython() is not None and "IPP_NONINTERACTIVE" not in os.environ
        self._handle: Any = None
        self._text = ""

    def show(self, text: str, final: bool = False) -> None:
        """Replace what was shown by `text`; where nothing can be rewritten, only the last is."""
        if text == self._text:
            return
        self._text = text
        if self._live:
            bundle = {"text/plain": text}
            if self._handle is None:
                self._handle = display(bundle, raw=True, display_id=True)
            else:
                self._handle.update(bundle, raw=True)
        elif final:
            print(text)
