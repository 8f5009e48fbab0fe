"""The pytest plugin: the fixture `versus` compares two functions or two commands, and returns a verdict.

def test_the_new_parser_is_no_slower(versus):
    assert versus(old.parse, new.parse).no_slower
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from broadleaf_lab.comparisons.versus.commands import Clock
    from broadleaf_lab.comparisons.versus.duel import Duel

BUDGET_S = 10.0
_told = pytest.StashKey[list[tuple[str, str]]]()


class Versus:
    """The fixture's value: call it with two functions or two commands."""

    def __init__(self, test: str, told: list[tuple[str, str]], budget_s: float | None) -> None:
        self._test, self._told, self._budget_s = test, told, budget_s

    def __call__(
        self,
        a: Callable[[], Any] | str,
        b: Callable[[], Any] | str,
        *,
        rope_pct: float = 1.0,
        budget_s: float = BUDGET_S,
        clock: Clock | None = None,
        prepare: str = "",
        cleanup: str = "",
        seed: int | None = None,
    ) -> Duel:
        """Compares B with A, in pairs and in random order, until it is decided or `budget_s` seconds are spent.

        Both are functions without arguments, or both are command lines; `prepare` and `cleanup` are commands around
        each run of a command, untimed. Differences within `rope_pct` per cent do not matter. `clock` is "cpu" or
        "wall"; if left out it is chosen. RunError if a command fails; what a function raises is not caught.
        """
        from broadleaf_lab.comparisons.versus.commands import Commands, Hooks
        from broadleaf_lab.comparisons.versus.duel import Contest, duel
        from broadleaf_lab.comparisons.versus.functions import Functions
        from broadleaf_lab.errors import RunError

        contest: Contest
        if isinstance(a, str) and isinstance(b, str):
            contest = Commands(a, b, hooks=Hooks(prepare, cleanup), clock=clock, seed=seed)
        elif isinstance(a, str) or isinstance(b, str):
            raise RunError("a function cannot be compared with a command: give two functions or two commands.")
        else:
            contest = Functions(a, b, clock=clock, seed=seed)
        found = duel(contest, rope_pct=rope_pct, budget_s=self._budget_s or budget_s)
        self._told.append((self._test, f"A {found.a}, B {found.b}: {found}"))
        return found


@pytest.fixture
def versus(request: pytest.FixtureRequest) -> Versus:
    """Compares two functions or two commands: `versus(a, b).no_slower`."""
    told = request.config.stash.setdefault(_told, [])
    return Versus(request.node.nodeid, told, request.config.getoption("versus_budget_s"))


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("broadleaf-lab", "the performance laboratory")
    group.addoption(
        "--versus-budget", dest="versus_budget_s", type=float, metavar="SECONDS",
        help="Maximum time for each comparison by the fixture `versus`, overriding the values in the tests.",
    )  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "versus: uses the fixture `versus`, so it measures; -m 'not versus' leaves out")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "versus" in getattr(item, "fixturenames", ()):
            item.add_marker("versus")


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if told := config.stash.get(_told, []):
        terminalreporter.section("versus")
        for test, sentences in told:
            terminalreporter.line(f"{test}: {sentences}")
