"""What a steward does in one step, with a cluster and a scheduler that only exist here."""

from __future__ import annotations

import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any, ClassVar

import pytest
from broadleaf import requests
from broadleaf.cluster import steward as steward_module
from broadleaf.cluster.engine_sets.base import Block, EngineSet, block_and_life
from broadleaf.cluster.scaling import Aim
from broadleaf.cluster.steward import Steward
from broadleaf.errors import ClusterStartError


class Jobs(EngineSet):
    """A scheduler that tells what happened to a job when it is asked."""

    name: ClassVar[str] = "jobs"

    def __init__(self, keeps_hosts: bool = False) -> None:
        super().__init__()
        self.keeps_hosts = keeps_hosts  # type: ignore[misc]
        self.news: dict[str, tuple[str, str]] = {}
        self.is_asked = False
        self.n_asked = 0
        self.cancelled: list[str] = []

    def submit(self, request):
        raise NotImplementedError

    def block_engines(self, first):
        if self.keeps_hosts:
            raise ClusterStartError("no others")
        return 2

    def look_now(self):
        self.is_asked = True

    def poll(self, blocks):
        if self.is_asked:
            self.is_asked, self.n_asked = False, self.n_asked + 1
            for block in blocks:
                block.state, block.reason = self.news.get(block.id, (block.state, block.reason))

    def cancel(self, blocks):
        self.cancelled += [block.id for block in blocks]

    def log(self, block):
        return ""


class FakeCluster:
    """A cluster of blocks with two hosts each, and an engine on each host."""

    def __init__(self, kind: EngineSet, n_blocks: int) -> None:
        self.engines_from = kind
        self.lock = nullcontext()
        self.settings = {"drain_s": 30.0, "start_timeout_s": 60.0}
        self.cluster_dir = Path("/nowhere")
        self.blocks = [Block(f"jobs-{i}", 2, 2, "running", facts={"host": f"n{i}"}) for i in range(n_blocks)]
        self.hosts = {f"n{i}{half}:jobs-{i}" for i in range(n_blocks) for half in "ab"}
        self.engines = sorted(self.hosts)
        self.dead: dict[int, str] = {}
        self.submitted: list[int] = []
        self.restarted: list[int] = []
        self.told: dict[str, str] = {}

    def all_blocks(self):
        return list(self.blocks)

    def tell(self, about, text):
        self.told[about] = text

    def look_at_blocks(self, status, *, asks=True):
        if asks:
            self.engines_from.poll(self.blocks)
        for block in self.blocks:
            names = [host["name"] for host in status["hosts"]]
            block.hosts = [name for name in names if block_and_life(name, {block.id: block})]
            block.engines = [e["engine"] for e in status["engines"] if e["host"] in block.hosts]
        return list(self.blocks)

    def spare_blocks(self):
        return []

    def start_block_again(self, block):
        block.state, block.reason = "pending", ""
        self.submitted.append(block.n_engines)

    def start_engines_sync(self, n):
        self.submitted.append(n)
        self.blocks.append(Block(f"jobs-{len(self.blocks)}", 2, n))

    def write_cluster_file(self):
        pass

    def status(self) -> dict[str, Any]:
        engines = []
        for number, host in enumerate(self.engines):
            cause = self.dead.get(number, "" if host in self.hosts else "host_gone")
            death = {"host": host, "cause": cause, "uuid": "u", "pid": 7, "ago_s": 9.0} if cause else None
            engines.append({
                "engine": number, "host": "" if cause else host, "state": "gone" if cause else "up", "up": not cause,
                "last_death": death, "restarts": 0, "idle_s": 0.0, "holds_data": False, "completed": 0,
                "outstanding": 0, "busy_ns": 0,
            })  # fmt: skip
        hosts = [{"host": i, "name": name} for i, name in enumerate(sorted(self.hosts))]
        return {"hosts": hosts, "engines": engines, "controller": {"ready": 0}}

    def restart_engines(self, engines):
        self.restarted += engines


def step(cluster: FakeCluster, n: int, steward: Steward | None = None) -> Steward:
    """A step of a steward that keeps the cluster at `n` engines."""
    cluster_: Any = cluster
    steward = steward or Steward(cluster_, Aim(n, n), one_at_a_time=False)
    steward.step(cluster_)
    return steward


def test_a_job_that_loses_its_last_host_is_asked_for_and_replaced_in_the_same_step():
    kind = Jobs()
    cluster = FakeCluster(kind, 2)
    steward = step(cluster, 4)
    assert (kind.n_asked, cluster.submitted) == (0, [])
    cluster.hosts -= {"n0a:jobs-0", "n0b:jobs-0"}
    kind.news["jobs-0"] = "failed", "job 0: it was preempted (PREEMPTED)"
    step(cluster, 4, steward)
    assert (kind.n_asked, cluster.submitted) == (1, [2])
    why = "job 0: it was preempted (PREEMPTED)"
    assert cluster.blocks[0].reason == why
    assert cluster.told == {"steward": "jobs", "n0a:jobs-0": why, "n0b:jobs-0": why}
    step(cluster, 4, steward)
    assert (kind.n_asked, cluster.submitted) == (1, [2]), "once"


def test_jobs_that_ran_before_a_steward_began_have_not_failed_to_start():
    kind = Jobs()
    cluster = FakeCluster(kind, 4)
    # Lost with the one before, which was killed, and had never been told why.
    cluster.hosts = {host for host in cluster.hosts if host.endswith("jobs-3")}
    kind.news = {f"jobs-{i}": ("failed", f"job {i}: a node failed (NODE_FAIL)") for i in range(3)}
    kind.look_now()
    steward = step(cluster, 8)
    assert (steward.why_paused, cluster.submitted) == ("", [2, 2, 2])


def test_a_job_whose_end_was_announced_is_not_taken_for_released():
    kind = Jobs()
    cluster = FakeCluster(kind, 2)
    steward = step(cluster, 4)
    cluster.blocks[0].draining = True  # its hosts were told
    step(cluster, 4, steward)
    assert cluster.submitted == [2], "it is replaced in advance"
    cluster.hosts -= {"n0a:jobs-0", "n0b:jobs-0"}
    kind.news["jobs-0"] = "failed", "job 0: it was preempted (PREEMPTED)"
    step(cluster, 4, steward)
    assert (kind.cancelled, cluster.told["n0a:jobs-0"]) == ([], "job 0: it was preempted (PREEMPTED)")
    assert cluster.submitted == [2]


def test_a_job_that_was_put_back_into_the_queue_is_replaced_unless_it_comes_first(monkeypatch):
    kind = Jobs()
    cluster = FakeCluster(kind, 2)
    now = 100.0
    monkeypatch.setattr(steward_module.time, "monotonic", lambda: now)
    steward = step(cluster, 4)
    cluster.hosts -= {"n0a:jobs-0", "n0b:jobs-0"}
    kind.news["jobs-0"] = "pending", "job 0 is pending: BeginTime"
    step(cluster, 4, steward)
    assert (kind.n_asked, cluster.submitted, kind.cancelled) == (1, [2], [])
    assert "n0a:jobs-0" not in cluster.told, "it may be on its way out"
    now += 2.5
    step(cluster, 4, steward)
    why = "it was put back into the queue (job 0 is pending: BeginTime)"
    assert (cluster.told["n0a:jobs-0"], cluster.told["waiting"]) == (why, "job 0 is pending: BeginTime")
    # It comes up again, as another job of the same number.
    kind.news["jobs-0"] = "running", ""
    cluster.hosts |= {"n0a:jobs-0.1", "n0b:jobs-0.1"}
    cluster.engines += ["n0a:jobs-0.1", "n0b:jobs-0.1"]
    kind.look_now()
    step(cluster, 4, steward)
    assert (cluster.submitted, kind.cancelled, cluster.told["waiting"]) == ([2], ["jobs-2"], "")


def test_a_scheduler_is_asked_a_few_times_why_a_host_is_gone(monkeypatch):
    kind = Jobs()
    cluster = FakeCluster(kind, 2)
    now = 100.0
    monkeypatch.setattr(steward_module.time, "monotonic", lambda: now)
    steward = step(cluster, 3)
    cluster.hosts.remove("n0a:jobs-0")
    for _ in range(24):
        now += 0.25
        step(cluster, 3, steward)
    assert kind.n_asked == 3
    assert (
        cluster.told["n0a:jobs-0"]
        == "the relay there ended, or the connection to it was lost, but jobs-0 is still running"
    )


def test_a_host_that_a_job_has_lost_is_replaced_whoever_looks_for_the_first_time():
    cluster = FakeCluster(Jobs(), 2)
    cluster.hosts.remove("n0a:jobs-0")
    step(cluster, 4)
    assert cluster.submitted == [2]
    assert step(FakeCluster(Jobs(), 2), 4).why_paused == ""


def test_engines_that_died_on_hosts_that_live_start_there_again():
    cluster = FakeCluster(Jobs(), 2)
    cluster.dead = {1: "signal", 3: "stopped"}
    step(cluster, 3)
    assert (cluster.submitted, cluster.restarted) == ([], [1])


def test_an_engine_that_always_dies_at_its_start_pauses():
    cluster = FakeCluster(Jobs(), 2)
    cluster.dead = {1: "exit"}
    steward = step(cluster, 4)
    for restarts in range(1, 4):
        status = cluster.status()
        status["engines"][1]["restarts"] = restarts
        cluster.status = lambda status=status: status
        step(cluster, 4, steward)
    assert cluster.restarted == [1, 1, 1]
    assert "the last one: engine 1 on n0b:jobs-0 died at its start (exit)" in steward.why_paused


def test_a_host_that_was_given_is_started_again_where_it_was():
    kind = Jobs(keeps_hosts=True)
    cluster = FakeCluster(kind, 2)
    cluster.blocks[0].state, cluster.blocks[0].reason = "failed", "ssh to n0: no route to the host"
    cluster.hosts -= {"n0a:jobs-0", "n0b:jobs-0"}
    steward = step(cluster, 4)
    assert cluster.blocks[0].state == "pending"
    cluster.blocks[0].state, cluster.blocks[0].reason = "failed", "ssh to n0: no route to the host"
    step(cluster, 4, steward)
    assert cluster.submitted == [2], "it waits before the next try"
    # It has just logged in: the engines that it had before are no reason to give it up.
    cluster.blocks[0].state, cluster.blocks[0].facts["started_at"] = "running", time.time()
    step(cluster, 4, steward)
    assert (cluster.blocks[0].state, cluster.submitted) == ("running", [2])
    assert steward.why_paused == "n0 will be tried again: ssh to n0: no route to the host"
    control: Any = cluster
    with pytest.raises(ClusterStartError, match="no others"):
        Steward(control, Aim(5, 5), one_at_a_time=False).step(control, may_fall_short=False)


def test_a_job_that_its_scheduler_ends_before_it_has_a_host_is_replaced():
    kind = Jobs()
    cluster = FakeCluster(kind, 1)
    steward = step(cluster, 4)
    assert cluster.submitted == [2]
    new = cluster.blocks[-1]
    new.state, new.is_ending = "running", True  # its host is down, and the scheduler cannot finish that
    step(cluster, 4, steward)
    assert cluster.submitted == [2, 2]
    step(cluster, 4, steward)
    assert (cluster.submitted, kind.cancelled) == ([2, 2], [])


def test_a_job_that_runs_but_never_joins_is_replaced_and_ended(monkeypatch):
    kind = Jobs()
    cluster = FakeCluster(kind, 1)
    now = 100.0
    monkeypatch.setattr(steward_module.time, "monotonic", lambda: now)
    steward = step(cluster, 4)
    cluster.blocks[-1].state = "running"
    step(cluster, 4, steward)
    now += 59
    step(cluster, 4, steward)
    assert cluster.submitted == [2]
    now += 2
    step(cluster, 4, steward)
    assert (cluster.submitted, kind.cancelled) == ([2, 2], [])
    now += 31
    step(cluster, 4, steward)
    assert (cluster.submitted, kind.cancelled) == ([2, 2], ["jobs-1"])


def test_a_scheduler_is_asked_once_about_a_new_job_that_is_late(monkeypatch):
    kind = Jobs()
    cluster = FakeCluster(kind, 1)
    now = 100.0
    monkeypatch.setattr(steward_module.time, "monotonic", lambda: now)
    steward = step(cluster, 4)
    for _ in range(40):
        now += 0.25
        step(cluster, 4, steward)
    assert kind.n_asked == 1


def test_a_job_that_could_not_be_started_on_its_host_and_is_put_back_is_replaced():
    kind = Jobs()
    cluster = FakeCluster(kind, 1)
    steward = step(cluster, 4)
    new = cluster.blocks[-1]
    new.state = "running"
    step(cluster, 4, steward)
    new.state, new.reason = "pending", "job 1 is pending: BeginTime"  # its host was down: it waits for two minutes
    step(cluster, 4, steward)
    assert (cluster.submitted, kind.cancelled) == ([2, 2], [])
    cluster.blocks[-1].state = "running"
    cluster.hosts |= {"n2a:jobs-2", "n2b:jobs-2"}
    cluster.engines += ["n2a:jobs-2", "n2b:jobs-2"]
    step(cluster, 4, steward)
    assert (cluster.submitted, kind.cancelled) == ([2, 2], ["jobs-1"])


@pytest.mark.parametrize("has_steward", [True, False])
def test_the_cause_of_a_lost_host_is_awaited_from_a_steward_that_has_just_been_started(monkeypatch, has_steward):
    """It has not even told that it is there. Without one, nobody is waited for."""
    told = iter(["", "", "job 3: it was cancelled"])
    monkeypatch.setattr(requests, "noticed", lambda _link, about: next(told) if about == "n1" else "")
    cause = requests.why_gone(None, "n1", has_steward)
    assert cause == ("job 3: it was cancelled" if has_steward else "")
