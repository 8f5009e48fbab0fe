"""Publishing data from a running task, by the name IPython Parallel gives it."""

from __future__ import annotations

from broadleaf.engine.output.publish import publish_data

__all__ = ["publish_data"]
