"""The `broadleaf` command: one file per subcommand, each imported only when it is asked for."""

from __future__ import annotations

import sys
from typing import Any

import click

from broadleaf.cli.console import fail
from broadleaf.cli.lazy import LazyGroup

_COMMANDS = {
    "start": "Start a cluster.",
    "relay": "Add this host's engines to a cluster that runs elsewhere.",
    "stop": "Stop a cluster.",
    "list": "List running clusters.",
    "status": "Show counters of a cluster.",
    "top": "Watch a cluster.",
    "logs": "Show logs of a cluster.",
    "config": "Show options and where their values come from.",
    "plan": "Show what a broadcast costs, and the best tree for it.",
    "bench": "Measure, and compare with other libraries.",
    "lab": "Find out which setting makes a workload fast, and how sure that is.",
}


@click.group(
    cls=LazyGroup,
    texts=_COMMANDS,
    package="broadleaf.cli",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="broadleaf", prog_name="broadleaf")
def group() -> None:
    """Interactive parallel computing for Python.

    Exit codes: 0 done; 1 could not be done, the message says why; 2 a wrong option or argument.
    """


def main(arguments: list[str] | None = None) -> Any:
    """Entry point of the console script."""
    from broadleaf.config import ConfigError
    from broadleaf.errors import IPythonError

    try:
        return group.main(arguments, prog_name="broadleaf", standalone_mode=True)
    except (IPythonError, ConfigError, TimeoutError) as error:
        fail(str(error))
    except BrokenPipeError:
        # The reader (`| head`) has seen enough.
        sys.stderr.close()
        sys.exit(0)
