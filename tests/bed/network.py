"""Several hosts on one machine: a network namespace each, joined by a router, with rate limits and added latency.

Needs root, `ip` and `tc` (iproute2). All traffic stays between the namespaces made here, and `close` removes them with
every process in them.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from broadleaf import Client

_CLI = "from broadleaf.cli import main; main()"
_PUMP = str(Path(__file__).with_name("latency.py"))
_BURST_BYTES = 131_072
# Namespaces are named after these numbers, because a process may have several networks at a time.
_NUMBERS = itertools.count()
_AUTOGROUP = Path("/proc/sys/kernel/sched_autogroup_enabled")


def why_not() -> str | None:
    """Why namespaces cannot be created here, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed (package iproute2)"
    probe = f"blprobe{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"network namespaces cannot be made here: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", probe], check=False)
    return None


@contextmanager
def scheduled_by_thread() -> Iterator[None]:
    """Processes started in the meantime share the cores by thread, not by session (`sched(7)`, autogroup).

    A host's processes are a session. Those of separate machines never compete, but here each would get an equal part of
    a core, whatever it does: a small task's thread would wait for the payload of all other hosts.
    """
    try:
        was = _AUTOGROUP.read_text()
        _AUTOGROUP.write_text("0\n")
    except OSError as error:  # without autogroups, or in a container
        print(f"sessions stay as the kernel schedules them: {error}", file=sys.stderr)
        yield
        return
    try:
        yield
    finally:
        _AUTOGROUP.write_text(was)


@dataclass(frozen=True)
class Host:
    """One host: its namespace and its address."""

    index: int
    namespace: str
    address: str

    @property
    def port(self) -> str:
        """The router's end of its link."""
        return f"p{self.index}"


class Network:
    """`n` hosts beside the controller's, which is host 0."""

    def __init__(self, n: int, *, rate_mbit: float | None = 1000, latency_ms: float = 0) -> None:
        self.name: str = f"bl{os.getpid()}n{next(_NUMBERS)}"
        self.router: str = f"{self.name}r"
        self.hosts: list[Host] = [Host(i, f"{self.name}h{i}", f"10.77.{i}.2") for i in range(n + 1)]
        self._pump: subprocess.Popen[bytes] | None = None
        try:
            self._build(rate_mbit, latency_ms)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _build(self, rate_mbit: float | None, latency_ms: float) -> None:
        _run("ip", "netns", "add", self.router)
        _run("ip", "-n", self.router, "link", "set", "lo", "up")
        self.execute(self.router, ["sysctl", "-qw", "net.ipv4.ip_forward=1"])
        for host in self.hosts:
            _run("ip", "netns", "add", host.namespace)
            # Every kernel has Reno, and any namespace may set it. Others pace by timers, all on the same few cores.
            self.execute(host.namespace, ["sysctl", "-qw", "net.ipv4.tcp_congestion_control=reno"])
            _run("ip", "link", "add", "eth0", "netns", host.namespace, "type", "veth",
                 "peer", "name", host.port, "netns", self.router)  # fmt: skip
            ends = ((host.namespace, "eth0", "2"), (self.router, host.port, "1"))
            for namespace, device, last in ends:
                _run("ip", "-n", namespace, "addr", "add", f"10.77.{host.index}.{last}/30", "dev", device)
                _run("ip", "-n", namespace, "link", "set", device, "txqueuelen", "200", "up")
            _run("ip", "-n", host.namespace, "link", "set", "lo", "up")
            _run("ip", "-n", host.namespace, "route", "add", "default", "via", f"10.77.{host.index}.1")
        if rate_mbit is not None:
            self.limit_links(rate_mbit)
        if latency_ms:
            self._delay(latency_ms)

    def limit(self, namespace: str, device: str, rate_mbit: float) -> None:
        """Limits the outgoing rate of a device; small packets marked for low delay go first, as by default."""
        rate = f"{int(rate_mbit * 1000)}kbit"
        _run("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", "handle", "1:", "tbf", "rate", rate,
             "burst", str(_BURST_BYTES), "latency", "50ms")  # fmt: skip
        _run("tc", "-n", namespace, "qdisc", "replace", "dev", device, "parent", "1:", "pfifo_fast")

    def limit_links(self, rate_mbit: float) -> None:
        """Limits the rate of every host's link, in both directions, from now on."""
        for host in self.hosts:
            for namespace, device in ((host.namespace, "eth0"), (self.router, host.port)):
                self.limit(namespace, device, rate_mbit)

    def limit_send_buffers(self, host: Host, max_bytes: int) -> None:
        """Limits what each TCP connection of a host may have under way: the last figure of `net.ipv4.tcp_wmem`."""
        self.execute(host.namespace, ["sysctl", "-qw", f"net.ipv4.tcp_wmem=4096 16384 {max_bytes}"])

    def _delay(self, latency_ms: float) -> None:
        """Routes all traffic between hosts through a process that delays it."""
        self._pump = subprocess.Popen(
            ["ip", "netns", "exec", self.router, sys.executable, _PUMP, "delay", str(latency_ms)],
            stdout=subprocess.PIPE,
        )
        if self._pump.stdout is None or not self._pump.stdout.readline():
            raise RuntimeError("the latency pump did not start")
        # While the pump waits for a core, packets wait for it: a link that only takes time loses none.
        _run("ip", "-n", self.router, "link", "set", "delay", "txqueuelen", "10000", "up")
        _run("ip", "-n", self.router, "route", "add", "10.77.0.0/16", "dev", "delay", "table", "101")
        _run("ip", "-n", self.router, "rule", "add", "pref", "50", "iif", "delay", "lookup", "main")
        for host in self.hosts:
            _run("ip", "-n", self.router, "rule", "add", "pref", "60", "to", "10.77.0.0/16", "iif", host.port,
                 "lookup", "101")  # fmt: skip

    def execute(self, namespace: str, command: Sequence[str]) -> str:
        """Runs a command in a namespace and returns its output."""
        return _run("ip", "netns", "exec", namespace, *command)

    def start(self, host: Host, *arguments: str, **options: Any) -> subprocess.Popen[Any]:
        """Starts a `broadleaf` command on a host."""
        return subprocess.Popen([*self.shell(host), sys.executable, "-c", _CLI, *arguments], **options)

    def shell(self, host: Host) -> list[str]:
        """The words before a command that make it run on a host. Every one except the controller's has a name of its
        own.
        """
        enter = ["ip", "netns", "exec", host.namespace]
        if host.index == 0:
            return enter
        return [*enter, "unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', host.namespace]

    def received_bytes(self, host: Host) -> int:
        """Bytes received over a host's link, including headers."""
        return self._link_bytes(host, "rx")

    def sent_bytes(self, host: Host) -> int:
        """Bytes sent over a host's link, including headers."""
        return self._link_bytes(host, "tx")

    def _link_bytes(self, host: Host, direction: str) -> int:
        link = json.loads(_run("ip", "-n", host.namespace, "-s", "-j", "link", "show", "eth0"))
        n_bytes: int = link[0]["stats64"][direction]["bytes"]
        return n_bytes

    def cut(self, host: Host) -> None:
        """Takes a host's link down without telling anybody."""
        _run("ip", "-n", self.router, "link", "set", host.port, "down")

    def join(self, host: Host) -> None:
        """Takes a host's link up again."""
        _run("ip", "-n", self.router, "link", "set", host.port, "up")

    def drop(self, host: Host) -> None:
        """Drops what the router receives from a host or for it, as if a link further away were cut."""
        self._drops("add", host)

    def carry(self, host: Host) -> None:
        """Carries a host's packets again."""
        self._drops("del", host)

    def _drops(self, verb: str, host: Host) -> None:
        _run("ip", "-n", self.router, "rule", verb, "pref", "10", "iif", host.port, "blackhole")
        _run("ip", "-n", self.router, "rule", verb, "pref", "10", "to", f"{host.address}/32", "blackhole")

    def move(self, host: Host) -> None:
        """Takes a host's address away and gives it another one, as when a laptop joins another network."""
        subnet = f"10.77.{100 + host.index}"
        ends = ((self.router, host.port, "1"), (host.namespace, "eth0", "2"))
        for namespace, device, last in ends:
            _run("ip", "-n", namespace, "addr", "flush", "dev", device)
            _run("ip", "-n", namespace, "addr", "add", f"{subnet}.{last}/30", "dev", device)
        _run("ip", "-n", host.namespace, "route", "replace", "default", "via", f"{subnet}.1")

    def signal(self, host: Host, number: int) -> None:
        """Sends a signal to every process of a host."""
        for pid in _run("ip", "netns", "pids", host.namespace).split():
            try:
                os.kill(int(pid), number)
            except ProcessLookupError:
                continue

    def close(self) -> None:
        """Ends every process in the namespaces and removes them."""
        if self._pump is not None:
            self._pump.kill()
            self._pump.wait()
            if self._pump.stdout is not None:
                self._pump.stdout.close()
        existing = _run("ip", "netns", "list").split()
        for namespace in (*(host.namespace for host in self.hosts), self.router):
            if namespace not in existing:
                continue
            for pid in _run("ip", "netns", "pids", namespace).split():
                try:
                    os.kill(int(pid), signal.SIGKILL)
                except ProcessLookupError:
                    continue
            subprocess.run(["ip", "netns", "del", namespace], check=False)


class HostedCluster:
    """A cluster whose controller is on host 0 of a network, with a relay on each other host.

    The client connects through the controller's unix socket, which namespaces do not hide.
    """

    def __init__(
        self,
        network: Network,
        engines_per_host: int,
        name: str = "hosts",
        hosts: Sequence[Host] | None = None,
        /,
        **options: object,
    ) -> None:
        """`hosts` get relays; all others of the network, by default."""
        from broadleaf import Cluster

        self.network = network
        self.engines_per_host = engines_per_host
        self.cluster_id: str = f"{name}-{os.getpid()}"
        given = [f"--option={name}={value}" for name, value in options.items()]
        controller = network.hosts[0]
        start = network.start(controller, "start", "-n", "0", "--cluster-id", self.cluster_id, "--tcp",
                              f"{controller.address}:0", *given, stdout=subprocess.DEVNULL)  # fmt: skip
        if start.wait(60):
            raise RuntimeError("the controller did not start")
        self.cluster: Cluster = Cluster.from_file(cluster_id=self.cluster_id)
        self.relays: dict[int, subprocess.Popen[bytes]] = {}
        try:
            for host in network.hosts[1:] if hosts is None else hosts:
                self.start_relay(host)
            self.client: Client = self.cluster.connect_client_sync()
            self.client.wait_for_engines(len(self.relays) * engines_per_host, timeout=120)
        except BaseException:
            self.close()
            raise

    def start_relay(self, host: Host, *arguments: str) -> None:
        """Starts the relay of a host; its engines start later."""
        self.relays[host.index] = self.network.start(
            host, "relay", "--connection", self.cluster.relay_file, "-n", str(self.engines_per_host),
            "--name", f"host{host.index}", *arguments, stdout=subprocess.DEVNULL,
        )  # fmt: skip

    def engines_of(self, host: Host) -> list[int]:
        """Ids of the engines that are up on a host."""
        name = f"host{host.index}"
        return [engine_id for engine_id, _, _, where in self.client.link.engines() if where == name]

    def host_status(self) -> dict[str, dict[str, Any]]:
        """What the controller knows about each host, by name."""
        return {entry["name"]: entry for entry in self.cluster.status_sync()["hosts"]}

    def close(self) -> None:
        """Stops everything."""
        if hasattr(self, "client"):
            self.client.close()
            del self.client  # and with it what its pool holds
        for host in self.network.hosts:
            self.network.signal(host, signal.SIGCONT)
        self.cluster.stop_cluster_sync()
        for relay in self.relays.values():
            try:
                relay.wait(10)
            except subprocess.TimeoutExpired:
                relay.kill()
                relay.wait()

    def __enter__(self) -> HostedCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def wait_until(is_so: Any, timeout_s: float, what: str) -> None:
    """Returns once `is_so()` holds; raises TimeoutError that `what` did not happen."""
    deadline = time.monotonic() + timeout_s
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.005)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
