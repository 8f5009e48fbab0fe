"""`broadleaf trace`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from broadleaf.cli.console import anywhere_option, chosen_cluster, cluster_options, far_control
from broadleaf.text import count, size

if TYPE_CHECKING:
    from broadleaf.cluster.control import ControlLink


@click.command("trace")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@cluster_options
@anywhere_option
@click.option("--inputs", is_flag=True, help="Write what the controller has been told instead, for a bug report. The "
              "cluster must have been started with the option record_inputs.")  # fmt: skip
@click.option("--stop", is_flag=True, help="With --inputs, also end the recording.")
def command(file: Path, profile: str, cluster_id: str | None, url: str | None, inputs: bool, stop: bool) -> None:
    """Write what happened in a cluster to FILE.

    By default this is a trace of the events that the controller remembers, which Perfetto and chrome://tracing open.
    With --inputs it is a recording of everything that the controller has been told since the cluster started, without
    data, code and output. Developers of Broadleaf can run it again.
    """
    if stop and not inputs:
        raise click.UsageError("--stop needs --inputs", click.get_current_context())
    with _control(profile, cluster_id, url) as control:
        if not inputs:
            file.write_text(control.request("Trace", 60.0))
            return
        told = control.save_inputs(file, stop)
        relays = [host["name"] for host in control.status()["hosts"]]
    click.echo(f"{file}: {count(told['calls'], 'input')}, {size(told['bytes'])}")
    if told["ended"] == "limit":
        limit = size(told["limit_bytes"])
        click.echo(f"The recording ended at its maximum size of {limit}, which the option record_inputs_bytes sets.")
    elif told["ended"] not in (None, "stopped"):
        click.echo(f"The recording ended early: {told['ended']}")
    if relays:
        click.echo(f"Relays have their own recordings, each on its host: {told['path']}.{' or .'.join(relays)}")


@contextmanager
def _control(profile: str, cluster_id: str | None, url: str | None) -> Iterator[ControlLink]:
    control: Any = far_control(url) if url is not None else chosen_cluster(profile, cluster_id).control()
    with control as link:
        yield link
