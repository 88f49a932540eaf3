"""What a markdown cell contains: its headings, links and images, also those written in HTML."""

from dataclasses import dataclass, field
from html.parser import HTMLParser

from markdown_it import MarkdownIt
from markdown_it.token import Token


@dataclass(slots=True)
class Page:
    """The parts of a text that other texts refer to, in order."""

    headings: list[tuple[int, str]] = field(default_factory=list)  # level, text
    links: list[str] = field(default_factory=list)  # where links and images lead
    images: list[str] = field(default_factory=list)  # the alt text of each, empty where there is none
    ids: list[str] = field(default_factory=list)

    @property
    def anchors(self) -> set[str]:
        """What `#…` can lead to: JupyterLab makes a heading's anchor by replacing its spaces."""
        return {text.replace(" ", "-") for _, text in self.headings} | set(self.ids)


class _Html(HTMLParser):
    """Adds what it finds in a piece of HTML to a page."""

    def __init__(self, page: Page) -> None:
        super().__init__()
        self.page = page

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        if tag == "img":
            self.page.images.append(values.get("alt", ""))
            self.page.links += [values["src"]] if not values.get("src", "").startswith("data:") else []
        if tag == "a" and "href" in values:
            self.page.links.append(values["href"])
        if "id" in values:
            self.page.ids.append(values["id"])


def read_html(text: str) -> Page:
    """The parts of a piece of HTML."""
    page = Page()
    _Html(page).feed(text)
    return page


def read_markdown(text: str) -> Page:
    """The parts of a markdown text; what stands in code does not count."""
    page = Page()
    parser = MarkdownIt("commonmark").enable("table")
    parser.validateLink = lambda url: True  # type: ignore[method-assign]  # unsafe ones too
    tokens = parser.parse(text)
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        if token.type == "heading_open" and following is not None:
            page.headings.append((int(token.tag[1:]), _text(following)))
        for part in [token, *(token.children or [])]:
            _collect(part, page)
    return page


def raw_html(text: str) -> list[str]:
    """The pieces of HTML in a markdown text inside which markdown has no meaning."""
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    return [token.content for token in tokens if token.type == "html_block"]


def _collect(token: Token, page: Page) -> None:
    if token.type in ("html_block", "html_inline"):
        _Html(page).feed(token.content)
    elif token.type == "link_open":
        page.links.append(str(token.attrs["href"]))
    elif token.type == "image":
        page.links.append(str(token.attrs["src"]))
        page.images.append(token.content)


def _text(heading: Token) -> str:
    return "".join(part.content for part in heading.children or [] if part.type in ("text", "code_inline"))
