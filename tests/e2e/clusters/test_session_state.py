"""What engines have of the state of the session that starts their cluster.

The table in `docs/concepts/session-state.md`, line by line. Its last line is tested with `threads_per_engine`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import broadleaf as ipp
import pytest
from broadleaf.cluster.join import HostedRelay
from broadleaf.cluster.started_sets import StartedSets
from waiting import until

pytestmark = pytest.mark.timeout(120)

WORDS = ("leaf", "root", "seed")


def hashes(words: Sequence[str]) -> list[int]:
    """What depends on the seed of hashes."""
    return [hash(word) for word in words]


def engine_by_hand(cluster: ipp.Cluster, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """`python -m broadleaf.engine engine.json`."""
    return subprocess.Popen([sys.executable, "-m", "broadleaf.engine", cluster.relay_file], env=environment)


def joined(cluster: ipp.Cluster, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """What a job or a login runs, with an order in a file."""
    request = StartedSets(cluster).request(1)
    some_set = ipp.SSH(hosts=["there"])
    order = cluster.cluster_dir / "order-test.json"
    order.write_text(json.dumps(some_set.join_order(request, block="job-1", name="there", n=1)))
    return subprocess.Popen(["sh", "-c", some_set.join_command(request, str(order))], env=environment)


@contextmanager
def engines_of_all_kinds(**options: Any) -> Iterator[ipp.Client]:
    """A client of a cluster whose engines are started in every way that needs no other program: forked, spawned or
    added here; by a relay, in a process that has another, by a job, and by hand."""
    with ipp.Cluster(n=1, listen="127.0.0.1:0", **options) as client:
        cluster = client.cluster
        cluster.start_engines_sync(1)
        # As on another host: nothing of this session's environment is there.
        bare = {name: os.environ[name] for name in ("PATH", "BROADLEAF_DIR", "BROADLEAF_TEST_RUN")}
        bare["PYTHONPATH"] = str(Path(ipp.__file__).parents[1])
        programs = [joined(cluster, bare), engine_by_hand(cluster, bare)]
        order = ipp.SSH(hosts=["there"]).join_order(StartedSets(cluster).request(1), block="hosted-1", n=1)
        hosted = HostedRelay(order)
        try:
            with ipp.Relay(cluster.relay_file, 1, name="relay"):
                client.wait_for_engines(6, timeout=60)
                yield client
        finally:
            hosted.stop()
            hosted.wait()
            for program in programs:
                program.terminate()
                program.wait(30)


@pytest.fixture(params=["fork", "spawn"])
def all_kinds(request) -> Callable[..., Any]:
    """Engines of all kinds, with both values of `engine_start`."""
    return lambda **options: engines_of_all_kinds(engine_start=request.param, **options)


def test_all_engines_have_the_same_hashes(all_kinds, monkeypatch):
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    with all_kinds() as client:
        first, *others = client[:].apply_sync(hashes, WORDS)
        assert others == [first] * 5
        # Interpreters that a task starts.
        code = f"print([hash(word) for word in {WORDS}])"
        said = client[:].apply_sync(subprocess.check_output, [sys.executable, "-c", code], text=True)
        assert [line.strip() for line in said] == [str(first)] * 6
        client.cluster.restart_engine_sync(0)
        assert until(lambda: len(client) == 6)
        assert client[0].apply_sync(hashes, WORDS) == first


def test_every_cluster_draws_its_hashes(monkeypatch):
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    found = []
    for _ in range(2):
        with ipp.Cluster(n=1) as client:
            found.append(tuple(client[0].apply_sync(hashes, WORDS)))
    assert found[0] != found[1]


def of_seed(seed: str) -> list[int]:
    code = f"print(*(hash(word) for word in {WORDS}))"
    return list(map(int, subprocess.check_output([sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}).split()))


def test_a_seed_that_the_session_has_is_the_engines(all_kinds, monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    with all_kinds() as client:
        assert client[:].apply_sync(hashes, WORDS) == [of_seed("7")] * 6


def test_a_seed_for_the_engines_comes_before_the_sessions(all_kinds, monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    with all_kinds(env={"PYTHONHASHSEED": "9"}) as client:
        assert client[:].apply_sync(hashes, WORDS) == [of_seed("9")] * 6


@pytest.mark.parametrize("seed", ["random", "", "-1", "4294967296", "seven"])
def test_what_is_no_seed_leaves_it_to_the_cluster(seed, monkeypatch):
    # Python itself would not start with some of them.
    monkeypatch.setenv("PYTHONHASHSEED", seed)
    with ipp.Cluster(n=2, engine_start="spawn") as client:
        first, second = client[:].apply_sync(hashes, WORDS)
        assert first == second


def test_variables_for_engines_are_there_when_their_interpreters_start(all_kinds):
    with all_kinds(env={"PYTHONINTMAXSTRDIGITS": "5000", "OWN": "x"}) as client:
        assert client[:].apply_sync(sys.get_int_max_str_digits) == [5000] * 6
        assert client[:].apply_sync(os.getenv, "OWN") == ["x"] * 6


def test_other_variables_are_the_sessions_here_and_the_hosts_elsewhere(all_kinds, monkeypatch):
    monkeypatch.setenv("OF_SESSION", "x")
    with all_kinds() as client:
        # The last two start a job's program and an engine by hand, the others are children of this session.
        assert sorted(client[:].apply_sync(os.getenv, "OF_SESSION"), key=str) == [None] * 2 + ["x"] * 4


def test_modules_and_the_directory_are_the_sessions(all_kinds, monkeypatch, tmp_path):
    (tmp_path / "modules").mkdir()
    monkeypatch.syspath_prepend(tmp_path / "modules")
    monkeypatch.chdir(tmp_path)
    with all_kinds() as client:
        assert client[:].apply_sync(os.getcwd) == [str(tmp_path)] * 6
        paths = client[:].apply_sync(lambda: __import__("sys").path)
        assert all(str(tmp_path / "modules") in path for path in paths)
        client[:].apply_sync(os.chdir, "/")
        assert client[:].apply_sync(os.getcwd) == ["/"] * 6


def time_zone() -> str:
    import time

    return time.strftime("%Z%z", time.localtime(0))


def test_a_time_zone_that_the_session_has_is_the_engines(all_kinds, monkeypatch):
    monkeypatch.setenv("TZ", "ABC-5")
    with all_kinds() as client:
        assert client[:].apply_sync(time_zone) == ["ABC+0500"] * 6
    with all_kinds(env={"TZ": "DEF+3"}) as client:
        assert client[:].apply_sync(time_zone) == ["DEF-0300"] * 6


SESSION = """
import sys
sys.path.insert(0, {tests!r})
from test_session_state import engines_of_all_kinds
with engines_of_all_kinds(engine_start={engine_start!r}) as client:
    print({expression})
"""


def said_by_session(flags: Sequence[str], expression: str, engine_start: str) -> str:
    """What an expression is in a session with these flags of the interpreter; `client` has engines of all kinds."""
    program = SESSION.format(tests=str(Path(__file__).parent), engine_start=engine_start, expression=expression)
    command = [sys.executable, *flags, "-c", program]
    path = os.pathsep.join(filter(None, sys.path))
    environment = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize("engine_start", ["fork", "spawn"])
def test_text_is_utf_8_where_the_session_says_so(engine_start):
    expression = "client[:].apply_sync(lambda: __import__('sys').flags.utf8_mode)"
    assert said_by_session(["-X", "utf8"], expression, engine_start) == str([1] * 6)


def test_a_host_has_its_own_text_encoding_otherwise(monkeypatch):
    # As in most sessions: no UTF-8 mode, but a locale that says UTF-8.
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    expression = "client[:].apply_sync(lambda: __import__('sys').flags.utf8_mode)"
    assert said_by_session(["-X", "utf8=0"], expression, "fork") == str([0] * 6)
    with ipp.Cluster(n=1, env={"PYTHONUTF8": "1"}) as client:
        assert client[0].apply_sync(lambda: __import__("sys").flags.utf8_mode) == 1


def test_the_locale_is_the_hosts(monkeypatch):
    import locale

    monkeypatch.setenv("LC_ALL", "C")
    before = locale.setlocale(locale.LC_TIME)
    locale.setlocale(locale.LC_TIME, "C.UTF-8")
    try:
        with ipp.Cluster(n=1) as client:
            assert client[0].apply_sync(locale.setlocale, locale.LC_TIME) == "C"
        with ipp.Cluster(n=1, env={"LC_ALL": "C.UTF-8"}) as client:
            assert client[0].apply_sync(locale.setlocale, locale.LC_CTYPE) == "C.UTF-8"
            assert client[0].apply_sync(locale.setlocale, locale.LC_TIME, "") == "C.UTF-8"
    finally:
        locale.setlocale(locale.LC_TIME, before)


def warns() -> str:
    import warnings

    try:
        warnings.warn("told", RuntimeWarning, stacklevel=1)
    except RuntimeWarning:
        return "error"
    return "shown or not"


@pytest.mark.parametrize("engine_start", ["fork", "spawn"])
def test_warnings_are_filtered_as_the_sessions_command_line_says(engine_start):
    expression = "client[:].apply_sync(__import__('test_session_state').warns)"
    flags = ["-W", "error::RuntimeWarning", "-W", "ignore:this, and that"]
    assert said_by_session(flags, expression, engine_start) == str(["error"] * 6)


def test_filters_that_a_program_adds_stay_in_its_process():
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with ipp.Cluster(n=1) as client:
            assert client[0].apply_sync(warns) == "shown or not"
        with ipp.Cluster(n=1, env={"PYTHONWARNINGS": "error"}) as client:
            assert client[0].apply_sync(warns) == "error"


def test_the_recursion_limit_is_pythons_own_and_what_a_task_sets_stays():
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(4000)
    try:
        with ipp.Cluster(n=1) as client:
            assert client[0].apply_sync(sys.getrecursionlimit) == 1000
            client[0].apply_sync(sys.setrecursionlimit, 5000)
            assert client[0].apply_sync(sys.getrecursionlimit) == 5000
    finally:
        sys.setrecursionlimit(before)


def digits(precision: int | None) -> int:
    import decimal

    if precision is None:
        return len(str(decimal.Decimal(1) / 3)) - 2
    with decimal.localcontext(prec=precision):
        return digits(None)


def test_the_decimal_context_is_pythons_own():
    import decimal

    with decimal.localcontext(prec=50), ipp.Cluster(n=1) as client:
        assert digits(None) == 50
        assert client[0].apply_sync(digits, None) == 28
        assert client[0].apply_sync(digits, 50) == 50
