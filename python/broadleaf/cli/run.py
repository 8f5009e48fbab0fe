"""`broadleaf run`."""

from __future__ import annotations

import os

import click

from broadleaf.cli.console import checked_cluster_id, look_in_working_directory, profile_option


@click.command("run", context_settings={"ignore_unknown_options": True})
@click.option("-n", "--engines", type=click.IntRange(min=0), metavar="N",
              help="Number of engines on each host; by default one for every usable core.")  # fmt: skip
@click.option("--min-hosts", type=click.IntRange(min=1), metavar="N",
              help="Minimum number of hosts that must join before COMMAND starts; by default all.")  # fmt: skip
@click.option("--id", "run_id", metavar="ID", default="", callback=lambda c, p, v: checked_cluster_id(c, p, v or None),
              help="Name of this run, if the launcher does not set one.")  # fmt: skip
@click.option(
    "--controller",
    metavar="HOST",
    default="",
    help="Host of the first process, if the launcher does not name it; for runs with BROADLEAF_SECRET.",
)
@profile_option
@click.argument("words", metavar="COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
def command(
    engines: int | None,
    min_hosts: int | None,
    run_id: str | None,
    controller: str,
    profile: str,
    words: tuple[str, ...],
) -> None:
    """Run COMMAND with a cluster on all hosts of an allocation.

    Start `broadleaf run` once on each host, for example with
    `srun --ntasks-per-node=1 broadleaf run -- python script.py`. The first process
    runs the controller and COMMAND, in which `broadleaf.Client()` connects to the cluster, and ends with the exit code
    of COMMAND; the others provide the engines. Hosts must share the directory of clusters, as they do with a shared
    home directory. If they do not share it, give all of them the same secret in the variable BROADLEAF_SECRET: at least
    32 random characters.
    """
    from broadleaf.cluster.symmetric import Rendezvous, RunMember, SharedDirectory, SharedSecret, run

    look_in_working_directory()
    secret = os.environ.pop("BROADLEAF_SECRET", "")  # no process that is started here needs it
    context = click.get_current_context()
    if controller and not secret:
        raise click.UsageError(
            "--controller is for runs with BROADLEAF_SECRET, which is not set here. Open MPI passes it on with "
            "`mpiexec -x BROADLEAF_SECRET`",
            context,
        )
    try:
        member = RunMember.of(os.environ, run_id or "")
        rendezvous: Rendezvous = SharedDirectory(member, profile)
        if secret:
            rendezvous = SharedSecret(member, profile, secret, controller)
    except ValueError as error:
        raise click.UsageError(str(error), context) from None
    context.exit(run(member, rendezvous, words, n=engines, profile=profile, min_hosts=min_hosts or 0))
