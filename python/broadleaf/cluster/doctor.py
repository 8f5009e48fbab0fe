"""Why engines do not connect: steps from a host to the controller, each with what was found and what to do."""

from __future__ import annotations

import errno
import ipaddress
import json
import os
import platform
import resource
import socket
import stat
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from broadleaf import _native
from broadleaf.cluster import addresses
from broadleaf.cluster.control import ControlLink
from broadleaf.cluster.cores import usable_cores
from broadleaf.cluster.credentials import python_version
from broadleaf.cluster.started_sets import waited_for
from broadleaf.errors import BroadleafError, ClusterConnectionError
from broadleaf.text import count, size

if TYPE_CHECKING:
    from broadleaf.cluster.cluster import Cluster
    from broadleaf.cluster.engine_sets import Block

__all__ = ["Finding", "examine_cluster", "examine_connection"]


# The outcome of a step.


Result = Literal["ok", "warning", "failed", "not tried"]


@dataclass(frozen=True)
class Finding:
    """One step, and its outcome."""

    step: str
    result: Result
    found: str
    advice: str = ""
    """What to do about it; '' where nothing has to be done."""


# Whether this host can run engines: its Python, its memory, its limits.


_OLDEST_PYTHON = (3, 11)
# Without memfd, everything that engines share has to fit into /dev/shm.
_LITTLE_SHM_BYTES = 64 << 20
# A node uses a few descriptors for each engine and each segment, and reserves an eighth of them.
_FEW_DESCRIPTORS, _TOO_FEW_DESCRIPTORS = 1024, 256


def check_python() -> Finding:
    """Whether this Python is new enough."""
    version = platform.python_version()
    if sys.version_info[:2] < _OLDEST_PYTHON:
        oldest = ".".join(map(str, _OLDEST_PYTHON))
        return Finding("Python", "failed", f"{sys.executable} is {version}", f"use Python {oldest} or newer")
    return Finding("Python", "ok", f"{version}, {sys.executable}")


def check_package() -> Finding:
    """Where Broadleaf is imported from, and what else its engines need."""
    where = Path(_native.__file__).parent
    try:
        import cloudpickle
    except ImportError as error:
        return Finding("Broadleaf", "failed", f"{where}: {error}", f"{sys.executable} -m pip install cloudpickle")
    return Finding("Broadleaf", "ok", f"{_native.__version__}, {where}; cloudpickle {cloudpickle.__version__}")


def check_memory() -> Finding:
    """Whether arrays can be shared by the engines of this host."""
    try:
        there = os.statvfs("/dev/shm")
        free_bytes = there.f_bavail * there.f_frsize
        known = f"/dev/shm has {size(free_bytes)} free of {size(there.f_blocks * there.f_frsize)}"
    except OSError as error:
        free_bytes, known = 0, f"/dev/shm: {error.strerror}"
    try:
        os.close(os.memfd_create("broadleaf-doctor"))
    except OSError as error:
        found = f"memfd_create fails ({error.strerror}), so arrays are stored in /dev/shm; {known}"
        advice = "permit memfd_create (a container's seccomp profile), or make /dev/shm larger (--shm-size)"
        return Finding("memory", "failed" if free_bytes < _LITTLE_SHM_BYTES else "warning", found, advice)
    return Finding("memory", "ok", f"memfd_create works, so the size of /dev/shm does not matter; {known}")


def check_descriptors() -> Finding:
    """Whether a node here may open as many files as it needs."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    engines = count(usable_cores(), "core")
    if hard == resource.RLIM_INFINITY or hard >= _FEW_DESCRIPTORS:
        limit = "no limit" if hard == resource.RLIM_INFINITY else f"up to {hard:,}"
        return Finding("descriptors", "ok", f"{limit}; {engines}")
    return Finding(
        "descriptors",
        "failed" if hard < _TOO_FEW_DESCRIPTORS else "warning",
        f"a process may open {hard:,} files (ulimit -Hn); {engines}",
        f"raise the hard limit to {_FEW_DESCRIPTORS:,} or more: in /etc/security/limits.conf, the service's "
        "LimitNOFILE or the container's --ulimit nofile",
    )


# Checks whether a connection file can be used, and what it names: versions, addresses and keys.


_DIAL_TIMEOUT_S = 5.0
_ANY_PORT = 9
_NEEDED = ("cluster_id", "private_key", "server_public_key", "broadleaf", "python", "role", "tls")
_COPY_AGAIN = "copy the file again from the controller's host: each start of a cluster makes new keys"

NETWORK_STEPS = ("name", "route", "port", "controller's key", "our key")


def read_connection(path: Path) -> tuple[dict[str, Any] | None, list[Finding]]:
    """The content of a connection file, or None, and findings about the file."""
    step = "connection file"
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        content = json.loads(path.read_text())
    except FileNotFoundError:
        advice = "check the path; if it is right, the cluster has stopped, and its files were removed"
        return None, [Finding(step, "failed", f"{path} does not exist", advice)]
    except OSError as error:
        advice = "make it readable by you alone: chown it to yourself, and chmod 600"
        return None, [Finding(step, "failed", f"{path}: {error.strerror}", advice)]
    except ValueError as error:
        return None, [Finding(step, "failed", f"{path} is not JSON: {error}", "it was cut or changed: copy it again")]
    missing = [name for name in _NEEDED if not isinstance(content, dict) or name not in content]
    if missing:
        advice = "give a cluster's engine.json or client.json"
        return None, [Finding(step, "failed", f"{path} is not a connection file: no {', '.join(missing)}", advice)]
    if mode & 0o077:
        found = f"{path} is open to others (mode {mode:04o}), and holds a key"
        return content, [Finding(step, "failed", found, f"chmod 600 {path}")]
    return content, [Finding(step, "ok", f"{path}, of cluster {content['cluster_id']!r}, for {_uses(content)}")]


def _uses(connection: Mapping[str, Any]) -> str:
    return "relays and their engines" if connection["role"] == "engine" else "clients"


def check_versions(connection: Mapping[str, Any]) -> list[Finding]:
    """Whether both sides have the same Broadleaf and Python."""
    ours = {"broadleaf": ("version", "Broadleaf", _native.__version__), "python": ("minor", "Python", python_version())}
    findings = []
    for field, (step, program, here) in ours.items():
        there = connection[field]
        if there == here:
            findings.append(Finding(f"same {step}", "ok", f"{program} {here} on both sides"))
            continue
        advice = f"install {program} {there} here, or run another Python that has it (python=)"
        findings.append(Finding(f"same {step}", "failed", f"the cluster has {program} {there}, this {here}", advice))
    return findings


def check_network(connection: Mapping[str, Any]) -> Iterator[Finding]:
    """Steps from the controller's name to the proof of both keys; stops at the first failure."""
    path = connection.get("unix_path")
    if connection["role"] == "client" and path and os.path.exists(path):
        yield Finding("port", "ok", f"the controller is on this host: {path}")
        yield from _keys(dict(connection))
        return
    tcp = connection.get("tcp")
    if not tcp:
        yield Finding(
            "port", "failed", "the cluster listens on its own host only",
            "start it with `--tcp ADDRESS`, or Cluster(listen='0.0.0.0:0')",
        )  # fmt: skip
        return
    hosts = list(dict.fromkeys(connection.get("addresses") or [tcp["host"]]))
    yield (name := _names(hosts))
    if name.result == "failed":
        return
    yield (route := _routes(hosts))
    if route.result == "failed":
        return
    try:
        reached = addresses.first_reachable(hosts, tcp["port"], _DIAL_TIMEOUT_S)
    except addresses.Unreachable as error:
        yield _no_port(error)
        return
    yield Finding("port", "ok", f"{reached}:{tcp['port']} accepts connections")
    direct = {"unix_path": None, "transport": "tcp", "tcp": {"host": reached, "port": tcp["port"]}}
    yield from _keys(dict(connection) | direct)


def _names(hosts: Sequence[str]) -> Finding:
    known, unknown = [], []
    for host in hosts:
        try:
            known.append(_address_of(host))
        except OSError as error:
            unknown.append(f"{host} ({error.strerror})")
    if not known:
        advice = "use an address instead of the name: start with `--tcp ADDRESS`, or add the name to /etc/hosts here"
        return Finding("name", "failed", f"no address is known for {', '.join(unknown)}", advice)
    named = [host for host in hosts if not _is_address(host)]
    return Finding("name", "ok", f"the file lists {', '.join(hosts)}" + ("" if named else ", which are addresses"))


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _address_of(host: str) -> str:
    return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])


def _routes(hosts: Sequence[str]) -> Finding:
    """Whether the kernel has a route to any of the addresses; a loopback address leads to the controller only on its
    own host.
    """
    ways, failures = [], []
    for host in _of_network(hosts):
        try:
            address = _address_of(host)
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((address, _ANY_PORT))  # chooses a route but sends nothing
                ways.append(f"{host} from {probe.getsockname()[0]}")
        except OSError as error:
            failures.append(f"{host} ({error.strerror})")
    if ways:
        return Finding("route", "ok", ", ".join(ways))
    advice = (
        "the two hosts have no network in common: specify an interface that they share (interface=), or use SSH, "
        "which sets up a tunnel (engines='ssh' with jump=)"
    )
    return Finding("route", "failed", f"no route to {', '.join(failures)}", advice)


def _of_network(hosts: Iterable[str]) -> list[str]:
    """Addresses of loopback interfaces are omitted, unless there are no others."""
    known = list(hosts)
    return [host for host in known if not _is_loopback(host)] or known


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(_address_of(host)).is_loopback
    except (OSError, ValueError):
        return False


def _no_port(error: addresses.Unreachable) -> Finding:
    why = {error.failures[host] for host in _of_network(error.failures)}
    if os.strerror(errno.ECONNREFUSED) in why:
        advice = (
            "the host answers, but nothing is listening there: the cluster has stopped (`broadleaf list` on its host), "
            "or was started again on another port: copy the file again"
        )
    else:
        advice = (
            "a firewall blocks the port: open a port and start with listen='0.0.0.0:PORT', or come through ssh, which "
            "tunnels (engines='ssh')"
        )
    return Finding("port", "failed", str(error), advice)


def _keys(connection: dict[str, Any]) -> Iterator[Finding]:
    """Whether the controller proves its key, and accepts ours."""
    ours = "the engines' key" if connection["role"] == "engine" else "the clients' key"
    how = "by TLS 1.3" if connection["tls"] and not connection.get("unix_path") else "without TLS"
    try:
        ControlLink(json.dumps(connection), _DIAL_TIMEOUT_S).close()
    except ClusterConnectionError as error:
        cause = error.__cause__
        is_refused = isinstance(cause, _native.ConnectionRefused)
        if not (is_refused and "does not open a client's connection" in str(cause)):
            yield from _no_keys(cause, ours)
            return
    yield Finding("controller's key", "ok", f"the controller proved that it holds the key in the file, {how}")
    yield Finding("our key", "ok", f"the controller takes {ours}")


def _no_keys(cause: BaseException | None, ours: str) -> Iterator[Finding]:
    words = str(cause.args[-1]) if isinstance(cause, _native.ConnectionRefused) else str(cause)
    if "refused our key" in words and "before both sides" not in words:
        yield Finding("controller's key", "ok", "it is the one in the file")
        yield Finding("our key", "failed", f"the controller does not accept {ours}: {words}", _COPY_AGAIN)
    elif isinstance(cause, _native.ConnectionRefused):
        yield Finding("controller's key", "ok", "it is the one in the file")
        yield Finding("our key", "failed", f"the controller refused: {words}", _COPY_AGAIN)
    elif isinstance(cause, TimeoutError):
        advice = "a program other than Broadleaf is listening there, or a proxy in between drops the traffic"
        yield Finding("controller's key", "failed", f"connected, but no answer: {words}", advice)
    else:
        yield Finding(
            "controller's key", "failed", f"something other than this cluster answers there: {words}", _COPY_AGAIN
        )


# All steps, in the order in which a relay takes them.


_LOG_LINES = 6


def examine_connection(path: str | Path) -> list[Finding]:
    """Tries from this host what a relay or a client does that connects with this file."""
    content, findings = read_connection(Path(path))
    findings += [check_python(), check_package(), check_memory(), check_descriptors()]
    if content is None:
        steps = ["same version", "same minor", *NETWORK_STEPS]
        return findings + [_not_tried(step, "connection file") for step in steps]
    findings += check_versions(content)
    findings += check_network(content)
    tried = {finding.step for finding in findings}
    if findings[-1].result == "failed":
        findings += [_not_tried(step, findings[-1].step) for step in NETWORK_STEPS if step not in tried]
    return findings


def _not_tried(step: str, failed: str) -> Finding:
    return Finding(step, "not tried", f"needs {failed!r}")


def examine_cluster(cluster: Cluster) -> list[Finding]:
    """The same for a running cluster of this host; also shows the state of its blocks and engines."""
    is_remote = cluster.settings["listen"] != ""
    findings = examine_connection(cluster.relay_file if is_remote else cluster.connection_file)
    try:
        status = cluster.status_sync()
        blocks = cluster.blocks()
    except (BroadleafError, TimeoutError, OSError) as error:
        advice = "`broadleaf logs` shows what the controller has written; `broadleaf stop` ends what is left"
        return [*findings, Finding("controller", "failed", f"it does not answer: {error}", advice)]
    findings += [_of_block(cluster, block) for block in blocks]
    wanted = [engine for engine in status["engines"] if engine["up"] or not _was_stopped(engine)]
    return [*findings, _of_engines([str(engine["state"]) for engine in wanted], blocks)]


def _was_stopped(engine: Mapping[str, Any]) -> bool:
    death = engine["last_death"]
    return death is not None and death["cause"] == "stopped"


def _of_block(cluster: Cluster, block: Block) -> Finding:
    hosts = ", ".join(name.partition(":")[0] for name in block.hosts)
    if block.state == "pending":
        advice = f"it waits up to {cluster.engines_from.queue_timeout_s:g} s; `broadleaf status` shows its progress"
        return Finding(block.id, "warning", block.reason or "it is pending", advice)
    if block.state == "failed":
        lines = [line.strip() for line in cluster.engines_from.log(block).splitlines() if line.strip()]
        said = "; ".join(lines[-_LOG_LINES:])
        return Finding(block.id, "failed", block.reason, f"its log ends: {said}" if said else "it has written nothing")
    if block.state == "ended":
        return Finding(block.id, "ok", block.reason or "it has ended")
    if not block.hosts:
        advice = "run `broadleaf doctor --connection FILE` on its host, with this cluster's engine.json"
        return Finding(block.id, "warning", "it is running, but none of its hosts has joined", advice)
    left = "" if block.deadline is None else f", {max(0, round(block.deadline - time.time())):,} s left"
    return Finding(block.id, "ok", f"{hosts}: {len(block.engines)} engines{left}")


def _of_engines(states: Sequence[str], blocks: Sequence[Block]) -> Finding:
    down = [state for state in states if state not in ("up", "draining")]
    found = f"{len(states) - len(down)} of {len(states)} up"
    if not states and (waiting := waited_for(blocks)):
        return Finding("engines", "warning", f"none are up yet: {waiting}", "they come when it runs")
    if not states:
        return Finding("engines", "warning", "the cluster has none", "start some with `broadleaf scale N` or a relay")
    if down:
        advice = "`broadleaf status` shows how they died, and `broadleaf logs --engine N` shows what they wrote"
        return Finding("engines", "warning", f"{found}; others are {', '.join(sorted(set(down)))}", advice)
    return Finding("engines", "ok", found)
