"""The client: views, results, maps."""

from typing import TYPE_CHECKING, Any

from broadleaf.client.client import Client

__all__ = ["Client"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        from broadleaf.old_names import find_attribute

        return find_attribute("broadleaf.client", name)
