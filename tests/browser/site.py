"""The built website as a set of pages: what each links to, what it needs to be shown."""

from functools import cached_property
from pathlib import Path
from urllib.parse import unquote, urlsplit

from bs4 import BeautifulSoup

LOADED = (("img", "src"), ("script", "src"), ("link", "href"))  # what a browser fetches to show a page
STYLES = {"stylesheet", "icon", "preload"}


class SitePage:
    """One HTML file below the site's folder."""

    def __init__(self, path: Path, site: Path) -> None:
        self.path, self.site = path, site
        self.name = str(path.relative_to(site))

    @cached_property
    def html(self) -> BeautifulSoup:
        return BeautifulSoup(self.path.read_text(encoding="utf-8"), "html.parser")

    @cached_property
    def places(self) -> set[str]:
        """What a link can lead to on this page."""
        return {str(tag["id"]) for tag in self.html.find_all(id=True)}

    def file_of(self, address: str) -> Path:
        """The file that an address on this page leads to."""
        path = unquote(urlsplit(address).path)
        return (self.path.parent / path).resolve() if path else self.path

    @property
    def loaded(self) -> set[str]:
        """The addresses that a browser fetches to show this page."""
        found = set()
        for name, attribute in LOADED:
            for tag in self.html.find_all(name):
                if name == "link" and not STYLES & set(tag.get("rel", ())):
                    continue
                if address := tag.get(attribute):
                    found.add(str(address))
        return {address for address in found if not address.startswith("data:")}

    def weight(self) -> int:
        """The bytes of this page with all that it loads, not compressed."""
        files = {self.file_of(address) for address in self.loaded}
        return sum(path.stat().st_size for path in {self.path, *files})


def pages(site: Path) -> dict[Path, SitePage]:
    """All pages of the site, by their files."""
    return {
        path.resolve(): SitePage(path, site)
        for path in sorted(site.rglob("*.html"))
        if "_static" not in path.parts
    }


def broken_links(page: SitePage, everything: dict[Path, SitePage]) -> list[str]:
    """Links of `page` that lead nowhere on the site; other sites are not asked."""
    found = []
    for tag in page.html.find_all("a", href=True):
        address = str(tag["href"])
        parts = urlsplit(address)
        if parts.scheme or parts.netloc:
            continue
        target = page.file_of(address)
        anchor = unquote(parts.fragment)
        if not target.exists():
            found.append(f"{page.name}: {address} leads to no file")
        elif anchor and target in everything and anchor not in everything[target].places:
            found.append(f"{page.name}: {address} leads to no place on that page")
    return found
