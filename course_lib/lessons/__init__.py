"""From notebook sources to executed lessons: build, lint, execute, copy, compare."""
