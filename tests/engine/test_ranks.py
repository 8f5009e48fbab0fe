"""The program that each rank of an MPI world runs, up to the point where it needs MPI."""

from __future__ import annotations

import subprocess
import sys

import pytest
from broadleaf.mpi.__main__ import _options

# Each takes a rank several milliseconds, and all ranks of a host import at the same time.
SLOW_IMPORTS = {
    "argparse", "ast", "concurrent.futures", "dataclasses", "inspect", "logging", "pathlib", "selectors", "socket",
    "subprocess", "threading",
}  # fmt: skip
PROGRAM = """
import sys
import broadleaf.mpi.__main__, broadleaf.mpi.host, broadleaf.state.connection
import broadleaf.engine.rank, broadleaf.engine.main
print(*sys.modules)
"""
COMPILED = """
import gc, typing
print([one for one in gc.get_objects() if isinstance(one, typing.ForwardRef)])
"""


def test_a_rank_imports_nothing_that_takes_long():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60)
    assert SLOW_IMPORTS & set(done.stdout.split()) == set()


def test_a_rank_compiles_no_annotations_of_named_tuples():
    # They are strings below `from __future__ import annotations`. The first takes 3 ms.
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + COMPILED], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_options_have_values():
    words = ["--connection", "engine.json", "--world=ours", "--log", "a=b"]
    assert _options(words) == {"--connection": "engine.json", "--world": "ours", "--log": "a=b"}


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ([], "--connection is needed"),
        (["--connection"], "--connection needs a value"),
        (["--connection", "x", "--rank", "1"], "no such option: '--rank'"),
        (["engine.json"], "no such option: 'engine.json'"),
    ],
)
def test_a_wrong_command_line_is_refused_with_the_options(words, fault):
    with pytest.raises(SystemExit, match=rf"broadleaf: {fault}\n.*python -m broadleaf.mpi --connection .*") as raised:
        _options(words)
    assert "--client-connection VALUE: the cluster's client.json" in str(raised.value)


def test_help_is_no_fault(capsys):
    with pytest.raises(SystemExit) as raised:
        _options(["--help"])
    assert raised.value.code == 0
    assert capsys.readouterr().out.startswith("`mpiexec -n 64")
