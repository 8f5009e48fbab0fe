"""The result of `view.execute`."""

from __future__ import annotations

from typing import Any

from broadleaf.client.display.output import show_bundle
from broadleaf.client.metadata import Metadata
from broadleaf.client.results.async_result import AsyncResult

_SHOWN_CHARACTERS = 32


class ExecuteReply:
    """One engine's answer to `execute`: the value of the last expression, output and displays.

    Everything known about the task is available by attribute or key, as for a result: `reply.stdout`,
    `reply["engine_id"]`.

    Args:
        content: What the engine returned.
        metadata: Everything known about the task.
    """

    def __init__(self, content: dict[str, Any], metadata: Metadata) -> None:
        self.metadata = metadata
        self.execution_count: int | None = content.get("execution_count")
        self.execute_result: dict[str, Any] | None = metadata["execute_result"]

    def __getattr__(self, key: str) -> Any:
        if key.startswith("_repr_") and key.endswith("_"):
            return self._mime_getter(key)
        try:
            return self.__dict__["metadata"][key]
        except KeyError:
            raise AttributeError(key) from None

    def __getitem__(self, key: str) -> Any:
        return self.metadata[key]

    @property
    def data(self) -> dict[str, Any]:
        """The last expression's value by MIME type."""
        data: dict[str, Any] = (self.execute_result or {}).get("data", {})
        return data

    @property
    def source(self) -> str:
        """The code that was run, if the engine reported it."""
        return str((self.execute_result or {}).get("source", ""))

    def _mime_getter(self, name: str) -> Any:
        mime = {
            "html": "text/html",
            "markdown": "text/markdown",
            "latex": "text/latex",
            "json": "application/json",
            "javascript": "application/javascript",
            "svg": "image/svg+xml",
            "png": "image/png",
            "jpeg": "image/jpeg",
            "pdf": "application/pdf",
        }.get(name[len("_repr_") : -1])
        if mime is None:
            raise AttributeError(name)
        return lambda: self._mime(mime)

    def _mime(self, mime: str) -> Any:
        if mime not in self.data:
            return None
        extra = (self.execute_result or {}).get("metadata", {})
        return (self.data[mime], extra[mime]) if mime in extra else self.data[mime]

    def _repr_mimebundle_(self, *_: Any, **__: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        data = dict(self.data)
        if "text/plain" in data:
            data["text/plain"] = self.plaintext()
        return data, (self.execute_result or {}).get("metadata", {})

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(self.plaintext())

    def plaintext(self) -> str:
        """The value as IPython shows it: `Out[engine:count]: value`.

        Returns:
            The text, empty without a value.
        """
        text = self.data.get("text/plain", "")
        if not text:
            return ""
        if "\n" in text and not text.startswith("\n"):
            text = "\n" + text
        return f"{self.label} {text}"

    @property
    def label(self) -> str:
        """The text before the value: `Out[engine:count]:`."""
        return f"Out[{self.metadata['engine_id']}:{self.execution_count}]:"

    def display(self) -> None:
        """Shows the value: rich inside IPython, as text elsewhere."""
        show_bundle(*self._repr_mimebundle_())

    def __repr__(self) -> str:
        text = self.data.get("text/plain", "")
        if len(text) > _SHOWN_CHARACTERS:
            text = text[: _SHOWN_CHARACTERS - 3] + "..."
        return f"<ExecuteReply[{self.execution_count}]: {text}>"


class AsyncExecuteResult(AsyncResult):
    """The result of `execute`: its values are `ExecuteReply`s."""

    def _part_value(self, part: int) -> ExecuteReply:
        content = self.value(part)
        replies = self.__dict__.setdefault("_replies", {})
        if part not in replies:
            replies[part] = ExecuteReply(content, self.part_metadata(part))
        return replies[part]  # type: ignore[no-any-return]

    def part_metadata(self, part: int) -> Metadata:
        """Everything known about one task."""
        metadata = super().part_metadata(part)
        code = getattr(self, "code", None)
        metadata["execute_input"] = code
        if metadata["status"] == "ok":
            metadata["execute_result"] = self.value(part).get("execute_result")
        return metadata
