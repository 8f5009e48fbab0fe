"""Engines on the controller's own host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from broadleaf.cluster.engine_sets.base import Block, BlockRequest, EngineSet


@dataclass
class Local(EngineSet):
    """Engines on the controller's own host: its node starts them itself, so nothing is submitted."""

    name: ClassVar[str] = "local"
    is_adoptable: ClassVar[bool] = True
    is_remote: ClassVar[bool] = False

    def submit(self, request: BlockRequest) -> list[Block]:
        """No block: the engines are the controller's."""
        return []

    def poll(self, blocks: Sequence[Block]) -> None:
        """There are no blocks."""

    def cancel(self, blocks: Sequence[Block]) -> None:
        """There are no blocks."""

    def log(self, block: Block) -> str:
        """There are no blocks."""
        return ""

    def script(self, request: BlockRequest) -> str:
        """Says where the engines come from."""
        return f"# {'as many engines as cores' if request.n is None else f'{request.n} engines'}, by the controller"
