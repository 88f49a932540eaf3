"""What the driver of a cell does besides asking the watch."""

import threading

from mpi_classroom import running_cell


def test_an_error_outside_the_main_thread_is_shown_alone():
    seen = []

    def give_up():
        try:
            with running_cell._uninterrupted():
                raise KeyError("the report")
        except KeyError as problem:
            seen.append(problem.__context__)

    thread = threading.Thread(target=give_up)
    thread.start()
    thread.join()
    assert seen == [None]
