"""`ipcluster`, `ipcontroller` and `ipengine`."""

import json
import os
import signal
import subprocess
import sys

import broadleaf as ipp
import pytest


def run(module, *arguments, code=0):
    done = subprocess.run(
        [sys.executable, "-m", f"broadleaf.{module}", *arguments],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done


@pytest.mark.parametrize("command", ["start", "stop", "list", "engines", "clean"])
def test_each_command_has_help(command):
    assert f"ipcluster {command}" in run("cluster", command, "--help-all").stdout


def test_a_clusters_life():
    assert len(run("cluster", "list").stdout.splitlines()) == 1
    started = run("cluster", "start", "-n", "2", "--daemonize", "--debug", "--ping=250", "--location", "here")
    try:
        assert [line.split()[0] for line in started.stderr.splitlines()] == ["--ping", "--location"]
        with ipp.Client() as rc:
            rc.wait_for_engines(2, timeout=30)
            assert ipp.Cluster.from_file().settings["log_level"] == "debug"
            run("cluster", "engines", "-n", "1")
            rc.wait_for_engines(3, timeout=30)
        [described] = json.loads(run("cluster", "list", "-o", "json").stdout)
        assert described["cluster"]["cluster_id"] == "default"
        assert [engines["n"] for engines in described["engines"]["sets"].values()] == [2, 1]
        assert run("cluster", "list").stdout.splitlines()[1].split() == ["default", "default", "True", "3", "Local"]
    finally:
        run("cluster", "stop")
    assert json.loads(run("cluster", "list", "-o", "json").stdout) == []
    assert "no cluster 'default' is running" in run("cluster", "stop", code=1).stderr
    run("cluster", "stop", "--all")


def test_a_controller_and_an_engine_of_their_own():
    arguments = [sys.executable, "-m", "broadleaf.controller", "--profile=mine", "--cluster-id", "c"]
    controller = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    try:
        assert "is running with 0 engines" in controller.stdout.readline()
        engine = subprocess.Popen([sys.executable, "-m", "broadleaf.engine", "--profile=mine", "--cluster-id=c"])
        try:
            with ipp.Client(profile="mine", cluster_id="c") as rc:
                rc.wait_for_engines(1, timeout=30)
                assert rc[0].apply_sync(lambda: 6 * 7) == 42
        finally:
            controller.send_signal(signal.SIGINT)
            controller.communicate(timeout=30)
            assert engine.wait(30) == 0
    finally:
        controller.kill()
        controller.wait(30)
    assert controller.returncode == 0
    assert "no cluster 'default' is running" in run("engine", "--profile=mine", code=1).stderr


def test_wrong_use():
    assert "unexpected argument" in run("cluster", "start", "five", code=2).stderr
    assert "no such command 'begin'" in run("cluster", "begin", code=2).stderr


def test_clean(tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    profile = tmp_path / "profile_default"
    names = ["log/old.log", "security/cluster-abc.json", "security/ipcontroller-client.json", "ipython_config.py"]
    for name in names:
        path = profile / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    run("cluster", "clean")
    assert [name for name in names if (profile / name).exists()] == ["ipython_config.py"]
    running = profile / "security/cluster-abc.json"
    running.write_text(json.dumps({"controller": {"state": {"pid": os.getpid()}}}))
    assert "stop it first" in run("cluster", "clean", code=1).stderr
    assert running.exists()
    run("cluster", "clean", "--force")
    assert not running.exists()
