"""How functions, arguments, results and exceptions become bytes and come back."""

from typing import TYPE_CHECKING, Any

PROTOCOL = 5
"""The pickle protocol: the first one with out-of-band buffers."""

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        from broadleaf.old_names import find_attribute

        return find_attribute("broadleaf.serialize", name)
