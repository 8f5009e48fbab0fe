"""What clients, views and results look like in a notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broadleaf import requests
from broadleaf.client.display.descriptions import engines_in_words, targets_in_words
from broadleaf.errors.display import headline
from broadleaf.tables import engine_table, table, titled
from broadleaf.text import duration

if TYPE_CHECKING:
    from broadleaf.client.client import Client
    from broadleaf.client.results.async_result import AsyncResult
    from broadleaf.client.views.base import View

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
    if status is not None:
        controller = status["controller"]
        facts += [
            ("waiting in the cluster", f"{controller['waiting'] + controller['ready']:,}"),
            ("failed", f"{controller['resolved']['error']:,}" if controller["resolved"]["error"] else ""),
        ]
    return titled("Client", facts, _engines(client, status, None))


def view_html(view: View) -> str:
    """The view's flags, and what its engines are doing."""
    client = view.client
    words = view._engines_in_words(targets_in_words(view.targets, client))
    facts: list[tuple[str, Any]] = [("", words), ("block", view.block), ("label", view.label)]
    if client.closed:
        return titled(type(view).__name__, [*facts, ("", "closed")])
    targets = view.targets
    # Targets are shown as given: some may be dead, and that should be visible.
    wanted = None if targets is None or targets == "all" else [targets] if isinstance(targets, int) else targets
    return titled(type(view).__name__, facts, _engines(client, _status(client), wanted))


def result_html(result: AsyncResult) -> str:
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
    return titled(
        result._kind, facts, table(("error", "tasks", "on"), rows[:_ERRORS], max(0, len(rows) - _ERRORS), "errors")
    )


def _status(client: Client) -> dict[str, Any] | None:
    try:
        return requests.status(client.link, _TIMEOUT_S)
    except Exception:
        # The cluster is stopping, hanging or gone: show only what this client knows.
        return None


def _engines(client: Client, status: dict[str, Any] | None, wanted: Any) -> str:
    if status is None:
        return titled("", [("", "the cluster does not answer now")])
    hosts = {engine: host for engine, (_, _, host) in client._known_engines().items()}
    return engine_table(status, hosts, wanted)
