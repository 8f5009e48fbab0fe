"""`broadleaf manifest`."""

from __future__ import annotations

from typing import Any

import click

from broadleaf.cli.console import complete_assignments


@click.group("manifest")
def command() -> None:
    """Write what another system needs to run a cluster."""


@command.command("kubernetes")
@click.option("-n", "n", type=click.IntRange(min=1), required=True, metavar="N", help="Number of engines.")
@click.option("--image", required=True, metavar="IMAGE",
              help="Image for all pods. It must have the same version of Broadleaf and minor version of Python as this "
                   "client.")  # fmt: skip
@click.option("--name", default="broadleaf", show_default=True, help="Name of the cluster and of its objects.")
@click.option("--namespace", default="", metavar="NAME", help="Namespace of the objects; by default the current one.")
@click.option("--engines-per-pod", type=click.IntRange(min=1), default=1, show_default=True, metavar="N",
              help="Number of engines in each pod; they share large arguments.")  # fmt: skip
@click.option("--cpus", default="", metavar="CPUS", help="CPUs for each pod of engines, such as 4 or 500m.")
@click.option("--memory", default="", metavar="SIZE", help="Memory for each pod of engines, such as 8Gi.")
@click.option("--python", default="python3", show_default=True, help="Python interpreter in the image.")
@click.option("--client-file", default="", metavar="FILE", type=click.Path(dir_okay=False),
              help="Where to write the connection file for clients; by default NAME-client.json.")  # fmt: skip
@click.option("--option", "-o", "options", multiple=True, metavar="NAME=VALUE", shell_complete=complete_assignments,
              help="Set an option that `broadleaf config show` lists. May be repeated.")  # fmt: skip
def kubernetes(client_file: str, options: tuple[str, ...], **asked: Any) -> None:
    """Write objects for `kubectl apply -f -`: two secrets, a service, and jobs for the controller and the engines.

    The engines are an elastic indexed job: change its parallelism and completions to get more or fewer. Clients connect
    with the file, after `kubectl port-forward service/NAME 4242`. Both contain keys: anyone who has them can use the
    cluster.
    """
    from broadleaf import config
    from broadleaf.cluster.credentials import Credentials
    from broadleaf.cluster.kubernetes import Pods, pods_connection, yaml
    from broadleaf.state.directories import write_json

    values = {}
    for text in options:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--option")
        values[name] = value
    try:
        pods = Pods(options=values, **asked)
    except ValueError as error:
        raise click.UsageError(str(error), click.get_current_context()) from None
    settings = config.resolve(values, None)
    credentials = Credentials.generate(pods.name)
    path = client_file or f"{pods.name}-client.json"
    write_json(path, pods_connection(credentials, settings, "client", "127.0.0.1", {}))
    click.echo(yaml(pods.objects(credentials, settings)), nl=False)
    click.echo(f"clients connect with {path} after `kubectl port-forward service/{pods.name} 4242`", err=True)
