"""What a design chooses, before the runs are ordered."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from broadleaf_lab.spec.factors import Config, Level


@dataclass(frozen=True, slots=True)
class Entry:
    """One run that a design requests."""

    purpose: str
    config: dict[str, Level]
    path_id: int | None = None
    path_step: int | None = None
    replicate: int = 1


@dataclass(frozen=True, slots=True)
class Chosen:
    """The runs that a design requests: `groups` stay together in one block each, `loose` ones go to any. `spec`
    contains the design's own description: its kind and how good it is.
    """

    spec: dict[str, Any]
    groups: tuple[tuple[Entry, ...], ...] = ()
    loose: tuple[Entry, ...] = ()

    def repeated(self, times: int) -> Chosen:
        """The same runs `times` times, each as a separate replicate."""
        numbers = range(1, times + 1)
        return replace(
            self,
            groups=tuple(tuple(replace(e, replicate=n) for e in group) for n in numbers for group in self.groups),
            loose=tuple(replace(e, replicate=n) for n in numbers for e in self.loose),
        )


def loose(kind: str, configs: Iterable[Config], purpose: str = "design", **spec: Any) -> Chosen:
    """A design without groups."""
    entries = tuple(Entry(purpose, dict(config)) for config in configs)
    return Chosen({"kind": kind, "runs": len(entries), **spec}, loose=entries)
