"""`broadleaf bench`: hands over to `broadleaf.bench`."""

from __future__ import annotations

import sys

import click


@click.command("bench", context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(arguments: tuple[str, ...]) -> None:
    """Measure, and compare with other libraries. See `broadleaf bench --help`."""
    from broadleaf.bench.cli import main

    sys.exit(main(list(arguments)))
