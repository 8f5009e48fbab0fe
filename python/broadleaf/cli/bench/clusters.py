"""`broadleaf bench clusters`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from broadleaf.bench.environments import ON_SITES, OURS, RAW
from broadleaf.bench.meanings import FIGURES
from broadleaf.bench.peers.site import Site
from broadleaf.bench.site_cases import cases
from broadleaf.cli.bench.case import (
    against_option,
    environments_option,
    measure,
    only_peers_option,
    quick_option,
    repeats_option,
)
from broadleaf.cli.bench.output import json_option, record_option
from broadleaf.cli.commands import suggestion
from broadleaf.cli.console import TableCommand, fail

_NAMES = tuple(cases(1))
_USUAL = ("slurm", "ssh", "elastic")


def _site(ctx: click.Context, parameter: click.Parameter, path: Path) -> Site:
    try:
        return Site.read(path)
    except ValueError as error:
        raise click.BadParameter(f"{path}: {error}", ctx, parameter) from None


def _known(ctx: click.Context, parameter: click.Parameter, text: str) -> list[str]:
    named = text.split(",")
    for name in named:
        if name not in _NAMES:
            said = f"no case is called {name!r}; there are {', '.join(_NAMES)}.{suggestion(name, list(_NAMES))}"
            raise click.BadParameter(said, ctx, parameter)
    return named


@click.command("clusters", cls=TableCommand, columns=FIGURES["clusters"], explained_as="Figures")
@click.option("--site", envvar="BROADLEAF_BENCH_SITE_FILE", required=True, show_envvar=True, metavar="FILE",
              type=click.Path(exists=True, dir_okay=False, path_type=Path), callback=_site,
              help="TOML file that describes the site: `hosts`, a folder `shared` that all of them see and, unless "
              "engines are started from this host, a command `login` that runs a given command on the host from "
              "which they are started.")  # fmt: skip
@click.option("--cases", "chosen", default=",".join(_USUAL), show_default=True, callback=_known, metavar="CASE,...",
              help=f"What to measure, of {', '.join(_NAMES)}.")  # fmt: skip
def command(site: Site, chosen: list[str], against: list[str], only_peers: bool, **options: Any) -> None:
    """Measure the start of engines on the hosts of a site, by Slurm and SSH.

    All systems take turns. Each turn starts engines on all hosts, has each of them run a task, and ends them. One
    Slurm job gets all hosts; the time it spends in the queue counts.

    Example: `broadleaf bench clusters --site site.toml --against ipyparallel,dask-jobqueue,dask-ssh`
    """
    of_site = cases(len(site.hosts))
    systems = ([] if only_peers else [OURS]) + against
    where = f"hosts {', '.join(site.hosts)}"
    records = measure("clusters", [of_site[name] for name in chosen], systems, where, engines=1, site=site, **options)
    if not records.any_figure():
        fail("nothing could be measured")


command.params += [
    against_option([name for name in ON_SITES if name not in (OURS, RAW)]),
    only_peers_option(),
    repeats_option(),
    quick_option(),
    json_option(),
    record_option(),
    environments_option(),
]
