"""Publishing data from a running task, under IPython Parallel's name for it."""

from __future__ import annotations

from broadleaf.engine.output import publish_data

__all__ = ["publish_data"]
