"""A step of 08_pipeline.py, each rank with 64 MiB to allocate: limited.py SCHEDULE MICRO-BATCHES."""

import runpy
import sys

from course_lib.effects import memory_limit

ours = runpy.run_path("code/08_pipeline.py")
ours["main"](steps=1)  # without a limit: what torch allocates once
with memory_limit(64 * 2**20):
    ours["main"](ours[sys.argv[1]], int(sys.argv[2]), steps=1)
