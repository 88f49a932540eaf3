"""On ranks progress bars are text, and a bar that redraws itself is one line."""

import sys

import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from mpi_classroom.text_only import look_like_a_terminal, settled

NESTED = "  0%| 0/2\n  0%| 0/4\x1b[A\n 50%| 2/4\x1b[A 50%| 1/2\n  0%| 0/4\x1b[A\n100%| 4/4\x1b[A100%| 2/2\n"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\r  0%\r 50%\r100%\n", "100%\n"),
        (NESTED, "100%| 2/2\n100%| 4/4"),
        ("a bar\r     \r", ""),
        ("Working 0%\r\x1b[2KWorking 100%\n", "Working 100%\n"),
        ("two\r\nlines\r\n", "two\r\nlines\r\n"),
        ("\x1b[31mred\x1b[0m and plain  \n", "\x1b[31mred\x1b[0m and plain  \n"),
    ],
)
def test_what_is_written_over_is_gone(text, shown):
    assert settled(text) == shown


def test_the_shell_of_a_rank_is_no_notebooks_but_what_it_was_otherwise():
    class ZMQInteractiveShell(InteractiveShell):
        pass

    shell = ZMQInteractiveShell(config=Config(IPKernelApp={"exec_lines": []}))
    meta_path = sys.meta_path[:]
    try:
        look_like_a_terminal(shell)
        look_like_a_terminal(shell)
        assert len(sys.meta_path) == len(meta_path) + 1
    finally:
        sys.meta_path[:] = meta_path
    assert type(shell).__name__ == "RankShell" and isinstance(shell, ZMQInteractiveShell)
    assert "IPKernelApp" not in shell.config
