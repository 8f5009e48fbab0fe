"""`broadleaf bench`: a command for each case, one for all of them, one for hosts and one for sites."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from broadleaf.cli.commands import SuggestingGroup

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

ALL = "all"
HOSTS = "hosts"
CLUSTERS = "clusters"
MOVERS = "movers"


class BenchGroup(SuggestingGroup):
    """Makes the command of a case when it is needed."""

    def texts(self) -> dict[str, str]:
        """Each command and what it measures, in one sentence."""
        from broadleaf.bench.cases import CASES

        found = {case.name: f"Measure {case.meaning}." for case in CASES.values()}
        return {
            **found,
            ALL: "Measure all of these, one after another.",
            HOSTS: "Measure broadcasts to several hosts, made of network namespaces (needs root).",
            CLUSTERS: "Measure the start of engines on the hosts of a site, by Slurm and SSH.",
            MOVERS: "Compare broadcasts over TCP and by movers with those of MPI itself (needs root).",
        }

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.texts())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == HOSTS:
            from broadleaf.cli.bench.hosts import command

            return command
        if cmd_name == CLUSTERS:
            from broadleaf.cli.bench.clusters import command

            return command
        if cmd_name == MOVERS:
            from broadleaf.cli.bench.movers import command

            return command
        texts = self.texts()
        if cmd_name not in texts:
            return None
        from broadleaf.cli.bench.case import case_command

        return case_command(cmd_name, texts[cmd_name])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise click.UsageError(
                f"{error.option_name} comes before the case; put options after it, as in "
                "`broadleaf bench latency --quick`", ctx
            ) from None  # fmt: skip

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Cases"):
            formatter.write_dl(list(self.texts().items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        cases = [CompletionItem(name, help=text) for name, text in self.texts().items() if name.startswith(incomplete)]
        return cases + click.Command.shell_complete(self, ctx, incomplete)


@click.group("bench", cls=BenchGroup, subcommand_metavar="CASE [OPTIONS]")
def command(**_: Any) -> None:
    """Measure Broadleaf on this machine, alone or beside other libraries.

    All systems alternate within one run, so that a slow minute of the machine affects all of them. Progress goes to
    standard error, and the table at the end to standard output.

    Examples: `broadleaf bench latency`, `broadleaf bench throughput --against ppe --repeats 5`,
    `broadleaf bench all --quick --against ppe`
    """
