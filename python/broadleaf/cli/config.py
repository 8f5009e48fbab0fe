"""`broadleaf config`."""

from __future__ import annotations

import json

import click

from broadleaf.cli.console import console, profile_option


@click.group("config")
def command() -> None:
    """Show options and where their values come from."""


@command.command("show")
@click.argument("names", nargs=-1, metavar="[OPTION]...")
@profile_option
@click.option("--json", "form", flag_value="json", help="As JSON.")
@click.option("--markdown", "form", flag_value="markdown", help="The table of all options for the documentation.")
def show(names: tuple[str, ...], profile: str, form: str | None) -> None:
    """Show each option's value and the place that it comes from.

    Defaults are overridden by config.toml in Broadleaf's directory, that by config.toml in the profile's, that by the
    environment (BROADLEAF_<NAME>), and that by arguments of Cluster or `broadleaf start`.
    """
    from broadleaf import config
    from broadleaf.cluster import files

    if form == "markdown":
        click.echo(config.markdown_table(), nl=False)
        return
    unknown = [name for name in names if name not in config.OPTIONS]
    if unknown:
        raise click.BadParameter(f"no option is called {unknown[0]!r}", param_hint="OPTION")
    settings = config.resolve(profile_dir=files.profile_dir(profile))
    chosen = names or tuple(settings)
    if form == "json":
        rows = {name: {"value": settings[name], "origin": settings.origin(name)} for name in chosen}
        click.echo(json.dumps(rows, indent=1))
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    table.add_column("OPTION")
    table.add_column("VALUE", overflow="fold")
    table.add_column("ORIGIN", overflow="fold")
    table.add_column("ACTS IN")
    if names:
        table.add_column("MEANING", overflow="fold")
    for name in chosen:
        origin = settings.origin(name)
        option = config.OPTIONS[name]
        cells: list[str | Text] = [
            name,
            Text(config.format_value(settings[name])),
            Text(origin, style="dim" if origin == "default" else "bold"),
            option.acts,
        ]
        table.add_row(*cells, *([option.meaning] if names else []))
    console().print(table)
