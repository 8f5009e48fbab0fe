"""`broadleaf config`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from broadleaf.cli.commands import SuggestingGroup, suggestion
from broadleaf.cli.console import complete_options, console, plain_table, profile_option
from broadleaf.text import duration

if TYPE_CHECKING:
    from broadleaf.config import Option, Settings

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB")
_KINDS = {"int": "whole number", "float": "number", "bool": "on or off", "str": "text", "choice": "one of",
          "list": "names separated by commas"}  # fmt: skip


@click.group("config", cls=SuggestingGroup)
def command() -> None:
    """Show every option, its value and where the value comes from."""


@command.command("show")
@click.argument("names", nargs=-1, metavar="[OPTION]...", shell_complete=complete_options)
@profile_option
@click.option("--long", "-l", "long_", is_flag=True,
              help="Explain each option: meaning, type, range, default. Options that you name are always "
                   "explained.")  # fmt: skip
@click.option("--json", "form", flag_value="json", help="Print one JSON object; with --long, include the explanations.")
@click.option(
    "--markdown",
    "form",
    flag_value="markdown",
    help="Print the list of all options in Markdown, as in the documentation.",
)
def show(names: tuple[str, ...], profile: str, long_: bool, form: str | None) -> None:
    """Show each option's value and where it comes from.

    The last of these that has a value wins: the default, config.toml in /etc/broadleaf, in Broadleaf's directory and in
    the profile's directory, the environment variable BROADLEAF_<NAME>, and an argument of Cluster or `broadleaf start
    -o`.
    """
    from broadleaf import config
    from broadleaf.state import files

    if form == "markdown":
        click.echo(config.markdown_list(), nl=False)
        return
    for name in names:
        if name not in config.OPTIONS:
            hint = suggestion(name, list(config.OPTIONS)).strip()
            message = f"unknown option {name!r}; see `broadleaf config show`. {hint}"
            raise click.UsageError(message.strip(), click.get_current_context())
    settings = config.resolve(profile_dir=files.profile_dir(profile))
    chosen = names or tuple(settings)
    if form == "json":
        rows = {name: _row(config.OPTIONS[name], settings, long_) for name in chosen}
        click.echo(json.dumps(rows, indent=1))
    elif names or long_:
        _show_long([config.OPTIONS[name] for name in chosen], settings)
    else:
        _show_table([config.OPTIONS[name] for name in chosen], settings)


def _row(option: Option, settings: Settings, long_: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"value": settings[option.name], "origin": settings.origin(option.name)}
    if long_:
        row |= {
            "meaning": option.meaning,
            "type": option.kind,
            "default": option.default,
            "range": [option.minimum, option.maximum] if option.kind in ("int", "float") else None,
            "choices": list(option.choices),
            "acts_in": option.acts,
            "variable": option.variable,
        }
    return row


def _show_table(chosen: list[Option], settings: Settings) -> None:
    from rich.text import Text

    table = plain_table(("OPTION", "VALUE", "FROM"), ("OPTION", "VALUE", "FROM"))
    for column in table.columns[1:]:
        column.overflow = "fold"
    for option in chosen:
        origin = settings.origin(option.name)
        style = "dim" if origin == "default" else "bold"
        table.add_row(option.name, _shown(option, settings[option.name]), Text(origin, style=style))
    console().print(table)


def _show_long(chosen: list[Option], settings: Settings) -> None:
    from rich.padding import Padding
    from rich.text import Text

    out = console()
    for index, option in enumerate(chosen):
        if index:
            out.print()
        out.print(Text.assemble((option.name, "bold"), f" = {_shown(option, settings[option.name])}"))
        details = (
            option.meaning,
            f"type: {_type(option)}",
            f"default: {_shown(option, option.default)}",
            f"from: {settings.origin(option.name)}",
            f"acts in: {option.acts}",
            f"environment variable: {option.variable}",
        )
        for line in details:
            out.print(Padding(Text(line), (0, 0, 0, 4), expand=False))


def _shown(option: Option, value: Any) -> str:
    """A value as you would type it, and in a larger unit if it has one: `262144 (256 KiB)`."""
    from broadleaf import config

    text = config.format_value(value)
    readable = _readable(option, value)
    return f"{text} ({readable})" if readable else text or "(empty)"


def _readable(option: Option, value: Any) -> str:
    if option.kind not in ("int", "float") or not value:
        return ""
    if option.name.endswith("_us") and value >= 1000:
        return duration(value / 1e6)
    if option.name.endswith("_s") and value >= 60:
        return duration(value)
    if option.name.endswith("_bytes") and value >= 1024:
        return _binary_size(value)
    return ""


def _binary_size(n_bytes: float) -> str:
    power = 0
    while n_bytes >= 1024 and power + 1 < len(_BINARY):
        n_bytes /= 1024
        power += 1
    return f"{n_bytes:.4g} {_BINARY[power]}"


def _type(option: Option) -> str:
    if option.choices:
        return f"one of {', '.join(option.choices)}"
    words = _KINDS[option.kind]
    if option.kind in ("int", "float"):
        return f"{words}, {_bound(option, option.minimum)} to {_bound(option, option.maximum)}"
    return f"{words}, as {option.form[1]}" if option.form[1] else words


def _bound(option: Option, limit: float) -> str:
    readable = _readable(option, limit)
    return f"{limit:.15g} ({readable})" if readable else f"{limit:.15g}"
