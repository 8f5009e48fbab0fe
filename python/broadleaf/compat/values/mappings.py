"""Dictionaries with additional features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Namespace(dict[str, Any]):
    """A dict whose keys are attributes too. Raises `NameError` for missing keys."""

    def __getattr__(self, key: str) -> Any:
        if key in self:
            return self[key]
        raise NameError(key)

    def __setattr__(self, key: str, value: Any) -> None:
        if hasattr(dict, key):
            raise KeyError(f"Cannot override dict keys {key!r}")
        self[key] = value


class ReverseDict(dict[Any, Any]):
    """A dict that also finds a key by its value."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._keys = {value: key for key, value in self.items()}

    def __getitem__(self, key: Any) -> Any:
        try:
            return super().__getitem__(key)
        except KeyError:
            return self._keys[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        if key in self._keys:
            raise KeyError(f"Can't have key {key!r} on both sides!")
        super().__setitem__(key, value)
        self._keys[value] = key

    def pop(self, key: Any) -> Any:  # type: ignore[override]
        """Removes a key and returns its value."""
        value = super().pop(key)
        self._keys.pop(value)
        return value

    def get(self, key: Any, default: Any = None) -> Any:
        """The value of a key, or the key of a value, or `default`."""
        try:
            return self[key]
        except KeyError:
            return default


def int_keys(mapping: Mapping[str, Any]) -> dict[Any, Any]:
    """A copy in which keys that are the text of a number become that number, as they were before JSON."""
    result: dict[Any, Any] = {}
    for key, value in mapping.items():
        number = int(key) if isinstance(key, str) and key.lstrip("-").isdigit() else key
        if number != key and number in mapping:
            raise KeyError(f"already have key {number!r}")
        result[number] = value
    return result
