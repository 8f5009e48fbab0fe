"""Where a client's connection to its cluster is described."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from broadleaf.errors import ClusterConnectionError
from broadleaf.state.connection import client_connection, is_engine

if TYPE_CHECKING:
    from broadleaf.cluster.hosts.tunnel import FarCluster, Tunnel


SSH_SCHEME = "ssh://"


def profile_name(info: str | os.PathLike[str] | dict[str, Any] | None, profile: str | None, cluster: Any) -> str:
    """The profile of a client's cluster; "default" if nothing says otherwise."""
    if profile is not None:
        return profile
    if cluster is not None:
        return str(cluster.profile)
    if isinstance(info, str) and info.startswith(SSH_SCHEME):
        return far_cluster(info).profile
    if info is not None and not isinstance(info, dict):
        folder = os.path.dirname(os.path.dirname(os.path.abspath(os.path.expanduser(os.fspath(info)))))
        profiles, name = os.path.split(folder)
        if os.path.basename(profiles) == "profiles":
            return name
    return "default"


def far_cluster(url: str) -> FarCluster:
    """The cluster that an ``ssh://`` URL names. Raises ValueError."""
    tunnels = importlib.import_module("broadleaf.cluster.hosts.tunnel")
    far: FarCluster = tunnels.parse(url)
    return far


def tunnel_to(
    info: str | os.PathLike[str] | dict[str, Any] | None,
    profile: str | None,
    cluster_id: str,
    server: str | None,
    key: str | None,
    ssh_args: Sequence[str],
    timeout_s: float,
) -> Tunnel | None:
    """The login through which a client reaches its cluster; None if it needs none.

    Raises `ClusterConnectionError`, ValueError if this names no host, and TypeError if two hosts are named.
    """
    url = info if isinstance(info, str) and info.startswith(SSH_SCHEME) else ""
    if not (url or server):
        if key or ssh_args:
            raise TypeError("sshkey and ssh_args are for Client('ssh://...') and Client(sshserver=...)")
        return None
    if url and server:
        raise TypeError(f"{url!r} names one host to log in to, and sshserver={server!r} another: give only one of them")
    far = far_cluster(url or SSH_SCHEME + (server or "").removeprefix(SSH_SCHEME))
    if profile is not None or cluster_id:
        far = replace(far, profile=profile or far.profile, cluster_id=cluster_id or far.cluster_id)
    connection = None if url or info is None else json.loads(connection_text(info, profile, cluster_id))
    tunnels = importlib.import_module("broadleaf.cluster.hosts.tunnel")
    tunnel: Tunnel = tunnels.Tunnel(far, timeout_s, key=key or "", ssh_args=ssh_args, connection=connection)
    return tunnel


def connection_text(info: str | os.PathLike[str] | dict[str, Any] | None, profile: str | None, cluster_id: str) -> str:
    """The JSON text of a connection file."""
    if isinstance(info, dict):
        return json.dumps(info)
    if info is None and profile is None and not cluster_id and is_engine():
        return client_connection()
    if info is None and profile is None and not cluster_id:
        info = os.environ.get("BROADLEAF_CONNECTION") or None  # of the cluster of `broadleaf run`
    if info is None:
        files = importlib.import_module("broadleaf.state.files")
        info = files.find_connection_file(profile or "default", cluster_id or None)
    path = os.path.expanduser(os.fspath(info))  # type: ignore[arg-type]
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        raise ClusterConnectionError(
            f"connection file {path} cannot be read ({error.strerror}). Client() finds a cluster that "
            "runs on this host, and Client(profile=NAME, cluster_id=ID) one of that name; `broadleaf list` shows them"
        ) from error
