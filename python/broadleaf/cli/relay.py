"""`broadleaf relay`."""

from __future__ import annotations

import signal

import click


@click.command("relay")
@click.option("--connection", required=True, metavar="FILE", type=click.Path(exists=True, dir_okay=False),
              help="The cluster's engine.json, copied from the controller's host.")  # fmt: skip
@click.option("-n", "--engines", type=click.IntRange(min=0), help="Engines; the usable cores if left out.")
@click.option("--name", help="This host's name in the cluster; the machine's if left out.")
@click.option("--controller", metavar="HOST:PORT", help="Where the controller listens, if not as the file says.")
@click.option("--listen", metavar="HOST:PORT", help="Where other relays reach this one; by default the address that "
              "the controller is reached from, and any free port.")  # fmt: skip
@click.option("--outbound-only", is_flag=True, help="Nobody can dial this host: get payload from the controller's.")
def command(connection: str, engines: int | None, name: str | None, controller: str | None, listen: str | None,
            outbound_only: bool) -> None:  # fmt: skip
    """Add this host's engines to a cluster that runs elsewhere.

    Stays until the cluster stops, or Ctrl-C.
    """
    from broadleaf.cluster.relay import Relay

    try:
        relay = Relay(connection, engines, name=name, controller=controller, listen=listen, outbound_only=outbound_only)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    click.echo(f"relay {relay.name!r} of cluster {relay.cluster_id!r} runs with {relay.n} engines; Ctrl-C stops it")
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
