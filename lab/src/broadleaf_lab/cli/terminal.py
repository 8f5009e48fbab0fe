"""What all commands share: their group, their errors in one line, and how things look on a terminal."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem
    from rich.console import Console

FAILURE = 1
# Wide enough for every line of a table: readers of a pipe or a file do not want wrapped lines.
_PIPE_COLUMNS = 500
# Plain names for Click's types.
_PLAIN = {
    "a valid integer range": "a whole number",
    "a valid integer": "a whole number",
    "a valid float range": "a number",
    "a valid float": "a number",
}
# What the package requires besides click and rich, and loads only where it computes or draws.
_REQUIRED = {
    "altair", "jinja2", "numpy", "optuna", "pandas", "pydoe", "ruptures", "scipy", "sklearn", "vl_convert",
}  # fmt: skip
_GET = "It comes with the laboratory: pip install broadleaf-lab"


class LabGroup(click.Group):
    """The laboratory's commands: by itself as `broadleaf-lab`, or as `lab` below another program's command.

    Each command lives in a module of its own, which is imported when the command runs. `texts` maps each module to the
    command's line of help, `package` is where the modules are: for "run.settle" the command `settle` is the attribute
    `command` of `<package>.run.settle`.

    It exits with 0 after success, 1 and one line on standard error for a failure, and 2 for wrong usage. Errors of the
    program, as opposed to the user's, keep their traceback.
    """

    def __init__(self, *arguments: Any, texts: Mapping[str, str], package: str, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # `import` is a word of Python's: its module is `import_`.
        self._texts = {module.rpartition(".")[2].rstrip("_"): text for module, text in texts.items()}
        self._modules = {module.rpartition(".")[2].rstrip("_"): module for module in texts}
        self._package = package

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._texts)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._texts:
            return None
        module = importlib.import_module(f"{self._package}.{self._modules[cmd_name]}")
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.list_commands(ctx)
        if args and args[0] not in known and not args[0].startswith("-"):
            ctx.fail(f"No such command {args[0]!r}.{_suggestion(args[0], known)}")
        return super().resolve_command(ctx, args)

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

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # The reader (`| head`) has seen enough. Buffered output has nowhere to go.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(0)
        except click.ClickException:
            raise
        except Exception as error:
            # Said here and not by `main`: below another program's command, that program's `main` runs.
            if (message := explained(error)) is None:
                raise
            raise click.ClickException(message) from error

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
        sys.exit(code if isinstance(code, int) else 0)


def compute_in_one_thread() -> None:
    """For commands that compute and run no workload; before numpy is imported. The matrices are so small that threads
    only wait for each other: planning nine factors took 31 s of processor time, not 3.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def _suggestion(word: str, known: list[str]) -> str:
    """`` Did you mean 'status'?`` if a known word is close to this one; otherwise nothing."""
    import difflib

    close = difflib.get_close_matches(word, known, 1)
    return f" Did you mean {close[0]!r}?" if close else ""


def _usage(error: click.UsageError) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":
        # A group without a command: its help lists the commands.
        error.show()
        return error.exit_code
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


def print_error(message: str) -> None:
    """One line on standard error."""
    color = False if os.environ.get("NO_COLOR") else None
    click.echo(click.style("error: ", fg="red", bold=True) + message, err=True, color=color)


def fail(message: str) -> NoReturn:
    """Ends the command with an error and code 1."""
    raise click.ClickException(message)


def explained(error: Exception) -> str | None:
    """What a user is told about an error that is the user's or the machine's; None for one that is the program's."""
    from broadleaf_lab.errors import LabError

    if isinstance(error, LabError):
        return str(error)
    if isinstance(error, ModuleNotFoundError):
        name = (error.name or "").partition(".")[0]
        return f"this needs {name}, which is not installed. {_GET}" if name in _REQUIRED else None
    if isinstance(error, OSError):
        if error.filename is not None and error.strerror:
            return f"{error.filename}: {error.strerror}"
        return str(error) or type(error).__name__
    return None


def require(modules: Sequence[str], purpose: str) -> None:
    """Ends the command with one line, before it begins its work, if a module is missing: the package was installed
    without what it requires.
    """
    if missing := [name for name in modules if not _installed(name)]:
        verb = "is" if len(missing) == 1 else "are"
        fail(f"{purpose} needs {_words(missing)}, which {verb} not installed. {_GET}")


def _installed(name: str) -> bool:
    try:
        return sys.modules.get(name) is not None or find_spec(name) is not None
    except ValueError:
        return False


def _words(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def console() -> Console:
    """A rich console for standard output; without colours into a pipe or file, or where NO_COLOR is set."""
    from rich.console import Console

    class PipeConsole(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    width = None if sys.stdout.isatty() else _PIPE_COLUMNS
    color_system: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
    return PipeConsole(highlight=False, width=width, color_system=color_system)


def add_plain_row(table: Any, *cells: str) -> None:
    """Adds a row in which brackets are text: users may name things `[design]`."""
    from rich.text import Text

    table.add_row(*map(Text, cells))
