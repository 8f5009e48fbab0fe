"""The client over the fake native module."""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import fake_native
import fake_operations
from broadleaf.client import Client

OPERATIONS = "broadleaf.engine.operations"


@pytest.fixture(autouse=True)
def operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the fake's operations the ones that views call."""
    module = type(sys)(OPERATIONS)
    module.__spec__ = importlib.machinery.ModuleSpec(OPERATIONS, None)
    for name in ("execute", "push", "pull", "clear"):
        function = getattr(fake_operations, name)
        monkeypatch.setattr(function, "__module__", OPERATIONS)
        setattr(module, name, function)
    monkeypatch.setitem(sys.modules, OPERATIONS, module)


@pytest.fixture
def rc() -> Iterator[Any]:
    """A client of four engines."""
    info = fake_native.start(4)
    client = Client(info, native=fake_native)
    yield client
    fake_native.stop(info)
    client.close()
