"""How functions, arguments, results and exceptions become bytes and come back."""

from typing import TYPE_CHECKING, Any

PROTOCOL = 5
"""Of pickle: the first with buffers out of band."""

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        from broadleaf.old_names import find_attribute

        return find_attribute("broadleaf.serialize", name)
