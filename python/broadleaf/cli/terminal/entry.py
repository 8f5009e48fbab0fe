"""The outermost command: every user error ends in one line and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from broadleaf.cli.terminal.lazy import LazyGroup

FAILURE = 1
USAGE = 2
# Plain names for Click's types.
_PLAIN = {
    "a valid integer range": "a whole number",
    "a valid integer": "a whole number",
    "a valid float range": "a number",
    "a valid float": "a number",
}


class EntryCommand(click.Command):
    """Exits with 0 after success, 1 and one line on standard error for a failure, and 2 for wrong usage. Errors of the
    program, as opposed to the user's, keep their traceback.
    """

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        if os.environ.get("NO_COLOR"):
            extra.setdefault("color", False)
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, False, **extra)
        try:
            code = super().main(args, prog_name, complete_var, False, **extra)
        except click.Abort:
            print_error("interrupted")
            code = FAILURE
        except click.UsageError as error:
            code = _usage(error)
        except click.ClickException as error:
            print_error(error.format_message())
            code = error.exit_code
        except Exception as error:
            if (message := explained(error)) is None:
                raise
            print_error(message)
            code = FAILURE
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # The reader (`| head`) has seen enough. Buffered output has nowhere to go.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(0)


class EntryGroup(EntryCommand, LazyGroup):
    """An outermost command with commands below it."""


def print_error(message: str) -> None:
    """One line on standard error, or more if an engine's last output belongs to it."""
    color = False if os.environ.get("NO_COLOR") else None
    click.echo(click.style("error: ", fg="red", bold=True) + message, err=True, color=color)


def _usage(error: click.UsageError) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":
        # A group without a command: its help lists the commands.
        error.show()
        return USAGE
    message = error.format_message()
    for words, plain in _PLAIN.items():
        message = message.replace(words, plain)
    if message[1:2].islower():
        message = message[:1].lower() + message[1:]
    if message[-1:] not in ".?!":
        message += "."
    if error.ctx is not None:
        message += f" See '{error.ctx.command_path} --help'."
    print_error(message)
    return error.exit_code


def explained(error: Exception) -> str | None:
    """What a user is told about an error that is the user's or the machine's; None for one that is the program's."""
    from broadleaf.config import ConfigError
    from broadleaf.errors import BroadleafError

    if isinstance(error, BroadleafError | ConfigError):
        return str(error)
    if isinstance(error, ModuleNotFoundError):
        from broadleaf.cli.terminal import extras

        return extras.explained(error)
    if isinstance(error, OSError):
        if error.filename is not None and error.strerror:
            return f"{error.filename}: {error.strerror}"
        return str(error) or type(error).__name__
    return None
