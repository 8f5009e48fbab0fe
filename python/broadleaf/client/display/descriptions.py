"""Texts for `repr`: they are cheap, never raise, and do not ask the cluster."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from broadleaf.client.connection.failures import STATUS_CANCELLED, STATUS_NAMES

if TYPE_CHECKING:
    from broadleaf.client.client import Client
    from broadleaf.client.results.async_result import AsyncResult

# Maximum length of the reason why a task failed.
_REASON_CHARACTERS = 100
# Number of ranges of engine ids that are written out.
_ID_RUNS = 8


def progress_in_words(result: AsyncResult) -> str:
    """`(function): state` of a result."""
    try:
        return f"({result._name}): {_state(result)}"
    except Exception:
        # A result that no view made, or whose error cannot be read.
        return ""


def _state(result: AsyncResult) -> str:
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


def _counts(result: AsyncResult, n_failed: int) -> str:
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
