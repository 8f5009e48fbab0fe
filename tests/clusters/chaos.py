"""Rounds in which engines of a cluster are lost in every way that a site knows, while the cluster keeps its size.

``python tests/clusters/chaos.py slurm adapt --rounds 20 --seed 1`` makes a bed, plays the rounds on its head, and
prints a line for each. It fails if the wanted size does not return, if a task does not end exactly once, or if a
process or a job is left after the cluster was stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(CHECKOUT / "tests"))

import broadleaf as ipp  # noqa: E402
from broadleaf.cluster.steward import StewardProcess  # noqa: E402
from gates import Gate  # noqa: E402
from waiting import until  # noqa: E402

MADE = {
    "slurm": 'ipp.Slurm(nodes=1, engines_per_host=2, walltime="30m", sbatch=["--requeue"])',
    "sge": 'ipp.SGE(slots=2, pe="mp")',
    "ssh": 'ipp.SSH(["n1:2", "n2:2", "n3:2", "n4:2"])',
}
FAULTS = {
    "slurm": ("kill", "cancel", "requeue", "node", "steward"),
    "sge": ("kill", "cancel", "steward"),
    "ssh": ("kill", "session"),
}
AIMS = ("adapt", "scale")
BACK_S = 120.0
# How often a round that waits says for what.
TELL_S = 5.0


class Site:
    """What a round needs of a scheduler: its jobs, and ways to take hosts away."""

    def __init__(self, name: str, cluster: ipp.Cluster) -> None:
        self._name, self._cluster = name, cluster

    def pending(self) -> bool:
        """Whether a job of ours waits for room."""
        if self._name == "slurm":
            return bool(_said("squeue", "-h", "-t", "PD,CF", "-o", "%i"))
        return self._name == "sge" and any(" qw " in line for line in _said("qstat").splitlines())

    def left(self) -> str:
        """Jobs that are in the queue."""
        command = {"slurm": ("squeue", "-h"), "sge": ("qstat",)}.get(self._name)
        return _said(*command) if command else ""

    def told(self) -> str:
        """What the scheduler says about its jobs and hosts."""
        return self.left() + _said("sinfo", "-N") if self._name == "slurm" else self.left()

    def strike(self, fault: str, block: Any, engine: dict[str, Any]) -> Callable[[], None]:
        """Lets a fault happen to a block and the host of its engine; returns what makes the host usable again."""
        host = os.readlink(f"/proc/{engine['pid']}/ns/net")
        if fault == "steward":
            steward = StewardProcess(self._cluster.cluster_dir).pid()
            assert steward is not None, "there is no steward"
            os.kill(steward, signal.SIGKILL)
        if fault in ("kill", "steward"):
            _kill(host, lambda line, ours: ours)
        elif fault == "session":
            _kill(host, lambda line, _ours: line.startswith("sshd: ") and "[listener]" not in line)
        elif fault == "cancel":
            _said({"slurm": "scancel", "sge": "qdel"}[self._name], block.facts["job"])
        elif fault == "requeue":
            _said("scontrol", "requeue", block.facts["job"])
        elif fault == "node":
            node = engine["host"].partition(":")[0]
            _said("scontrol", "update", f"node={node}", "state=down", "reason=chaos")
            return lambda: _resume(node)
        return lambda: None


def _resume(node: str) -> None:
    """Makes a node usable; one whose daemon has reported since is."""
    with contextlib.suppress(subprocess.CalledProcessError):
        _said("scontrol", "update", f"node={node}", "state=resume")


def _said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _kill(host: str, which: Callable[[str, bool], bool]) -> None:
    """Kills processes of a host, by its network: what they are is seen before the first of them ends."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.readlink(path / "ns/net") == host:
                line = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if which(line, b"BROADLEAF_CLUSTER_ID=" in (path / "environ").read_bytes()):
                    found.append(int(path.name))
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class Rounds:
    """The rounds of one cluster."""

    def __init__(self, name: str, aim: str, seed: int) -> None:
        self._cluster = ipp.Cluster(engines=eval(MADE[name]))
        self._cluster.start_controller_sync()
        self._client = self._cluster.connect_client_sync()
        self._site = Site(name, self._cluster)
        self._faults = FAULTS[name]
        self._random = random.Random(seed)
        self._adapts = aim == "adapt"
        self._n_sent = 0
        if self._adapts:
            self._cluster.adapt_sync(2, 6, idle_s=2.0, stateless=True)
        else:
            self._cluster.scale_sync(4, stateless=True)

    def play(self, number: int) -> None:
        """One round."""
        gate = Gate(Path(self._cluster.cluster_dir, f"gate-{number}"))
        held = []
        # Every other round, there is work for more engines than the minimum.
        if self._adapts and number % 2:
            held = [self._client.load_balanced_view().apply_async(gate.task()) for _ in range(30)]
        wanted = 4 if not self._adapts else 6 if held else 2
        self._wait_for_size(wanted)
        engines = self._client.ids
        sent = self._client[engines].apply_async(gate.task())
        self._n_sent += len(held) + len(engines)
        fault = self._faults[number % len(self._faults)]
        status = self._cluster.status_sync()["engines"]
        victim = self._random.choice([engine for engine in status if engine["up"]])
        block = next(block for block in self._cluster.blocks() if victim["engine"] in block.engines)
        mend = self._site.strike(fault, block, victim)
        assert until(lambda: victim["engine"] not in self._client.ids, 60), f"{fault} does nothing to {block}"
        took_s, own_s = self._wait_for_size(wanted)
        mend()
        gate.open()
        ends = [one.get(60, return_exceptions=True) for one in held]
        ends += sent.get(60, return_exceptions=True)
        n_lost = sum(isinstance(end, BaseException) for end in ends)
        resolved = self._cluster.status_sync()["controller"]["resolved"]
        assert sum(resolved.values()) == self._n_sent, (resolved, self._n_sent)
        print(
            f"round {number}: {fault} of {block.id}, {wanted} engines are back after {took_s:.1f} s, "
            f"of which the scheduler had room for {own_s:.1f} s; {n_lost} of {len(ends)} tasks were lost",
            flush=True,
        )

    def _wait_for_size(self, n: int) -> tuple[float, float]:
        """Waits until `n` engines are up or, where the number follows the queue, at least as many. Returns the seconds
        that this took, and those of them in which no job waited for room."""
        began = last = time.monotonic()
        own_s, tell_at_s = 0.0, TELL_S
        while len(self._client.ids) < n:
            assert time.monotonic() - began < BACK_S, (
                f"{self._client.ids}, not {n}: {self._cluster.scaling_paused} {self._cluster.blocks()}"
            )
            waits = self._site.pending()
            if last - began > tell_at_s:
                tell_at_s += TELL_S
                print(f"  {last - began:.0f} s: {len(self._client.ids)} engines, {self._seen()}", flush=True)
            time.sleep(0.1)
            now = time.monotonic()
            own_s += 0.0 if waits else now - last
            last = now
        return time.monotonic() - began, own_s

    def _seen(self) -> str:
        blocks = [f"{block.id} {block.state} {block.reason} {block.engines}" for block in self._cluster.blocks()]
        return "; ".join([*blocks[-6:], self._site.told()])

    def close(self) -> None:
        """Stops the cluster; nothing is left."""
        self._client.close()
        self._cluster.stop_cluster_sync()
        assert until(lambda: not self._site.left(), 60), self._site.left()


def play(name: str, aim: str, rounds: int, seed: int) -> None:
    """Plays rounds where the scheduler's commands are."""
    one = Rounds(name, aim, seed)
    try:
        for number in range(rounds):
            one.play(number)
    finally:
        one.close()


def main() -> None:
    """Makes a bed, and plays there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engines", choices=MADE)
    parser.add_argument("aim", choices=AIMS)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside:
        play(given.engines, given.aim, given.rounds, given.seed)
        return
    from bed import Bed
    from bed.gridengine import start_gridengine
    from bed.slurmd import start_slurm
    from bed.sshd import open_with_key, start_sshd

    bed = Bed(4)
    try:
        if given.engines == "ssh":
            open_with_key(bed)
            for host in bed.names[1:]:
                start_sshd(bed, host)
        else:
            {"slurm": start_slurm, "sge": start_gridengine}[given.engines](bed)
        command = [sys.executable, __file__, *sys.argv[1:], "--inside"]
        code = subprocess.run(
            bed.command("head", command, {"BROADLEAF_DIR": "/shared/broadleaf"}), check=False
        ).returncode
        if not code and not until(lambda: not bed.processes(), 60):
            code = f"processes are left: {bed.processes()}"
    finally:
        bed.close()
    sys.exit(code)


if __name__ == "__main__":
    main()
