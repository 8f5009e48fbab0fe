"""`broadleaf relay`."""

from __future__ import annotations

import signal

import click

from broadleaf.cli.console import look_in_working_directory
from broadleaf.text import count


@click.command("relay")
@click.option("--connection", required=True, metavar="FILE", type=click.Path(exists=True, dir_okay=False),
              help="The cluster's engine.json, copied from the controller's host.")  # fmt: skip
@click.option("-n", "--engines", type=click.IntRange(min=0), metavar="N",
              help="Number of engines; by default one for every usable core.")  # fmt: skip
@click.option("--name", help="Name of this host in the cluster; by default its host name.")
@click.option("--controller", metavar="HOST:PORT",
              help="Where the controller listens, if the address in the file cannot be reached from "
              "here.")  # fmt: skip
@click.option("--listen", metavar="HOST:PORT", help="Address or network interface on which other relays reach this "
              "one; by default the address from which the controller is reached, and any free port.")  # fmt: skip
@click.option("--client-connection", metavar="FILE", type=click.Path(exists=True, dir_okay=False),
              help="The cluster's client.json, copied from the controller's host: with it, tasks on this host can "
                   "submit tasks.")  # fmt: skip
@click.option("--outbound-only", is_flag=True,
              help="Get all data from the controller's host: no other host can connect to this one.")  # fmt: skip
def command(connection: str, engines: int | None, name: str | None, controller: str | None, listen: str | None,
            outbound_only: bool, client_connection: str | None) -> None:  # fmt: skip
    """Add this host's engines to a cluster on another host.

    Runs until the cluster stops, or until you press Ctrl-C.
    """
    from broadleaf.cluster.relay import Relay

    look_in_working_directory()
    try:
        relay = Relay(connection, engines, name=name, controller=controller, listen=listen, outbound_only=outbound_only,
                      client_file=client_connection)  # fmt: skip
    except ValueError as error:
        raise click.UsageError(str(error), click.get_current_context()) from None
    has = count(relay.n, "engine")
    click.echo(f"relay {relay.name!r} of cluster {relay.cluster_id!r} is running with {has}; Ctrl-C stops it")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        relay.wait()
    except KeyboardInterrupt:
        pass
    finally:
        relay.stop()


def _interrupt(_signal_number: int, _frame: object) -> None:
    raise KeyboardInterrupt
