"""A cluster, and a session of IPython in this process."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from cluster_fixtures import clean, cluster, rc

__all__ = ["clean", "cluster", "rc"]


@pytest.fixture
def ip(tmp_path, monkeypatch) -> Iterator[object]:
    """A session of IPython."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    shells = pytest.importorskip("IPython.core.interactiveshell")
    config = pytest.importorskip("traitlets.config").Config()
    config.HistoryManager.enabled = False
    config.HistoryManager.hist_file = ":memory:"
    config.InteractiveShell.colors = "nocolor"
    shell = shells.InteractiveShell.instance(config=config)
    yield shell
    shell.history_manager.end_session()
    shell.restore_sys_module_state()
    shells.InteractiveShell.clear_instance()
    os.environ.pop("PAGER", None)


@pytest.fixture
def px(ip, rc):
    """The session with magics for all engines of `rc`."""
    rc.activate()
    return ip
