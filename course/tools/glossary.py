"""`docs/glossary.md`: every term of the course with its definition, made from the lessons' `terms.py`.

python -m course.tools.glossary        write it
"""

import sys
from collections.abc import Iterator

from course.lessons.shared.glossary import glossary
from course.paths import ROOT
from course.tools.build import lesson_sources
from course.tools.frame import label, stem

PAGE = ROOT / "docs" / "glossary.md"


def page() -> str:
    """The glossary in alphabetical order; each term links to the lesson that introduces it."""
    lessons = {stem(source)[:2]: (label(source), stem(source)) for source in lesson_sources()}
    lines = []
    for number, terms in glossary().items():
        title, name = lessons[number]
        lines += [
            f"**{each.term}**: {each.definition} ([{title}](../notebooks/{name}.ipynb))"
            for each in terms
            if each.definition
        ]
    lines.sort(key=lambda line: line.strip("*").casefold())
    head = "# Glossary\n\nThe terms of the course, each with the lesson that introduces it.\n"
    return "\n".join([head, *(f"{line}\n" for line in lines)])


def stale() -> Iterator[str]:
    """A sentence when the page is not what the lessons say."""
    if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page():
        yield "docs/glossary.md is not what the lessons' terms.py say; run python -m course.tools.glossary"


def main() -> int:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)}: {page().count('**: ')} terms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
