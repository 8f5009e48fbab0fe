"""What a network of namespaces changes on the machine, and restores."""

from __future__ import annotations

from pathlib import Path

import pytest
from bed import network


@pytest.fixture
def autogroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    setting = tmp_path / "sched_autogroup_enabled"
    monkeypatch.setattr(network, "_AUTOGROUP", setting)
    return setting


@pytest.mark.parametrize("was", ["0\n", "1\n"])
def test_sessions_are_grouped_again_at_the_end(autogroup: Path, was: str) -> None:
    autogroup.write_text(was)
    with pytest.raises(SystemExit), network.scheduled_by_thread():
        assert autogroup.read_text() == "0\n"
        raise SystemExit(143)
    assert autogroup.read_text() == was


def test_a_kernel_without_the_setting_is_told_of_and_left(autogroup: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with network.scheduled_by_thread():
        assert not autogroup.exists()
    assert str(autogroup) in capsys.readouterr().err
    assert not autogroup.exists()
