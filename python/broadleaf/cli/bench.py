"""`broadleaf bench`: a command for each case, and one for all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import TYPE_CHECKING, Any, ClassVar

import click

from broadleaf.cli.commands import SuggestingGroup, missing_modules, require
from broadleaf.cli.console import TableCommand, console, fail, plain_table

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from broadleaf.bench.cases import Case
    from broadleaf.bench.record import Record
    from broadleaf.bench.turn import Place, System

ALL = "all"
_STANDARD_OUTPUT = "-"


class BenchGroup(SuggestingGroup):
    """Makes the command of a case when it is needed."""

    #: How the group is called.
    program: ClassVar[str] = "broadleaf bench"

    def texts(self) -> dict[str, str]:
        """Each command and what it measures, in one sentence."""
        from broadleaf.bench.cases import CASES

        found = {case.name: f"Measure {case.meaning}." for case in CASES.values()}
        return {**found, ALL: "Measure all of these, one after another."}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.texts())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        texts = self.texts()
        return self.case_command(cmd_name, texts[cmd_name]) if cmd_name in texts else None

    def case_command(self, name: str, text: str) -> click.Command:
        """The command of a case, or of all."""
        return case_command(name, text, [], measure_here)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise click.UsageError(
                f"{error.option_name} comes before the case; put options after the case, as in "
                f"`{self.program} latency --quick`", ctx
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
    """Measure Broadleaf on this machine.

    Each round starts and stops a cluster. Progress goes to standard error, and the table at the end to standard
    output.

    Examples: `broadleaf bench latency`, `broadleaf bench throughput --repeats 5`, `broadleaf bench all --quick`
    """


def case_command(
    name: str, text: str, added: Sequence[click.Parameter], measured: Callable[..., Records]
) -> click.Command:
    """The command of a case, or of all: its options and those `added`. `measured` takes the command's name, the cases
    and the options, and measures.
    """
    from broadleaf.bench.cases import CASES, FIGURES

    def callback(**options: Any) -> None:
        cases = [CASES[name]] if name != ALL else list(CASES.values())
        if len(cases) == 1 and cases[0].needs_numpy:
            require("bench", ("numpy",), f"`broadleaf bench {cases[0].name}`")
        if not measured(name, cases, **options).any_figure():
            fail("nothing could be measured")

    parameters: list[click.Parameter] = [
        click.Option(["--engines", "-n"], type=click.IntRange(1), default=4, show_default=True, metavar="N",
                     help="Number of workers, unless the case sets it."),
        repeats_option(),
        quick_option(),
        json_option(),
    ]  # fmt: skip
    return TableCommand(name, params=[*parameters, *added], callback=callback, help=text,
                        columns=FIGURES.get(name, {}), explained_as="Figures")  # fmt: skip


def repeats_option() -> click.Option:
    """The option that says how often every system takes its turn."""
    return click.Option(["--repeats"], type=click.IntRange(1), metavar="R",
                        help="Rounds; every system runs once in each.  [default: 5; 2 with --quick]")  # fmt: skip


def quick_option() -> click.Option:
    """The option that only shows that a benchmark runs."""
    return click.Option(["--quick"], is_flag=True,
                        help="Run only a few short rounds, to check that the cases work. The figures are not "
        "meaningful.")  # fmt: skip


def json_option() -> click.Option:
    """The option that asks for JSON lines."""
    return click.Option(["--json", "json_file"], type=click.Path(dir_okay=False, allow_dash=True), metavar="FILE",
                        help="Append the records to FILE, one JSON object per line. With -, write them to standard "
                        "output instead of the table.")  # fmt: skip


def measure_here(name: str, cases: list[Case], **options: Any) -> Records:
    """Measures Broadleaf, and the bare machine beside it."""
    from broadleaf.bench.record import OURS, RAW
    from broadleaf.bench.turn import SYSTEMS

    return measure(cases, lambda case: {RAW: SYSTEMS[RAW], OURS: SYSTEMS[OURS]}, **options)


def measure(
    cases: list[Case],
    systems: Callable[[Case], Mapping[str, System]],
    *,
    engines: int,
    repeats: int | None,
    quick: bool,
    json_file: str | None,
    place: Place | None = None,
) -> Records:
    """Runs the cases, each with its `systems`, and shows their figures."""
    from broadleaf.bench.record import OURS, RAW
    from broadleaf.bench.runner import Run
    from broadleaf.bench.turn import Place

    place = place or Place()
    records = Records(json_file, place.isolation)
    records.name_machine()
    for case in cases:
        if case.needs_numpy and missing_modules(("numpy",)):
            say(f"{case.name} is left out: it needs numpy (pip install 'broadleaf[bench]')")
            continue
        say(f"{case.name}: {case.meaning}")
        taking_part = {
            name: system
            for name, system in systems(case).items()
            if name == RAW or (case.name != RAW and (name == OURS or not case.only_ours))
        }
        for record in Run(case, taking_part, engines, repeats or (2 if quick else 5), quick, say, place).records():
            records.add(record)
    records.show()
    return records


def say(text: str) -> None:
    """Reports progress, separately from the result."""
    click.echo(text, err=True)


class Records:
    """The records of a run so far: a table for people, and JSON lines for programs, which are written as they arrive,
    so that nothing is lost.
    """

    def __init__(self, json_file: str | None, isolation: str = "none") -> None:
        from broadleaf.bench.record import machine_facts

        self.found: list[Record] = []
        self.began: datetime = datetime.now(UTC)
        #: The machine and the conditions.
        self.facts: dict[str, object] = machine_facts(isolation)
        self.json_file = json_file
        if json_file not in (None, _STANDARD_OUTPUT):
            # A path that cannot be written is reported before anything is measured.
            with open(str(json_file), "a", encoding="utf-8"):
                pass

    def name_machine(self) -> None:
        """Says which machine the figures will be of."""
        from broadleaf.bench.record import machine_line

        say(machine_line(self.facts))

    def add(self, record: Record) -> None:
        """Adds a record, and writes it if requested."""
        self.found.append(record)
        if self.json_file == _STANDARD_OUTPUT:
            click.echo(record.line())
        elif self.json_file is not None:
            with open(self.json_file, "a", encoding="utf-8") as out:
                out.write(record.line() + "\n")

    def any_figure(self) -> bool:
        """Whether anything was measured."""
        return any(record.values for record in self.found)

    def for_people(self) -> bool:
        """Whether standard output is not for programs."""
        return self.json_file != _STANDARD_OUTPUT

    def show(self) -> None:
        """Prints the table, unless the records went to standard output."""
        if not self.for_people():
            return
        from broadleaf.bench import table

        out = console()
        rows = table.rows(self.found)
        for case, group in groupby(rows, key=lambda row: row.record.case):
            of_case = list(group)
            columns = table.shown_columns(of_case)
            shown = plain_table([table.TITLES[column] for column in columns], table.LEFT)
            for row in of_case:
                shown.add_row(*(row.cells[column] for column in columns))
            out.print(case, style="bold")
            out.print(shown)
            out.print()
        for text in (*table.findings(self.found), *table.left_out(self.found)):
            out.print(text, markup=False)
