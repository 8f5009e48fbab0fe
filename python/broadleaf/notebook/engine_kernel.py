"""A Jupyter kernel that runs code on one engine. Started by `bind_kernel` on that engine."""

from __future__ import annotations

import json
import os
import platform
import sys
from importlib.metadata import version
from typing import Any

from ipykernel.kernelapp import IPKernelApp  # pyright: ignore[reportMissingImports]
from ipykernel.kernelbase import Kernel  # pyright: ignore[reportMissingImports]

from broadleaf.client.client import Client
from broadleaf.errors import BroadleafError, RemoteError

# Time between two checks of the engine's output.
_TICK_S = 0.05
_COMPLETION_TIMEOUT_S = 1.0


class _EngineKernel(Kernel):
    """Sends code to an engine as `execute` does, and the engine's output to the console that asked."""

    implementation = "broadleaf"
    implementation_version = version("broadleaf")
    language_info = {  # noqa: RUF012 - a trait
        "name": "python",
        "version": platform.python_version(),
        "mimetype": "text/x-python",
        "file_extension": ".py",
        "pygments_lexer": "ipython3",
    }
    view: Any = None

    @property
    def banner(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The text that a console shows when it starts."""
        return f"Engine {self.view.targets} of a Broadleaf cluster"

    def do_execute(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, code: str, silent: bool, store_history: bool = True, *_: Any, **__: Any
    ) -> dict[str, Any]:
        """Runs code on the engine."""
        result = self.view.execute(code, silent=silent, block=False)
        sent = {"stdout": 0, "stderr": 0, "outputs": 0}
        try:
            while not result.wait(_TICK_S):
                self._send_new(result, sent)
        except KeyboardInterrupt:
            result.wait(1.0)
        self._send_new(result, sent)
        try:
            reply = result.get(0)
        except Exception as error:
            return self._send_error(error)
        self.execution_count = reply.execution_count
        if reply.data and not silent:
            shown = reply.execute_result
            content = {"execution_count": reply.execution_count, "data": shown["data"], "metadata": shown["metadata"]}
            self.send_response(self.iopub_socket, "execute_result", content)
        return {"status": "ok", "execution_count": reply.execution_count, "payload": [], "user_expressions": {}}

    def _send_new(self, result: Any, sent: dict[str, int]) -> None:
        for name in ("stdout", "stderr"):
            text = getattr(result, name)
            if len(text) > sent[name]:
                self.send_response(self.iopub_socket, "stream", {"name": name, "text": text[sent[name] :]})
                sent[name] = len(text)
        for output in result.outputs[sent["outputs"] :]:
            self.send_response(self.iopub_socket, "display_data", {**output, "transient": {}})
            sent["outputs"] += 1

    def _send_error(self, error: Exception) -> dict[str, Any]:
        if isinstance(error, RemoteError):
            content = {"ename": error.ename, "evalue": str(error.evalue), "traceback": error.render_traceback()}
        else:
            content = {"ename": type(error).__name__, "evalue": str(error), "traceback": [str(error)]}
        self.send_response(self.iopub_socket, "error", content)
        return {"status": "error", "execution_count": self.execution_count, **content}

    def do_complete(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, code: str, cursor_pos: int
    ) -> dict[str, Any]:
        """Completes the engine's names, unless it is busy."""
        try:
            matches, start = self.view.complete(code, cursor_pos, timeout=_COMPLETION_TIMEOUT_S)
        except (TimeoutError, BroadleafError):
            matches, start = [], cursor_pos
        return {
            "status": "ok", "matches": matches, "cursor_start": start, "cursor_end": cursor_pos, "metadata": {},
        }  # fmt: skip


def main() -> None:
    """Connects to the cluster that standard input names, and serves consoles."""
    setup = json.load(sys.stdin)
    client = Client(json.loads(setup["connection"]), name=f"kernel of engine {setup['engine_id']}")
    client.wait_for_engines(setup["engine_id"] + 1, timeout=10)
    _EngineKernel.view = client[setup["engine_id"]]
    app = IPKernelApp.instance(kernel_class=_EngineKernel)
    app.connection_file = f"kernel-broadleaf-{os.getpid()}.json"
    app.initialize([])
    sys.__stdout__.write(f"broadleaf kernel: {app.abs_connection_file}\n")  # type: ignore[union-attr]
    sys.__stdout__.flush()  # type: ignore[union-attr]
    app.start()


if __name__ == "__main__":
    main()
