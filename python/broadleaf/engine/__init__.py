"""The engine: a plain Python process with a namespace, run by the node through the fork server."""

from typing import TYPE_CHECKING, Any

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        from broadleaf.old_names import find_attribute

        return find_attribute("broadleaf.engine", name)
