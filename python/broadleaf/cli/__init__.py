"""The `broadleaf` command: one file per subcommand, each imported only when it is asked for."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import click

from broadleaf.cli.console import fail

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
}


class _Commands(click.Group):
    """Knows its commands by name and imports one when it runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(f"broadleaf.cli.{cmd_name}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in _COMMANDS and not args[0].startswith("-"):
            import difflib

            close = difflib.get_close_matches(args[0], _COMMANDS, 1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            ctx.fail(f"No such command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="broadleaf", prog_name="broadleaf")
def group() -> None:
    """Interactive parallel computing for Python.

    Exit codes: 0 done; 1 could not be done, the message says why; 2 a wrong option or argument.
    """


def main(arguments: list[str] | None = None) -> Any:
    """Entry point of the console script."""
    from broadleaf.config import ConfigError
    from broadleaf.errors import KernelError

    try:
        return group.main(arguments, prog_name="broadleaf", standalone_mode=True)
    except (KernelError, ConfigError, TimeoutError) as error:
        fail(str(error))
    except BrokenPipeError:
        # The reader (`| head`) has seen enough.
        sys.stderr.close()
        sys.exit(0)
