"""What runs in a pod: ``python -m broadleaf.cluster.hosts.pods.run controller``, or ``engines -n N``.

Keys are only in files that Kubernetes mounts.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from broadleaf.cluster.cluster import Cluster
from broadleaf.cluster.credentials import Credentials
from broadleaf.cluster.hosts.pods.manifest import ENGINE_FILE, KEYS_FILE, MOUNT, PORT
from broadleaf.cluster.hosts.relay import Relay
from broadleaf.errors import ClusterStartError
from broadleaf.state.directories import ClusterFileError

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
            sys.exit("usage: python -m broadleaf.cluster.hosts.pods.run controller | engines -n N")
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
