"""ipyparallel's client, for which a value that cannot be rebuilt is an error of its rank.

An object of a class that a cell has defined on the ranks can be pickled there, but the notebook does not know
the class. ipyparallel raises that in its own thread, and whoever asked for the value waits for ever.
"""

from typing import Any

import ipyparallel

CANNOT_REBUILD = "CannotRebuild"


class Client(ipyparallel.Client):
    """A client of the controller; `CANNOT_REBUILD` is the name of the error."""

    def _handle_apply_reply(self, msg: dict[str, Any]) -> None:
        try:
            super()._handle_apply_reply(msg)
        except Exception as problem:  # whatever the class raises
            id = msg["parent_header"]["msg_id"]
            content = {
                "ename": CANNOT_REBUILD,
                "evalue": f"{type(problem).__name__}: {problem}",
                "traceback": [],
                "engine_info": {"engine_uuid": self.metadata[id]["engine_uuid"], "method": "apply"},
            }
            self.results[id] = self._unwrap_exception(content)
            if (future := self._futures.get(id)) and not future.done():
                future.set_result(self.results[id])
