"""How `Cluster` and `Client` interpret IPython Parallel's arguments."""

import json
import os
from typing import ClassVar

import broadleaf as ipp
import pytest
from broadleaf.cluster.launcher import (
    HTCondorEngineSetLauncher,
    LocalControllerLauncher,
    LocalEngineSetLauncher,
    MPIEngineSetLauncher,
    abbreviate_launcher_class,
    find_launcher_class,
)
from broadleaf.errors import ClusterStartError
from waiting import until


@pytest.fixture(autouse=True)
def every_warning(monkeypatch):
    """Lets each test see warnings that an earlier one has seen."""
    monkeypatch.setattr("broadleaf.text._said", set())


@pytest.mark.parametrize(
    ("level", "option"),
    [(10, "debug"), (20, "info"), (30, "error"), ("DEBUG", "debug"), ("40", "error"), ("off", "off")],
)
def test_log_levels(level, option):
    assert ipp.Cluster(n=0, log_level=level, shutdown_atexit=True).settings["log_level"] == option


def test_arguments_that_have_another_name():
    cluster = ipp.Cluster(n=3, cluster_id="", engine_timeout=7, shutdown_atexit=False, engines="Local")
    assert (cluster.n, cluster.cluster_id, cluster.detached, cluster.launcher_name) == (3, "default", True, "local")
    assert cluster.settings["start_timeout_s"] == cluster.engine_timeout == 7
    assert not cluster.shutdown_atexit
    assert cluster.engine_launcher_class is LocalEngineSetLauncher


def test_controller_args():
    class WithDatabase(LocalControllerLauncher):
        controller_args: ClassVar = ["--dictdb", "--debug"]

    with pytest.warns(FutureWarning, match="kept_results_bytes"):
        cluster = ipp.Cluster(n=0, controller=WithDatabase)
    assert cluster.settings["log_level"] == "debug"
    cluster = ipp.Cluster(n=0, controller_args=["--ip=*", "--log-level", "40"])
    assert (cluster.settings["listen"], cluster.settings["log_level"]) == ("0.0.0.0:0", "error")
    with pytest.warns(FutureWarning, match="--transport=ipc in controller_args does nothing"):
        ipp.Cluster(n=0, controller_args=["--transport=ipc"])


@pytest.mark.parametrize("argument", ["delay", "parent", "log", "controller_location", "send_engines_connection_env"])
def test_what_does_nothing_says_so_once(argument, recwarn):
    for _ in range(2):
        ipp.Cluster(n=0, **{argument: 1})
    [said] = recwarn.list
    assert f"{argument} does nothing" in str(said.message)


def test_configuration_of_a_profile_directory(tmp_path):
    (tmp_path / "ipcluster_config.json").write_text(json.dumps({"Cluster": {"n": 5, "engine_timeout": 9, "delay": 0}}))
    cluster = ipp.Cluster(profile_dir=str(tmp_path))
    assert (cluster.n, cluster.engine_timeout, cluster.profile_dir) == (5, 9, str(tmp_path))
    cluster = ipp.Cluster(2, profile_dir=str(tmp_path), config={"Cluster": {"engine_timeout": 11}})
    assert (cluster.n, cluster.engine_timeout) == (2, 11)
    assert ipp.Cluster(3, profile_dir=str(tmp_path), load_profile=False).engine_timeout != 9
    assert ipp.Cluster(n=0, profile_dir=str(tmp_path)).profile == ipp.Cluster(n=0, profile_dir=tmp_path).profile
    (tmp_path / "ipcluster_config.json").write_text("{")
    with pytest.raises(ValueError, match="ipcluster_config"):
        ipp.Cluster(profile_dir=str(tmp_path))


def test_a_profile_directory_of_ipythons_is_the_profile_of_its_name(tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    assert ipp.Cluster(n=0, profile_dir=tmp_path / "profile_mine").profile == "mine"
    assert ipp.Cluster(n=0, profile_dir=tmp_path / "elsewhere" / "profile_mine").profile != "mine"


def test_unknown_arguments_are_errors():
    with pytest.raises(ValueError, match="unknown option 'engine_timeot'"):
        ipp.Cluster(n=0, engine_timeot=5)
    with pytest.raises(ValueError, match="unknown engine set 'cloud'"):
        ipp.Cluster(n=0, engines="Cloud")
    assert not hasattr(ipp.Cluster(n=0), "nothing")


@pytest.mark.parametrize(
    "engines", ["MPI", "mpi", MPIEngineSetLauncher, "ipyparallel.cluster.launcher.MPIEngineSetLauncher"]
)
def test_names_of_the_mpi_launcher(engines):
    cluster = ipp.Cluster(n=1, engines=engines)
    assert cluster.engine_launcher_class is MPIEngineSetLauncher
    assert isinstance(cluster.engines_from, ipp.MPI)


@pytest.mark.parametrize(
    "engines",
    [
        "HTCondor",
        "htcondor",
        HTCondorEngineSetLauncher,
        "ipyparallel.cluster.launcher.HTCondorEngineSetLauncher",
    ],
)
def test_a_launcher_that_is_not_here_is_known_and_does_not_start(engines):
    cluster = ipp.Cluster(n=1, engines=engines)
    assert cluster.engine_launcher_class is HTCondorEngineSetLauncher
    with pytest.raises(ClusterStartError, match="engine set 'htcondor' is not installed here"):
        cluster.start_cluster_sync()
    assert not cluster.running


def test_launcher_classes():
    assert find_launcher_class("local", "controller") is LocalControllerLauncher
    assert abbreviate_launcher_class(find_launcher_class("SLURM", "engine")) == "slurm"
    with pytest.raises(KeyError):
        find_launcher_class("cloud", "engine")
    with pytest.raises(ValueError, match="kind"):
        find_launcher_class("local", "hub")


def test_controller_and_engine_sets():
    cluster = ipp.Cluster(n=2)
    assert cluster.controller is None
    cluster.start_controller_sync()
    try:
        with pytest.raises(RuntimeError):
            cluster.start_controller_sync()
        assert cluster.engines == {}
        with cluster.connect_client_sync() as rc:
            assert rc.ids == []
        first = cluster.start_engines_sync(2)
        second = cluster.start_engines_sync(1, "more")
        assert second == "more"
        assert [engine_set.engine_ids for engine_set in cluster.engines.values()] == [[0, 1], [2]]
        assert isinstance(cluster.engines[first], LocalEngineSetLauncher)
        with pytest.raises(ValueError, match="already exists"):
            cluster.start_engines_sync(1, "more")
        other = ipp.Cluster.from_file(cluster.cluster_file)
        assert list(other.engines) == list(cluster.engines)
        assert other.engine_set.n == 2
        assert not other.shutdown_atexit
        assert other.controller.pid == cluster.controller.pid
        assert cluster.controller.state == "running"
        with cluster.connect_client_sync() as rc:
            rc.wait_for_engines(3)
            before, uuid = rc[2].apply_sync(os.getpid), rc.engine_uuid(2)
            cluster.restart_engines_sync("more")
            assert until(lambda: 2 in rc.ids and rc.engine_uuid(2) != uuid)
            assert rc[2].apply_sync(os.getpid) != before
        cluster.stop_engines_sync("more")
        assert list(cluster.engines) == [first]
        cluster.stop_engines_sync(1)
        assert cluster.engines[first].engine_ids == [0]
        with pytest.raises(KeyError, match="unknown engine set 'more'"):
            cluster.stop_engines_sync("more")
        cluster.stop_engines_sync()
        assert cluster.engines == {}
    finally:
        cluster.stop_controller_sync()
    assert cluster.controller is None
    cluster.stop_controller_sync()


def test_arguments_and_methods_of_clients(recwarn):
    with ipp.Cluster(n=1) as rc:
        again = ipp.Client(rc.cluster.connection_file, context=object(), debug=False, sshserver=None)
        again.spin()
        again.spin_thread(interval=1)
        assert again.debug is False
        assert again.send_apply_request(None, abs, (-3,)).get(20) == 3
        assert again.send_apply_request(None, abs, (-4,), ident=0).get(20) == 4
        again.send_execute_request(None, "x = 5", ident=0).get(20)
        assert again[0]["x"] == 5
        again.close()
        with pytest.raises(TypeError, match="unexpected keyword argument 'contxt'"):
            ipp.Client(rc.cluster.connection_file, contxt=1)
        with pytest.raises(AttributeError):
            rc.nothing  # noqa: B018
    said = [str(each.message) for each in recwarn.list]
    assert [text.partition(" does")[0] for text in said] == ["Client(context=...)", "spin()", "spin_thread()"]


def test_views_have_nothing_to_spin(recwarn):
    with ipp.Cluster(n=1) as rc:
        for view in (rc[:], rc.broadcast_view(), rc.load_balanced_view()):
            ar = view.apply_async(abs, -3)
            view.spin()
            ar.get(20)
            with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
                view.nothing  # noqa: B018
            assert not hasattr(view, "_repr_png_")
    (said,) = recwarn.list
    assert str(said.message) == "spin() does nothing: a client receives messages by itself"


def test_managers_take_old_arguments(recwarn):
    manager = ipp.ClusterManager(log=object())
    key, cluster = manager.new_cluster(n=0, cluster_id="abc")
    assert (key, manager._cluster_key(cluster)) == ("default:abc", "default:abc")
    assert ["ClusterManager(log=...) does nothing" in str(each.message) for each in recwarn.list] == [True]
    with pytest.raises(TypeError, match="lgo"):
        ipp.ClusterManager(lgo=1)
    config = {"Cluster": {"engine_timeout": 3}}
    assert ipp.Cluster(n=0, config=config).config is config
