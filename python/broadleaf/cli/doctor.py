"""`broadleaf doctor`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from broadleaf.cli.commands import FAILURE
from broadleaf.cli.console import TableCommand, chosen_cluster, cluster_options, console, plain_table
from broadleaf.text import count

if TYPE_CHECKING:
    from broadleaf.cluster.doctor import Finding

_COLUMNS = {
    "STEP": "each step of joining, in order; for a cluster also its jobs or connections, and its engines",
    "RESULT": "ok, warning, failed, or not tried because a step it needs has failed",
    "FOUND": "what was found",
}
_STYLES = {"ok": "green", "warning": "yellow", "failed": "red", "not tried": "dim"}


@click.command("doctor", cls=TableCommand, columns=_COLUMNS)
@click.option("--connection", metavar="FILE", type=click.Path(),
              help="Try to join with this engine.json or client.json, instead of looking for a running "
                   "cluster on this host.")  # fmt: skip
@cluster_options
@click.option("--output", "-o", type=click.Choice(["table", "json"]), default="table", show_default=True,
              help="Format of the report.")  # fmt: skip
@click.pass_context
def command(ctx: click.Context, connection: str | None, profile: str, cluster_id: str | None, output: str) -> None:
    """Find out why engines do not connect.

    Tries every step of joining a cluster from the host where it is run, and says what to do about each step that fails.
    If a host's engines do not come up, run it there with the cluster's engine.json; on the controller's host it needs
    no file. The exit code is 1 if a step failed.
    """
    from broadleaf.cluster.doctor import examine_cluster, examine_connection

    if connection is not None:
        findings = examine_connection(connection)
    else:
        findings = examine_cluster(chosen_cluster(profile, cluster_id))
    if output == "json":
        click.echo(json.dumps([asdict(finding) for finding in findings], indent=1))
    else:
        _show(findings)
    if any(finding.result == "failed" for finding in findings):
        ctx.exit(FAILURE)


def _show(findings: Sequence[Finding]) -> None:
    from rich.text import Text

    table = plain_table(_COLUMNS, tuple(_COLUMNS))
    for finding in findings:
        table.add_row(finding.step, Text(finding.result, style=_STYLES[finding.result]), Text(finding.found))
    console().print(table)
    advised = [finding for finding in findings if finding.advice]
    if not advised:
        click.echo("engines can join from this host")
    for finding in advised:
        click.echo(f"{finding.step}: {finding.advice}")
    failed = sum(finding.result == "failed" for finding in findings)
    if failed:
        click.echo(f"{count(failed, 'step')} failed")
