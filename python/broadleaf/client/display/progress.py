"""Progress of results: one bar per item, with tqdm if it is installed."""

from __future__ import annotations

import importlib
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from broadleaf.client.protocols import Client, ResultSide

# Time between two redraws of a bar without progress, so that its clock moves.
_REDRAW_S = 1.0


def inside_ipython() -> bool:
    """Whether IPython runs here; does not import it."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None


def inside_kernel() -> bool:
    """Whether this is the kernel of a notebook."""
    return inside_ipython() and hasattr(sys.modules["IPython"].get_ipython(), "kernel")


def can_write_over() -> bool:
    """Whether output to standard error can overwrite itself: on a terminal, or in a notebook's output."""
    if inside_kernel():
        return True
    isatty = getattr(sys.stderr, "isatty", None)
    return isatty is not None and isatty()


def show_progress(
    result: ResultSide, interval_s: float, timeout_s: float | None, return_when: str, widget: bool | None = None
) -> None:
    """Waits for `result` with a progress bar, or with occasional lines in a file."""
    if return_when not in (ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION):
        raise ValueError(f"return_when={return_when!r} is not a constant of concurrent.futures")

    def is_over() -> bool:
        if return_when == FIRST_COMPLETED and result.n_done() > 0:
            return True
        return result.all_done() or (return_when == FIRST_EXCEPTION and result.failed())

    bar = progress_bar(len(result), result._name, widget)
    _watch(bar, lambda: result.progress, is_over, result.wait_all_done, interval_s, timeout_s)


def show_outstanding(client: Client, interval_s: float, timeout_s: float | None, widget: bool | None) -> bool:
    """Waits for everything a client has submitted, with one progress bar. Returns whether all is done."""
    seqs = client.link.outstanding_seqs()
    if not seqs:
        return True
    # Known results count by item; tasks whose result was dropped or never known count as one each.
    others = set(seqs)
    known: dict[int, ResultSide] = {}
    for seq in seqs:
        found = client.tasks.find(seq)
        if found is not None:
            known[id(found[0])] = found[0]
            others.discard(seq)
    before = sum(result.progress for result in known.values())
    total = len(others) + sum(map(len, known.values())) - before

    def count() -> int:
        left = others.intersection(client.link.outstanding_seqs()) if others else ()
        return len(others) - len(left) + sum(result.progress for result in known.values()) - before

    def wait(timeout: float | None) -> bool:
        return client.wait_for_tasks(seqs, timeout)

    bar = progress_bar(total, "tasks", widget)
    return _watch(bar, count, lambda: wait(0), wait, interval_s, timeout_s)


def _watch(
    bar: Any,
    count: Callable[[], int],
    is_over: Callable[[], bool],
    wait: Callable[[float], object],
    interval_s: float,
    timeout_s: float | None,
) -> bool:
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    try:
        while True:
            over = is_over()
            bar.show(count())
            if over:
                return True
            left = interval_s if deadline is None else min(interval_s, deadline - time.monotonic())
            if left <= 0:
                return False
            wait(left)
    finally:
        bar.close()


def progress_bar(total: int, name: str, widget: bool | None = None) -> Any:
    """A bar with `show(n_done)` and `close()`, or lines of text if nothing can be overwritten. `widget` says whether to
    use ipywidgets; by default it does so in a notebook that has them.
    """
    if not can_write_over():
        return _ProgressLines(total, name)
    tqdm = _tqdm(inside_kernel() if widget is None else widget)
    return _PlainBar(total, name) if tqdm is None else _TqdmBar(tqdm, total, name)


def _tqdm(widget: bool) -> Any:
    """The class of bars, or None without tqdm."""
    try:
        with warnings.catch_warnings():
            # It warns if ipywidgets is missing; a text bar is shown then.
            warnings.simplefilter("ignore")
            return importlib.import_module("tqdm.auto" if widget else "tqdm.std").tqdm
    except ImportError:
        return None


class _TqdmBar:
    """A bar of tqdm, with rate and remaining time."""

    def __init__(self, tqdm: Any, total: int, name: str) -> None:
        self._bar = tqdm(total=total, unit="tasks", desc=name, file=None)
        self._redrawn_at = time.monotonic()

    def show(self, n_done: int) -> None:
        now = time.monotonic()
        if n_done != self._bar.n:
            self._bar.update(n_done - self._bar.n)
            self._redrawn_at = now
        elif now - self._redrawn_at >= _REDRAW_S:
            self._bar.refresh()
            self._redrawn_at = now

    def aside(self) -> AbstractContextManager[Any]:
        """A context in which others may write to the terminal."""
        return type(self._bar).external_write_mode()  # type: ignore[no-any-return]

    def close(self) -> None:
        self._bar.close()


class _PlainBar:
    """Progress as one line that is overwritten."""

    def __init__(self, total: int, name: str) -> None:
        self._total, self._name, self._n = total, name, 0
        self._started = time.monotonic()

    def show(self, n_done: int) -> None:
        elapsed_s = time.monotonic() - self._started
        rate = n_done / elapsed_s if elapsed_s else 0.0
        left = f", {(self._total - n_done) / rate:.0f} s left" if rate and n_done < self._total else ""
        text = f"{self._name}: {n_done}/{self._total} tasks, {elapsed_s:.1f} s, {rate:.1f} tasks/s{left}"
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """A context in which others may write to the terminal."""
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        yield

    def close(self) -> None:
        print(file=sys.stderr)


class _ProgressLines:
    """Progress as lines, for a file or a pipe: one when something is done, at least a second apart."""

    def __init__(self, total: int, name: str) -> None:
        self._total, self._name, self._n = total, name, 0
        self._started = time.monotonic()
        self._written_n, self._written_at = -1, -math.inf

    def show(self, n_done: int) -> None:
        self._n = n_done
        if n_done != self._written_n and time.monotonic() - self._written_at >= 1.0:
            self._write()

    def _write(self) -> None:
        self._written_n, self._written_at = self._n, time.monotonic()
        elapsed_s = self._written_at - self._started
        print(f"{self._name}: {self._n}/{self._total} tasks, {elapsed_s:.1f} s", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._n != self._written_n:
            self._write()
