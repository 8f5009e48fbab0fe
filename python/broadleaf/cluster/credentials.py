"""A cluster's keys, and the connection files that hold them."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broadleaf import _native
from broadleaf.cluster import addresses
from broadleaf.serialize.search_path import search_path, working_directory
from broadleaf.state import files
from broadleaf.state.directories import write_json
from broadleaf.text import os_text_to_json

if TYPE_CHECKING:
    from broadleaf.config import Settings


def python_version() -> str:
    """`major.minor`, which must be the same everywhere."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


class Credentials:
    """The three key pairs of a cluster: the node's, the clients' and the engines'."""

    def __init__(self, cluster_id: str, keys: Mapping[str, Mapping[str, str]]) -> None:
        self.cluster_id = cluster_id
        self.keys = keys

    @classmethod
    def generate(cls, cluster_id: str) -> Credentials:
        """Fresh ones."""
        return cls(cluster_id, json.loads(_native.generate_keys()))

    @classmethod
    def derive(cls, secret: str, cluster_id: str) -> Credentials:
        """Those of the cluster with this id that follow from a secret."""
        return cls(cluster_id, json.loads(_native.derive_keys(secret.encode(), cluster_id)))

    def connection(self, role: str, settings: Settings, *, unix_path: str) -> dict[str, Any]:
        """The content of a connection file for this role, 'client' or 'engine', before the controller listens."""
        directory = working_directory()
        return {
            "cluster_id": self.cluster_id,
            "unix_path": unix_path,
            "tcp": None,
            "tls": settings["tls"],
            "role": role,
            "server_public_key": self.keys["server"]["public"],
            "private_key": self.keys[role]["private"],
            "broadleaf": _native.__version__,
            "python": python_version(),
            "pid": 0,
            "search_path": [os_text_to_json(entry) for entry in search_path()],
            "directory": None if directory is None else os_text_to_json(directory),
            "options": settings.to_native() | {"preload": preload_modules(settings["preload"])},
        }

    def connection_at(
        self, role: str, settings: Settings, host: str, port: int, engine_env: Mapping[str, str]
    ) -> dict[str, Any]:
        """The content of a connection file for this role, for a controller that will listen on this TCP port."""
        known = {"unix_path": None, "tcp": {"host": host, "port": port}, "addresses": [host]}
        return self.connection(role, settings, unix_path="") | known | _for_engines(role, engine_env)

    def write(
        self,
        directory: Path,
        settings: Settings,
        *,
        unix_path: str,
        pid: int,
        tcp_port: int | None,
        engine_env: Mapping[str, str],
    ) -> None:
        """Writes both connection files of a controller that listens. Relays also set `engine_env` in their engines."""
        tcp = listen_address(settings)
        known: dict[str, Any] = {"pid": pid}
        if tcp is not None and tcp_port is not None:
            known["tcp"] = {"host": addresses.to_dial(tcp["host"]), "port": tcp_port}
            known["addresses"] = addresses.all_to_dial(tcp["host"])
        for role, name in (("engine", files.ENGINE_FILE), ("client", files.CLIENT_FILE)):
            connection = self.connection(role, settings, unix_path=unix_path) | known | _for_engines(role, engine_env)
            write_json(directory / name, connection)


def _for_engines(role: str, engine_env: Mapping[str, str]) -> dict[str, Any]:
    variables = {os_text_to_json(name): os_text_to_json(value) for name, value in engine_env.items()}
    return {"engine_env": variables} if role == "engine" else {}


def listen_address(settings: Settings) -> dict[str, Any] | None:
    """Where the controller listens for TCP, in the form its node takes; None for nowhere."""
    if not settings["listen"]:
        return None
    host, _, port = settings["listen"].rpartition(":")
    return {"host": addresses.to_listen(host.strip("[]")), "port": int(port), "tls": settings["tls"]}


def preload_modules(option: Sequence[str]) -> list[str]:
    """The modules that the `preload` option names, with `auto` resolved for this process."""
    modules = [name for name in option if name != "auto"]
    if "auto" in option:
        if "numpy" in sys.modules:
            modules.append("numpy")
        ipython = sys.modules.get("IPython")
        if ipython is not None and ipython.get_ipython() is not None:
            modules.append("IPython")
    return list(dict.fromkeys(modules))
