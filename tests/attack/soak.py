"""Attacks a cluster over two hosts for some time, and checks afterwards whether everything is as it was.

`soak.py --minutes 30 --seed 1`: several clients, local and over TCP, do random things and check every value, while
engines are killed and stopped, a client is killed, and the other host is lost and comes back. Then every count of every
process must be back at its initial value.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import broadleaf as ipp

sys.path.insert(0, str(Path(__file__).parents[1]))

from attack.footprint import Footprint
from processes import memory_files
from waiting import until

HERE = Path(__file__).parent
ENGINES = 3
#: Seconds after which free segments are released; the footprint is taken when they must be.
WARM_S = 1.0


class Soak:
    """A cluster, its other host, and the clients that attack it."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.rng = Random(seed)
        self.cluster = ipp.Cluster(
            n=ENGINES,
            listen="127.0.0.1:0",
            restart_engines=True,
            max_restarts=1_000_000,
            restart_backoff_max_s=0.1,
            shared_memory_warm_s=WARM_S,
            interrupt_grace_s=10.0,
            history_tasks=2000,  # full before the footprint is taken
            trace_events=4096,
        )
        self.client = self.cluster.start_and_connect_sync()
        self.relay = self.start_relay()
        self.client.wait_for_engines(2 * ENGINES, timeout=60)
        self.files = self.write_connections(directory)
        self.attackers: list[subprocess.Popen[str]] = []
        self.faults: Counter[str] = Counter()

    def start_relay(self) -> ipp.Relay:
        return ipp.Relay(self.cluster.relay_file, ENGINES, name="relay")

    def write_connections(self, directory: Path) -> list[Path]:
        """Files to connect with: through the unix socket, and through TCP only."""
        local = json.loads(Path(self.cluster.connection_file).read_text())
        remote = {name: value for name, value in local.items() if name != "unix_path"}
        found = []
        for name, connection in (("local", local), ("remote", remote)):
            path = directory / f"{name}.json"
            path.touch(mode=0o600)
            path.write_text(json.dumps(connection))
            found.append(path)
        return found

    @property
    def pids(self) -> dict[str, int]:
        """The processes that live from start to end."""
        host = self.relay.process.pid
        engines = self.engine_pids()
        (relay,) = [pid for pid in children(host) if pid not in engines]
        node = self.cluster.status_sync()["pid"]
        return {"client": os.getpid(), "node": node, "relay": relay, "relay's fork server": host}

    def footprints(self) -> dict[str, Footprint]:
        return {name: Footprint.of(pid) for name, pid in self.pids.items()}

    def held(self) -> dict[str, Any]:
        """What the controller's node says it holds, and the memory of its files."""
        status = self.cluster.status_sync()
        return {"node": status["node"], "files": sorted(dict(memory_files(status["pid"])).values())}

    def start_attackers(self, seconds: float) -> None:
        for index, connection in enumerate([*self.files, self.files[0]]):
            limits = ["256"] if index == 2 else []
            seed = str(self.rng.randrange(1 << 30))
            command = [sys.executable, str(HERE / "attacker.py"), str(connection), seed, str(seconds), *limits]
            self.attackers.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))

    # Faults

    def engine_pids(self) -> list[int]:
        return [pid for _, _, pid, _ in self.client.link.engines() if pid]

    def some_engine(self) -> int:
        """The process of an engine; 0 if there is none at the moment."""
        pids = self.engine_pids()
        return self.rng.choice(pids) if pids else 0

    def kill_an_engine(self) -> None:
        signal_pid(self.some_engine(), signal.SIGKILL)

    def stop_an_engine_for_a_moment(self) -> None:
        pid = self.some_engine()
        signal_pid(pid, signal.SIGSTOP)
        time.sleep(self.rng.uniform(0, 0.5))
        signal_pid(pid, signal.SIGCONT)

    def lose_the_other_host(self) -> None:
        signal_pid(self.relay.process.pid, signal.SIGKILL)
        self.relay.stop()
        self.relay = self.start_relay()

    def kill_a_client(self) -> None:
        """A client that comes for a moment, and leaves with its tasks unfinished."""
        program = (
            "import sys, os, numpy as np, broadleaf as ipp; v = ipp.Client(sys.argv[1]).load_balanced_view();"
            "[v.apply_async(np.ones, 100_000) for _ in range(50)]; print(flush=True); os.kill(os.getpid(), 9)"
        )
        path = str(self.rng.choice(self.files))
        subprocess.run([sys.executable, "-c", program, path], stdout=subprocess.DEVNULL, check=False, timeout=60)

    def do_harm(self, seconds: float) -> None:
        harms = [self.kill_an_engine] * 4 + [self.stop_an_engine_for_a_moment] * 4
        harms += [self.kill_a_client, self.kill_a_client, self.lose_the_other_host]
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and any(each.poll() is None for each in self.attackers):
            time.sleep(self.rng.uniform(0, 1.0))
            harm = self.rng.choice(harms)
            harm()
            self.faults[harm.__name__] += 1

    # The end

    def reports(self, timeout_s: float) -> list[dict[str, Any]]:
        """What the attackers report; one that hangs is told where."""
        found = []
        for attacker in self.attackers:
            try:
                said, errors = attacker.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                attacker.kill()
                _, errors = attacker.communicate()
                found.append({"done": {}, "faults": {}, "wrong": [f"a client hangs:\n{errors}"]})
                continue
            report: dict[str, Any] = {"done": {}, "faults": {}, "wrong": []}
            if attacker.returncode == 0:
                report = json.loads(said.splitlines()[-1])
            else:
                report["wrong"].append(f"a client ended with {attacker.returncode}:\n{errors[-3000:]}")
            found.append(report)
        return found

    def settle(self) -> None:
        """Returns when all engines are up, idle, and without variables: what was interrupted leaves some there."""
        self.client.wait_for_engines(2 * ENGINES, timeout=60)
        self.client[:].apply_async(abs, -1).get(60)
        self.client[:].clear(block=False).get(60)

    def has_given_back(self) -> bool:
        """Whether node and client hold no free shared memory."""
        node = self.cluster.status_sync()["node"]
        return node["own_warm_bytes"] == 0 and self.client.counters()["warm_bytes"] == 0

    def close(self) -> None:
        for attacker in self.attackers:
            attacker.kill()
            attacker.wait()
        self.client.close()
        self.cluster.stop_cluster_sync()
        self.relay.stop()


def signal_pid(pid: int, number: int) -> None:
    """Sends a signal to a process, if it is still there."""
    if pid == 0:
        return
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def excess(soak: Soak, before: dict[str, Footprint]) -> dict[str, dict[str, tuple[int, int]]]:
    found = {name: now.excess_over(before[name]) for name, now in soak.footprints().items()}
    return {name: more for name, more in found.items() if more}


def run(seconds: float, seed: int) -> dict[str, Any]:
    """Attacks for this long, and returns the outcome; `wrong` and `excess` are empty if all is well."""
    with TemporaryDirectory() as directory:
        soak = Soak(Path(directory), seed)
        try:
            # What is loaded and mapped at first use is not a leak.
            soak.start_attackers(min(10.0, seconds / 3))
            wrong = [text for report in soak.reports(120) for text in report["wrong"]]
            soak.attackers.clear()
            soak.settle()
            until(soak.has_given_back, timeout_s=10 * WARM_S)
            before = soak.footprints()
            soak.start_attackers(seconds)
            soak.do_harm(seconds)
            reports = soak.reports(150)
            soak.settle()
            until(lambda: not excess(soak, before), timeout_s=10 * WARM_S + 10)
            too_much = excess(soak, before)
            return {
                "seed": seed,
                "operations": sum((Counter(report["done"]) for report in reports), Counter()),
                "errors of faults": sum((Counter(report["faults"]) for report in reports), Counter()),
                "faults": soak.faults,
                "wrong": wrong + [text for report in reports for text in report["wrong"]],
                "excess": too_much,
                # Where to look for it.
                "held": soak.held() if too_much else {},
            }
        finally:
            soak.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    found = run(options.minutes * 60, options.seed)
    print(json.dumps(found, indent=1))
    sys.exit(bool(found["wrong"] or found["excess"]))


if __name__ == "__main__":
    main()
