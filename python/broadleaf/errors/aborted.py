"""The one error that needs a slow import: every engine of an MPI world would wait for that at its start."""

from __future__ import annotations

from concurrent.futures import CancelledError

from broadleaf.errors import Verdict


class TaskAborted(Verdict, CancelledError):
    """The task was aborted."""

    __module__ = "broadleaf.errors"
