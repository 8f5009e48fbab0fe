"""The user's side of a cluster.

A `client` submits tasks through its `views`, which return `results`; `control` asks the cluster for everything else,
and `connection` holds the link. `functions`, `partition`, `task_options` and `arrays` prepare what is sent, `failures`
makes exceptions of what comes back, `display` shows it. What is below a client, a result or a view knows them by
`protocols`. `Client` is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from broadleaf.extensions import old_attribute

if TYPE_CHECKING:
    from broadleaf.client.client import Client

__all__ = ["Client"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name == "Client":
            value = globals()[name] = import_module("broadleaf.client.client").Client
            return value
        return old_attribute("broadleaf.client", name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
