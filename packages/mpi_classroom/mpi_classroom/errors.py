"""Errors that speak to a learner: what happened and what to do, without a wall of traceback."""


class CourseError(RuntimeError):
    """One sentence and its remedy; a notebook shows just that."""

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}"]


class ClusterError(CourseError):
    """The cluster could not start, or is no longer there."""


class NoAnswerError(ClusterError):
    """A rank did not answer in time: it is busy, or stuck, or the question did not reach it."""


class HangError(CourseError):
    """A cell did not end: who waited for what, and why."""
