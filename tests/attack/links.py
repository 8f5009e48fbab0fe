"""Breaks links between real processes on namespaced hosts, and says what that cost.

`links.py --rounds 5 [--fault cut-9] [--load tasks] [--seed 1] [--to FILE]`: each round breaks one link or stops one
process under a load. Within the limit nothing may be lost or run twice, and variables stay. Beyond it, every task of
the lost host ends once, and soon. `kill-controller` kills the controller, and its steward starts it again: what its
clients wait for ends with `LinkLost`, and they go on with engines that have kept their variables.
`links.py --table FILE...` makes a table of such files.
"""

from __future__ import annotations

import argparse
import ctypes
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
from contextlib import AbstractContextManager, ExitStack, contextmanager
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
# A loss may be told this long after its limit.
TOLD_S = 2.0
CLONE_NEWNET = 0x40000000


@dataclass
class Round:
    """One cluster, the host whose link breaks, and what was seen."""

    hosted: HostedCluster
    host: Host
    client: ipp.Client
    log: Path
    limit_s: float
    problems: list[str] = field(default_factory=list)
    mended_at: float = 0.0
    """When the fault was over, if not at the end of the wait."""
    has_new_controller: bool = False

    def expect(self, holds: bool, what: str) -> None:
        if not holds:
            self.problems.append(what)

    def is_expected(self, error: BaseException) -> bool:
        """Whether the fault explains that a task failed."""
        if self.has_new_controller:
            return isinstance(error, ipp.LinkLost)
        certificate = getattr(error, "certificate", None)
        return certificate is not None and certificate.cause == "host_gone"

    def watch(self, seconds: float, engines: list[int]) -> float | None:
        """Lets the time pass; when these engines were told lost, if they were."""
        began = time.monotonic()
        told_s = None
        while (passed_s := time.monotonic() - began) < seconds:
            if told_s is None and not set(engines) & set(self.client.ids):
                told_s = passed_s
            time.sleep(min(0.02, seconds - passed_s))
        return told_s


# Loads of which a task takes seconds.
OCCUPIES = ("broadcast", "cell")

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
    wait_until(lambda: result.progress > 0, 60, "tasks run")

    def check(is_lost: bool) -> None:
        values = result.get(timeout=60 + this.limit_s, return_exceptions=True)
        wrong = [i for i, value in enumerate(values) if not isinstance(value, BaseException) and value != i * i]
        failed = [value for value in values if isinstance(value, BaseException)]
        this.expect(not wrong, f"wrong values of {wrong[:3]}")
        this.expect(is_lost or not failed, f"{len(failed)} tasks failed: {failed[:1]}")
        strange = [value for value in failed if not this.is_expected(value)]
        this.expect(not strange, f"failed by {strange[:1]}")
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
        this.expect(len(lost) <= ENGINES or this.has_new_controller, f"engines of both hosts failed: {lost}")
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


# Each breaks something when it is entered, and mends it when it is left.


@contextmanager
def cut(this: Round, host: Host) -> Iterator[None]:
    this.hosted.network.cut(host)
    yield
    this.hosted.network.join(host)


@contextmanager
def drop(this: Round, host: Host) -> Iterator[None]:
    this.hosted.network.drop(host)
    yield
    this.hosted.network.carry(host)


@contextmanager
def reset(this: Round) -> Iterator[None]:
    this.hosted.network.execute(this.host.namespace, ["ss", "-K", "-t", "state", "established"])
    yield


@contextmanager
def moved(this: Round, host: Host) -> Iterator[None]:
    """Without a network, then with another address."""
    this.hosted.network.cut(host)
    yield
    this.hosted.network.move(host)
    this.hosted.network.join(host)


@contextmanager
def stopped(pids: list[int]) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    yield
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


def stop_this_process(seconds: float) -> None:
    """The client is this process."""
    program = 'kill -STOP "$0"; sleep "$1"; kill -CONT "$0"'
    subprocess.run(["sh", "-c", program, str(os.getpid()), str(seconds)], check=True)


def relay_of(this: Round) -> list[int]:
    command = ["ip", "netns", "pids", this.host.namespace]
    pids = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    commands = {int(pid): Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids}
    relays = [pid for pid, words in commands.items() if b"\0relay\0" in words]
    assert relays, "no relay runs there"
    return relays


def controller_of(this: Round) -> list[int]:
    return [int(json.loads(Path(this.hosted.cluster.connection_file).read_text())["pid"])]


@contextmanager
def killed_controller(this: Round) -> Iterator[None]:
    """Its steward starts it again, and the client goes on."""
    [pid] = controller_of(this)
    this.mended_at = time.monotonic()
    this.has_new_controller = True
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), 20, "it has ended")
    yield


def engine_of(this: Round) -> list[int]:
    first = this.hosted.engines_of(this.host)[0]
    return [pid for engine, _, pid, _ in this.client.link.engines() if engine == first]


Fault = Callable[[Round], AbstractContextManager[None]]
FAULTS: dict[str, Fault] = {
    # Beside a cable that is pulled, systems forget their neighbours, and look for them once a second.
    "cut": lambda this: cut(this, this.host),
    # Somewhere on the way.
    "drop": lambda this: drop(this, this.host),
    "reset": reset,
    "stop-relay": lambda this: stopped(relay_of(this)),
    "stop-controller": lambda this: stopped(controller_of(this)),
    "kill-controller": killed_controller,
    "stop-engine": lambda this: stopped(engine_of(this)),
    # Those of a client on a host of its own.
    "cut-client": lambda this: cut(this, client_host(this.hosted.network)),
    "drop-client": lambda this: drop(this, client_host(this.hosted.network)),
    "move-client": lambda this: moved(this, client_host(this.hosted.network)),
    "stop-client": lambda this: ExitStack(),
}
# What makes a host lost that lasts for longer than the limit.
LOSES_HOST = ("cut", "drop", "stop-relay")


def client_host(network: Network) -> Host:
    return network.hosts[-1]


@contextmanager
def within(namespace: str) -> Iterator[None]:
    """This thread, and those that it starts, are on that host."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/thread-self/ns/net") as home, open(f"/run/netns/{namespace}") as other:
        if libc.setns(other.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
        try:
            yield
        finally:
            libc.setns(home.fileno(), CLONE_NEWNET)


@contextmanager
def far_client(hosted: HostedCluster) -> Iterator[ipp.Client]:
    """A client on a host of its own."""
    connection = json.loads(Path(hosted.cluster.connection_file).read_text())
    with within(client_host(hosted.network).namespace):
        with ipp.Client(connection | {"unix_path": None, "transport": "tcp"}) as client:
            yield client


def run(fault: str, seconds: float, of_load: str, random: Random, limit_s: float) -> dict[str, object]:
    """One round: what went wrong, how long after the link's return the first task of that host had run, and how long
    after the limit a loss was told.
    """
    is_far = fault.endswith("-client")
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        network = stack.enter_context(Network(HOSTS + is_far, rate_mbit=1000))
        options: dict[str, Any] = {"rejoin_timeout_s": limit_s, "host_timeout_s": min(10.0, limit_s)}
        if fault == "kill-controller":
            options["journal"] = "on"
        hosts = network.hosts[1 : 1 + HOSTS]
        hosted = stack.enter_context(HostedCluster(network, ENGINES, "links", hosts, **options))
        client = stack.enter_context(far_client(hosted)) if is_far else hosted.client
        this = Round(hosted, hosts[0], client, Path(directory) / "ran", limit_s)
        this.log.touch()
        view = client[:]
        view.push({"kept": 41}, block=True)
        before = {engine: pid for engine, _, pid, _ in client.link.engines()}
        here = hosted.engines_of(this.host)
        check = LOADS[of_load](this)
        time.sleep(random.uniform(0, 0.5))
        is_lost = fault in LOSES_HOST and seconds > limit_s
        began = time.monotonic()
        with FAULTS[fault](this):
            if fault == "stop-client":
                stop_this_process(seconds)
            told_s = this.watch(began + seconds - time.monotonic(), here)
        back = this.mended_at or time.monotonic()
        if is_lost:
            this.expect(told_s is not None, "the loss was not told")
            late_s = None if told_s is None else told_s - limit_s
            # The host had last been heard up to half a second before.
            this.expect(late_s is None or -0.6 < late_s < TOLD_S, f"the loss was told {late_s} s after the limit")
            served_s = None
        else:
            serve_first(this, here[0])
            # Where an engine is occupied, the first task waits for its end, too.
            served_s, late_s = None if of_load in OCCUPIES else time.monotonic() - back, None
        check(is_lost or this.has_new_controller)
        after = {engine: pid for engine, _, pid, _ in client.link.engines()}
        if is_lost:
            this.expect(not set(here) & set(after), "the lost host is there again")
        else:
            this.expect(after == before, f"engines {before} became {after}")
            this.expect(client[:]["kept"] == [41] * HOSTS * ENGINES, "a variable is gone")
        return {"problems": this.problems, "served_s": served_s, "late_s": late_s, "is_lost": is_lost}


def serve_first(this: Round, engine: int) -> None:
    """Waits until a task has run there. What was sent to a controller that has just been killed is lost."""
    while True:
        try:
            this.client[engine].apply_async(int).get(timeout=60)
            return
        except ipp.LinkLost:
            if not this.has_new_controller or this.client.closed:
                raise


def table(files: list[Path]) -> str:
    """Rounds by fault and load, as Markdown."""
    rounds = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    lines = ["| Fault | Load | Rounds | Failed | First task after: median, at most | Told after the limit: at most |"]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    for fault, of_load in dict.fromkeys((one["fault"], one["load"]) for one in rounds):
        own = [one for one in rounds if (one["fault"], one["load"]) == (fault, of_load)]
        served = [one["served_s"] for one in own if one["served_s"] is not None]
        late = [one["late_s"] for one in own if one["late_s"] is not None]
        first = f"{statistics.median(served):.2f} s, {max(served):.2f} s" if served else ""
        told = f"{max(late):.2f} s" if late else ""
        n_failed = sum(bool(one["problems"]) for one in own)
        lines.append(f"| {fault} | {of_load} | {len(own)} | {n_failed} | {first} | {told} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--fault", action="append", help=f"one of {', '.join(FAULTS)}, with -SECONDS")
    parser.add_argument("--load", action="append", choices=sorted(LOADS))
    parser.add_argument("--limit", type=float, default=60.0, help="rejoin_timeout_s")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--to", type=Path, help="a file that a line of JSON for each round is added to")
    parser.add_argument("--table", type=Path, nargs="+", help="print a table of such files, and run nothing")
    arguments = parser.parse_args()
    if arguments.table:
        print(table(arguments.table))
        return 0
    faults = arguments.fault or ["cut-1", "cut-9", "reset-0", "stop-relay-14", "stop-controller-14", "stop-engine-14"]
    random, n_wrong = Random(arguments.seed), 0
    for _ in range(arguments.rounds):
        for one in faults:
            name, _, seconds = one.rpartition("-")
            for of_load in arguments.load or LOADS:
                began = time.time()
                try:
                    found = run(name, float(seconds), of_load, random, arguments.limit)
                except Exception as error:
                    found = {"problems": [repr(error)], "served_s": None, "late_s": None}
                found = {"fault": one, "load": of_load, "at": round(began), **found}
                print(json.dumps(found), flush=True)
                if arguments.to:
                    with arguments.to.open("a") as file:
                        print(json.dumps(found), file=file)
                n_wrong += bool(found["problems"])
    return min(n_wrong, 100)


if __name__ == "__main__":
    sys.exit(main())
