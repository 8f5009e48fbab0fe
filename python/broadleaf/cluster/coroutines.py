"""The methods of `Cluster` that take time, as coroutines."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from broadleaf.client.client import Client
    from broadleaf.cluster.control import Targets
    from broadleaf.cluster.engine_sets import Block


class ClusterCoroutines:
    """Each runs its twin ``<name>_sync`` on a thread of the event loop's executor."""

    _client: Client | None

    if TYPE_CHECKING:

        def start_cluster_sync(self, n: int | None = None) -> Self: ...
        def stop_cluster_sync(self) -> None: ...
        def start_controller_sync(self) -> None: ...
        def resume_controller_sync(self) -> Self: ...
        def stop_controller_sync(self) -> None: ...
        def start_engines_sync(self, n: int | None = None, engine_set_id: str | None = None) -> str: ...
        def stop_engines_sync(self, targets: Targets = None) -> None: ...
        def stop_engine_sync(self, engine_id: int) -> None: ...
        def restart_engines_sync(self, targets: Targets = None) -> None: ...
        def restart_engine_sync(self, engine_id: int) -> None: ...
        def signal_engines_sync(self, signum: int = signal.SIGINT, targets: Targets = None) -> None: ...
        def signal_engine_sync(self, signum: int, engine_id: int) -> None: ...
        def drain_sync(
            self, targets: Targets | Block = None, *, within_s: float | None = None, stateless: bool = False
        ) -> None: ...
        def scale_sync(self, n: int, *, stateless: bool = False, within_s: float | None = None) -> None: ...
        def adapt_sync(self, minimum: int, maximum: int, *, idle_s: float = 300.0, stateless: bool = False) -> None: ...
        def connect_client_sync(self, **options: Any) -> Client: ...
        def start_and_connect_sync(self, n: int | None = None, activate: bool | None = None) -> Client: ...
        def stop_if_owner(self) -> None: ...
        def stop_after(self, error: BaseException) -> None: ...

    async def __aenter__(self) -> Client:
        self._client = await self.start_and_connect()
        return self._client

    async def __aexit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if error is None:
            await _on_thread(self.stop_if_owner)
        else:
            await _on_thread(self.stop_after, error)

    async def start_cluster(self, n: int | None = None) -> Self:
        """`start_cluster_sync` as a coroutine."""
        await _on_thread(self.start_cluster_sync, n)
        return self

    async def resume_controller(self) -> Self:
        """`resume_controller_sync` as a coroutine."""
        await _on_thread(self.resume_controller_sync)
        return self

    async def stop_cluster(self) -> None:
        """`stop_cluster_sync` as a coroutine."""
        await _on_thread(self.stop_cluster_sync)

    async def stop_controller(self) -> None:
        """`stop_controller_sync` as a coroutine."""
        await _on_thread(self.stop_controller_sync)

    async def start_controller(self) -> None:
        """`start_controller_sync` as a coroutine."""
        await _on_thread(self.start_controller_sync)

    async def start_engines(self, n: int | None = None, engine_set_id: str | None = None) -> str:
        """`start_engines_sync` as a coroutine."""
        set_id: str = await _on_thread(self.start_engines_sync, n, engine_set_id)
        return set_id

    async def stop_engines(self, targets: Targets = None) -> None:
        """`stop_engines_sync` as a coroutine."""
        await _on_thread(self.stop_engines_sync, targets)

    async def stop_engine(self, engine_id: int) -> None:
        """`stop_engine_sync` as a coroutine."""
        await _on_thread(self.stop_engine_sync, engine_id)

    async def restart_engines(self, targets: Targets = None) -> None:
        """`restart_engines_sync` as a coroutine."""
        await _on_thread(self.restart_engines_sync, targets)

    async def restart_engine(self, engine_id: int) -> None:
        """`restart_engine_sync` as a coroutine."""
        await _on_thread(self.restart_engine_sync, engine_id)

    async def signal_engines(self, signum: int = signal.SIGINT, targets: Targets = None) -> None:
        """`signal_engines_sync` as a coroutine."""
        await _on_thread(self.signal_engines_sync, signum, targets)

    async def signal_engine(self, signum: int, engine_id: int) -> None:
        """`signal_engine_sync` as a coroutine."""
        await _on_thread(self.signal_engine_sync, signum, engine_id)

    async def drain(
        self, targets: Targets | Block = None, *, within_s: float | None = None, stateless: bool = False
    ) -> None:
        """`drain_sync` as a coroutine."""
        await _on_thread(lambda: self.drain_sync(targets, within_s=within_s, stateless=stateless))

    async def scale(self, n: int, *, stateless: bool = False, within_s: float | None = None) -> None:
        """`scale_sync` as a coroutine."""
        await _on_thread(lambda: self.scale_sync(n, stateless=stateless, within_s=within_s))

    async def adapt(self, minimum: int, maximum: int, *, idle_s: float = 300.0, stateless: bool = False) -> None:
        """`adapt_sync` as a coroutine."""
        await _on_thread(lambda: self.adapt_sync(minimum, maximum, idle_s=idle_s, stateless=stateless))

    async def connect_client(self, **options: Any) -> Client:
        """`connect_client_sync` as a coroutine."""
        client: Client = await _on_thread(lambda: self.connect_client_sync(**options))
        return client

    async def start_and_connect(self, n: int | None = None, activate: bool | None = None) -> Client:
        """`start_and_connect_sync` as a coroutine."""
        leaving = False if activate is False else None
        client: Client = await _on_thread(self.start_and_connect_sync, n, leaving)
        if activate:
            client.activate()
        return client


async def _on_thread(function: Any, *arguments: Any) -> Any:
    import asyncio

    return await asyncio.to_thread(function, *arguments)
