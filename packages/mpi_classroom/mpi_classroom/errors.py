"""Errors that a learner reads: what happened and what to do, without a traceback."""


class CourseError(RuntimeError):
    """One sentence with its remedy; a notebook shows only the message."""

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}"]


class ClusterError(CourseError):
    """The cluster could not start, or has ended."""


class NoAnswerError(ClusterError):
    """A rank did not answer in time: it is busy or stuck, or the request did not reach it."""


class HangError(CourseError):
    """A cell did not end: which rank waited for what, and why."""


def meaning(problem: str) -> str:
    """A sentence on what the error in `problem` means in a cell, "" for errors that say so themselves."""
    pairs = "`Send` pairs with `Recv`, `send` with `recv`"
    if "MPI_ERR_TRUNCATE" in problem:
        return (
            "More data came than the receive buffer holds: compare the counts and types of all ranks that "
            f"take part. And {pairs}."
        )
    if "UnpicklingError" in problem:
        return f"`recv` got data that `Send` had sent unpickled, perhaps in an earlier cell: {pairs}."
    if "name '__file__' is not defined" in problem:
        return "Only a cell of a program has a `__file__`: write `--save NAME.py` behind its `%%px`."
    if "FileNotFoundError" in problem and "/code/data/" in problem:
        return "These data come with the course: copy notebooks/code/data beside your notebook, as code/data."
    return ""
