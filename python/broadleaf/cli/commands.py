"""The commands of Click as they are here: imported when they run, errors of one line, and what to install."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


# Click groups that suggest the intended command, and import a command only when it runs.


class SuggestingGroup(click.Group):
    """A group that answers a misspelled command with the closest one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.list_commands(ctx)
        if args and args[0] not in known and not args[0].startswith("-"):
            ctx.fail(f"No such command {args[0]!r}.{suggestion(args[0], known)}")
        return super().resolve_command(ctx, args)


class LazyGroup(SuggestingGroup):
    """A group whose commands live in one module each.

    `texts` maps each command's module to its line of help, `package` is where the modules are: for "cluster.logs" the
    command `logs` is the attribute `command` of `<package>.cluster.logs`.
    """

    def __init__(self, *arguments: Any, texts: Mapping[str, str], package: str, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._texts = {module.rpartition(".")[2]: text for module, text in texts.items()}
        self._modules = {module.rpartition(".")[2]: module for module in texts}
        self._package = package

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._texts)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._texts:
            return None
        module = importlib.import_module(f"{self._package}.{self._modules[cmd_name]}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self._texts.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        # Click's own method would import every command for its line of help.
        commands = [
            CompletionItem(name, help=text) for name, text in self._texts.items() if name.startswith(incomplete)
        ]
        return commands + click.Command.shell_complete(self, ctx, incomplete)


def suggestion(word: str, known: list[str]) -> str:
    """`` Did you mean 'status'?`` if a known word is close to this one; otherwise nothing."""
    import difflib

    close = difflib.get_close_matches(word, known, 1)
    return f" Did you mean {close[0]!r}?" if close else ""


# What commands need beyond the core of Broadleaf, and how to get it.


EXTRAS: dict[str, tuple[str, ...]] = {
    "dashboard": ("tornado",),
    "bench": ("numpy",),
    "plan": ("matplotlib",),
}
"""The modules that each extra of the package installs."""


def require(extra: str, modules: Sequence[str], purpose: str) -> None:
    """Ends the command with one line, before it begins its work, if a module of an extra is missing."""
    if missing := missing_modules(modules):
        verb = "is" if len(missing) == 1 else "are"
        raise click.ClickException(
            f"{purpose} needs {_words(missing)}, which {verb} not installed. {how_to_get(extra)}"
        )


def missing_modules(modules: Sequence[str]) -> list[str]:
    """The modules that are not installed."""
    return [name for name in modules if not _installed(name)]


def explained_import(error: ModuleNotFoundError) -> str | None:
    """What to do about a failed import; None if the module belongs to no extra."""
    name = (error.name or "").partition(".")[0]
    extra = next((extra for extra, modules in EXTRAS.items() if name in modules), None)
    if extra is None:
        return None
    return f"this needs {name}, which is not installed. {how_to_get(extra)}"


def _installed(name: str) -> bool:
    try:
        return sys.modules.get(name) is not None or find_spec(name) is not None
    except ValueError:
        return False


def how_to_get(extra: str) -> str:
    """The sentence that says which extra to install."""
    return f"It comes with the extra `{extra}`: pip install 'broadleaf[{extra}]'"


def _words(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


# The outermost command: every user error ends in one line and an exit code.


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
        return "\n".join([str(error), *getattr(error, "__notes__", ())])
    if isinstance(error, ModuleNotFoundError):
        return explained_import(error)
    if isinstance(error, OSError):
        if error.filename is not None and error.strerror:
            return f"{error.filename}: {error.strerror}"
        return str(error) or type(error).__name__
    return None
