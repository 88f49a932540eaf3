"""Checkpoints that survive a kill at any instant, of training that is sharded over ranks.

    folder/
        latest                       the name of the newest whole checkpoint
        000002-step20/               keep: the last few
        000003-step30/
            manifest.json            step, progress, ranks; the size and the sha256 of every file
            rank0.pt  rank1.pt       what each rank keeps: its slices of weights and optimizer state, its dice
        .saving/                     one that is being written, or a kill ended it

    folder.py   writes aside, names when all is on disk; finds the newest that is whole
    disk.py     files that are on disk when the call returns, and what a full disk says
    pieces.py   which elements of which parameter a rank has: read back on any number of ranks
    training.py model, optimizer (ZeRO 1 to 3, or PyTorch's own), random numbers, progress
    deepspeed.py  what DeepSpeed writes, in such a folder

        save_training(comm, folder, model, optimizer, step=12, progress={"epoch": 0, "batch": 12})
        resumed = load_training(comm, folder, model, optimizer)      # None when there is nothing to resume

Source: Pillai and others, All File Systems Are Not Created Equal, OSDI 2014 (write aside, fsync the file and
its folder, rename); Mohan and others, CheckFreq, FAST 2021.
"""

from course_lib.parallel.checkpoint.disk import CheckpointError
from course_lib.parallel.checkpoint.folder import Found, find, save
from course_lib.parallel.checkpoint.training import load_training, save_training

__all__ = ["CheckpointError", "Found", "find", "load_training", "save", "save_training"]
