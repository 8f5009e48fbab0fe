"""`broadleaf bench`: chooses cases and systems, prints records as they come and a table at the end."""

import argparse
import sys
from pathlib import Path

from . import machine, table
from .cases import CASES
from .environments import OURS, PEERS, RAW
from .record import Record
from .runner import Run
from .turn import isolation

ALL = "all"
# A command of its own; a case by name only so that the parser can say so.
HOSTS = "hosts"


def parser() -> argparse.ArgumentParser:
    cases = "\n".join(f"  {case.name:<10} {case.meaning}" for case in CASES.values())
    made = argparse.ArgumentParser(
        prog="broadleaf bench",
        description="Measures Broadleaf, alone or beside its peers. All systems take turns in one run.",
        epilog=f"cases:\n{cases}\n  {ALL:<10} all of these, one after another\n"
        f"  {HOSTS:<10} broadcasts over namespaced hosts; see broadleaf bench hosts --help",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("case", choices=[*CASES, ALL, HOSTS], help="what to measure")
    made.add_argument(
        "--against", default="", metavar="PEERS", help=f"peers separated by commas, of {', '.join(PEERS)}"
    )
    made.add_argument("--only-peers", action="store_true", help="leave Broadleaf itself out")
    made.add_argument("--engines", type=int, default=4, metavar="N", help="workers of every system (4)")
    made.add_argument("--repeats", type=int, default=0, metavar="R", help="rounds (5; 2 with --quick)")
    made.add_argument(
        "--quick", action="store_true", help="little work and few rounds: shows that it runs, not how fast"
    )
    made.add_argument("--json", type=Path, metavar="FILE", help="append the records to FILE, one JSON object a line")
    made.add_argument("--plot", type=Path, metavar="DIR", help="draw figures into DIR (needs matplotlib)")
    made.add_argument("--environments", type=Path, default=Path(".bench-venvs"), metavar="DIR",
                      help="where the peers' environments are made (.bench-venvs)")  # fmt: skip
    return made


def systems(against: str, only_peers: bool) -> list[str]:
    """Ours, then the named peers; exits with a message on names that do not exist."""
    named = [name.strip() for name in against.split(",") if name.strip()]
    for name in named:
        if name not in PEERS:
            raise SystemExit(f"broadleaf bench: no peer is called {name!r}; there are {', '.join(PEERS)}")
    return ([] if only_peers else [OURS]) + named


def main(argv: list[str]) -> int:
    """Runs the command; always 0: what a system could not do is a record, not a failure of the run."""
    if argv[:1] == [HOSTS]:
        from . import hosts

        return hosts.main(argv[1:])
    made = parser()
    chosen, unknown = made.parse_known_args(argv)
    if chosen.case == HOSTS:
        made.error("hosts is a command of its own, with its own options behind it: broadleaf bench hosts --help")
    if unknown:
        made.error(f"unrecognized arguments: {' '.join(unknown)}")
    taking_part = systems(chosen.against, chosen.only_peers)
    repeats = chosen.repeats or (2 if chosen.quick else 5)
    if chosen.engines < 1 or repeats < 1:
        raise SystemExit("broadleaf bench: --engines and --repeats start at 1")
    print(machine.line(machine.facts(bool(isolation()))), file=sys.stderr)
    records: list[Record] = []
    for case in CASES.values() if chosen.case == ALL else [CASES[chosen.case]]:
        print(f"{case.name}: {case.meaning}", file=sys.stderr)
        partners = [] if case.name == RAW else [n for n in taking_part if n == OURS or not case.only_ours]
        run = Run(case, partners, chosen.environments.resolve(), chosen.engines, repeats, chosen.quick, say)
        for record in run.records():
            records.append(record)
            if chosen.json:
                with chosen.json.open("a") as out:
                    out.write(record.line() + "\n")
    table.show(records)
    if chosen.plot:
        from . import plots

        for path in plots.draw(records, chosen.plot):
            print(path)
    return 0


def say(text: str) -> None:
    """Progress, apart from the result."""
    print(text, file=sys.stderr, flush=True)
