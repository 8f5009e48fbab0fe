"""The broadcast view: all of these engines at once, with a single reply if requested."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broadleaf.client.views.base import Flag
from broadleaf.client.views.direct import DirectView

if TYPE_CHECKING:
    from broadleaf.client.protocols import Client


class BroadcastView(DirectView):
    """A direct view whose replies can be coalesced: one message to all its engines, and one back.

    With `is_coalescing`, the replies to a call are collected on their way and arrive together, once the last engine has
    answered. That is the cheapest way for many engines and small values. Every error is kept. If an engine dies, the
    values of the others are kept too. Without it, each reply arrives as soon as it is available.

    Args:
        client: The client whose engines these are. `Client.broadcast_view` makes such views.
        targets: An engine's id, a list of ids, or 'all', which is looked up at each call.
        coalescing: Whether the replies to a call arrive together: the flag `is_coalescing`.
        **flags: Other flags by name: `block`, `mode`, `topology`, `label`.

    Example:
        >>> everyone = rc.broadcast_view(coalescing=True)
        >>> everyone.apply_sync(lambda: engine_id)
        [0, 1, 2, 3]
    """

    is_coalescing: Flag = Flag(False, "Whether the replies to a call arrive together.", bool)

    def __init__(self, client: Client, targets: Any = None, coalescing: bool | None = None, **flags: Any) -> None:
        if coalescing is not None:
            flags["is_coalescing"] = coalescing
        super().__init__(client, targets, **flags)

    def _described(self) -> str:
        return super()._described() + (", coalescing" if self.is_coalescing else "")

    def _coalesces(self) -> bool:
        return bool(self.is_coalescing)
