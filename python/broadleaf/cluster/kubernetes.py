"""Clusters in Kubernetes: the objects to create, and what runs in their pods."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from broadleaf.cluster.cluster import Cluster
from broadleaf.cluster.credentials import Credentials
from broadleaf.cluster.relay import Relay
from broadleaf.cluster.session import session_environment
from broadleaf.config import Settings
from broadleaf.errors import ClusterStartError
from broadleaf.state.directories import ClusterFileError

# The Kubernetes objects: two secrets, a service, and one job each for the controller and the engines.


PORT = 4242
MOUNT = "/etc/broadleaf"
KEYS_FILE, ENGINE_FILE = "keys.json", "engine.json"
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,40}[a-z0-9])?")
# How often an index is tried again: a node may be drained, and an image may take its time.
_RETRIES = 6
_SECRET_MODE = 0o400
_GRACE_S = 30


@dataclass(frozen=True, kw_only=True)
class Pods:
    """A cluster to be created in Kubernetes.

    `name` names its objects, and the cluster. There are `n` engines, `engines_per_pod` in each pod, which runs the
    `image`; that must contain this version of Broadleaf and this minor version of Python. `cpus` and `memory` are what
    each pod of engines requests, as Kubernetes writes it.
    """

    n: int
    image: str
    name: str = "broadleaf"
    namespace: str = ""
    engines_per_pod: int = 1
    cpus: str = ""
    memory: str = ""
    python: str = "python3"
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the cluster, as `Cluster` takes them."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                f"name {self.name!r}: use up to 42 lower-case letters, digits and '-', starting with a letter"
            )
        if self.n < 1 or self.engines_per_pod < 1:
            raise ValueError("n and engines_per_pod must be at least 1")

    @property
    def n_pods(self) -> int:
        """Number of pods with engines."""
        return -(-self.n // self.engines_per_pod)

    def objects(self, credentials: Credentials, settings: Settings) -> list[dict[str, Any]]:
        """The objects, in the order in which to create them. Only the secrets contain keys."""
        host = f"{self.name}.{self.namespace}" if self.namespace else self.name
        engine_env = session_environment()
        engine = pods_connection(credentials, settings, "engine", host, engine_env)
        own = {"cluster_id": self.name, "keys": credentials.keys, "options": dict(self.options),
               "engine_env": engine_env}  # fmt: skip
        return [
            self._secret("controller", KEYS_FILE, own),
            self._secret("engines", ENGINE_FILE, engine),
            self._object("v1", "Service", self.name, {
                "selector": self._labels("controller"),
                "ports": [{"name": "broadleaf", "port": PORT, "targetPort": PORT, "protocol": "TCP"}],
            }),
            self._job("controller", ["controller"], 1, {}),
            self._job("engines", ["engines", "-n", str(self.engines_per_pod)], self.n_pods, self._resources()),
        ]  # fmt: skip

    def _labels(self, part: str) -> dict[str, str]:
        return {"app.kubernetes.io/name": "broadleaf", "app.kubernetes.io/instance": self.name,
                "app.kubernetes.io/component": part}  # fmt: skip

    def _object(self, version: str, kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
        labels = {"app.kubernetes.io/name": "broadleaf", "app.kubernetes.io/instance": self.name}
        metadata = {"name": name, "labels": labels} | ({"namespace": self.namespace} if self.namespace else {})
        return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}

    def _secret(self, part: str, file: str, content: Mapping[str, Any]) -> dict[str, Any]:
        found = self._object("v1", "Secret", f"{self.name}-{part}", {})
        del found["spec"]
        text = base64.b64encode(json.dumps(content).encode()).decode()
        return found | {"type": "Opaque", "data": {file: text}}

    def _resources(self) -> dict[str, str]:
        asked = {"cpu": self.cpus, "memory": self.memory}
        return {name: value for name, value in asked.items() if value}

    def _job(self, part: str, arguments: Sequence[str], n: int, resources: dict[str, str]) -> dict[str, Any]:
        container: dict[str, Any] = {
            "name": part,
            "image": self.image,
            "command": [self.python, "-m", "broadleaf.cluster.kubernetes", *arguments],
            "volumeMounts": [{"name": "keys", "mountPath": MOUNT, "readOnly": True}],
        }
        if part == "controller":
            container["ports"] = [{"name": "broadleaf", "containerPort": PORT}]
        if resources:
            container["resources"] = {"requests": resources, "limits": resources}
        secret = {"secretName": f"{self.name}-{part}", "defaultMode": _SECRET_MODE}
        pod = {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": _GRACE_S,
            "automountServiceAccountToken": False,
            "containers": [container],
            "volumes": [{"name": "keys", "secret": secret}],
        }
        spec = {
            "completionMode": "Indexed",
            "completions": n,
            "parallelism": n,
            "backoffLimitPerIndex": _RETRIES,
            "template": {"metadata": {"labels": self._labels(part)}, "spec": pod},
        }
        return self._object("batch/v1", "Job", f"{self.name}-{part}", spec)


def pods_connection(
    credentials: Credentials, settings: Settings, role: str, host: str, engine_env: Mapping[str, str]
) -> dict[str, Any]:
    """The content of a connection file for this role, 'client' or 'engine', with the controller at `host`."""
    nowhere: dict[str, Any] = {"search_path": [], "directory": None}
    return credentials.connection_at(role, settings, host, PORT, engine_env) | nowhere


def yaml(objects: Sequence[Mapping[str, Any]]) -> str:
    """Objects as YAML documents."""
    return "".join("---\n" + "\n".join(_lines(one)) + "\n" for one in objects)


def _lines(value: Any) -> list[str]:
    """A mapping or a list in YAML's block style; its scalars are JSON's, which are valid YAML."""
    found = []
    entries = value.items() if isinstance(value, Mapping) else ((None, one) for one in value)
    for name, one in entries:
        head = "-" if name is None else f"{name}:"
        if isinstance(one, Mapping | list) and one:
            inner = _lines(one)
            if name is None:
                found += [f"- {inner[0]}", *(f"  {line}" for line in inner[1:])]
            else:
                found += [head, *(f"  {line}" for line in inner)]
        else:
            found.append(f"{head} {json.dumps(one)}")
    return found


# What runs in a pod: ``python -m broadleaf.cluster.kubernetes controller``, or ``engines -n N``.
#
# Keys are only in files that Kubernetes mounts.


# Where a test mounts them.
_MOUNT_VARIABLE = "BROADLEAF_POD_MOUNT"
_AGAIN_AFTER_S = 1.0


def main(arguments: list[str] | None = None) -> None:
    """Runs a pod's part until its cluster stops, or it is told to end."""
    words = sys.argv[1:] if arguments is None else arguments
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _interrupt)
    try:
        if words == ["controller"]:
            _controller()
        elif words[:2] == ["engines", "-n"] and len(words) == 3 and words[2].isdigit():
            sys.exit(_engines(int(words[2])))
        else:
            sys.exit("usage: python -m broadleaf.cluster.kubernetes controller | engines -n N")
    except (ClusterStartError, ClusterFileError, OSError, ValueError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
    except KeyboardInterrupt:
        sys.exit(0)


def _mounted(name: str) -> Path:
    return Path(os.environ.get(_MOUNT_VARIABLE, MOUNT)) / name


def _controller() -> None:
    content: dict[str, Any] = json.loads(_mounted(KEYS_FILE).read_text())
    options = content["options"] | {"listen": f"0.0.0.0:{PORT}"}
    cluster = Cluster(0, cluster_id=content["cluster_id"], engines="local", env=content["engine_env"], **options)
    cluster.credentials = Credentials(content["cluster_id"], content["keys"])
    try:
        cluster.start_cluster_sync()
        print(f"broadleaf: cluster {cluster.cluster_id!r} listens on port {PORT}", flush=True)
        cluster.wait_stopped()
    finally:
        cluster.stop_cluster_sync()


def _engines(n: int) -> int:
    relay = _relay(n)
    print(f"broadleaf: host {relay.name} has joined with {relay.n} engines", flush=True)
    try:
        return relay.wait() or 0
    finally:
        relay.stop()


def _relay(n: int) -> Relay:
    """A relay of this pod, once the controller listens. Raises `ClusterStartError`."""
    file = _mounted(ENGINE_FILE)
    timeout_s = json.loads(file.read_text())["options"]["start_timeout_s"]
    give_up_at = time.monotonic() + timeout_s
    while True:
        try:
            return Relay(file, n)
        except ClusterStartError:
            if time.monotonic() > give_up_at:
                raise
        time.sleep(_AGAIN_AFTER_S)


def _interrupt(_signal_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
