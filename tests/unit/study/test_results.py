"""The file of results: what is written is read, a row of it is a run, and a failed write costs nothing."""

import pytest
from rows import ABOUT, a_case, a_row

from course.lessons.l07_ddp_on_mnist.study_results import (
    ACCURACY,
    COMMITTED,
    LOCAL,
    MEASUREMENTS,
    OWN_MPI,
    SCALED,
    ResultsError,
    load,
    save,
)
from course.tools.study.plan import MODELS

ROWS = [
    a_row(),
    a_row(a_case(OWN_MPI, 2), seconds=1.25, wait=0.25, transfer=0.125),
    a_row(a_case(OWN_MPI, 3, 7, ACCURACY, batch_rule=LOCAL, rate_rule=SCALED, epochs=2), epoch=2),
    a_row(a_case(OWN_MPI, 8, replayed=True)),
]


def test_what_is_written_is_read(tmp_path):
    save(tmp_path, ROWS, ABOUT)
    study = load(tmp_path)
    assert list(study.rows) == ROWS
    assert study.about == ABOUT
    assert study.cores == 2


@pytest.mark.parametrize(
    ("ranks", "threads", "replayed", "label"),
    [
        (2, 1, False, "measured"),
        (2, 2, False, "oversubscribed"),
        (4, 1, False, "oversubscribed"),
        (4, 1, True, "replayed"),
    ],
)
def test_a_row_says_how_to_read_its_times(ranks, threads, replayed, label):
    assert a_row(a_case(OWN_MPI, ranks, threads=threads, replayed=replayed), cores=2).label == label


def test_no_results_and_damaged_ones_are_told_in_a_sentence(tmp_path):
    with pytest.raises(ResultsError, match="holds no results of a study"):
        load(tmp_path)
    save(tmp_path, ROWS, ABOUT)
    path = tmp_path / MEASUREMENTS
    path.write_text(path.read_text().replace("timing,mlp,mpi,2", "timing,mlp,mpi,two"))
    with pytest.raises(ResultsError, match="cannot be read"):
        load(tmp_path)
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ResultsError, match="its columns are others"):
        load(tmp_path)


def test_the_committed_results_can_be_read_and_are_of_real_mnist():
    study = load(COMMITTED)
    assert study.about["data"] == "MNIST"
    assert {row.model for row in study.rows} <= set(MODELS)
