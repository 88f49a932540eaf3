"""Continuing after a rank has died: user-level failure mitigation (ULFM), an extension of MPI.

    rank 0  all-reduce → ERR_PROC_FAILED ┐
    rank 1  ✗                            ├ revoke, so that nobody waits in it; shrink to ranks 0 and 2
    rank 2  all-reduce → ERR_PROC_FAILED ┘

Normally MPI ends the whole job when one of its processes dies. Open MPI started with `mpiexec --with-ft ulfm`
lets the others live. A call that needs the dead rank then raises on some ranks. It may succeed on others, so
that they do not agree on whether a step is done: `all_done` decides it for all.

Source: Bland and others, Post-failure recovery of MPI communication capability, International Journal of High
Performance Computing Applications 27(3), 2013, 244-254.
"""

from __future__ import annotations

from mpi4py import MPI

OF_A_FAILURE = (MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING, MPI.ERR_REVOKED)


def is_failure(error: MPI.Exception) -> bool:
    """Whether `error` says that a rank died, or that another rank noticed it and revoked the communicator."""
    return error.Get_error_class() in OF_A_FAILURE


def all_done(comm: MPI.Intracomm, done: bool) -> bool:
    """Whether the step is done on all living ranks of `comm`; the same answer on all of them.

    It works on a revoked communicator, too.
    """
    try:
        return bool(comm.Agree(int(done)))
    except MPI.Exception as error:
        if not is_failure(error):
            raise
        return False


def without_the_dead(comm: MPI.Intracomm) -> MPI.Intracomm:
    """A communicator of the living ranks of `comm`, in the same order; all of them call it.

    Whoever still waits in `comm` gets ERR_REVOKED.
    """
    comm.Revoke()
    shrunk: MPI.Intracomm = comm.Shrink()  # type: ignore[assignment]
    shrunk.Set_errhandler(MPI.ERRORS_RETURN)
    return shrunk
