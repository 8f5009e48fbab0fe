"""Options that several commands of the laboratory share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from broadleaf.lab.execute import Quiet
    from broadleaf.lab.study import Study

_Command = TypeVar("_Command", bound=Callable[..., Any])

COULD_NOT_RUN = 3
"""Exit code of compare and gate where there is nothing to judge."""


class StudyPath(click.ParamType):
    """A study file, or the directory that has one."""

    name = "study"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Study:
        from broadleaf.lab.errors import LabError
        from broadleaf.lab.study import Study

        if isinstance(value, Study):
            return value
        try:
            return Study.load(Path(value))
        except LabError as error:
            self.fail(str(error), param, ctx)


class Duration(click.ParamType):
    """Seconds, from `90`, `90s`, `60m` or `2h`."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        from broadleaf.lab.errors import StudyFileError
        from broadleaf.lab.study_file import parse_duration_s

        try:
            return parse_duration_s(value, param.opts[0] if param is not None else "duration")
        except StudyFileError as error:
            self.fail(error.problem, param, ctx)


def study_argument(command: _Command) -> _Command:
    """The study, where it is the command's only subject."""
    return click.argument("study", type=StudyPath(), default=".", metavar="[STUDY]")(command)


def study_option(command: _Command) -> _Command:
    """The study, where the command has other arguments."""
    return click.option("--study", "-s", type=StudyPath(), default=".", show_default=True,
                        help="Study file, or the directory that has one.")(command)  # fmt: skip


def quiet_options(command: _Command) -> _Command:
    """How long to wait for the machine to be quiet before each run."""
    command = click.option("--max-wait", "max_wait_s", type=float, default=20.0, show_default=True,
                           help="Longest wait for a quiet machine before a run, in seconds; then the run is made and "
                           "flagged.")(command)  # fmt: skip
    return click.option("--max-busy", "max_busy_cores", type=float, default=0.5, show_default=True,
                        help="Cores that others may keep busy.")(command)  # fmt: skip


def quiet(max_busy_cores: float, max_wait_s: float) -> Quiet:
    """The two options together."""
    from broadleaf.lab.execute import Quiet

    return Quiet(max_busy_cores, max_wait_s)
