"""A rank in words, the ranks as a table, and what a wrong index is told."""

import pytest

from mpi_classroom.ranks import Rank, RankFacts, as_table, rank_index

FACTS = [RankFacts(0, 2, 4711, "Open MPI", "pc<7>", "0–3"), RankFacts(1, 2, 4712, "Open MPI", "pc<7>", "2")]


class Asked:
    """A cluster that notes what it is asked."""

    def __init__(self):
        self.asked = []

    def values(self, name, ranks):
        self.asked.append((name, ranks))
        return [f"{name} of {rank}" for rank in ranks]

    def assign(self, name, value, ranks):
        self.asked.append((name, value, ranks))


def test_a_rank_says_where_it_is_and_asks_for_its_own_values_only():
    cluster = Asked()
    rank = Rank(cluster, FACTS[1])
    assert repr(rank) == "rank 1 of 2 on pc<7>, process 4712, may use core 2"
    assert rank["x"] == "x of 1"
    rank["x"] = 5
    assert cluster.asked == [("x", [1]), ("x", 5, [1])]


@pytest.mark.parametrize(
    ("index", "n", "error", "words"),
    [
        (-1, 4, IndexError, "there is no rank -1; the ranks are 0 to 3"),
        (4, 4, IndexError, "there is no rank 4; the ranks are 0 to 3"),
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
