"""What a steward's process does once the controller has ended, with a cluster that only exists here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from broadleaf.cluster.cluster import ClusterStateError
from broadleaf.cluster.restarts import Restarts
from broadleaf.cluster.run_steward import _AskedToEnd, _bring_back
from broadleaf.cluster.steward import StewardProcess
from broadleaf.errors import ClusterStartError
from broadleaf.state import files


class Ended:
    """A cluster whose controller was killed, and what comes of each attempt to start it."""

    def __init__(self, directory: Path, *attempts: Exception | str) -> None:
        self.cluster_dir = directory
        self.detached = True
        self.running = False
        self.attempts = list(attempts)
        (directory / files.RESTART_FILE).touch()

    def exit_code(self, _timeout_s: float) -> int:
        return 128 + 9

    def resume(self) -> None:
        outcome = self.attempts.pop(0)
        self.running = outcome in ("starts", "another one was first")
        if outcome == "another one was first":
            raise ClusterStateError("it is running")
        if isinstance(outcome, Exception):
            raise outcome


class News:
    """Lets no time pass, and asks this process to end after some pauses."""

    def __init__(self, ends_after: int = 100) -> None:
        self.pauses_s = list[float]()
        self._ends_after = ends_after

    def is_end_asked_within(self, seconds: float) -> bool:
        self.pauses_s.append(seconds)
        return len(self.pauses_s) > self._ends_after

    def start_controller(self, cluster: Any) -> None:
        cluster.resume()


def comes_back(cluster: Any, news: Any = None) -> bool:
    return _bring_back(cluster, Restarts(), news or News())


def told(cluster: Ended) -> str:
    return StewardProcess(cluster.cluster_dir).why_paused


def test_it_is_started_at_once(tmp_path, capsys):
    news = News()
    assert comes_back(Ended(tmp_path, "starts"), news)
    assert news.pauses_s == [0.0]
    assert capsys.readouterr().err == "broadleaf: the controller runs again (it was ended by SIGKILL)\n"


def test_what_fails_is_tried_again_and_told(tmp_path, monkeypatch):
    monkeypatch.setattr(StewardProcess, "is_running", True)
    cluster = Ended(tmp_path, ClusterStartError("no port"), ClusterStartError("no memory"), "starts")
    assert comes_back(cluster)
    assert told(cluster) == "the controller has ended, and could not be started again so far: no memory"


def test_what_always_fails_is_given_up_and_told(tmp_path):
    cluster = Ended(tmp_path, *[ClusterStartError("no port")] * 9)
    assert not comes_back(cluster)
    assert len(cluster.attempts) == 4
    assert told(cluster) == "it was started 5 times, and never lasted for a minute; the last time: no port"


def test_what_cannot_be_is_given_up_at_once_and_told(tmp_path):
    cluster = Ended(tmp_path, ClusterStateError("there is no journal"), "starts")
    assert not comes_back(cluster)
    assert cluster.attempts == ["starts"]
    assert told(cluster) == "there is no journal"


def test_another_one_may_be_first(tmp_path):
    cluster = Ended(tmp_path, "another one was first")
    assert comes_back(cluster)
    assert not told(cluster)
    cluster = Ended(tmp_path)
    cluster.running = True
    assert comes_back(cluster)


@pytest.mark.parametrize("is_before", [True, False])
def test_one_that_was_stopped_is_left_alone(tmp_path, is_before):
    cluster = Ended(tmp_path, "starts")
    if is_before:
        (tmp_path / files.RESTART_FILE).unlink()
    else:
        cluster.resume = lambda: (tmp_path / files.RESTART_FILE).unlink()  # type: ignore[method-assign]
    assert not comes_back(cluster)
    assert cluster.attempts == ["starts"]
    assert not told(cluster)


def test_one_that_ends_with_its_program_is_left_to_that(tmp_path):
    cluster = Ended(tmp_path, "starts")
    cluster.detached = False
    assert not comes_back(cluster)
    assert cluster.attempts == ["starts"]
    assert told(cluster) == "the cluster is not detached, so only the program that started it can do that"


def test_it_ends_when_it_is_asked_to(tmp_path):
    cluster = Ended(tmp_path, ClusterStartError("no port"), "starts")
    assert not comes_back(cluster, News(ends_after=1))
    assert cluster.attempts == ["starts"]

    def is_asked() -> None:
        raise _AskedToEnd

    cluster.resume = is_asked  # type: ignore[method-assign]
    assert not comes_back(cluster)
