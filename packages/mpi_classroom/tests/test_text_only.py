"""On ranks progress bars are text, and a bar that redraws itself is one line."""

import subprocess
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


BARS = """
import sys, types
from mpi_classroom.text_only import _TextBars
import ipykernel.zmqshell, IPython
if sys.argv[1] == "rank":
    sys.meta_path.insert(0, _TextBars())
from tqdm import auto, autonotebook, notebook, std
print(issubclass(auto.tqdm, notebook.tqdm), autonotebook.tqdm is std.tqdm, notebook.trange is std.trange)
"""


@pytest.mark.parametrize(("where", "text"), [("rank", "True True True"), ("notebook", "True False False")])
def test_tqdms_bars_for_notebooks_are_text_on_a_rank_and_widgets_elsewhere(where, text):
    pytest.importorskip("tqdm")
    pytest.importorskip("ipywidgets")
    command = [sys.executable, "-W", "error::UserWarning", "-c", BARS, where]
    if where == "notebook":
        command[1:3] = []  # tqdm warns of its widgets
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == text, done.stderr
