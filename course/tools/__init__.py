"""What builds, checks and runs the lessons, and the `course` command."""

import sys

# nbformat imports jsonschema, which would build 39 grammars for addresses of web pages, in two seconds.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
