"""How clients, views and results present themselves: `repr`, HTML, and the names that `dir` lists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, ClassVar

from broadleaf import requests
from broadleaf.client.failures import STATUS_CANCELLED, STATUS_NAMES
from broadleaf.errors.display import headline
from broadleaf.errors.kinds import error_rows, headline_of
from broadleaf.tables import engine_table, table, titled
from broadleaf.text import duration

if TYPE_CHECKING:
    from broadleaf.client.protocols import Client, ResultSide, ViewSide


# Which attributes `dir` and tab completion offer.


def _offered(cls: type, names: Iterable[str]) -> list[str]:
    internal: set[str] = set().union(*(vars(c).get("_internal_names", ()) for c in cls.__mro__))
    return sorted(set(names) - internal)


class _PublicNamesType(type):
    """IPython asks the class as well as the object."""

    def __dir__(cls) -> list[str]:
        return _offered(cls, super().__dir__())


if TYPE_CHECKING:
    # With the metaclass, type checkers would take a class's `__dict__` for that of its objects.
    _Base = object
else:

    class _Base(metaclass=_PublicNamesType):
        __slots__ = ()


class PublicNames(_Base):
    """Omits from `dir` what a class and its bases list in `_internal_names`.

    Those names are for the package's own use, but have no underscore because several modules share them.
    """

    __slots__ = ()

    _internal_names: ClassVar[frozenset[str]] = frozenset()

    def __dir__(self) -> list[str]:
        return _offered(type(self), super().__dir__())


# Texts for `repr`: they are cheap, never raise, and do not ask the cluster.


# Maximum length of the reason why a task failed.
_REASON_CHARACTERS = 100
# Number of ranges of engine ids that are written out.
_ID_RUNS = 8


def progress_in_words(result: ResultSide) -> str:
    """`(function): state` of a result."""
    try:
        return f"({result._name}): {_state(result)}"
    except Exception:
        # A result that no view made, or whose error cannot be read.
        return ""


def _state(result: ResultSide) -> str:
    n_tasks, n_failed = result.n_parts, result.n_failed()
    aborted = f"aborted by {result._aborted_by}" if result._aborted_by else "aborted"
    if result.cancelled():
        return aborted if n_tasks == 1 or n_failed == n_tasks else f"{aborted}, {_counts(result, n_failed)}"
    if n_tasks != 1:
        return _counts(result, n_failed)
    if not result.all_done():
        return "pending"
    if not n_failed:
        return "finished"
    status = result.part_status(0)
    if status == STATUS_CANCELLED:
        return aborted
    how = STATUS_NAMES.get(status)
    return f"{'failed' if how == 'error' else how}: {_reason(result.failure(0))}"


def _counts(result: ResultSide, n_failed: int) -> str:
    n_items = len(result)
    text = f"{result.progress:,} of {n_items:,} done"
    if n_failed:
        text += f", {n_failed:,} {'failed' if n_items == result.n_parts else f'of {result.n_parts:,} tasks failed'}"
    return text


def _reason(error: BaseException | None) -> str:
    name, text = getattr(error, "ename", type(error).__name__), str(getattr(error, "evalue", error))
    line = f"{name}: {text}".partition("\n")[0]
    return line if len(line) <= _REASON_CHARACTERS else f"{line[: _REASON_CHARACTERS - 3]}..."


def engines_in_words(ids: Iterable[int]) -> str:
    """Engines by id: 'engine 3', 'engines 0-3, 7'."""
    runs: list[tuple[int, int]] = []
    n = 0
    for engine in ids:
        n += 1
        if runs and runs[-1][1] + 1 == engine:
            runs[-1] = runs[-1][0], engine
        else:
            runs.append((engine, engine))
    if not runs:
        return "no engines"
    words = [str(low) if low == high else f"{low}-{high}" for low, high in runs[:_ID_RUNS]]
    n_more = n - sum(high - low + 1 for low, high in runs[:_ID_RUNS])
    more = f" and {n_more:,} more" if n_more else ""
    return f"engine{'s' if n > 1 else ''} {', '.join(words)}{more}"


def targets_in_words(targets: Any, client: Client) -> str:
    """Engines of a view's targets; '' if these are all engines."""
    try:
        if targets is None or targets == "all":
            return ""
        if isinstance(targets, int):
            return engines_in_words([targets])
        return engines_in_words(client.ids[targets] if isinstance(targets, slice) else targets)
    except Exception:
        return f"engines {targets!r}"


def client_in_words(client: Client) -> str:
    """What a client is connected to, and what it waits for."""
    of = f" of cluster {client._cluster_id}" if client._cluster_id else ""
    if client.closed:
        return f"{of}: closed"
    hosts = {host for _, _, host in client._known_engines().values()}
    where = f" on {f'{len(hosts):,} hosts' if len(hosts) > 1 else min(hosts)}" if hosts else ""
    n_engines, n_tasks = len(client), client.link.outstanding()
    engines = f"{n_engines:,} engine{'' if n_engines == 1 else 's'}"
    tasks = f", {n_tasks:,} task{'' if n_tasks == 1 else 's'} not done" if n_tasks else ""
    return f"{of}: {engines}{where}{tasks}"


# What clients, views and results look like in a notebook.


# A cluster that does not answer must not hold up a notebook.
_TIMEOUT_S = 2.0
_ERRORS = 8


def client_html(client: Client) -> str:
    """Engines, queues and what this client waits for."""
    facts: list[tuple[str, Any]] = [("cluster", client._cluster_id)]
    if client.closed:
        return titled("Client", [*facts, ("", "closed")])
    status = _status(client)
    facts += [("engines", f"{len(client):,}"), ("tasks not done", f"{client.link.outstanding():,}")]
    n_failed = 0
    if status is not None:
        controller = status["controller"]
        n_failed = controller["resolved"]["error"]
        facts += [
            ("waiting in the cluster", f"{controller['waiting'] + controller['ready']:,}"),
            ("failed", f"{n_failed:,}" if n_failed else ""),
        ]
    errors = _errors(client) if n_failed else ""
    return titled("Client", facts, dashboard_link(client.cluster), _engines(client, status, None), errors)


def dashboard_link(cluster: Any) -> str:
    """A link to the dashboard of a `Cluster` of this process, or how to get one."""
    if cluster is None or not cluster.running:
        return ""
    if not cluster.dashboard.running:
        return "<div>dashboard: <code>cluster.dashboard</code></div>"
    url = escape(cluster.dashboard.url)
    return f'<div><a href="{url}" target="_blank" rel="noopener">dashboard</a></div>'


def errors_html(failures: Sequence[Mapping[str, Any]]) -> str:
    """What tasks raised, by kind, as a table."""
    rows = [
        (headline_of(row), row["function"], f"{row['items']:,}", row["item"], f"engine {row['engine']}", row["source"])
        for row in error_rows(failures, 0.0)
    ]
    header = ("error", "function", "times", "first for", "last on", "line")
    return table(header, rows[:_ERRORS], max(0, len(rows) - _ERRORS), "kinds of errors")


def view_html(view: ViewSide) -> str:
    """The view's flags, and what its engines are doing."""
    client = view.client
    words = view._engines_in_words(targets_in_words(view.targets, client))
    facts: list[tuple[str, Any]] = [("", words), ("block", view.block), ("label", view.label)]
    if client.closed:
        return titled(type(view).__name__, [*facts, ("", "closed")])
    targets = view.targets
    # Targets are shown as given: some may be dead, and that should be visible.
    wanted = None if targets is None or targets == "all" else [targets] if isinstance(targets, int) else targets
    engines = _engines(client, _status(client), wanted)
    return titled(type(view).__name__, facts, dashboard_link(client.cluster), engines)


def result_html(result: ResultSide) -> str:
    """The progress of the result, where it ran, and what failed."""
    n_failed = result.n_failed()
    engines = {engine for part in range(result.n_parts) if (engine := result._engine_id(part)) is not None}
    facts = [
        ("", result._name),
        ("done", f"{result.progress:,} of {len(result):,}"),
        ("failed", f"{n_failed:,}" if n_failed else ""),
        ("took" if result.all_done() else "so far", duration(round(result.elapsed, 3)) if result.n_parts else ""),
        ("on", engines_in_words(sorted(engines)) if engines else "no engine yet"),
    ]
    errors: dict[str, list[int]] = {}
    for part in range(result.n_parts) if n_failed else ():
        error = result.failure(part) if result.part_done(part) else None
        if error is not None:
            text = headline(getattr(error, "ename", type(error).__name__), getattr(error, "evalue", error))
            errors.setdefault(text.partition("\n")[0], []).append(result._engine_id(part) or 0)
    rows = [(text, f"{len(where):,}", engines_in_words(sorted(set(where)))) for text, where in errors.items()]
    failed = table(("error", "tasks", "on"), rows[:_ERRORS], max(0, len(rows) - _ERRORS), "errors")
    return titled(result._kind, facts, dashboard_link(result.origin.client.cluster), failed)


def _status(client: Client) -> dict[str, Any] | None:
    try:
        return requests.status(client.link, _TIMEOUT_S)
    except Exception:
        # The cluster is stopping, hanging or gone: show only what this client knows.
        return None


def _errors(client: Client) -> str:
    try:
        return errors_html(requests.failures(client.link, _TIMEOUT_S))
    except Exception:
        # As for the status.
        return ""


def _engines(client: Client, status: dict[str, Any] | None, wanted: Any) -> str:
    if status is None:
        return titled("", [("", "the cluster is not answering")])
    hosts = {engine: host for engine, (_, _, host) in client._known_engines().items()}
    return engine_table(status, hosts, wanted)
