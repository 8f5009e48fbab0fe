"""What engines find in their environment: thread counts, and the variables of their cluster."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from broadleaf.engine.environment import THREAD_VARIABLES, thread_environment
from broadleaf.mpi.host import share


def test_libraries_start_as_many_threads_as_their_engine_has_cores():
    assert thread_environment(0, 2, {}) == dict.fromkeys(THREAD_VARIABLES, "2")
    assert {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS"} < set(THREAD_VARIABLES)


@pytest.mark.parametrize(
    ("given", "count"), [("7", "7"), ("3,2", "3"), (" 4 ", "4"), ("", "2"), ("0", "2"), ("x", "2")]
)
def test_what_the_user_says_to_openmp_holds_for_all(given, count):
    others = [name for name in THREAD_VARIABLES if name != "OMP_NUM_THREADS"]
    assert thread_environment(0, 2, {"OMP_NUM_THREADS": given}) == dict.fromkeys(others, count)


def test_a_variable_that_the_user_has_set_stays():
    given = {"OMP_NUM_THREADS": "7", "MKL_NUM_THREADS": "1"}
    found = thread_environment(0, 2, given)
    assert not given.keys() & found.keys()
    assert set(found.values()) == {"7"}


def test_the_option_comes_before_all_variables():
    assert thread_environment(3, 2, {"OMP_NUM_THREADS": "7"}) == dict.fromkeys(THREAD_VARIABLES, "3")


@pytest.mark.parametrize(
    ("masks", "usable", "expected"),
    [
        ([range(8)] * 4, 8, [2, 2, 2, 2]),
        ([range(2)] * 4, 2, [1, 1, 1, 1]),
        ([range(7)] * 2, 7, [3, 3]),
        ([range(4), range(4, 8)], 4, [4, 4]),  # bound to a socket each
        ([[0], [1]], 1, [1, 1]),
        ([range(8), range(4)], 8, [6, 2]),
        ([range(64)] * 4, 8, [2, 2, 2, 2]),  # a container with a quota
        ([range(9)] * 9, 9, [1] * 9),
    ],
)
def test_ranks_share_the_cores_that_they_may_use(masks, usable, expected):
    assert [share(masks, rank, usable) for rank in range(len(masks))] == expected


def test_a_program_starts_again_with_variables_that_its_interpreter_must_have(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("""
import os, sys
from broadleaf.engine.environment import start_again_with
print(os.getpid(), flush=True)
start_again_with({"PYTHONHASHSEED": "7", "OTHER": "x"})
print(os.getpid(), hash("a"), os.environ["OTHER"], sys.argv[1:], sys.flags.optimize)
""")
    bare = {name: value for name, value in os.environ.items() if name not in ("PYTHONHASHSEED", "OTHER")}
    command = [sys.executable, "-O", str(program), "an argument"]
    done = subprocess.run(command, env=bare, capture_output=True, text=True, check=True, timeout=60)
    before, again, last = done.stdout.splitlines()
    seeded = subprocess.run(
        [sys.executable, "-c", "print(hash('a'))"],
        env={"PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert before == again
    assert last == f"{before} {seeded.stdout.strip()} x ['an argument'] 1"
