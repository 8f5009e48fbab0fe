"""`broadleaf lab`: the command of the package broadleaf-lab, where that is installed."""

from __future__ import annotations

from importlib.metadata import entry_points

import click

from broadleaf.cli.commands import how_to_get


@click.command("lab", add_help_option=False, context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def _without(arguments: tuple[str, ...]) -> None:
    """Find the settings that make a workload fast, and how sure you can be."""
    raise click.ClickException(f"`broadleaf lab` needs broadleaf-lab, which is not installed. {how_to_get('lab')}")


command: click.Command = next(
    (point.load() for point in entry_points(group="broadleaf.commands", name="lab")), _without
)
