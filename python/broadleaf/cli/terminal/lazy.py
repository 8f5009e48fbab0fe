"""Click groups that suggest the intended command, and import a command only when it runs."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


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
