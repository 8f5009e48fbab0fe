"""An engine's IPython shell. Imported when the first cell needs it."""

from __future__ import annotations

import builtins
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.interactiveshell import ExecutionInfo, ExecutionResult, InteractiveShell
from IPython.core.page import as_hook, display_page
from traitlets import Type
from traitlets.config import Config

from broadleaf.engine import bound_kernel, output


class _EnginePublisher(DisplayPublisher):
    """Sends what is displayed to the client of the running task."""

    def publish(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, data: dict[str, Any], metadata: dict[str, Any] | None = None, *_: Any, **options: Any
    ) -> None:
        output.publish_display_data(data, metadata, **options)

    def clear_output(self, wait: bool = False) -> None:
        """Does nothing: what a task has shown belongs to its client."""


class _QuietDisplayHook(DisplayHook):
    """Keeps no values: `Out` would hold everything that was ever shown."""

    shell: Any

    def update_user_ns(self, result: Any) -> None:
        self.shell.user_ns["_"] = result


def _connect_info(_line: str) -> None:
    """Shows how a console of Jupyter connects to this engine."""
    print(bound_kernel.connect_info())


class EngineShell(InteractiveShell):
    """IPython on an engine: magics, shell commands, help and completion on the engine's namespace.

    It does not run cells itself. `broadleaf.engine.operations.execute` does, after this shell has transformed them.
    """

    display_pub_class: Any = Type(_EnginePublisher)
    displayhook_class: Any = Type(_QuietDisplayHook)

    @classmethod
    def existing(cls) -> EngineShell | None:
        """The shell, if there is one."""
        shell = cls._instance
        return shell if isinstance(shell, cls) else None

    @classmethod
    def make(cls, module: ModuleType) -> EngineShell:
        """Makes the shell on a module's variables."""
        config = Config()
        config.HistoryManager.enabled = False
        config.HistoryManager.hist_file = ":memory:"
        config.InteractiveShell.colors = "nocolor"
        config.InteractiveShell.autocall = 0
        config.IPCompleter.use_jedi = False
        shell: EngineShell = cls.instance(config=config, user_module=module, user_ns=module.__dict__)
        shell.set_hook("show_in_pager", as_hook(display_page), 90)
        shell.magics_manager.register_function(_connect_info, "line", "connect_info")
        output.use_formatter(shell.display_formatter)
        # IPython has installed its own.
        builtins.display = output.display  # type: ignore[attr-defined]
        return shell

    def init_virtualenv(self) -> None:
        """An engine runs in the environment that it was started in."""

    def init_user_ns(self) -> None:
        """Adds what magics look for. `In` and `Out` are not among them, and `exit` is Python's own."""
        hidden = {"_ih": [""], "_oh": {}, "_dh": [os.getcwd()]}
        for name, value in hidden.items():
            self.user_ns.setdefault(name, value)
        self.user_ns_hidden.update(dict.fromkeys([*hidden, "_", "engine_id", "cluster_id"]))

    def enable_gui(self, gui: Any = None) -> None:
        """Does nothing: an engine has no screen. Figures are shown by `%matplotlib inline`."""

    def system(self, cmd: str) -> None:
        """Runs a shell command; its output is the task's, as it arrives."""
        command = self.var_expand(cmd, depth=1)
        code = subprocess.call(command, shell=True, executable=os.environ.get("SHELL", "/bin/sh"))
        self.user_ns["_exit_code"] = code

    system_piped = system
    system_raw = system

    @contextmanager
    def events_around(self, source: str, silent: bool, execution_count: int) -> Iterator[None]:
        """Notifies registered callbacks that a cell begins and ends. Figures are shown at its end."""
        self.execution_count = execution_count
        info = ExecutionInfo(source, False, silent, True, None)
        self.events.trigger("pre_execute")
        self.events.trigger("pre_run_cell", info)
        try:
            yield
        finally:
            # Matplotlib may use the first to register for the second, which shows the cell's figures.
            self.events.trigger("post_run_cell", ExecutionResult(info))
            self.events.trigger("post_execute")

    def complete_at(self, text: str, position: int) -> tuple[list[str], int]:
        """Completions at `position` of `text`, and where the replaced text begins."""
        line_start = text.rfind("\n", 0, position) + 1
        line = text[line_start:].partition("\n")[0]
        matched, matches = self.complete(None, line, position - line_start)
        return list(matches), position - len(matched)
