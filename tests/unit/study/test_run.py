"""A study that is stopped goes on where it was: nothing is measured twice, and the table is the same."""

import json
import sys
from dataclasses import asdict

import pytest
from rows import ABOUT, a_case, a_row

from course.lessons.l07_ddp_on_mnist.study_results import MEASUREMENTS, OWN_MPI
from course.tools.study import job, run
from course.tools.study.job import StudyError
from course.tools.study.plan import DRAW
from course.tools.study.run import run_study

DATA = (DRAW, 640, 100)
CASES = [a_case(seed=seed) for seed in range(3)] + [a_case(OWN_MPI, 2, seed, epochs=2) for seed in range(3)]


class Ranks:
    """Stands in for the jobs: tells rows like real ranks, and stops where it is told to."""

    def __init__(self, monkeypatch, stop_in=None, error=KeyboardInterrupt):
        self.measured, self.stop_in, self.error = [], stop_in, error
        monkeypatch.setattr(run, "run_job", self)

    def __call__(self, cases, data, layout):
        for number, case in enumerate(cases):
            yield {"case": number, "begun": True}
            for epoch in range(1, case.epochs + 1):
                if case == self.stop_in:
                    raise self.error
                seconds = 1.0 + (CASES.index(case) if case in CASES else 0)
                yield {"case": number, "row": asdict(a_row(case, epoch=epoch, seconds=seconds))}
            self.measured.append(case)
            yield {"case": number, "done": True}


def study(folder, cases=CASES, about=ABOUT):
    return run_study(cases, DATA, folder, about)


@pytest.mark.parametrize("stop", range(len(CASES)))
def test_an_interrupted_study_goes_on_and_ends_with_the_same_table(stop, tmp_path, monkeypatch):
    Ranks(monkeypatch)
    study(tmp_path / "whole")
    first = Ranks(monkeypatch, stop_in=CASES[stop])
    with pytest.raises(KeyboardInterrupt):
        study(tmp_path / "halves")
    second = Ranks(monkeypatch)
    study(tmp_path / "halves")
    assert first.measured + second.measured == CASES
    whole, halves = ((tmp_path / name / MEASUREMENTS).read_text() for name in ("whole", "halves"))
    assert halves == whole


def test_a_complete_study_measures_nothing(tmp_path, monkeypatch, capsys):
    Ranks(monkeypatch)
    study(tmp_path)
    again = Ranks(monkeypatch)
    assert len(study(tmp_path).rows) == 9
    assert again.measured == []
    assert "6 of 6 runs are here already" in capsys.readouterr().out


def test_another_selection_adds_to_what_is_there(tmp_path, monkeypatch):
    Ranks(monkeypatch)
    study(tmp_path, CASES[3:])
    more = Ranks(monkeypatch)
    study(tmp_path, CASES[:4])
    assert more.measured == CASES[:3]
    Ranks(monkeypatch)
    study(tmp_path / "whole")
    assert (tmp_path / MEASUREMENTS).read_text() == (tmp_path / "whole" / MEASUREMENTS).read_text()


def test_results_of_another_machine_or_other_data_are_refused(tmp_path, monkeypatch):
    Ranks(monkeypatch)
    study(tmp_path)
    other = ABOUT | {"machine": ABOUT["machine"] | {"cores": 64}}
    with pytest.raises(StudyError, match=r"other results \(cores was 2 and is 64\); choose another folder"):
        study(tmp_path, about=other)
    with pytest.raises(StudyError, match="the data were drawn digits and are MNIST"):
        study(tmp_path, about=ABOUT | {"data": "MNIST"})


def test_two_studies_do_not_write_to_one_folder(tmp_path, monkeypatch):
    Ranks(monkeypatch)
    with run.one_rank_in(tmp_path), pytest.raises(StudyError, match="another study is writing to"):
        study(tmp_path)


def test_a_full_disk_is_told_before_anything_is_measured(tmp_path, monkeypatch):
    def full(path, text):
        raise OSError(28, "No space left on device")

    ranks = Ranks(monkeypatch)
    monkeypatch.setattr("course.lessons.l07_ddp_on_mnist.study_results.atomic_save", full)
    with pytest.raises(
        StudyError, match=r"no space is left for .*measurements.csv .* make room and try again"
    ):
        study(tmp_path)
    assert ranks.measured == []


# ---------------------------------------------------------------- how a job ends


def test_ranks_that_are_silent_are_ended(monkeypatch):
    monkeypatch.setattr(
        job,
        "mpiexec_command",
        lambda size, command, arguments: [sys.executable, "-c", "import time; time.sleep(99)"],
    )
    with pytest.raises(StudyError, match="have not been heard of for 0 s, and were ended"):
        list(job.run_job(CASES[:1], DATA, silence=0.2))


def test_what_ranks_print_besides_is_no_message(monkeypatch):
    text = f"print('a warning'); print({job.MARK!r} + {json.dumps({'ready': 1})!r})"
    monkeypatch.setattr(job, "mpiexec_command", lambda size, command, arguments: [sys.executable, "-c", text])
    assert list(job.run_job(CASES[:1], DATA)) == [{"ready": 1}]
