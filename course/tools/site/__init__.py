"""The website: `make site`. From the committed notebooks and docstrings; no cell is executed.

    repository ── python -m course.tools.site ──> build/site/source ── sphinx-build -W ──> build/site/html
                  (in the course's environment)                        (in an environment of its own)

The source folder mirrors the repository, so that links between its pages hold as they stand. What Sphinx
needs is in `docs/site`: its settings, one directive, the style sheet, the first page.
"""
