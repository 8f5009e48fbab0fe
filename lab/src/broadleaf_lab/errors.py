"""The errors of the laboratory. Every message says what is wrong, where, and what to do next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class LabError(Exception):
    """Base of the laboratory's errors."""


class StudyFileError(LabError):
    """A study file that cannot be used. `where` names the file and the key."""

    def __init__(self, where: str, problem: str, advice: str = "") -> None:
        super().__init__(where, problem, advice)
        self.where = where
        self.problem = problem
        self.advice = advice

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}" + (f" {self.advice}" if self.advice else "")


class ConstraintError(LabError):
    """Constraints that cannot be read, or that contradict each other. `names` are the constraints involved."""

    def __init__(self, message: str, names: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.names = names


class DesignError(LabError):
    """A design that cannot be built for this study."""


class RunError(LabError):
    """Runs that cannot be made or read."""


class AnalysisError(LabError):
    """An analysis that the data do not allow."""


class WriteError(LabError):
    """A file that cannot be written, because of a full disk or a read-only folder."""


@contextmanager
def writing(path: Path, advice: str = "") -> Iterator[None]:
    """Wraps code that writes `path`: system errors become a WriteError with `advice`."""
    try:
        yield
    except OSError as error:
        text = f"{path} cannot be written: {error.strerror or error}."
        raise WriteError(f"{text} {advice}" if advice else text) from error
