"""What an expression's value looks like to whoever asked for it."""

import builtins
import sys
from typing import Any, TypedDict


class Bundle(TypedDict):
    """Representations of one value by MIME type, as Jupyter has them."""

    data: dict[str, Any]
    metadata: dict[str, Any]


_formatter: Any = None


def representations(value: Any) -> Bundle:
    """The value's representations: IPython's if IPython is loaded here, else its `repr` alone."""
    global _formatter
    if "IPython" in sys.modules:
        if _formatter is None:
            from IPython.core.formatters import DisplayFormatter  # pyright: ignore[reportMissingImports]

            _formatter = DisplayFormatter()
        data, metadata = _formatter.format(value)
        if data:
            return {"data": data, "metadata": metadata}
    return {"data": {"text/plain": repr(value)}, "metadata": {}}


class DisplayHook:
    """A `sys.displayhook` that keeps the last value's representations for the reply of `execute`."""

    def __init__(self) -> None:
        self._last: Bundle | None = None

    def __call__(self, value: Any) -> None:
        if value is not None:
            self._last = representations(value)
            builtins._ = value  # type: ignore[attr-defined]

    def take(self) -> Bundle | None:
        """The representations since the last call, or None when no value was shown."""
        last, self._last = self._last, None
        return last
