"""Many engines that print at once, round after round, while one raises and one dies: every line is shown, once.

`BROADLEAF_STORM_ROUNDS=100` runs as many rounds.
"""

from __future__ import annotations

import os
import random
from typing import Any

import broadleaf as ipp
import pytest
from test_live_output import lines_by_engine

ROUNDS = int(os.environ.get("BROADLEAF_STORM_ROUNDS", "2"))
ENGINES = 64
LINES = 1000
WAYS: tuple[dict[str, Any], ...] = (
    {},
    {"groupby": "lines"},
    {"stream": False},
    {"stream": False, "groupby": "engine"},
    {"groupby": "order"},
)
ENDS = ("import os; os._exit(9)", "import os; os.kill(os.getpid(), 9)", "import os; os.kill(os.getpid(), 11)")


def random_lines(seed: int) -> tuple[list[str], list[str]]:
    """What an engine writes to both streams: numbered lines of words of any length, beyond ASCII, too."""
    chance = random.Random(seed)
    words = [
        " ".join(chance.choices(("a", "beta", "γάμμα", "x" * 40, "🙂"), k=chance.randint(1, 8))) for _ in range(50)
    ]
    out = [f"{i} 0.{chance.randrange(10**6)} {chance.choice(words)}" for i in range(LINES)]
    err = [f"{i} 0.{chance.randrange(10**6)} {chance.choice(words)}" for i in range(LINES)]
    return out, err


def storm(round_number: int, raising: int, dying: int, end: str) -> str:
    """A cell in which every engine prints its lines, and two end badly."""
    return f"""
out, err = random_lines({round_number * ENGINES} + engine_id)
import sys
for for_stdout, for_stderr in zip(out, err):
    print(for_stdout)
    print(for_stderr, file=sys.stderr)
if engine_id == {raising}:
    raise ValueError("in round {round_number}")
if engine_id == {dying}:
    {end}
"""


@pytest.mark.timeout(120 + 30 * ROUNDS)
def test_no_line_is_lost_or_shown_twice(capsys):
    chance = random.Random(20_261_123)
    with ipp.Cluster(n=ENGINES, restart_engines=True, max_restarts=1_000_000, restart_backoff_max_s=0.1) as rc:
        for number in range(ROUNDS):
            rc.wait_for_engines(ENGINES, timeout=60)
            view = rc[:]
            view.push({"random": random, "LINES": LINES, "random_lines": random_lines}, block=True)
            raising, dying = chance.sample(range(ENGINES), 2)
            how, end = WAYS[number % len(WAYS)], ENDS[number % len(ENDS)]
            capsys.readouterr()
            ar = view.execute(storm(number, raising, dying, end), silent=False, block=False)
            with pytest.raises(ipp.RemoteError) as caught:
                ar.show(**how)
            shown = capsys.readouterr()
            out, err = lines_by_engine(shown.out), lines_by_engine(shown.err)
            for engine in range(ENGINES):
                assert (out[engine], err[engine]) == random_lines(number * ENGINES + engine), (number, engine, how, end)
            told = shown.err if how.get("stream", True) else "\n".join(caught.value.render_traceback())
            assert told.count(f"ValueError: in round {number}") == 1
            assert f"engine {dying} (pid" in told
