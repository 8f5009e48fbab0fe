"""Tasks that run for as long as a test wants them to."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from waiting import until


class Gate:
    """A gate that tasks wait at until the test opens it. `directory` is the gate's own."""

    def __init__(self, directory: Path) -> None:
        self._marks = directory / "waiting"
        self._marks.mkdir(parents=True)
        self._opened = directory / "opened"

    def open(self) -> None:
        """Lets all tasks go on, those too that come later."""
        self._opened.touch()

    def n_waiting(self) -> int:
        """Number of tasks that have come to the gate so far."""
        return len(list(self._marks.iterdir()))

    def wait_for_tasks(self, n: int = 1) -> None:
        """Waits until `n` tasks have come to the gate."""
        assert until(lambda: self.n_waiting() >= n), f"{self.n_waiting()} of {n} tasks have come to the gate"

    def task(self) -> Callable[..., Any]:
        """A function that waits at the gate and returns its first argument. It is sent by value."""
        opened, marks = str(self._opened), str(self._marks)

        def held(value: Any = None) -> Any:
            import os
            import tempfile
            import time

            os.close(tempfile.mkstemp(dir=marks)[0])
            while not os.path.exists(opened):
                time.sleep(0.002)
            return value

        return held

    def task_for(self, *values: Any) -> Callable[..., Any]:
        """A function that returns its argument, and waits at the gate before if that is one of `values`."""
        held = self.task()
        return lambda value: held(value) if value in values else value
