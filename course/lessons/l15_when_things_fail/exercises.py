"""Exercises, questions and predictions of lesson 15, When things fail.

The check of 15.1 runs the answer once on real files and looks at `path` after each operation: that is what a
kill at this moment leaves behind. Every `write` counts as two operations, with half of the data each. For a
power cut it keeps of each file what the last fsync saw, and forgets the rest.

torch is imported only where a check needs it: exercises without it are checked sooner.
"""

import builtins
import inspect
import io
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from course_lib.training import saving
from mpi_classroom.exercises import (
    Exercise,
    Option,
    Prediction,
    Question,
    Wrong,
    WrongAnswer,
    changed,
    expect,
)
from mpi_classroom.launch import job_folder

# -------------------------------------------------------------------- 15.1 an atomic save

OLD, NEW = b"step 4: old weights", b"step 8: new weights, and more of them than before"
KILL, POWER = "a kill", "a power cut"
FILE = "training.pt"


@dataclass(frozen=True, slots=True)
class Moment:
    """What is at `path` after an operation: for a reader, and on the disk; None when there is no file."""

    after: str
    seen: bytes | None
    on_disk: bytes | None


class HalfWriter:
    """A file that was opened for writing; each `write` is two operations, with half of the data each."""

    def __init__(self, file: Any, note: Callable[[str], None]) -> None:
        self._file, self._note = file, note

    def write(self, data: Any) -> int:
        """Write both halves. The first goes to the operating system at once."""
        half = len(data) // 2
        self._file.write(data[:half])
        self._file.flush()
        self._note("half of a `write`")
        self._file.write(data[half:])
        self._note("a `write`")
        return len(data)

    def close(self) -> None:
        """Close the file; what Python kept in its buffer is written."""
        self._file.close()
        self._note("closing a file")

    def __enter__(self) -> "HalfWriter":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        if name in ("fileno", "flush") and self._file.closed:
            raise Wrong(
                f"`file.{name}()` runs after the file was closed: a `with` closes its file where its "
                "indentation ends. Which calls need the open file?"
            )
        return getattr(self._file, name)


class Disk:
    """Notes a Moment after each operation on files in `folder`."""

    def __init__(self, folder: Path, content: bytes | None) -> None:
        self.folder, self.path = folder, folder / FILE
        self.synced: dict[int, bytes] = {}  # by inode: what the last fsync of the file saw
        self.moments: list[Moment] = []
        if content is not None:
            self.path.write_bytes(content)
            self.synced[self.path.stat().st_ino] = content

    def note(self, after: str) -> None:
        """Look at the file now."""
        seen = on_disk = None
        if self.path.exists():
            seen = self.path.read_bytes()
            on_disk = self.synced.get(self.path.stat().st_ino, b"")
        self.moments.append(Moment(after, seen, on_disk))

    def has(self, path: Any) -> bool:
        """Whether `path` is a name in the folder."""
        return isinstance(path, str | os.PathLike) and Path(os.fspath(path)).parent == self.folder

    def sync(self, inode: int) -> None:
        """The file with this inode is on the disk as it is."""
        for path in self.folder.iterdir():
            if path.stat().st_ino == inode:
                self.synced[inode] = path.read_bytes()
        self.note("the folder's `fsync`" if inode == self.folder.stat().st_ino else "an `fsync`")


@contextmanager
def watched(disk: Disk) -> Iterator[None]:
    """While this lasts, the disk notes what is opened, written, synced, renamed and removed."""
    names = ("fsync", "replace", "rename", "remove", "unlink")
    real = SimpleNamespace(open=io.open, **{name: getattr(os, name) for name in names})

    def open_(file: Any, mode: str = "r", *more: Any, **options: Any) -> Any:
        opened = real.open(file, mode, *more, **options)
        if not (disk.has(file) and set(mode) & set("wax+")):
            return opened
        disk.synced.pop(os.fstat(opened.fileno()).st_ino, None)
        disk.note("`open`")
        return HalfWriter(opened, disk.note)

    def fsync(file: Any) -> None:
        number = file if isinstance(file, int) else file.fileno()
        real.fsync(number)
        disk.sync(os.fstat(number).st_ino)

    def noting(what: str, do: Callable[..., None]) -> Callable[..., None]:
        def done(*paths: Any, **options: Any) -> None:
            do(*paths, **options)
            if any(disk.has(path) for path in paths):
                disk.note(what)

        return done

    changes: dict[tuple[Any, str], Any] = {(builtins, "open"): open_, (io, "open"): open_}
    changes[os, "fsync"] = fsync
    for name in names[1:]:
        what = "the rename" if name in ("replace", "rename") else "removing a file"
        changes[os, name] = noting(what, getattr(real, name))
    before = {place: getattr(*place) for place in changes}
    for (module, name), function in changes.items():
        setattr(module, name, function)
    try:
        yield
    finally:
        for (module, name), function in before.items():
            setattr(module, name, function)


def _check_save(answer: SimpleNamespace, comm: Any, case: str) -> None:
    """A save over an old file, then the first save of all; each rank has a folder of its own."""
    for old in (OLD, None):
        with tempfile.TemporaryDirectory(dir=job_folder()) as name:
            disk = Disk(Path(name).resolve(), old)
            with watched(disk):
                answer.atomic_save(disk.path, NEW)
            disk.note("the return")
            expect(len(disk.moments) > 1, "returned and wrote no file in the folder of `path`.")
            for number, moment in enumerate(disk.moments):
                if case == KILL:
                    _after_kill(moment, old)
                else:
                    _after_power_cut(moment, old, [later.after for later in disk.moments[number + 1 :]])
            if disk.moments[-1].seen == old:
                raise Wrong("returned, and `path` still has the old bytes. Which file has the new ones?")


def _after_kill(moment: Moment, old: bytes | None) -> None:
    if moment.seen in (old, NEW):
        return
    if moment.seen is None:
        raise Wrong(f"A kill after {moment.after}: there is no file at `path`. What would a restart read?")
    gone = ", and the old ones are gone" if old else ""
    raise Wrong(
        f"A kill after {moment.after}: `path` has {len(moment.seen)} of the {len(NEW)} new bytes{gone}. "
        "When may the new bytes get the name `path`?"
    )


def _after_power_cut(moment: Moment, old: bytes | None, later: list[str]) -> None:
    if moment.on_disk in (old, NEW):
        return
    found = len(moment.on_disk or b"")
    question = "Which line makes sure that they are there *before* the rename?"
    if "an `fsync`" in later:
        question = "Your `fsync` comes later. What must be on the disk before the rename?"
    elif found:
        question = "Where are the others when `fsync` is called? Python buffers what you write."
    raise Wrong(
        f"A power cut after {moment.after}: of the {len(NEW)} bytes of the file `path`, only {found} "
        f"are sure to be on the disk. {question}"
    )


_SAVE = inspect.getsource(saving.atomic_save)
_FSYNC = "        os.fsync(file.fileno())  # the bytes, before a name points to them\n"
_REPLACE = "    os.replace(aside, path)\n"

SAVE = Exercise(
    id="15.1",
    title="A saver",
    task="Put `os.replace(aside, path)`, `file.flush()` and `os.fsync(file.fileno())` where they belong. "
    "Neither a kill nor a power cut may damage the checkpoint.",
    objectives=(2,),
    targets=("written-is-on-disk", "a-kill-leaves-the-old-file"),
    stub=changed(
        _SAVE,
        (
            "Write beside the old file, wait for the disk, take the name, wait again.",
            "Replace the file at `path`, so that a restart finds all old bytes or all new ones.",
        ),
        ("        file.flush()\n", ""),
        (_FSYNC, ""),
        (_REPLACE, "    ...  # three calls, not all with this indentation\n"),
    ),
    hints=(
        "Where are the new bytes after each call? They must be on the disk before the file gets its name, "
        "and a `with` closes its file where its indentation ends.",
        "write ──→ Python's buffer ── flush ──→ operating system ── fsync ──→ disk\n"
        "training.pt.new ── replace ──→ training.pt     at once, over the old file",
        "inside `with`:   file.…(), then os.…(file.fileno())      after it:   os.…(aside, path)",
    ),
    solution=_SAVE,
    check=_check_save,
    cases=(KILL, POWER),
    describe=lambda case: case,
    imports="import os\nfrom pathlib import Path",
    save="15_resume.py",
    wrong=(
        WrongAnswer(changed(_SAVE, ('path.with_name(path.name + ".new")', "path")), "A kill after `open`"),
        WrongAnswer(
            changed(_SAVE, (_REPLACE, "    path.unlink(missing_ok=True)\n" + _REPLACE)), "there is no file"
        ),
        WrongAnswer(changed(_SAVE, (_REPLACE, "")), "still has the old bytes"),
        WrongAnswer(changed(_SAVE, (_FSYNC, "")), "Which line makes sure"),
        WrongAnswer(
            changed(
                _SAVE,
                (_FSYNC, ""),
                (
                    _REPLACE,
                    _REPLACE + '    with open(path, "rb") as file:\n        os.fsync(file.fileno())\n',
                ),
            ),
            "Your `fsync` comes later",
        ),
        WrongAnswer(changed(_SAVE, ("        file.flush()\n", "")), "Python buffers"),
        WrongAnswer(changed(_SAVE, (_FSYNC, _FSYNC[4:])), "Which calls need the open file"),
        WrongAnswer(
            changed(
                _SAVE,
                (_REPLACE, "        os.replace(aside, path)\n"),
                (_FSYNC, ""),
                ("        file.flush()\n", ""),
            ),
            "A kill after the rename",
        ),
    ),
    why="the last three lines wait until the new name, too, is on the disk. Without them, "
    "which checkpoint may a power cut leave, and is that bad?",
)

# -------------------------------------------------------------------- 15.3 what a restart needs

BEFORE, AFTER = 3, 3  # steps before and after the restart


def _new(seed: int) -> tuple[Any, Any]:
    """What a job builds when it starts: a network with dropout, and SGD with momentum."""
    import torch

    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5)).double()
    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def _train(model: Any, optimizer: Any, steps: int) -> list[float]:
    """The losses of some steps, each with new random inputs and a new random mask."""
    import torch

    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        inputs = torch.randn(8, 4, dtype=torch.float64)
        loss = torch.nn.functional.mse_loss(model(inputs).sum(1), inputs.sum(1))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def _check_resume(answer: SimpleNamespace, comm: Any, case: None) -> None:
    import torch

    model, optimizer = _new(comm.rank)
    _train(model, optimizer, BEFORE)
    file = io.BytesIO()
    saved = answer.save_state(model, optimizer)
    expect(isinstance(saved, dict), f"save_state returned {type(saved).__name__}, expected a dictionary.")
    torch.save(saved, file)
    weights = [value.clone() for value in model.state_dict().values()]
    expected = _train(model, optimizer, AFTER)

    file.seek(0)
    model, optimizer = _new(100 + comm.rank)  # as in a new process, which begins with other numbers
    answer.load_state(torch.load(file, weights_only=False), model, optimizer)
    same = all(torch.equal(*pair) for pair in zip(weights, model.state_dict().values(), strict=True))
    expect(same, "the weights after the restart are not those that were saved. Who loads them?")
    resumed = _train(model, optimizer, AFTER)
    first, *others = (abs(one - other) < 1e-12 for one, other in zip(resumed, expected, strict=True))
    if not first:
        raise Wrong(
            f"the weights are right, but the first loss after the restart is {resumed[0]:.4f}; undisturbed "
            f"it is {expected[0]:.4f}. What does a step draw?"
        )
    if not all(others):
        raise Wrong(
            f"the first loss after the restart is right, the last is {resumed[-1]:.4f}; undisturbed it is "
            f"{expected[-1]:.4f}. So the first update was a different one. Who made it, and from what?"
        )


_RESUME = '''\
import torch


def save_state(model, optimizer):
    """Return a dictionary of what is written to the checkpoint."""
    return {
        "weights": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "random": torch.get_rng_state(),
    }


def load_state(saved, model, optimizer):
    """Restore a training in a new process, which has just built `model` and `optimizer`."""
    model.load_state_dict(saved["weights"])
    optimizer.load_state_dict(saved["optimizer"])
    torch.set_rng_state(saved["random"])
'''
_OPTIMIZER = '    optimizer.load_state_dict(saved["optimizer"])\n'
_RANDOM = '    torch.set_rng_state(saved["random"])\n'
_WEIGHTS = '    model.load_state_dict(saved["weights"])\n'

RESUME = Exercise(
    id="15.3",
    title="Spot the bug: a resumed training",
    task="A colleague saves and restores a training with these two functions. The network has dropout; the "
    "optimizer is SGD with momentum. No error occurs, but the losses after a restart are not those of a "
    "training that was never interrupted. (The number of the step is saved elsewhere.)",
    objectives=(2,),
    targets=("weights-suffice-to-resume",),
    stub='''\
import torch


def save_state(model, optimizer):
    """Return a dictionary of what is written to the checkpoint."""
    return {"weights": model.state_dict()}


def load_state(saved, model, optimizer):
    """Restore a training in a new process, which has just built `model` and `optimizer`."""
    model.load_state_dict(saved["weights"])
''',
    hints=(
        "Go through one training step. What does it read that is neither a weight nor a constant?",
        "a step reads   weights ─ inputs, dropout masks ─ momentum\nsaved          weights",
        "optimizer.state_…()   and   torch.get_rng_…()",
    ),
    solution=_RESUME,
    check=_check_resume,
    cases=(None,),
    imports="import torch\nimport torch._dynamo  # else an optimizer's first step imports it, for seconds",
    seconds=20.0,
    wrong=(
        WrongAnswer(changed(_RESUME, (_OPTIMIZER, "")), "Who made it, and from what"),
        WrongAnswer(changed(_RESUME, (_RANDOM, "")), "What does a step draw"),
        WrongAnswer(changed(_RESUME, (_WEIGHTS, "")), "Who loads them"),
        WrongAnswer(changed(_RESUME, ("    return {", "    saved = {")), "expected a dictionary"),
    ),
    why="the weights were right and no error occurred. Which comparison would have shown the mistake at "
    "once?",
)

# -------------------------------------------------------------------- questions

WHO_CAME_LATE = Question(
    id="15.q7",
    question="A training on 64 CPU ranks ends: 'rank 17 timed out after 60 s'. 63 ranks are in the same "
    "blocking sum, and rank 0 is in `torch.save`. What do you look into first?",
    options=(
        Option(
            "the node of rank 17",
            reply="That would mean rank 17 kept the others waiting. But it was in the sum, as 62 other "
            "ranks were, and its timeout merely ended first: it is a victim.",
            belief="timed-out-rank-is-guilty",
        ),
        Option(
            "the network of the sum",
            reply="That would mean all 64 ranks had begun the sum. Rank 0 has not, so the other 63 would "
            "wait on any network.",
            belief="a-timeout-is-the-network",
        ),
        Option(
            "the save of rank 0",
            reply="Rank 0 alone has not begun the sum, so the other 63 wait for it. Its save hangs, or takes "
            "longer than their timeout. If it is only slow, make the save shorter or the timeout longer. (On "
            "GPUs, first check whether rank 0 had already queued the sum.)",
            right=True,
        ),
    ),
    objectives=(1,),
)

MORE_NODES = Question(
    id="15.q3",
    question="A node fails once in 264 days, on average. You move from 128 nodes to 2,048, and a save takes "
    "as long as before. How should the interval between two saves change?",
    options=(
        Option(
            "to a sixteenth of what it was",
            reply="That would keep the work that failures destroy per day as it was, but the saves would "
            "cost 16 times as much. The sum of both costs is smallest when the interval shrinks only with "
            "the square root.",
            belief="interval-follows-failures",
        ),
        Option(
            "to a quarter of what it was",
            reply="16 times as many nodes fail 16 times as often. By Young's formula, the best interval goes "
            "with the square root of the time between failures, and the root of 16 is 4.",
            right=True,
        ),
        Option(
            "not at all, as nodes stay as reliable",
            reply="That would be right for one job per node. But one training needs all 2,048 nodes, and the "
            "first failure of any of them ends it.",
            belief="good-nodes-good-machine",
        ),
    ),
    objectives=(4,),
)

NO_ANSWER = Question(
    id="15.q6",
    question="You call `add_to_total(5)` on another rank, and get no answer within 10 seconds. You call it "
    "again, and it answers at once. By how much has the total grown?",
    options=(
        Option(
            "by 5, as only one call was answered",
            reply="That would mean the first call was lost on its way there. The answer may have been lost "
            "on its way back, after 5 was added.",
            belief="no-answer-not-run",
        ),
        Option(
            "by 5 or 10, as the first may have run",
            reply="The first call may have run, and only its answer was lost. The caller cannot know. So "
            "number the calls, and let the server keep its results: asked for an old number, it answers "
            "with the old result. Our six lines do neither.",
            right=True,
        ),
        Option(
            "by 10, as both calls have been sent",
            reply="That would mean whatever is sent arrives and runs. The first call may have been lost on "
            "its way there.",
            belief="sent-is-done",
        ),
    ),
    objectives=(5,),
)

EXERCISES = (SAVE, RESUME, WHO_CAME_LATE, MORE_NODES, NO_ANSWER)

PREDICTIONS = (
    Prediction(
        id="15.p9",
        question="Whose disk is broken?",
        objectives=(1,),
        targets=("timed-out-rank-is-guilty",),
    ),
    Prediction(
        id="15.p8",
        question="Whose card is broken in the first line?",
        objectives=(1,),
        targets=("least-received-is-guilty",),
    ),
    Prediction(
        id="15.p7",
        question="64 ranks: in how many of 1,000 steps is at least one late?",
        objectives=(3,),
        targets=("late-ranks-average-out",),
    ),
    Prediction(
        id="15.p6",
        question="Minutes of work between two saves, on 2,048 nodes?",
        objectives=(4,),
        targets=("good-nodes-good-machine",),
    ),
)
