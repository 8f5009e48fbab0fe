"""Broadcasts over hosts that die, stop, are cut off, or join late."""

from __future__ import annotations

import json
import signal
import time
import zlib
from pathlib import Path

import broadleaf
import numpy as np
import pytest
from bed.network import wait_until
from broadleaf import interactive

pytestmark = pytest.mark.timeout(180)

N_BYTES = 24_000_000


def payload(seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, N_BYTES, dtype=np.uint8)


# A lambda travels by value; engines on other hosts have no module of tests.
checksum = lambda x: __import__("zlib").crc32(x)  # noqa: E731


def fetched(cluster, host):
    return cluster.host_status()[f"host{host.index}"]["fetched"]


def chain_of(cluster):
    """The hosts' indices in the order of the chain: that in which they joined."""
    status = cluster.host_status()
    return sorted((h.index for h in cluster.network.hosts[1:]), key=lambda index: status[f"host{index}"]["host"])


def begin(cluster, data):
    """Starts a broadcast, and returns once every host has an eighth of it; the rest takes 17 s until `hurry`."""
    view = cluster.client[:]
    before = {h.index: cluster.network.received_bytes(h) for h in cluster.network.hosts}
    result = view.apply_async(checksum, data)

    def has_an_eighth(host):
        return cluster.network.received_bytes(host) - before[host.index] > N_BYTES // 8

    wait_until(lambda: all(map(has_an_eighth, cluster.network.hosts[1:])), 60, "an eighth of the data everywhere")
    return result, before


def hurry(cluster):
    """Nothing more has to happen before the data is there."""
    cluster.network.limit_links(100)


def expect_all_but(cluster, result, before, data, dead):
    expected = zlib.crc32(data)
    living = [h for h in cluster.network.hosts[1:] if h.index not in dead]
    values = result.get(timeout=90, return_exceptions=True)
    for value, engine in zip(values, sorted(cluster.host_of), strict=True):
        host = cluster.host_of[engine]
        if host in dead:
            assert isinstance(value, BaseException), f"engine {engine} of a dead host returned"
        else:
            assert value == expected, f"engine {engine} on host {host}: {value!r}"
    for host in living:
        received = cluster.network.received_bytes(host) - before[host.index]
        assert received <= 1.1 * N_BYTES, f"host {host.index} received {received / N_BYTES:.3f} payloads"
    return [fetched(cluster, host) for host in living]


@pytest.fixture
def five(hosted):
    # Slow enough that most of the data takes longer than finding the processes to end.
    cluster = hosted(5, rate_mbit=10, host_timeout_s=8, broadcast_topology="chain")
    cluster.host_of = {e: h.index for h in cluster.network.hosts[1:] for e in cluster.engines_of(h)}
    return cluster


def test_bytes_cross_into_each_host_once(hosted):
    cluster = hosted(3, 3, broadcast_topology="chain")
    data = payload()
    before = [cluster.network.received_bytes(h) for h in cluster.network.hosts]
    values = cluster.client[:].apply_sync(checksum, data)
    assert len(set(values)) == 1
    for host, had in zip(cluster.network.hosts[1:], before[1:], strict=True):
        received = cluster.network.received_bytes(host) - had
        assert N_BYTES <= received <= 1.05 * N_BYTES
        assert fetched(cluster, host)["wire_bytes"] == N_BYTES


# C6, C7
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
@pytest.mark.parametrize("places", [(0,), (2,), (4,), (1, 2)], ids=["head", "middle", "tail", "two adjacent"])
def test_the_living_complete_when_relays_end(five, places, number):
    data = payload()
    dead = {chain_of(five)[place] for place in places}
    result, before = begin(five, data)
    for index in dead:
        five.network.signal(five.network.hosts[index], number)
    hurry(five)
    counts = expect_all_but(five, result, before, data, dead)
    if places != (4,):
        assert any(c["resumed_at_bytes"] > 0 for c in counts), "somebody went on from where it stood"


def test_a_cut_link_is_noticed_and_passed_by(five):
    data = payload()
    second = chain_of(five)[1]
    result, before = begin(five, data)
    five.network.cut(five.network.hosts[second])
    hurry(five)
    counts = expect_all_but(five, result, before, data, {second})
    assert any(c["resumed_at_bytes"] > 0 for c in counts)


# C8
def test_a_client_that_goes_away_leaves_nothing_behind(five):
    client = five.cluster.connect_client_sync()
    data = payload(2)
    had = five.network.received_bytes(five.network.hosts[1])
    client[:].apply_async(checksum, data)
    first = five.network.hosts[1]
    wait_until(lambda: five.network.received_bytes(first) - had > N_BYTES // 8, 60, "an eighth of the data")
    client.close()
    wait_until(lambda: five.cluster.status_sync()["node"]["objects_out"] == 0, 60, "the object is given up")
    assert five.client[:].apply_sync(int) == [0] * 5


# C14
def test_a_task_waits_for_its_data_and_never_sees_the_old(five):
    view = five.client[:]
    hurry(five)
    view.push({"a": payload(3)}, block=True)
    five.network.limit_links(40)
    data = payload(4)
    five.client[:].push({"a": data}, block=False)
    look = interactive(lambda: (int(a[0]), int(a[-1]), len(a)))  # noqa: F821
    again = view.apply_async(look)
    assert again.get(timeout=60) == [(int(data[0]), int(data[-1]), N_BYTES)] * 5


def test_a_small_task_overtakes_the_data(hosted):
    cluster = hosted(2, 2, rate_mbit=10)
    first, second = cluster.engines_of(cluster.network.hosts[1])
    big = cluster.client[[first]].apply_async(checksum, payload(5))
    small = cluster.client[second].apply_async(int)
    assert small.get(timeout=60) == 0
    hurry(cluster)
    assert len(big.get(timeout=60)) == 1
    assert small.completed < big.started[0]  # by the clock that all hosts here share


def test_a_tasks_time_starts_when_its_arguments_are_there(hosted):
    cluster = hosted(1, 1, rate_mbit=10)
    view = cluster.client.load_balanced_view()
    assert view.apply_sync(int) == 0
    data = payload(8)[: N_BYTES // 3]  # 6.4 s of the link
    with view.temp_flags(timeout=5):
        assert view.apply_async(len, data).get(timeout=60) == len(data)
        late = view.apply_async(lambda x: __import__("time").sleep(60), data[1:])
        with pytest.raises(broadleaf.TaskTimeout):
            late.get(timeout=60)


def test_added_latency_changes_the_time_and_nothing_else(hosted):
    cluster = hosted(2, 1, rate_mbit=100, latency_ms=5)
    data = payload(6)[: N_BYTES // 8]
    values = cluster.client[:].apply_sync(checksum, data)
    assert len(set(values)) == 1
    trips = [entry["round_trip_ns"] for entry in cluster.host_status().values()]
    assert min(trips) >= 10_000_000


def test_hosts_that_nobody_can_dial_are_served_by_the_controller(hosted):
    cluster = hosted(1)
    host = cluster.network.hosts[1]
    former = cluster.relays.pop(1)
    former.terminate()
    assert former.wait(30) == 0
    wait_until(lambda: not cluster.client.ids, 30, "the relay leaves")
    cluster.start_relay(host, "--outbound-only")
    cluster.client.wait_for_engines(1, timeout=30)
    assert cluster.host_status()["host1"]["listen"] is None
    data = payload(7)
    assert cluster.client[:].apply_sync(lambda x: x, data)[0].tobytes() == data.tobytes()


def test_hosts_that_were_paused_together_do_not_take_each_other_for_dead(hosted):
    cluster = hosted(2, host_timeout_s=8)
    before = list(cluster.client.ids)
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for host in cluster.network.hosts:
            cluster.network.signal(host, number)
        if number == signal.SIGSTOP:
            time.sleep(10)  # Like a virtual machine that is suspended.
    assert cluster.client[:].apply_sync(lambda: 1) == [1] * len(before)
    resumed_at = time.monotonic()
    wait_until(lambda: time.monotonic() - resumed_at > 9, 30, "longer than the timeout")
    assert list(cluster.client.ids) == before
    assert all(relay.poll() is None for relay in cluster.relays.values())


def test_a_host_that_comes_back_has_its_slots_again(hosted):
    cluster = hosted(2)
    before = {h.index: cluster.engines_of(h) for h in cluster.network.hosts[1:]}
    host = cluster.network.hosts[1]
    cluster.network.signal(host, signal.SIGKILL)
    wait_until(lambda: len(cluster.client.ids) == 1, 30, "the loss is noticed")
    cluster.relays.pop(1).wait()
    cluster.start_relay(host)
    cluster.client.wait_for_engines(2, timeout=30)
    assert {h.index: cluster.engines_of(h) for h in cluster.network.hosts[1:]} == before


def test_data_that_a_relay_has_no_memory_for_fails_there_alone(hosted):
    cluster = hosted(2, rate_mbit=None, broadcast_topology="chain")
    host = cluster.network.hosts[1]
    former = cluster.relays.pop(1)
    former.terminate()
    assert former.wait(30) == 0
    wait_until(lambda: len(cluster.client.ids) == 1, 30, "the relay leaves")
    relay_file = Path(cluster.cluster.relay_file)
    connection = json.loads(relay_file.read_text())
    connection["options"]["pool_max_bytes"] = N_BYTES // 2
    relay_file.write_text(json.dumps(connection))
    cluster.start_relay(host)
    cluster.client.wait_for_engines(2, timeout=30)
    (small,) = cluster.engines_of(host)
    data = payload(8)
    expected = zlib.crc32(data)
    values = cluster.client[:].apply_async(checksum, data).get(timeout=30, return_exceptions=True)
    for engine, value in zip(cluster.client.ids, values, strict=True):
        if engine == small:
            assert "shared memory pool is full" in str(value)
        else:
            assert value == expected
    # What fits still comes.
    part = data[: N_BYTES // 4]
    assert set(cluster.client[:].apply_async(checksum, part).get(timeout=30)) == {zlib.crc32(part)}
