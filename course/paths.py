"""Where things are: the checkout that this package is installed from, editable.

COURSE_HOME names a folder for what a learner writes, where several people share one checkout: each has a
my_course/ and a build/ of their own there.
"""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LESSONS = ROOT / "course" / "lessons"
NOTEBOOKS = ROOT / "notebooks"
HOME = Path(os.environ.get("COURSE_HOME") or ROOT).expanduser().absolute()
MY_COURSE = HOME / "my_course"
BUILD = HOME / "build"
