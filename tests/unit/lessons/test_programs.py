"""Programs that a lesson runs beside the notebook's ranks."""

import os
import sys
import tempfile
from pathlib import Path

from course.lessons.shared.programs import output_of

LEAVES_A_FOLDER = "import tempfile; print(tempfile.mkdtemp())"


def test_what_a_program_leaves_in_the_temporary_folder_is_removed() -> None:
    folder = Path(output_of([sys.executable, "-c", LEAVES_A_FOLDER], os.environ, timeout=60))
    assert folder.is_relative_to(tempfile.gettempdir()) and not folder.parent.exists()
