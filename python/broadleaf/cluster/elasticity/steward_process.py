"""A steward in a separate process: it keeps a detached cluster at the wanted size when no client is left."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from broadleaf.cluster.elasticity.scaling import Aim
from broadleaf.errors import ClusterStartError
from broadleaf.private_files import open_private
from broadleaf.serialize.search_path import search_path
from broadleaf.state import files
from broadleaf.state.directories import ClusterFileError, read_json, write_json

if TYPE_CHECKING:
    from broadleaf.cluster.cluster import Cluster

_BOOT = (
    "import sys; sys.path[:] = sys.argv.pop().split('\\n'); "
    "from broadleaf.cluster.elasticity.run_steward import main; main()"
)
_STOP_GRACE_S = 15.0
_LOOK_EVERY_S = 0.02


class StewardProcess:
    """The steward of a detached cluster, as other processes see it. There is at most one, whoever started it."""

    def __init__(self, cluster_dir: Path) -> None:
        self._lock = cluster_dir / files.STEWARD_LOCK
        self._state = cluster_dir / files.STEWARD_FILE
        self._log = cluster_dir / files.STEWARD_LOG

    def start(self, cluster: Cluster, aim: Aim, *, one_at_a_time: bool, within_s: float | None) -> None:
        """Starts it. It ends with its cluster, or with `stop`. Raises `ClusterStartError` with the end of its log."""
        import subprocess

        order = {"aim": aim._asdict(), "one_at_a_time": one_at_a_time, "within_s": within_s}
        log = files.open_log(self._log)
        try:
            child = subprocess.Popen(
                [sys.executable, "-P", "-c", _BOOT, cluster.cluster_file, "\n".join(search_path())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=os.environ | {"BROADLEAF_CLUSTER_ID": cluster.cluster_id},
                start_new_session=True,  # it is not for the terminal's Ctrl-C
            )
        finally:
            os.close(log)
        if child.stdin is None or child.stdout is None:
            raise AssertionError("invariant: both are pipes")
        with child.stdin, child.stdout:
            try:
                child.stdin.write(json.dumps(order).encode())
                child.stdin.close()
            except BrokenPipeError:
                pass  # it died without a message
            is_ready = child.stdout.readline() == b"ready\n"
        if not is_ready:
            child.wait()
            said = self._log.read_text(errors="replace").strip()
            raise ClusterStartError("the steward, which scales the cluster, did not start", said)
        child.returncode = 0  # it continues without this process

    @property
    def is_running(self) -> bool:
        """Whether the cluster has one."""
        return self._pid() is not None

    @property
    def why_paused(self) -> str:
        """Why no more blocks are requested; '' if they are."""
        if not self.is_running:
            return ""
        try:
            return str(read_json(self._state)["why_paused"])
        except (ClusterFileError, KeyError):
            return ""  # it has only just begun

    def stop(self) -> None:
        """Ends it, and returns when it is gone. Does nothing if there is none."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            give_up_at = time.monotonic() + _STOP_GRACE_S
            if (pid := self._pid()) is None:
                return
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
            while self._pid() == pid and time.monotonic() < give_up_at:
                time.sleep(_LOOK_EVERY_S)

    def _pid(self) -> int | None:
        """Its process: the one that holds the lock."""
        try:
            descriptor = os.open(self._lock, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None
        except BlockingIOError:
            text = os.pread(descriptor, 32, 0).strip()
            return int(text) if text.isdigit() else None
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """In the steward's process: makes it the cluster's steward. Raises BlockingIOError if there is another."""
        descriptor = open_private(self._lock, os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
            yield
        finally:
            os.close(descriptor)

    def tell(self, why_paused: str) -> None:
        """In the steward's process: publishes its state for other processes."""
        write_json(self._state, {"why_paused": why_paused})
