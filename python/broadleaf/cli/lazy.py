"""A click group that knows its commands by name and imports one when it runs."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click


class LazyGroup(click.Group):
    """A group whose commands live in one module each.

    `texts` maps each command's name to its line of help, `package` is where the modules are: the command `logs` is
    the attribute `command` of `<package>.logs`.
    """

    def __init__(self, *arguments: Any, texts: Mapping[str, str], package: str, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._texts = dict(texts)
        self._package = package

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._texts)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._texts:
            return None
        module = importlib.import_module(f"{self._package}.{cmd_name}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self._texts.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self._texts and not args[0].startswith("-"):
            import difflib

            close = difflib.get_close_matches(args[0], self._texts, 1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            ctx.fail(f"No such command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)
