"""The ranks as a table, and what a wrong index is told."""

import pytest

from mpi_classroom.ranks import RankFacts, as_table, rank_index

FACTS = [RankFacts(0, 2, 4711, "Open MPI", "pc<7>", "0–3"), RankFacts(1, 2, 4712, "Open MPI", "pc<7>", "2")]


@pytest.mark.parametrize(
    ("index", "n", "error", "words"),
    [
        (-1, 4, IndexError, "there is no rank -1; the ranks are 0 to 3"),
        (1, 1, IndexError, "there is no rank 1, only rank 0"),
        (slice(0, 2), 4, TypeError, "one rank at a time"),
        (1.5, 4, TypeError, r'as cluster\[0\], or the name of a variable, as cluster\["x"\]; not a float'),
    ],
)
def test_a_wrong_index_is_one_sentence(index, n, error, words):
    with pytest.raises(error, match=words):
        rank_index(index, n)


def test_the_table_has_headers_for_columns_and_rows_and_no_markup_of_others():
    table = as_table(FACTS, "2 ranks & more")
    assert table.count('<th scope="col">') == 4 and table.count('<th scope="row">') == len(FACTS)
    assert "<caption>2 ranks &amp; more</caption>" in table and "pc&lt;7&gt;" in table
    assert "cores 0–3" in table and "core 2" in table and "cluster[0]" in table
