"""`python -m benchmarks clusters`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from broadleaf.bench.record import OURS, RAW
from broadleaf.bench.turn import TAG_VARIABLE, Place
from broadleaf.cli.bench import json_option, quick_option, repeats_option
from broadleaf.cli.commands import suggestion
from broadleaf.cli.console import TableCommand, fail

from benchmarks import recorded
from benchmarks.commands import against_option, environments_option, measure_systems, only_peers_option
from benchmarks.environments import ON_SITES
from benchmarks.sites.cases import FIGURES, cases
from benchmarks.sites.site import VARIABLE, Site

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


class AtSite(Place):
    """Turns on the hosts of a site, from where its users start them."""

    # Some systems take minutes to start their workers, and jobs are queued as well.
    start_timeout_s = 900.0
    # IPython Parallel stops engines by one login after the other.
    stop_timeout_s = 300.0

    def __init__(self, site: Site) -> None:
        self.site: Site = site
        self.isolation = f"hosts {', '.join(site.hosts)}"

    def process(self, command: list[str], variables: dict[str, str]) -> tuple[list[str], dict[str, str]]:
        variables = variables | {VARIABLE: self.site.text()}
        if not self.site.login:
            return command, variables
        # Variables of this host are not meant for another one.
        passed = [f"{name}={variables[name]}" for name in ("PYTHONPATH", TAG_VARIABLE, VARIABLE)]
        return [*self.site.login, "env", *passed, *command], variables


@click.command("clusters", cls=TableCommand, columns=FIGURES, explained_as="Figures")
@click.option("--site", envvar="BROADLEAF_BENCH_SITE_FILE", required=True, show_envvar=True, metavar="FILE",
              type=click.Path(exists=True, dir_okay=False, path_type=Path), callback=_site,
              help="TOML file that describes the site: `hosts`, a folder `shared` that all of them see and, unless "
              "engines are started from this host, a command `login` that runs a given command on the host from "
              "which they are started.")  # fmt: skip
@click.option("--cases", "chosen", default=",".join(_USUAL), show_default=True, callback=_known, metavar="CASE,...",
              help=f"What to measure, of {', '.join(_NAMES)}.")  # fmt: skip
def command(site: Site, chosen: list[str], **options: Any) -> None:
    """Measure the start of engines on the hosts of a site, by Slurm and SSH.

    All systems take turns. Each turn starts engines on all hosts, has each of them run a task, and ends them. One
    Slurm job gets all hosts; the time it spends in the queue counts.

    Example: `python -m benchmarks clusters --site site.toml --against ipyparallel,dask-jobqueue,dask-ssh`
    """
    of_site = cases(len(site.hosts))
    records = measure_systems("clusters", [of_site[name] for name in chosen],
                              lambda case: {**ON_SITES, **of_site[case.name].systems}, place=AtSite(site), engines=1,
                              **options)  # fmt: skip
    if not records.any_figure():
        fail("nothing could be measured")


command.params += [
    against_option([name for name in ON_SITES if name not in (OURS, RAW)]),
    only_peers_option(),
    repeats_option(),
    quick_option(),
    json_option(),
    recorded.option(),
    environments_option(),
]
