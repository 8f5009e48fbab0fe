"""The `broadleaf` command with real clusters."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import broadleaf
import pytest
from broadleaf import Client, config

pytestmark = pytest.mark.timeout(60)

_RUN = "import sys; sys.argv[0] = 'broadleaf'; from broadleaf.cli import main; main()"


def _environment(**more):
    return os.environ | {"PYTHONPATH": str(Path(broadleaf.__file__).parent.parent)} | more


def finished(*arguments, **environment):
    """Runs the command to its end."""
    return subprocess.run(
        [sys.executable, "-c", _RUN, *arguments],
        capture_output=True,
        text=True,
        timeout=50,
        env=_environment(**environment),
    )


def run(*arguments, code=0, **environment):
    """Runs the command; returns its standard output, or its standard error if `code` is not 0."""
    done = finished(*arguments, **environment)
    assert done.returncode == code, done.stderr
    return done.stderr if code else done.stdout


@pytest.fixture(scope="module")
def started():
    """A cluster of two engines, started by the command under the id 'default'."""
    yield run("start", "-n", "2")
    run("stop")


def test_start_says_how_to_go_on(started):
    assert "cluster 'default' is running with 2 engines" in started
    assert "broadleaf.Client()" in started
    assert "broadleaf stop\n" in started
    with Client() as rc:
        assert rc.ids == [0, 1]


def test_start_twice(started):
    assert "'default' of profile 'default' is already running" in run("start", code=1)


def test_list(started):
    rows = json.loads(run("list", "--json"))
    assert [(row["cluster_id"], row["n"], row["detached"]) for row in rows] == [("default", 2, True)]
    assert "default" in run("list")
    assert run("list", "--profile", "other") == "no cluster is running in profile 'other'\n"


def test_status(started):
    status = json.loads(run("status", "--json"))
    assert [engine["state"] for engine in status["engines"]] == ["up", "up"]
    assert "ENGINE" in run("status")
    text = run("status", "--prometheus")
    assert 'broadleaf_engine_tasks_completed_total{cluster="default",engine="1"}' in text
    assert 'broadleaf_tasks_resolved_total{cluster="default",outcome="ok"}' in text


def test_top(started):
    head, *looks = run("top", "--count", "2", "--interval", "0.1").splitlines()
    assert head.split() == ["TIME", "ENGINES", "BUSY", "TASKS/S", "BYTES/S", "WAITING", "ERRORS"]
    assert [look.split()[1] for look in looks] == ["2/2", "2/2"]


def test_logs(started):
    with Client() as rc:
        rc[1].apply_sync(os.write, 1, b"a line of C\n")
    assert "a line of C" in run("logs", "--engine", "1")
    assert "has no engine 7; its engines: 0, 1" in run("logs", "--engine", "7", code=1)


def test_logs_tell_what_has_happened(started):
    with Client() as rc:
        rc[1].apply_async(divmod, 1, 0).wait()
        said = run("logs")
    lines = [re.sub(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} ", "", line) for line in said.splitlines()]
    assert any(re.fullmatch(r"engine 0 came up \(pid \d+\)", line) for line in lines)
    assert any(re.fullmatch(r"client \d+ connected", line) for line in lines)
    assert any(re.fullmatch(r"divmod failed on engine 1 after .*s", line) for line in lines)
    assert "sent a request" not in said


def test_top_tells_of_new_errors(started):
    with Client() as rc:
        rc[0].apply_async(int, "two").wait()
        with subprocess.Popen(
            [sys.executable, "-uc", _RUN, "top", "--interval", "0.1", "--count", "20"],
            stdout=subprocess.PIPE,
            text=True,
            env=_environment(),
        ) as top:
            # The first update comes after a look at what had failed before.
            assert "TIME" in top.stdout.readline()
            top.stdout.readline()
            rc[0].apply_async(float, "three").wait()
            said = top.stdout.read()
    assert "ValueError: could not convert string to float: 'three' in float, once, first for 'three'" in said
    assert "'two'" not in said


@pytest.mark.parametrize(("arguments", "whose"), [([], "the controller"), (["--engine", "0"], "engine 0")])
def test_an_empty_log_is_told_of(started, arguments, whose):
    done = finished("logs", *arguments)
    assert done.returncode == 0
    assert bool(done.stdout) == (not arguments), "the controller's events follow"
    assert f"{whose} of cluster 'default' has written nothing to its log, /" in done.stderr
    (path,) = re.findall(r"/\S+\.log", done.stderr)
    assert Path(path).exists()


def test_foreground_stops_on_ctrl_c(cluster_processes):
    child = subprocess.Popen(
        [sys.executable, "-c", _RUN, "start", "-n", "1", "--foreground", "--cluster-id", "fore"],
        stdout=subprocess.PIPE,
        text=True,
        env=_environment(),
    )
    with child:
        while "Ctrl-C" not in (line := child.stdout.readline()):
            assert line, "the command has ended"
        child.send_signal(signal.SIGINT)
        assert child.stdout.read() == "cluster 'fore' stopped\n"
    assert child.returncode == 0
    assert cluster_processes("fore") == {}


def _start_in_foreground(cluster_id: str) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", _RUN, "start", "-n", "0", "--foreground", "--cluster-id", cluster_id],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=_environment(),
    )
    while "Ctrl-C" not in (line := child.stdout.readline()):
        assert line, "the command has ended"
    return child


def test_foreground_ends_in_peace_when_the_cluster_is_stopped_elsewhere():
    with _start_in_foreground("ends") as child:
        run("stop", "--cluster-id", "ends")
        out, err = child.communicate(timeout=50)
    assert (out, err, child.returncode) == ("cluster 'ends' stopped\n", "", 0)


def test_foreground_tells_when_the_cluster_is_killed():
    with _start_in_foreground("killed") as child:
        (cluster,) = (c for c in broadleaf.ClusterManager().load_clusters().values() if c.cluster_id == "killed")
        os.kill(cluster.to_dict()["controller"]["node_pid"], signal.SIGKILL)
        assert "has ended by itself" in child.communicate(timeout=50)[1]
    assert child.returncode == 1


def test_stop_all_and_nothing():
    profile = "lonely"
    run("start", "-n", "0", "--profile", profile, "--cluster-id", "a")
    said = run("stop", "--profile", profile, "--cluster-id", "b", code=1)
    assert "no cluster 'b' is running in profile 'lonely' (looked in " in said
    assert "running: 'a'" in said
    assert "`broadleaf start --profile lonely --cluster-id b`" in said
    assert "cluster 'a' stopped" in run("stop", "--profile", profile)
    assert "no cluster is running in profile 'lonely'" in run("stop", "--profile", profile, code=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["strat"], "Did you mean 'start'?"),
        (["start", "-n", "-1"], "-1 is not in the range"),
        (["start", "-o", "prefetch=3"], "did you mean"),
        (["start", "-o", "prefetch"], "is not NAME=VALUE"),
        (["start", "--cluster-id", "a/b"], "cluster id 'a/b'"),
        (["stop", "--all", "--cluster-id", "x"], "cannot be combined"),
        (["config", "show", "nope"], "unknown option 'nope'"),
    ],
)
def test_wrong_use(arguments, message):
    assert message in run(*arguments, code=2)


def test_config_show():
    rows = json.loads(run("config", "show", "--json", BROADLEAF_STEAL="off"))
    assert set(rows) == set(config.OPTIONS)
    assert rows["steal"] == {"value": False, "origin": "environment BROADLEAF_STEAL"}
    assert run("config", "show", "--markdown") == config.markdown_list()
    assert "from: environment BROADLEAF_TLS" in run("config", "show", "tls", BROADLEAF_TLS="0")
    assert "expected on or off" in run("config", "show", code=1, BROADLEAF_TLS="maybe")


def test_scale_and_drain():
    run("start", "-n", "1", "--cluster-id", "elastic")
    try:
        named = ("--cluster-id", "elastic")
        assert run("scale", "3", *named) == "scaling cluster 'elastic' to 3 engines\n"
        with Client(cluster_id="elastic") as rc:
            rc.wait_for_engines(3)
            rc[0].push({"x": 1})
            assert "clients may have left data on engines 0," in run("drain", "0,1", *named, code=1)
            assert run("drain", "1", *named) == "released engine 1 of cluster 'elastic'\n"
            states = [engine["state"] for engine in json.loads(run("status", "--json", *named))["engines"]]
            assert states == ["up", "gone", "up"]
            host, state, pid, _, _, mean = run("status", *named).splitlines()[3].split()[1:7]
            assert (host, state, pid, mean) == (socket.gethostname().partition(":")[0], "gone", "-", "-")
            assert "unknown host, block or engine set 'n7'" in run("drain", "n7", *named, code=2)
            run("scale", "0", "--stateless", *named)
    finally:
        run("stop", "--cluster-id", "elastic")


def test_help_lists_every_command():
    text = run("--help")
    for command in ("start", "scale", "drain", "stop", "list", "status", "top", "logs", "config", "bench"):
        assert f"  {command} " in text
        assert f"Usage: broadleaf {command}" in run(command, "--help")


def test_a_start_without_its_engines_shows_their_log_and_leaves_nothing():
    said = run("start", "-n", "1", "--cluster-id", "none", "-o", "affinity=4000", code=1)
    assert "only 0 of 1 engines came up: engine 0 exited with code 70 during startup" in said
    assert "sched_setaffinity" in said
    assert "none" not in run("list")


def test_a_start_is_broken_off_by_ctrl_c(tmp_path):
    # Processes that die before they become engines.
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, time\n'--setup-from-stdin' in sys.orig_argv and time.sleep(99)\n"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    child = subprocess.Popen(
        [sys.executable, "-c", _RUN, "start", "-n", "1", "-o", "engine_start=spawn"],
        env=_environment(BROADLEAF_DIR=str(tmp_path), PYTHONPATH=path),
        stderr=subprocess.PIPE,
        text=True,
    )
    while not list(tmp_path.glob("profiles/default/default/cluster.json")):
        assert child.poll() is None
        time.sleep(0.01)
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=40)
    assert (child.returncode, said.strip()) == (1, "error: interrupted")
    assert not list(tmp_path.glob("profiles/default/*"))


def test_a_wrong_profile_is_a_wrong_option():
    assert "profile 'a/b'" in run("config", "show", "--profile", "a/b", code=2)
