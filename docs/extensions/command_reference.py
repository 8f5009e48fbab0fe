"""Writes the reference of the command line from the commands themselves, so that it says what `--help` says."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click

PROGRAM = "broadleaf"


# Groups whose commands have a page of their own, besides that of all others.
OWN_PAGES = ("lab", "bench")


def pages(root: click.Command) -> dict[str, str]:
    """The Markdown of each page by its file's name: for `root` and every command below it a heading, its usage, what it
    does, its options and columns.
    """
    texts: dict[str, list[str]] = {}
    for ctx in _contexts(click.Context(root, info_name=PROGRAM)):
        group = next(iter(ctx.command_path.split()[1:]), "")
        name, above = (f"commands-{group}.md", 1) if group in OWN_PAGES else ("commands.md", 0)
        texts.setdefault(name, []).extend(section(ctx, above))
    return {name: "\n".join(lines) for name, lines in texts.items()}


def _contexts(ctx: click.Context) -> Iterator[click.Context]:
    """A context for each command, in the order in which `--help` lists them."""
    yield ctx
    if isinstance(ctx.command, click.Group):
        for name in ctx.command.list_commands(ctx):
            command = ctx.command.get_command(ctx, name)
            if command is not None and not command.hidden:
                yield from _contexts(click.Context(command, info_name=name, parent=ctx))


def section(ctx: click.Context, above: int = 0) -> Iterator[str]:
    """The Markdown of one command; `above` levels of its path have no heading on the page."""
    command = ctx.command
    usage = " ".join([ctx.command_path, *command.collect_usage_pieces(ctx)])
    depth = len(ctx.command_path.split()) - above
    yield f"{'#' * min(depth + 1, 4)} {ctx.command_path}\n"
    yield f"```text\n{usage}\n```\n"
    yield _paragraphs(command.help or "") + "\n"
    records = [found for parameter in command.get_params(ctx) if (found := parameter.get_help_record(ctx))]
    # Every command has --help, and an argument is named in the usage and explained in the text.
    options = [(name, text) for name, text in records if text and "--help" not in name]
    if isinstance(command, click.Group):
        names = [(name, command.get_command(ctx, name)) for name in command.list_commands(ctx)]
        commands = [(name, (found.help or "").split("\n\n")[0]) for name, found in names if found is not None]
        yield from _table("Command", "Does", commands)
    yield from _table("Option", "Meaning", options)
    columns = getattr(command, "columns", None)
    if columns:
        yield from _table(command.explained_as.removesuffix("s"), "Meaning", list(columns.items()))


def _table(left: str, right: str, pairs: list[tuple[str, str]]) -> Iterator[str]:
    if pairs:
        yield f"| {left} | {right} |\n|---|---|"
        for name, text in pairs:
            code = name.replace("|", "\\|")
            yield f"| `{code}` | {_cell(text)} |"
        yield ""


def _cell(text: str) -> str:
    """A line that does not end a table's cell."""
    return _marked_up(re.sub(r"\s+", " ", text.replace("\b", "")).strip()).replace("|", "\\|")


def _marked_up(text: str) -> str:
    """Text of a help as Markdown: options are code, which also keeps their dashes, and nothing else becomes markup."""
    parts = re.split(r"(`[^`]*`)", text)
    for place in range(0, len(parts), 2):
        plain = re.sub(r"([*_<])", r"\\\1", parts[place])
        parts[place] = re.sub(r"(?<![\w-])(--?[a-z][a-z-]*)", r"`\1`", plain)
    return "".join(parts)


def _paragraphs(text: str) -> str:
    """The help of a command. What click does not fill (marked by \\b) keeps its lines."""
    found = []
    for paragraph in text.replace("\f", "").split("\n\n"):
        kept = paragraph.strip("\n")
        if kept.lstrip().startswith("\b"):
            found.append("```text\n" + kept.lstrip().removeprefix("\b").strip("\n") + "\n```")
        else:
            found.append(_marked_up(re.sub(r"\s+", " ", kept).strip()))
    return "\n\n".join(found)
