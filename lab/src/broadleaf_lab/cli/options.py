"""What the laboratory's commands share: naming a study, and reading it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from broadleaf_lab.study import Study

_Command = TypeVar("_Command", bound=Callable[..., Any])


def study_argument(command: _Command) -> _Command:
    """The argument that names a study: its directory or its file."""
    return click.argument("study_path", metavar="[STUDY]", default=".", type=click.Path(exists=True, path_type=Path))(
        command
    )


def load_study(study_path: Path) -> Study:
    """The study of a directory or file."""
    from broadleaf_lab.study import Study

    return Study.load(study_path)
