"""The tables of docs/several-machines/measured.md agree with the recorded results."""

from benchmarks.recorded import BLOCKS, PAGE, RESULTS, blocks, rendered


def test_the_page_has_every_table_and_agrees_with_what_is_recorded() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert sorted(name for name, _ in blocks(page)) == sorted(BLOCKS)
    assert rendered(page, RESULTS) == page, "results and page differ; run: python -m benchmarks.recorded"
