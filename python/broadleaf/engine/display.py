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
    if "IPython" in sys.modules:
        bundle = rich_representations(value)
        if bundle["data"]:
            return bundle
    return {"data": {"text/plain": repr(value)}, "metadata": {}}


def rich_representations(value: Any, include: Any = None, exclude: Any = None) -> Bundle:
    """IPython's representations of a value, none for one that shows itself; its `repr` where there is no IPython."""
    global _formatter
    if _formatter is None:
        try:
            from IPython.core.formatters import DisplayFormatter  # pyright: ignore[reportMissingImports]
        except ImportError:
            return {"data": {"text/plain": repr(value)}, "metadata": {}}
        _formatter = DisplayFormatter()
    data, metadata = _formatter.format(value, include=include, exclude=exclude)
    return {"data": data, "metadata": metadata}


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
