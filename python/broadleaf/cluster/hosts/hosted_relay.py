"""A relay inside a process that another system started and keeps using, such as a Dask worker."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Mapping
from typing import Any

from broadleaf.cluster.hosts.join import join
from broadleaf.cluster.hosts.relay import Relay
from broadleaf.errors import ClusterStartError

_RETRY_AFTER_S = 0.25
# Time on top of the cluster's timeout until the loss of a host with the same name has been noticed.
_NOTICED_S = 10.0
_TAKEN = "is connected already"


class Order(Mapping[str, Any]):
    """A relay's configuration (`EngineSet.join_order`). It holds a key and hides it from logs, which show arguments."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        self._content = dict(content)

    def __getitem__(self, name: str) -> Any:
        return self._content[name]

    def __iter__(self) -> Any:
        return iter(self._content)

    def __len__(self) -> int:
        return len(self._content)

    def __repr__(self) -> str:
        return f"<Order for a relay of cluster {self['connection']['cluster_id']!r}>"


class HostedRelay:
    """A relay that this process owns, until the relay ends, `stop` is called from another thread, or the process ends.

    If it replaces one that died, it waits until the cluster has noticed the death. Raises `ClusterStartError`.
    """

    def __init__(self, order: Mapping[str, Any]) -> None:
        self._stop_read, self._stop_write = os.pipe()
        try:
            self._relay = _joined(order)
        except BaseException:
            self._close()
            raise

    def wait(self) -> int | None:
        """Returns its exit code when it has ended; a relay that was stopped has none."""
        process = os.pidfd_open(self._relay.process.pid)
        try:
            ended, _, _ = select.select([process, self._stop_read], [], [])
        finally:
            os.close(process)
        code = self._relay.wait() if process in ended else None
        self._relay.stop()
        self._close()
        return code

    def stop(self) -> None:
        """Makes `wait` stop the relay and return."""
        with contextlib.suppress(OSError):  # it has returned
            os.write(self._stop_write, b"s")

    def _close(self) -> None:
        os.close(self._stop_read)
        os.close(self._stop_write)
        self._stop_read = self._stop_write = -1


def _joined(order: Mapping[str, Any]) -> Relay:
    give_up_at = time.monotonic() + order["connection"]["options"]["host_timeout_s"] + _NOTICED_S
    while True:
        try:
            return join(order)
        except ClusterStartError as error:
            if _TAKEN not in str(error) or time.monotonic() > give_up_at:
                raise
        time.sleep(_RETRY_AFTER_S)
