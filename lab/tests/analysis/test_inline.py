"""Studies in a notebook: what is shown, and where."""

import pytest

pytest.importorskip("altair")
pytest.importorskip("IPython")

import converter  # noqa: F401
from broadleaf_lab.analysis import inline
from broadleaf_lab.run.planned import Progress
from broadleaf_lab.study import Study
from synthetic.study import write

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    directory = tmp_path_factory.mktemp("inline")
    write(directory, "eight", seed=3, design={"kind": "resolution5", "paths": 4}, noise=0.03)
    return Study.load(directory)


class Kernel:
    """Where displays go."""

    def __init__(self, monkeypatch):
        self.shown, self.updates = [], []
        from IPython import display

        monkeypatch.setattr(display, "display", self.display)
        monkeypatch.setattr("IPython.get_ipython", lambda: type("Session", (), {"kernel": object()})())

    def display(self, what, display_id):
        self.shown.append(what.data)
        return self

    def update(self, what):
        self.updates.append(what.data)


def test_progress_stays_in_one_place(monkeypatch):
    kernel = Kernel(monkeypatch)
    assert inline.in_notebook()
    on_progress = inline.run_progress()
    on_progress(Progress(1, 4, 1, 2.0, 6.0, {"ok": 1}, {"time_per_task_us": 12.0}))
    on_progress(Progress(2, 4, 2, 4.0, 4.0, {"ok": 1, "failed": 1}, None))
    assert len(kernel.shown) == len(kernel.updates) == 1
    assert "1 of 4 runs (1 ok)" in kernel.shown[0]
    assert "12 us per task" in kernel.shown[0]
    assert 'value="0.500"' in kernel.updates[0]
    assert "1 failed" in kernel.updates[0]


def test_a_study_shows_its_runs_as_they_are_made(monkeypatch, tmp_path):
    kernel = Kernel(monkeypatch)
    (tmp_path / "study.toml").write_text(
        '[study]\ncallable = "bench:run"\n[study.calibrate]\nn_tasks = 1\n'
        '[factors.a]\nset.keyword = "a"\n[design]\nkind = "full"\npaths = 0\n'
    )
    (tmp_path / "bench.py").write_text("def run(a):\n    return 1e-5\n")
    study = Study.load(tmp_path)
    study.run(quiet=None, max_runs=2)
    assert len(kernel.shown) == 1
    assert len(kernel.updates) == 1
    assert "1 of " in kernel.shown[0]
    assert "<td" in study._repr_html_()


def test_nothing_is_displayed_in_a_terminal():
    assert not inline.in_notebook()


def test_a_fit_shows_its_verdicts(study):
    shown = study.fit()._repr_html_()
    assert "f1 helps" in shown
    assert "<table>" in shown


def test_figures_show_themselves_as_pictures(study):
    figures = study.figures()
    assert figures[14] is figures["drift"]
    assert figures["drift"]._repr_svg_().startswith("<svg")
    assert "not drawn: " in figures._repr_html_()
    with pytest.raises(KeyError, match="14 drift"):
        figures["sunset"]
