"""The terms of the course. Each lesson's `terms.py` has those that it introduces, with their definitions.

`docs/glossary.md` is made from them (`python -m course.tools.glossary`), and no lesson uses a term that a
later one introduces. Words that everyday language needs as well (core, message, stage) are not terms in this
sense unless their `forms` cannot be mistaken.
"""

import functools
import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from course.paths import LESSONS


@dataclass(frozen=True, slots=True)
class Term:
    """A term and its definition, one or two plain sentences.

    `forms` is a regular expression for the whole words that are this term; without it, they are the term and
    its plural in s. A term with a capital is a name, and written so. `forms=""` is for a term that everyday
    language uses too: no lesson is searched for it.
    """

    term: str
    definition: str = ""
    forms: str | None = None

    def find(self, text: str) -> re.Match[str] | None:
        """Where `text` uses this term."""
        plain = re.escape(self.term).replace(r"\ ", "[ -]") + "s?"
        forms = plain if self.forms is None else self.forms
        name = any(letter.isupper() for letter in self.term)
        if not forms:
            return None
        return re.search(rf"(?<![\w-])(?:{forms})(?![\w-])", text, 0 if name else re.IGNORECASE)


@functools.cache
def glossary() -> Mapping[str, tuple[Term, ...]]:
    """The terms of every lesson, by its number; a lesson without `terms.py` introduces none."""
    folders = sorted(path.parent.name for path in LESSONS.glob("l*/terms.py"))
    return {name[1:3]: importlib.import_module(f"course.lessons.{name}.terms").TERMS for name in folders}
