"""Rounds in which engines of a cluster are lost in every way that a site knows, while the cluster keeps its size.

``python tests/clusters/chaos.py slurm adapt --rounds 20 --seed 1`` makes a bed, plays the rounds on its head, and
prints a line for each. It fails if the wanted size does not return, if a task runs twice or does not end exactly once,
or if a process or a job is left of a lost host, of a lost controller, or after the cluster was stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(CHECKOUT / "tests"))

import broadleaf as ipp  # noqa: E402
from broadleaf.cluster.steward import StewardProcess  # noqa: E402
from gates import Gate  # noqa: E402
from waiting import until  # noqa: E402

if TYPE_CHECKING:
    from bed import Bed

MADE = {
    "slurm": 'ipp.Slurm(nodes=1, engines_per_host=2, walltime="30m", sbatch=["--requeue"])',
    "sge": 'ipp.SGE(slots=2, pe="mp")',
    "ssh": 'ipp.SSH(["n1:2", "n2:2", "n3:2", "n4:2"])',
}
FAULTS = {
    "slurm": ("kill", "link", "cancel", "controller", "requeue", "node", "steward"),
    "sge": ("kill", "link", "cancel", "controller", "steward"),
    "ssh": ("link", "kill", "controller", "session"),
}
AIMS = ("adapt", "scale")
BACK_S = 120.0
# A host whose link is cut is lost after this time.
REJOIN_S = 10.0
# Slurm looks every 100 s for nodes that did not answer.
FOUND_S = 200.0
# How often a round that waits says for what.
TELL_S = 5.0
# What a program on the head asks of the bed, which alone can reach the other end of a host's link.
ASKS = "asks the bed: "


class Site:
    """What a round needs of a scheduler: its jobs, and ways to take hosts away."""

    def __init__(self, name: str, cluster: ipp.Cluster) -> None:
        self._name, self._cluster = name, cluster
        self._down = ""
        """A host whose link is down."""
        self._were_there: set[str] = set()
        """The jobs that it had."""

    def pending(self) -> bool:
        """Whether a job of ours waits for room, or was given a host that is down, which Slurm may not know yet."""
        if self._name == "slurm":
            if self._down and self._on(self._down) - self._were_there:
                return True
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
        elif fault == "link":
            return self._cut(engine["host"].partition(":")[0], host)
        return lambda: None

    def _on(self, host: str) -> set[str]:
        """The jobs that run on a host, as Slurm believes."""
        return set(_said("squeue", "-h", "-t", "R", "-w", host, "-o", "%i").split())

    def _cut(self, name: str, host: str) -> Callable[[], None]:
        there = _ours(host)
        if self._name == "slurm":
            self._down, self._were_there = name, self._on(name)
        _ask("cut", name)

        def join() -> None:
            _ask("join", name)
            self._down = ""
            assert until(lambda: not there & _ours(host), 60), f"still on {name}: {there & _ours(host)}"
            assert until(lambda: self._is_usable(name), FOUND_S), f"{name} is not usable: {self.told()}"

        return join

    def _is_usable(self, name: str) -> bool:
        """Whether the scheduler has found a host whose link was down."""
        if self._name == "slurm":
            return _said("sinfo", "-h", "-N", "-n", name, "-p", "main", "-o", "%T").strip() in (
                "idle",
                "mixed",
                "allocated",
            )
        return True


def _resume(node: str) -> None:
    """Makes a node usable; one whose daemon has reported since is."""
    with contextlib.suppress(subprocess.CalledProcessError):
        _said("scontrol", "update", f"node={node}", "state=resume")


def _ask(*words: str) -> None:
    """Has the bed do something, and returns when it is done."""
    print(ASKS + " ".join(words), flush=True)
    assert sys.stdin.readline() == "done\n"


def _ours(host: str | None = None) -> set[int]:
    """Processes of clusters, on a host or all, by its network."""
    return {pid for pid, _, is_ours in _processes(host) if is_ours}


def _processes(host: str | None) -> list[tuple[int, str, bool]]:
    """Those of a host or all: number, command line, and whether it is a cluster's."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if host is None or os.readlink(path / "ns/net") == host:
                line = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found.append((int(path.name), line, b"BROADLEAF_CLUSTER_ID=" in (path / "environ").read_bytes()))
    return found


def _said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _kill(host: str, which: Callable[[str, bool], bool]) -> None:
    """Kills processes of a host, by its network: what they are is seen before the first of them ends."""
    found = [pid for pid, line, is_ours in _processes(host) if which(line, is_ours)]
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class Rounds:
    """The rounds of one cluster, and of those that take its place when it has lost its controller."""

    def __init__(self, name: str, aim: str, seed: int) -> None:
        self._name, self._faults = name, FAULTS[name]
        self._random = random.Random(seed)
        self._adapts = aim == "adapt"
        self._start(detached=False)

    def _start(self, *, detached: bool) -> None:
        engines = eval(MADE[self._name])
        self._cluster = ipp.Cluster(engines=engines, detached=detached, rejoin_timeout_s=REJOIN_S)
        self._cluster.start_controller_sync()
        self._client = self._cluster.connect_client_sync()
        self._site = Site(self._name, self._cluster)
        self._n_sent = 0
        if self._adapts:
            self._cluster.adapt_sync(2, 6, idle_s=2.0, stateless=True)
        else:
            self._cluster.scale_sync(4, stateless=True)

    def play(self, number: int) -> None:
        """One round."""
        # Every other round, there is work for more engines than the minimum.
        is_busy = self._adapts and number // len(self._faults) % 2 != number % 2
        wanted = 4 if not self._adapts else 6 if is_busy else 2
        work = Work(self._client, number)
        if is_busy:
            work.send(30)
        self._wait_for_size(wanted)
        work.send_to_all()
        self._n_sent += work.n
        fault = self._faults[number % len(self._faults)]
        if fault == "controller":
            self._lose_controller(number, work)
            return
        status = self._cluster.status_sync()["engines"]
        victim = self._random.choice([engine for engine in status if engine["up"]])
        block = next(block for block in self._cluster.blocks() if victim["engine"] in block.engines)
        mend = self._site.strike(fault, block, victim)
        assert until(lambda: victim["engine"] not in self._client.ids, 60), f"{fault} does nothing to {block}"
        took_s, own_s = self._wait_for_size(wanted)
        mend()
        work.gate.open()
        n_lost = len(work.ends())
        resolved = self._cluster.status_sync()["controller"]["resolved"]
        assert sum(resolved.values()) == self._n_sent, (resolved, self._n_sent)
        print(
            f"round {number}: {fault} of {block.id}, {wanted} engines are back after {took_s:.1f} s, "
            f"of which the scheduler had room for {own_s:.1f} s; {n_lost} of {work.n} tasks were lost",
            flush=True,
        )

    def _lose_controller(self, number: int, work: Work) -> None:
        """Kills the controller: everything ends by itself, and the program goes on with another cluster."""
        assert _ours(), "no process is found"
        began = time.monotonic()
        os.kill(self._cluster.to_dict()["controller"]["node_pid"], signal.SIGKILL)
        for error in (errors := work.ends()):
            assert isinstance(error, ipp.errors.LinkLost), error
            assert error.certificate is not None, error
            assert (error.certificate.cause, error.certificate.code) == ("signal", signal.SIGKILL), error.certificate
        assert len(errors) == work.n, f"{len(errors)} of {work.n} tasks were lost"
        told_s = time.monotonic() - began
        assert until(lambda: not _ours(), 60), f"still here: {_processes(None)}"
        assert until(lambda: not self._site.left(), 60), self._site.left()
        gone_s = time.monotonic() - began
        self.close()
        self._start(detached=not self._cluster.detached)
        print(
            f"round {number}: controller, {work.n} tasks were told after {told_s:.1f} s, and nothing was left after "
            f"{gone_s:.1f} s",
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


class Work:
    """Tasks of one round, which wait at a gate."""

    def __init__(self, client: ipp.Client, number: int) -> None:
        folder = Path(tempfile.mkdtemp(prefix=f"round-{number}-", dir="/shared"))
        self.gate = Gate(folder)
        self._begun = folder / "begun"
        self._begun.mkdir()
        self._client = client
        self._sent: list[Any] = []
        self._ended: Counter[int] = Counter()

    @property
    def n(self) -> int:
        """Number of tasks."""
        return len(self._sent)

    def send(self, n: int) -> None:
        """Sends tasks to whichever engines are free."""
        for _ in range(n):
            self._send(self._client.load_balanced_view())

    def send_to_all(self) -> None:
        """Sends a task to each engine."""
        for engine in self._client.ids:
            self._send(self._client[engine])

    def _send(self, view: Any) -> None:
        name = self.n
        result = view.apply_async(_noted(self.gate.task(), str(self._begun)), name)
        result.add_done_callback(lambda _: self._ended.update([name]))
        self._sent.append(result)

    def ends(self) -> list[BaseException]:
        """The errors of those that were lost. All have ended, each exactly once, and none has begun twice."""
        said = [one.get(60, return_exceptions=True) for one in self._sent]
        assert until(lambda: len(self._ended) == self.n), f"{len(self._ended)} of {self.n} have ended"
        assert set(self._ended.values()) <= {1}, self._ended
        begun = Counter(path.name.partition(".")[0] for path in self._begun.iterdir())
        assert set(begun.values()) <= {1}, begun
        assert all(end == i for i, end in enumerate(said) if not isinstance(end, BaseException)), said
        return [end for end in said if isinstance(end, BaseException)]


def _noted(task: Callable[..., Any], begun: str) -> Callable[..., Any]:
    """A task that leaves a file with its name when it begins."""

    def noted(name: int) -> Any:
        import os
        import tempfile

        os.close(tempfile.mkstemp(prefix=f"{name}.", dir=begun)[0])
        return task(name)

    return noted


def play(name: str, aim: str, rounds: int, seed: int) -> None:
    """Plays rounds where the scheduler's commands are."""
    one = Rounds(name, aim, seed)
    try:
        for number in range(rounds):
            one.play(number)
    finally:
        one.close()


def play_on(bed: Bed, *arguments: str) -> tuple[int, str]:
    """Plays on the head of a bed, and cuts links for those who play. Returns their exit code, and what they said."""
    command = bed.command(
        "head", [sys.executable, __file__, *arguments, "--inside"], {"BROADLEAF_DIR": "/shared/broadleaf"}
    )
    playing = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert playing.stdin is not None
    assert playing.stdout is not None
    said = ""
    with playing:
        for line in playing.stdout:
            said += line
            print(line, end="", flush=True)
            if line.startswith(ASKS):
                what, name = line.removeprefix(ASKS).split()
                {"cut": bed.network.cut, "join": bed.network.join}[what](bed.host(name))
                print("done", file=playing.stdin, flush=True)
    return playing.returncode, said


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
        code: int | str
        code, _ = play_on(bed, *sys.argv[1:])
        if not code and not until(lambda: not bed.processes(), 60):
            code = f"processes are left: {bed.processes()}"
    finally:
        bed.close()
    sys.exit(code)


if __name__ == "__main__":
    main()
