"""What axe says of a page: rules of accessibility that a program can check."""

from playwright.sync_api import Page

from course.paths import BUILD

AXE = next(
    (BUILD / "tools" / "site").glob("lib/python3*/site-packages/axe_playwright_python/axe.min.js"), None
)
REMEDY = "axe is not installed: make site"


def serious_findings(page: Page, within: str = "html") -> list[str]:
    """The serious and critical findings of axe in the first element that `within` selects."""
    assert AXE is not None, REMEDY
    page.evaluate(AXE.read_text(encoding="utf-8"))
    result = page.evaluate("within => axe.run(within, {resultTypes: ['violations']})", within)
    assert result["passes"], f"axe looked at nothing in {within}"
    return [
        f"{found['id']} ({found['impact']}): {node['html'][:150]}"
        for found in result["violations"]
        if found["impact"] in ("serious", "critical")
        for node in found["nodes"][:3]
    ]
