"""`ipcontroller`: a cluster whose engines are started separately."""

from __future__ import annotations

from typing import Any

import click

from broadleaf.cli.ipcluster import chosen_log_level, cluster_options, say_ignored, tolerant


@tolerant("ipcontroller")
@click.version_option(package_name="broadleaf", prog_name="ipcontroller", message="%(version)s")
@cluster_options
@click.option("--ip", metavar="ADDRESS", help="Listen for other hosts on this address.")
@click.option("--port", default=0, metavar="PORT", help="Port to listen on with --ip; 0 for a free one.")
def command(ip: str | None, port: int, profile: str, profile_dir: str | None, cluster_id: str, rest: tuple[str, ...],
            **level: Any) -> None:  # fmt: skip
    """Start a controller without engines, and stop it on Ctrl-C.

    `ipcluster engines` and `ipengine` add engines on this host, `broadleaf relay` on another one.
    """
    from broadleaf.cli.console import look_in_working_directory
    from broadleaf.cli.start import run_cluster
    from broadleaf.cluster import Cluster

    say_ignored(rest)
    look_in_working_directory()
    arguments: dict[str, Any] = {"profile": profile, "cluster_id": cluster_id}
    if profile_dir:
        arguments["profile_dir"] = profile_dir
    if ip:
        arguments["listen"] = f"{ip.replace('*', '0.0.0.0')}:{port}"
    if (chosen := chosen_log_level(**level)) is not None:
        arguments["log_level"] = chosen
    run_cluster(Cluster(0, **arguments), detach=False)


def main(arguments: list[str] | None = None) -> Any:
    """Entry point of the console script."""
    return command.main(arguments, prog_name="ipcontroller")


launch_new_instance = main


class IPController:
    """The program `ipcontroller`, by the name of its class in IPython Parallel."""

    @staticmethod
    def launch_instance(argv: list[str] | None = None, **_options: Any) -> Any:
        """Runs the program."""
        return main(argv)


if __name__ == "__main__":
    main()
