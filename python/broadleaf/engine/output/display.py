"""How the value of an expression is displayed to the client."""

import builtins
import sys
from typing import Any, TypedDict


class Bundle(TypedDict):
    """Representations of one value by MIME type, as Jupyter has them."""

    data: dict[str, Any]
    metadata: dict[str, Any]


_formatter: Any = None


# Types whose only representation is their `repr`.
_PLAIN_TYPES = frozenset((type(None), bool, int, float, complex, str, bytes))
_RICH_METHODS = (
    "_ipython_display_", "_repr_html_", "_repr_jpeg_", "_repr_json_", "_repr_latex_", "_repr_markdown_",
    "_repr_mimebundle_", "_repr_pdf_", "_repr_png_", "_repr_svg_",
)  # fmt: skip


def use_formatter(formatter: Any) -> None:
    """Makes IPython's representations with this formatter, that of a shell."""
    global _formatter
    _formatter = formatter


def representations(value: Any) -> Bundle:
    """The value's representations: IPython's if it has rich ones or IPython is loaded here, and otherwise only its
    `repr`."""
    if type(value) in _PLAIN_TYPES:
        return {"data": {"text/plain": repr(value)}, "metadata": {}}
    if "IPython" in sys.modules or any(hasattr(type(value), method) for method in _RICH_METHODS):
        bundle = rich_representations(value)
        if bundle["data"]:
            return bundle
    return {"data": {"text/plain": repr(value)}, "metadata": {}}


def rich_representations(value: Any, include: Any = None, exclude: Any = None) -> Bundle:
    """IPython's representations of a value, none if the value shows itself, and its `repr` if there is no IPython."""
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
