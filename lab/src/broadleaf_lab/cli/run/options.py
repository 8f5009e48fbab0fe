"""Options of the commands that measure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from broadleaf_lab.run.single import Quiet

_Command = TypeVar("_Command", bound=Callable[..., Any])


def seconds(ctx: click.Context, parameter: click.Parameter, text: str | None) -> float | None:
    """Callback of an option that is a duration such as `90`, `90s`, `60m` or `2h`."""
    from broadleaf_lab.errors import StudyFileError
    from broadleaf_lab.spec.file import parse_duration_s

    if text is None:
        return None
    try:
        return parse_duration_s(text, parameter.opts[0])
    except StudyFileError as error:
        raise click.BadParameter(str(error), ctx, parameter) from None


def study_option(command: _Command) -> _Command:
    """The study, if the command has other arguments."""
    return click.option("--study", "-s", "study_path", type=click.Path(exists=True, path_type=Path), default=".",
                        show_default=True, help="Study file, or the directory that contains it.")(command)  # fmt: skip


def quiet_options(command: _Command) -> _Command:
    """How long to wait for the machine to be quiet before each run."""
    command = click.option("--max-wait", "max_wait_s", type=float, default=20.0, show_default=True,
                           help="Maximum wait for a quiet machine before a run, in seconds; after that the run is "
                                "made and flagged.")(command)  # fmt: skip
    return click.option("--max-busy", "max_busy_cores", type=float, default=0.5, show_default=True,
                        help="Number of cores that other processes may keep busy.")(command)  # fmt: skip


def quiet(max_busy_cores: float, max_wait_s: float) -> Quiet:
    """The two options together."""
    from broadleaf_lab.run.single import Quiet

    return Quiet(max_busy_cores, max_wait_s)
