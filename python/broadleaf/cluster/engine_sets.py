"""Engine sets: the engines of a cluster that were started together, under one id."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from broadleaf.cluster.control import Targets

if TYPE_CHECKING:
    from broadleaf.cluster.cluster import Cluster


class EngineSet:
    """Engines of one cluster that were started together."""

    def __init__(self, cluster: Cluster, engine_set_id: str, engine_ids: Sequence[int]) -> None:
        self.cluster = cluster
        self.engine_set_id = engine_set_id
        self.engine_ids = list(engine_ids)

    @property
    def n(self) -> int:
        """Number of its engines."""
        return len(self.engine_ids)

    def get_output(self) -> str:
        """The logs of its engines, one after the other: what they wrote outside of tasks."""
        logs = [self.cluster.log_path(engine) for engine in self.engine_ids]
        return "".join(log.read_text(errors="replace") for log in logs if log.exists())

    def signal(self, signum: int) -> None:
        """Sends a signal to its engines."""
        self.cluster.signal_engines_sync(signum, self.engine_set_id)

    def stop(self) -> None:
        """Stops its engines for good."""
        self.cluster.stop_engines_sync(self.engine_set_id)

    def __repr__(self) -> str:
        return f"<EngineSet({self.engine_set_id!r}, engines={self.engine_ids})>"


class EngineSets:
    """The engine sets of one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._sets: dict[str, EngineSet] = {}

    def living(self) -> dict[str, EngineSet]:
        """The sets that have engines, by id."""
        return dict(self._sets)

    def started(self, n_engines: int) -> None:
        """Notes the engines that a cluster has been started with."""
        self._sets = {}
        if n_engines:
            self._add(_new_id(), range(n_engines))

    def start(self, n: int, set_id: str | None) -> str:
        """Starts `n` engines as a set; returns its id. Raises ValueError for an id in use."""
        set_id = _new_id() if set_id is None else set_id
        if set_id in self._sets:
            raise ValueError(f"engine set {set_id!r} exists already")
        with self._cluster.control() as control:
            known = {engine["engine"] for engine in control.status()["engines"]}
            control.add_engines(n)
            now = {engine["engine"] for engine in control.status()["engines"]}
        self._add(set_id, sorted(now - known))
        return set_id

    def stop(self, targets: Targets) -> None:
        """Stops engines for good, and forgets sets that have none left."""
        resolved = self.resolve(targets)
        with self._cluster.control() as control:
            control.stop_engines(resolved)
        if resolved is None or resolved == "all":
            self._sets = {}
            return
        stopped = {resolved} if isinstance(resolved, int) else set(resolved)
        for engine_set in self._sets.values():
            engine_set.engine_ids = [engine for engine in engine_set.engine_ids if engine not in stopped]
        self._sets = {set_id: engine_set for set_id, engine_set in self._sets.items() if engine_set.n}

    def resolve(self, targets: Targets) -> Targets:
        """`targets` with a set's id replaced by its engines. Raises KeyError for a set that there is not."""
        if not isinstance(targets, str) or targets == "all":
            return targets
        if targets not in self._sets:
            known = ", ".join(self._sets) or "none"
            raise KeyError(f"no engine set {targets!r}; there are: {known}")
        return self._sets[targets].engine_ids

    def to_dict(self) -> dict[str, list[int]]:
        """Engine ids by set, ready for JSON."""
        return {set_id: engine_set.engine_ids for set_id, engine_set in self._sets.items()}

    def from_dict(self, state: dict[str, Any]) -> None:
        """Takes over what `to_dict` gave."""
        self._sets = {}
        for set_id, engine_ids in state.items():
            self._add(set_id, engine_ids)

    def _add(self, set_id: str, engine_ids: Sequence[int]) -> None:
        self._sets[set_id] = EngineSet(self._cluster, set_id, engine_ids)


def _new_id() -> str:
    return f"{int(time.time())}-{secrets.token_hex(2)}"
