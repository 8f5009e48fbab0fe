"""`broadleaf-lab vs`: which of two commands is faster?"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Literal

import click

from broadleaf_lab.cli.judging import JudgingCommand
from broadleaf_lab.cli.run.options import seconds
from broadleaf_lab.cli.terminal import console
from broadleaf_lab.text import duration

if TYPE_CHECKING:
    from broadleaf_lab.analysis.pairs.intervals import Interval


@click.command("vs", cls=JudgingCommand)
@click.argument("a")
@click.argument("b")
@click.option("--budget", "budget_s", callback=seconds, metavar="TIME", default="2m", show_default=True,
              help="Maximum time to measure; vs stops as soon as the verdict is known.")  # fmt: skip
@click.option(
    "--max-pairs", type=click.IntRange(10), default=10_000, show_default=True, help="Maximum number of pairs of runs."
)
@click.option("--rope", "rope_pct", type=click.FloatRange(0, min_open=True), default=1.0, show_default=True,
              metavar="PERCENT", help="Differences below this do not matter.")  # fmt: skip
@click.option("--prepare", default="", metavar="COMMAND", help="Command to run before each run, untimed.")
@click.option("--cleanup", default="", metavar="COMMAND", help="Command to run after each run, untimed.")
@click.option("--clock", type=click.Choice(("auto", "cpu", "wall")), default="auto", show_default=True,
              help="cpu: processor time. wall: elapsed time. auto: cpu for single-threaded programs that never sleep.",
              )  # fmt: skip
@click.option("--side-by-side/--in-turn", "side_by_side", default=None,
              help="Run both at once on one processor, or one after the other. By default, both at once if "
              "processor time is measured and neither --prepare nor --cleanup is given.")  # fmt: skip
@click.option("--timeout", "timeout_s", callback=seconds, metavar="TIME", default="10m", show_default=True,
              help="A run that takes longer counts as failed.")  # fmt: skip
@click.option(
    "--seed", type=int, help="Seed for the order of runs and for the random state that both runs of a pair share."
)
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON object.")
def command(
    a: str,
    b: str,
    budget_s: float,
    max_pairs: int,
    rope_pct: float,
    prepare: str,
    cleanup: str,
    clock: Literal["auto", "cpu", "wall"],
    side_by_side: bool | None,
    timeout_s: float,
    seed: int | None,
    as_json: bool,
) -> None:
    """Tell whether command B is faster than command A, without a study.

    Runs the commands in pairs, and stops when the verdict is known. Give each command as one quoted argument. Works on
    a busy machine.

    Exit codes: 0 B is faster or makes no practical difference, 1 B is slower or fails more, 2 a wrong option, 3
    could not run, 4 undecided.
    """
    from broadleaf_lab.comparisons.versus.commands import Commands, Hooks
    from broadleaf_lab.comparisons.versus.duel import duel

    def on_look(interval: Interval, pairs: int, left_s: float) -> None:
        from broadleaf_lab.comparisons.gate import look_line

        click.echo(f"{look_line(interval, pairs)}, at most {duration(left_s)} left", err=True)

    commands = Commands(
        a, b, hooks=Hooks(prepare, cleanup), timeout_s=timeout_s, seed=seed, side_by_side=side_by_side,
        clock=None if clock == "auto" else clock,
    )  # fmt: skip
    found = duel(commands, rope_pct=rope_pct, budget_s=budget_s, max_pairs=max_pairs, on_look=on_look)
    if as_json:
        click.echo(json.dumps(found.as_dict()))
    else:
        out = console()
        out.print(f"A: {a}\nB: {b}", markup=False)
        for number, sentence in enumerate(found.sentences):
            out.print(sentence, style="bold" if number == 0 else None, markup=False)
    sys.exit(found.exit_code)
