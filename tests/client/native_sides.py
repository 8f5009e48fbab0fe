"""The native module and its fake, each with a cluster of its own, for the tests that both must pass."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import fake_native
from broadleaf import Cluster, _native
from broadleaf.client.task_options import TaskOptions
from broadleaf.serialize.functions import function_name, resolve_function
from broadleaf.serialize.values import dump_args, load_result


class Failed(Exception):
    """The exception that these tests' hooks make of a task that did not return."""


class Hooks:
    """What the native module calls; it notes what it is told."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    resolve_function = staticmethod(resolve_function)
    dump_args = staticmethod(dump_args)
    load_value = staticmethod(load_result)
    function_name = staticmethod(function_name)

    def on_new_function(self) -> None:
        pass

    def explain_too_large(self, *_: Any) -> BaseException:
        return ValueError("too large")

    def decode_failure(
        self, status: int, payload: Any, _buffers: list[Any], engine_id: int, _pending: Any, part: int
    ) -> BaseException:
        return Failed(status, payload, engine_id, part)

    def on_event(self, kind: str, body: str) -> None:
        self.events.append((kind, json.loads(body) if body else None))

    def on_output(self, *_: Any) -> None:
        pass


@dataclass
class Side:
    """One of the two modules, with a cluster of two engines."""

    native: ModuleType
    connection: str

    def connect(self) -> Connected:
        hooks = Hooks()
        link = self.native.Link(self.connection, hooks, 10.0, "conformance")
        assert link.wait_for_engines(2, 30.0)
        return Connected(self.native, link, hooks)


@dataclass
class Connected:
    """A link to the cluster of one side."""

    native: ModuleType
    link: Any
    hooks: Hooks
    origin: object = "the view"

    def submitter(self, targets: tuple[int, ...] = (), histories: tuple[Any, ...] = ()) -> Any:
        mode = TaskOptions("Each", targets) if targets else TaskOptions()
        number = self.link.define_options(mode.to_json())
        native = self.native
        return native.Submitter(self.link, native.Pending, self.origin, number, len(targets), histories=histories)

    def balanced(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        return self.submitter()(function, args, kwargs)

    def on(self, engine: int, function: Any, *args: Any) -> Any:
        return self.submitter((engine,))(function, args, {})

    def request(self, what: Any) -> Any:
        return json.loads(self.link.request(json.dumps(what)))


@contextmanager
def started(name: str) -> Iterator[Side]:
    """A cluster of two engines of that module's own."""
    if name == "fake":
        info = fake_native.start(2)
        try:
            yield Side(fake_native, json.dumps(info))
        finally:
            fake_native.stop(info)
    else:
        cluster = Cluster(n=2)
        cluster.start_cluster_sync()
        try:
            yield Side(_native, Path(cluster.connection_file).read_text())
        finally:
            cluster.stop_cluster_sync()
