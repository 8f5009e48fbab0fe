"""Checks whether a connection file can be used, and what it names: versions, addresses and keys."""

from __future__ import annotations

import errno
import ipaddress
import json
import os
import socket
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from broadleaf import _native
from broadleaf.cluster import addresses
from broadleaf.cluster.control import ControlLink
from broadleaf.cluster.credentials import python_version
from broadleaf.cluster.reports.doctor.finding import Finding
from broadleaf.errors import ClusterConnectionError

_DIAL_TIMEOUT_S = 5.0
_ANY_PORT = 9
_NEEDED = ("cluster_id", "private_key", "server_public_key", "broadleaf", "python", "role", "tls")
_COPY_AGAIN = "copy the file again from the controller's host: each start of a cluster makes new keys"

NETWORK_STEPS = ("name", "route", "port", "controller's key", "our key")


def read(path: Path) -> tuple[dict[str, Any] | None, list[Finding]]:
    """The content of a connection file, or None, and findings about the file."""
    step = "connection file"
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        content = json.loads(path.read_text())
    except FileNotFoundError:
        advice = "check the path; if it is right, the cluster has stopped: its files go with it"
        return None, [Finding(step, "failed", f"{path} does not exist", advice)]
    except OSError as error:
        advice = "make it readable by you alone: chown it to yourself, and chmod 600"
        return None, [Finding(step, "failed", f"{path}: {error.strerror}", advice)]
    except ValueError as error:
        return None, [Finding(step, "failed", f"{path} is not JSON: {error}", "it was cut or changed: copy it again")]
    missing = [name for name in _NEEDED if not isinstance(content, dict) or name not in content]
    if missing:
        advice = "give a cluster's engine.json or client.json"
        return None, [Finding(step, "failed", f"{path} is no connection file: no {', '.join(missing)}", advice)]
    if mode & 0o077:
        found = f"{path} is open to others (mode {mode:04o}), and holds a key"
        return content, [Finding(step, "failed", found, f"chmod 600 {path}")]
    return content, [Finding(step, "ok", f"{path}, of cluster {content['cluster_id']!r}, for {_uses(content)}")]


def _uses(connection: Mapping[str, Any]) -> str:
    return "relays and their engines" if connection["role"] == "engine" else "clients"


def versions(connection: Mapping[str, Any]) -> list[Finding]:
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


def network(connection: Mapping[str, Any]) -> Iterator[Finding]:
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
        return Finding("name", "failed", f"no address is known of {', '.join(unknown)}", advice)
    named = [host for host in hosts if not _is_address(host)]
    return Finding("name", "ok", f"the file has {', '.join(hosts)}" + ("" if named else ", which are addresses"))


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
        "the networks of the two hosts do not meet: name the interface that they share (interface=), or come through "
        "ssh, which tunnels (engines='ssh' with jump=)"
    )
    return Finding("route", "failed", f"no way to {', '.join(failures)}", advice)


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
            "the host answers and nothing listens there: the cluster has stopped (`broadleaf list` on its host), or "
            "was started again at another port: copy the file again"
        )
    else:
        advice = (
            "a firewall is between: open a port and start with listen='0.0.0.0:PORT', or come through ssh, which "
            "tunnels (engines='ssh')"
        )
    return Finding("port", "failed", str(error), advice)


def _keys(connection: dict[str, Any]) -> Iterator[Finding]:
    """Whether the controller proves its key, and accepts ours."""
    ours = "the engines' key" if connection["role"] == "engine" else "the clients' key"
    encrypted = "TLS 1.3" if connection["tls"] and not connection.get("unix_path") else "a proof"
    try:
        ControlLink(json.dumps(connection), _DIAL_TIMEOUT_S).close()
    except ClusterConnectionError as error:
        cause = error.__cause__
        is_refused = isinstance(cause, _native.ConnectionRefused)
        if not (is_refused and "does not open a client's connection" in str(cause)):
            yield from _no_keys(cause, ours)
            return
    yield Finding("controller's key", "ok", f"it is the one in the file, proven by {encrypted}")
    yield Finding("our key", "ok", f"the controller takes {ours}")


def _no_keys(cause: BaseException | None, ours: str) -> Iterator[Finding]:
    words = str(cause.args[-1]) if isinstance(cause, _native.ConnectionRefused) else str(cause)
    if "refused our key" in words and "before both sides" not in words:
        yield Finding("controller's key", "ok", "it is the one in the file")
        yield Finding("our key", "failed", f"the controller does not take {ours}: {words}", _COPY_AGAIN)
    elif isinstance(cause, _native.ConnectionRefused):
        yield Finding("controller's key", "ok", "it is the one in the file")
        yield Finding("our key", "failed", f"the controller refused: {words}", _COPY_AGAIN)
    elif isinstance(cause, TimeoutError):
        advice = "something else than Broadleaf listens there, or a proxy between does not pass on what is said"
        yield Finding("controller's key", "failed", f"connected, but no answer: {words}", advice)
    else:
        yield Finding("controller's key", "failed", f"what answers there is not this cluster: {words}", _COPY_AGAIN)
