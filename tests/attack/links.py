"""Breaks links between real processes on namespaced hosts, and says what that cost.

`links.py --rounds 5 [--fault cut-9] [--load tasks] [--seed 1]`: each round breaks one link or stops one process under a
load. Within the limit nothing may be lost or run twice, and variables stay. Beyond it, every task of the lost host ends
once, and soon.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import broadleaf as ipp
import numpy as np
from bed.network import Host, HostedCluster, Network, wait_until

HOSTS, ENGINES = 2, 2
ITEMS = 1500
ARRAY_BYTES = 200 << 20


@dataclass
class Round:
    """One cluster, the host whose link breaks, and what was seen."""

    hosted: HostedCluster
    host: Host
    log: Path
    limit_s: float
    problems: list[str] = field(default_factory=list)

    @property
    def client(self) -> ipp.Client:
        return self.hosted.client

    def expect(self, holds: bool, what: str) -> None:
        if not holds:
            self.problems.append(what)


Load = Callable[[Round], Callable[[bool], None]]
LOADS: dict[str, Load] = {}


def load(function: Load) -> Load:
    LOADS[function.__name__] = function
    return function


# Each starts something, and returns what checks its end; that is told whether the host was lost.


@load
def idle(_: Round) -> Callable[[bool], None]:
    return lambda is_lost: None


@load
def tasks(this: Round) -> Callable[[bool], None]:
    """Tasks of about 1 ms, each of which leaves a line."""
    log = str(this.log)

    def work(i: int) -> int:
        import os
        import time

        descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, f"{i}\n".encode())
        os.close(descriptor)
        time.sleep(0.001)
        return i * i

    result = this.client.load_balanced_view().map_async(work, range(ITEMS), chunksize=1)

    def check(is_lost: bool) -> None:
        values = result.get(timeout=60 + this.limit_s, return_exceptions=True)
        wrong = [i for i, value in enumerate(values) if not isinstance(value, BaseException) and value != i * i]
        failed = [value for value in values if isinstance(value, BaseException)]
        this.expect(not wrong, f"wrong values of {wrong[:3]}")
        this.expect(is_lost or not failed, f"{len(failed)} tasks failed: {failed[:1]}")
        this.expect(all(isinstance(value, ipp.EngineError) for value in failed), f"failed by {failed[:1]}")
        ran = Counter(int(line) for line in this.log.read_text().splitlines())
        twice = [i for i, n in ran.items() if n > 1]
        this.expect(not twice, f"tasks ran twice: {twice[:5]}")
        this.expect(is_lost or len(ran) == ITEMS, f"{len(ran)} of {ITEMS} tasks ran")

    return check


@load
def broadcast(this: Round) -> Callable[[bool], None]:
    """An array is on its way to every engine."""
    data = np.random.default_rng(1).integers(0, 1 << 62, ARRAY_BYTES // 8)
    result = this.client[:].apply_async(lambda array: int(array.sum()), data)
    wanted = int(data.sum())

    def check(is_lost: bool) -> None:
        values = result.get(timeout=120 + this.limit_s, return_exceptions=True)
        lost = [value for value in values if isinstance(value, BaseException)]
        this.expect(is_lost or not lost, f"a broadcast failed: {lost[:1]}")
        this.expect(len(lost) <= ENGINES, f"engines of both hosts failed: {lost}")
        this.expect(all(value == wanted for value in values if not isinstance(value, BaseException)), "wrong sums")

    return check


@load
def cell(this: Round) -> Callable[[bool], None]:
    """Code that prints runs on every engine, as by %%px."""
    result = this.client[:].execute("import time\nfor i in range(40):\n    print(i, flush=True)\n    time.sleep(0.05)")

    def check(is_lost: bool) -> None:
        result.wait(60 + this.limit_s)
        this.expect(result.ready(), "a cell has not ended")
        text = "".join(f"{i}\n" for i in range(40))
        whole = sum(output == text for output in result.stdout)
        this.expect(is_lost or whole == HOSTS * ENGINES, f"the output of {whole} engines is whole: {result.stdout}")

    return check


@contextmanager
def cut(this: Round, seconds: float) -> Iterator[None]:
    network = this.hosted.network
    network.cut(this.host)
    time.sleep(seconds)
    network.join(this.host)
    yield


@contextmanager
def reset(this: Round, _: float) -> Iterator[None]:
    this.hosted.network.execute(this.host.namespace, ["ss", "-K", "-t", "state", "established"])
    yield


@contextmanager
def stopped(this: Round, pids: list[int], seconds: float) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(seconds)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    yield


def relay_of(this: Round) -> list[int]:
    command = ["ip", "netns", "pids", this.host.namespace]
    pids = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    commands = {int(pid): Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids}
    relays = [pid for pid, words in commands.items() if b"\0relay\0" in words]
    assert relays, "no relay runs there"
    return relays


def controller_of(this: Round) -> list[int]:
    return [int(json.loads(Path(this.hosted.cluster.connection_file).read_text())["pid"])]


def engine_of(this: Round) -> list[int]:
    first = this.hosted.engines_of(this.host)[0]
    return [pid for engine, _, pid, _ in this.client.link.engines() if engine == first]


Fault = Callable[[Round, float], Any]
FAULTS: dict[str, Fault] = {
    "cut": cut,
    "reset": reset,
    "stop-relay": lambda this, seconds: stopped(this, relay_of(this), seconds),
    "stop-controller": lambda this, seconds: stopped(this, controller_of(this), seconds),
    "stop-engine": lambda this, seconds: stopped(this, engine_of(this), seconds),
}


def run(fault: str, seconds: float, of_load: str, random: Random, limit_s: float) -> tuple[list[str], float]:
    """One round: what went wrong, and how long after the link's return the first task of that host had run."""
    with tempfile.TemporaryDirectory() as directory, Network(HOSTS, rate_mbit=1000) as network:
        options = {"rejoin_timeout_s": limit_s, "host_timeout_s": min(10.0, limit_s)}
        with HostedCluster(network, ENGINES, "links", **options) as hosted:
            this = Round(hosted, network.hosts[1], Path(directory) / "ran", limit_s)
            this.log.touch()
            view = this.client[:]
            view.push({"kept": 41}, block=True)
            before = {engine: pid for engine, _, pid, _ in this.client.link.engines()}
            here = hosted.engines_of(this.host)
            check = LOADS[of_load](this)
            time.sleep(random.uniform(0, 0.5))
            is_lost = fault == "cut" and seconds > limit_s
            began = time.monotonic()
            with FAULTS[fault](this, seconds):
                back = time.monotonic()
            if is_lost:
                wait_until(lambda: not set(here) & set(this.client.ids), 10, "the loss is told")
                this.expect(back - began >= limit_s, "the loss was told too early")
                served_s = float("nan")
            else:
                this.client[here[0]].apply_async(int).get(timeout=60)
                served_s = time.monotonic() - back
            check(is_lost)
            after = {engine: pid for engine, _, pid, _ in this.client.link.engines()}
            if not is_lost:
                this.expect(after == before, f"engines {before} became {after}")
                this.expect(view["kept"] == [41] * HOSTS * ENGINES, "a variable is gone")
            return this.problems, served_s


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--fault", action="append", help=f"one of {', '.join(FAULTS)}, with -SECONDS")
    parser.add_argument("--load", action="append", choices=sorted(LOADS))
    parser.add_argument("--limit", type=float, default=60.0, help="rejoin_timeout_s")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    faults = arguments.fault or ["cut-1", "cut-9", "reset-0", "stop-relay-14", "stop-controller-14", "stop-engine-14"]
    random, n_wrong = Random(arguments.seed), 0
    for one in faults:
        name, _, seconds = one.rpartition("-")
        for of_load in arguments.load or LOADS:
            served, problems = [], []
            for _ in range(arguments.rounds):
                try:
                    found, served_s = run(name, float(seconds), of_load, random, arguments.limit)
                except Exception as error:
                    found, served_s = [repr(error)], float("nan")
                problems += found
                served += [served_s] if served_s == served_s else []
            longest = ""
            if served:
                longest = f", first task after {statistics.median(served):.2f} s, at most {max(served):.2f} s"
            print(f"{one:20} {of_load:10} {arguments.rounds} rounds{longest}: {problems or 'nothing lost'}", flush=True)
            n_wrong += bool(problems)
    return n_wrong


if __name__ == "__main__":
    sys.exit(main())
