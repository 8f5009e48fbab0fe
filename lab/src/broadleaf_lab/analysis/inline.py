"""Studies in a notebook: progress that stays in one place, and tables and figures that show themselves."""

from __future__ import annotations

import html
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from broadleaf_lab.text import duration

if TYPE_CHECKING:
    from broadleaf_lab.analysis.model.fit import Fit
    from broadleaf_lab.report.figures.base import Figure, Missing
    from broadleaf_lab.run.planned import Progress
    from broadleaf_lab.spec.study import StudySpec

_BAR_PIXELS = 300


def in_notebook() -> bool:
    """Whether displayed output is shown: in a kernel, but not in a terminal."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and getattr(ipython.get_ipython(), "kernel", None) is not None


class LiveText:
    """Text below the cell, which can be replaced."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, text: str) -> None:
        """Shows HTML, replacing what was there."""
        from IPython.display import HTML, display

        if self._handle is None:
            self._handle = display(HTML(text), display_id=True)
        else:
            self._handle.update(HTML(text))


def run_progress() -> Callable[[Progress], None]:
    """Shows a bar, counts and the remaining time while runs are made."""
    live_text = LiveText()
    return lambda progress: live_text.show(progress_html(progress))


def progress_html(progress: Progress) -> str:
    """The progress of a session, as HTML."""
    share = progress.done / progress.total if progress.total else 1.0
    left = f", about {duration(progress.left_s)} left" if progress.left_s else ""
    statuses = ", ".join(f"{n} {status}" for status, n in progress.statuses.items())
    last = ""
    if progress.run is not None and progress.run.get("time_per_task_us") is not None:
        last = f"; the last took {progress.run['time_per_task_us']:,.4g} us per task"
    text = f"{progress.done} of {progress.total} runs ({statuses}), {duration(progress.elapsed_s)}{left}{last}"
    bar = f'<progress value="{share:.3f}" max="1" style="width:{_BAR_PIXELS}px"></progress>'
    return f"<div>{bar}<br>{html.escape(text)}</div>"


def said() -> Callable[[str], None]:
    """Shows lines below each other, in one place."""
    live_text, lines = LiveText(), list[str]()

    def say(line: str) -> None:
        lines.append(html.escape(line))
        live_text.show("<br>".join(lines))

    return say


class Figures:
    """The figures of a study, by number or key: `figures[22]`, `figures["drift"]`. For a missing one, the error says
    why.
    """

    def __init__(self, drawn: Sequence[Figure | Missing]) -> None:
        self.all: tuple[Figure | Missing, ...] = tuple(drawn)

    def __getitem__(self, which: int | str) -> Figure | Missing:
        for figure in self.all:
            if which in (figure.number, figure.key):
                return figure
        raise KeyError(f"unknown figure {which!r}: choose one of {', '.join(f'{f.number} {f.key}' for f in self.all)}")

    def __iter__(self) -> Iterator[Figure | Missing]:
        return iter(self.all)

    def __len__(self) -> int:
        return len(self.all)

    def _repr_html_(self) -> str:
        rows = [
            (f.number, f.key, getattr(f, "title", None) or f"not drawn: {getattr(f, 'reason', '')}") for f in self.all
        ]
        return table_html(("figure", "key", "what it shows"), rows)


def study_html(study: StudySpec) -> str:
    """A study's factors, and its progress."""
    from broadleaf_lab.spec.runs import read_runs

    rows = read_runs(study.runs_path, study.factors)
    ok = sum(row["status"] == "ok" for row in rows)
    head = f"<p><b>{html.escape(study.name)}</b>: {len(study.factors)} factors, {len(rows)} runs, {ok} of them good</p>"
    factors = [
        (f.name, f.kind, ", ".join(map(str, f.levels)), f.default, f.tier, f.loses or "nothing") for f in study.factors
    ]
    return head + table_html(("factor", "kind", "levels", "default", "tier", "gives up"), factors)


def fit_html(fit: Fit) -> str:
    """A fit's verdicts, and the pairs that are known to interact."""
    from broadleaf_lab.analysis.verdict import verdicts

    rows = [(v.factor if v.level is True else f"{v.factor}={v.level}", v.word, v.sentence) for v in verdicts(fit)]
    pairs = [p.sentence for p in fit.interactions() if p.q <= 0.05]
    said_of_pairs = "".join(f"<li>{html.escape(text)}</li>" for text in pairs[:10])
    foot = f"<p>{fit.n_runs} runs, R\u00b2 {fit.r_squared:.3f}, single runs spread by {100 * fit.sigma:.1f} %</p>"
    return table_html(("setting", "verdict", "in words"), rows) + (f"<ul>{said_of_pairs}</ul>" if pairs else "") + foot


def table_html(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A plain table."""
    top = "".join(f"<th>{html.escape(head)}</th>" for head in heads)
    body = "".join(
        "<tr>" + "".join(f'<td style="text-align:left">{html.escape(str(cell))}</td>' for cell in row) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
