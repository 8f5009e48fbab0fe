"""The program that joins a cluster from a job or a login (`EngineSet.join_command`), on this host."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import broadleaf as ipp
import pytest
from broadleaf.cluster.engine_sets.base import BlockRequest
from broadleaf.cluster.hosts import package
from keys_in_sight import keys_in_sight
from processes import processes_with
from waiting import until

pytestmark = pytest.mark.timeout(120)

SET = ipp.SSH(hosts=["there"])


@pytest.fixture
def client() -> Iterator[ipp.Client]:
    with ipp.Cluster(n=0, listen="127.0.0.1:0") as client:
        yield client


def request_for(cluster: ipp.Cluster) -> BlockRequest:
    connection = json.loads(Path(cluster.relay_file).read_text())
    return BlockRequest(cluster.cluster_id, Path(cluster.cluster_dir), 2, connection)


def order_for(cluster: ipp.Cluster) -> bytes:
    return json.dumps(SET.join_order(request_for(cluster), block="job-1", name="there", n=2)).encode()


def of_cluster(cluster: ipp.Cluster) -> dict[str, str]:
    """What a job's script exports, by which its processes are known."""
    return {"BROADLEAF_CLUSTER_ID": cluster.cluster_id}


def program_for(cluster: ipp.Cluster) -> tuple[bytes, dict[str, str], str]:
    """Its order, what its job exports, and its command."""
    return order_for(cluster), of_cluster(cluster), SET.join_command(request_for(cluster))


@contextmanager
def joining(order: bytes, environment: dict[str, str], command: str) -> Iterator[subprocess.Popen[bytes]]:
    """The program, which has been given `order`; it is ended by force if the test did not end it."""
    program = subprocess.Popen(
        ["sh", "-c", command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | environment,
    )
    with program:
        try:
            program.stdin.write(order)
            program.stdin.close()
            yield program
        finally:
            program.kill()


def parents() -> tuple[int, int]:
    """The fork server of the engine that runs this, and the parent of the fork server."""
    fork_server = os.getppid()
    for line in Path(f"/proc/{fork_server}/status").read_text().splitlines():
        if line.startswith("PPid:"):
            return fork_server, int(line.split()[1])
    raise AssertionError("no parent")


def command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def test_a_job_takes_one_interpreter(client):
    with joining(*program_for(client.cluster)) as program:
        client.wait_for_engines(2, timeout=60)
        fork_server, parent = client[0].apply_sync(parents)
        assert parent == program.pid
        assert command_line(fork_server) == command_line(program.pid)
        assert fork_server in processes_with(BROADLEAF_CLUSTER_ID=client.cluster.cluster_id)
        program.send_signal(signal.SIGTERM)
        assert program.wait(30) == 0
        until(lambda: not client.ids)


def test_a_job_that_exports_nothing_is_known_by_its_processes_too(client):
    order, _, command = program_for(client.cluster)
    with joining(order, {}, command) as program:
        client.wait_for_engines(2, timeout=60)
        fork_server, parent = client[0].apply_sync(parents)
        assert parent == program.pid
        assert fork_server in processes_with(BROADLEAF_CLUSTER_ID=client.cluster.cluster_id)


@pytest.mark.parametrize("ship", [False, True])
def test_its_engines_show_no_key_and_read_no_order(client, tmp_path, ship):
    order, environment, command = program_for(client.cluster)
    if ship:
        order = b"%d\n" % len(package.archive()) + package.archive() + order
        command = SET.join_command(request_for(client.cluster), package="")
        environment["XDG_CACHE_HOME"] = str(tmp_path)

    def read():
        import sys

        return [stream.buffer.read() for stream in (sys.stdin, sys.__stdin__)]

    with joining(order, environment, command):
        client.wait_for_engines(2, timeout=60)
        assert client[0].apply_sync(keys_in_sight) == []
        assert client[0].apply_sync(read) == [b"", b""]


def test_nothing_stays_of_one_that_is_killed(client):
    before = processes_with(**of_cluster(client.cluster))
    with joining(*program_for(client.cluster)) as program:
        client.wait_for_engines(2, timeout=60)
        program.kill()
        program.wait(10)
        assert until(lambda: processes_with(**of_cluster(client.cluster)).keys() == before.keys())


@pytest.mark.parametrize(
    "order", [b"", b"{}", b'{"connection": {}, "name": "", "block": "b", "n": 1, "tunnel_port": 0}']
)
def test_a_wrong_order_is_refused_and_nothing_stays(order, tmp_path):
    command = SET.join_command(BlockRequest("nowhere", tmp_path, 1, {}))
    here = {"BROADLEAF_CLUSTER_ID": "nowhere", "HERE": str(tmp_path)}
    with joining(order, here, command) as program:
        errors = program.stderr.read().decode()
        assert program.wait(30) == 1
        assert "Error: " in errors
        assert "Traceback" not in errors
        assert until(lambda: not processes_with(**here))
