"""What engines have of the state of the session that starts their cluster: the table in `docs/concepts/engine-state.md`,
line by line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import broadleaf as ipp
import pytest
from broadleaf.cluster.hosts.hosted_relay import HostedRelay
from broadleaf.cluster.started_sets import StartedSets
from waiting import until

pytestmark = pytest.mark.timeout(120)

WORDS = ("leaf", "root", "seed")


def hashes(words: Sequence[str]) -> list[int]:
    """What depends on the seed of hashes."""
    return [hash(word) for word in words]


def engine_by_hand(cluster: ipp.Cluster, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """`python -m broadleaf.engine engine.json`."""
    return subprocess.Popen([sys.executable, "-m", "broadleaf.engine", cluster.relay_file], env=environment)


def joined(cluster: ipp.Cluster, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """What a job or a login runs, with an order in a file."""
    request = StartedSets(cluster).request(1)
    some_set = ipp.SSH(hosts=["there"])
    order = cluster.cluster_dir / "order-test.json"
    order.write_text(json.dumps(some_set.join_order(request, block="job-1", name="there", n=1)))
    return subprocess.Popen(["sh", "-c", some_set.join_command(request, str(order))], env=environment)


@contextmanager
def engines_of_all_kinds(**options: Any) -> Iterator[ipp.Client]:
    """A client of a cluster whose engines are started in every way that needs no other program: forked, spawned or
    added here; by a relay, in a process that has another, by a job, and by hand."""
    with ipp.Cluster(n=1, listen="127.0.0.1:0", **options) as client:
        cluster = client.cluster
        cluster.start_engines_sync(1)
        # As on another host: nothing of this session's environment is there.
        bare = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "BROADLEAF_DIR", "BROADLEAF_TEST_RUN")}
        programs = [joined(cluster, bare), engine_by_hand(cluster, bare)]
        order = ipp.SSH(hosts=["there"]).join_order(StartedSets(cluster).request(1), block="hosted-1", n=1)
        hosted = HostedRelay(order)
        try:
            with ipp.Relay(cluster.relay_file, 1, name="relay"):
                client.wait_for_engines(6, timeout=60)
                yield client
        finally:
            hosted.stop()
            hosted.wait()
            for program in programs:
                program.terminate()
                program.wait(30)


@pytest.fixture(params=["fork", "spawn"])
def all_kinds(request) -> Callable[..., Any]:
    """Engines of all kinds, with both values of `engine_start`."""
    return lambda **options: engines_of_all_kinds(engine_start=request.param, **options)


def test_all_engines_have_the_same_hashes(all_kinds, monkeypatch):
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    with all_kinds() as client:
        first, *others = client[:].apply_sync(hashes, WORDS)
        assert others == [first] * 5
        # Interpreters that a task starts.
        code = f"print([hash(word) for word in {WORDS}])"
        said = client[:].apply_sync(subprocess.check_output, [sys.executable, "-c", code], text=True)
        assert [line.strip() for line in said] == [str(first)] * 6
        client.cluster.restart_engine_sync(0)
        assert until(lambda: len(client) == 6)
        assert client[0].apply_sync(hashes, WORDS) == first


def test_every_cluster_draws_its_hashes(monkeypatch):
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    found = []
    for _ in range(2):
        with ipp.Cluster(n=1) as client:
            found.append(tuple(client[0].apply_sync(hashes, WORDS)))
    assert found[0] != found[1]


def of_seed(seed: str) -> list[int]:
    code = f"print(*(hash(word) for word in {WORDS}))"
    return list(map(int, subprocess.check_output([sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}).split()))


def test_a_seed_that_the_session_has_is_the_engines(all_kinds, monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    with all_kinds() as client:
        assert client[:].apply_sync(hashes, WORDS) == [of_seed("7")] * 6


def test_a_seed_for_the_engines_comes_before_the_sessions(all_kinds, monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    with all_kinds(env={"PYTHONHASHSEED": "9"}) as client:
        assert client[:].apply_sync(hashes, WORDS) == [of_seed("9")] * 6


@pytest.mark.parametrize("seed", ["random", "", "-1", "4294967296", "seven"])
def test_what_is_no_seed_leaves_it_to_the_cluster(seed, monkeypatch):
    # Python itself would not start with some of them.
    monkeypatch.setenv("PYTHONHASHSEED", seed)
    with ipp.Cluster(n=2, engine_start="spawn") as client:
        first, second = client[:].apply_sync(hashes, WORDS)
        assert first == second
