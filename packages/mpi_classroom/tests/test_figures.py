"""Figures look the same whatever a user has configured, and a user's own plots keep the user's settings."""

import matplotlib
import pytest
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from mpi_classroom import figures
from mpi_classroom.figures import Picture, empty_figure, new_figure, new_panels

THEIRS = {
    "text.usetex": True,  # fails without LaTeX
    "font.family": ["No Such Font"],
    "lines.linewidth": 9.0,
    "axes.facecolor": "black",
    "hatch.linewidth": 7.0,
    "savefig.bbox": "tight",
    "figure.constrained_layout.h_pad": 0.4,
}


@pytest.fixture
def theirs():
    """The settings of a user."""
    with matplotlib.rc_context(THEIRS):
        yield


def one() -> Picture:
    figure, axes = new_figure("Two points")
    axes.plot([1, 2], [1, 2], label="a line")
    figure.legend(handles=[Patch(label="a patch", hatch="///", facecolor="white")])
    return Picture(figure, "two points")


def several() -> Picture:
    figure, panels = new_panels("Two panels", columns=2)
    for panel in panels:
        panel.text(0.5, 0.5, "words_1")
    return Picture(figure, "two panels")


def bare() -> Picture:
    figure = empty_figure(4, 3)
    figure.add_axes((0, 0, 1, 1)).add_line(Line2D([0, 1], [0, 1]))
    return Picture(figure, "a line")


MAKERS = [one, several, bare]
AS_SHIPPED = {make: make().png() for make in MAKERS}


@pytest.mark.parametrize("make", MAKERS)
def test_a_figure_depends_on_nothing_that_a_user_has_configured(make, theirs):
    assert make().png() == AS_SHIPPED[make]


def test_a_figure_that_failed_leaves_nothing_to_the_next():
    with matplotlib.rc_context({"lines.linewidth": 8.0}):
        failed, _ = new_figure("Never finished")
        with matplotlib.rc_context(THEIRS):  # set after the failure, so not to be overwritten
            assert one().png() == AS_SHIPPED[one]
            assert Line2D([0], [0]).get_linewidth() == 9.0
    assert failed.axes


@pytest.mark.parametrize("name", ["lines.linewidth", "hatch.linewidth", "font.size", "text.color"])
def test_a_figure_made_with_the_users_settings_is_noticed(name, monkeypatch):
    """Known wrong: the same figures without our settings, of which each setting changes at least one."""
    monkeypatch.setattr(figures._OwnSettings, "begin", lambda self: None)
    monkeypatch.setattr(figures, "DEFAULTS", {})
    wrong = {"lines.linewidth": 9.0, "hatch.linewidth": 7.0, "font.size": 30.0, "text.color": "red"}
    with matplotlib.rc_context({name: wrong[name]}):
        assert any(each().png() != AS_SHIPPED[each] for each in MAKERS)


def test_the_users_own_plots_keep_the_users_settings(theirs):
    before = dict(matplotlib.rcParams)
    one().png()
    assert dict(matplotlib.rcParams) == before and Line2D([0], [0]).get_linewidth() == 9.0


def test_one_figure_made_while_another_is_made_ends_nothing_for_it(theirs):
    figure, axes = new_figure("Two points")
    several()
    (line,) = axes.plot([1, 2])
    assert line.get_linewidth() == matplotlib.rcParamsDefault["lines.linewidth"]
    Picture(figure, "two points")
    assert matplotlib.rcParams["text.usetex"]
