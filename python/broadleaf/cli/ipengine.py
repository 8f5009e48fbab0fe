"""`ipengine`: one engine, started by hand."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from broadleaf.cli.ipcluster import cluster_options, profile_of, say_ignored, tolerant


@tolerant("ipengine")
@click.version_option(package_name="broadleaf", prog_name="ipengine", message="%(version)s")
@cluster_options
@click.option("--file", "file", metavar="PATH", help="Connection file of the cluster's engines.")
def command(file: str | None, profile: str, profile_dir: str | None, cluster_id: str, rest: tuple[str, ...],
            **level: Any) -> None:  # fmt: skip
    """Run an engine of a cluster on this host until the cluster stops.

    `ipcluster engines -n N` adds engines that the cluster supervises; `broadleaf relay` adds those of another host.
    """
    from broadleaf.state import files

    say_ignored(rest)
    profile = profile_of(profile, profile_dir)
    path = Path(file or files.cluster_dir(profile, cluster_id or "default") / files.ENGINE_FILE)
    if not path.exists():
        if file:
            raise click.ClickException(f"{path} does not exist")
        raise click.ClickException(files.no_such_cluster(profile, cluster_id or "default"))
    # An engine needs a process of its own: its standard streams and signals belong to tasks.
    os.execv(sys.executable, [sys.executable, "-m", "broadleaf.engine", str(path)])


def main(arguments: list[str] | None = None) -> Any:
    """Entry point of the console script."""
    return command.main(arguments, prog_name="ipengine")


launch_new_instance = main


class IPEngine:
    """The program `ipengine`, by the name of its class in IPython Parallel."""

    @staticmethod
    def launch_instance(argv: list[str] | None = None, **_options: Any) -> Any:
        """Runs the program."""
        return main(argv)

    @staticmethod
    def initialized() -> bool:
        """Whether this process is an engine."""
        return "BROADLEAF_ENGINE_ID" in os.environ


if __name__ == "__main__":
    main()
