"""Saving bytes to a file that a process may be killed in the middle of: two savers.

                      killed (kill -9)                  power lost
    naive_save        the old file is gone, or half     as well
    atomic_save       old or new                        old or new

A name changes in one instant, bytes do not: so write the bytes under another name, and rename. What the
operating system holds in memory survives the process, but not the machine: so wait until the bytes are on the
disk before the rename, and until the rename is there before returning. `parallel/checkpoint_folder.py`
does this for many files and many ranks.

Source: Pillai and others, All file systems are not created equal, OSDI 2014.
"""

import os
from pathlib import Path


def naive_save(path: Path, data: bytes) -> None:
    """Write over the old file."""
    with open(path, "wb") as file:
        file.write(data)


def atomic_save(path: Path, data: bytes) -> None:
    """Write beside the old file, wait for the disk, take the name, wait again."""
    aside = path.with_name(path.name + ".new")
    with open(aside, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())  # the bytes, before a name points to them
    os.replace(aside, path)
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)  # wait until the disk has the new name
    os.close(folder)
