"""Engine sets for schedulers that Broadleaf does not know, defined in programs and installed nowhere."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import broadleaf as ipp
import pytest
from broadleaf.cluster.engine_sets import Block, describe, described
from broadleaf.cluster.engine_sets.batch import CommandError
from own_scheduler import BIRCH, Birch, clusters
from waiting import until


def run(folder, code, *more):
    """What a program says that defines the set and has this code."""
    program = folder / "program.py"
    program.write_text(BIRCH + code)
    done = subprocess.run(
        [sys.executable, program, *more], capture_output=True, text=True, timeout=100, check=False, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.timeout(120)
def test_a_set_of_a_program_scales_and_its_tasks_fail_with_the_scheduler_s_reason(folder):
    said = run(
        folder,
        """
import subprocess, time
with ipp.Cluster(engines=Birch(cores=[1])) as rc:
    rc.cluster.scale_sync(2)
    rc.wait_for_engines(2, timeout=60)
    task = rc[0].apply_async(time.sleep, 60)
    while not any(engine["outstanding"] for engine in rc.cluster.status_sync()["engines"]):
        time.sleep(0.01)
    subprocess.run(["bkill", "1"], check=True)
    try:
        task.get(timeout=40)
    except ipp.EngineError as error:
        print("fails:", error)
    other = ipp.Cluster.from_file(rc.cluster.cluster_file)
    print(other.engines_from, [block.reason for block in other.blocks()][:1])
""",
    )
    assert "its user has deleted it" in said.partition("fails:")[2].splitlines()[0]
    assert "Birch(" in said
    assert not clusters(folder)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("where", ["program", "module"])
def test_commands_of_other_programs_make_the_set(folder, where):
    code = "ipp.Cluster(n=1, cluster_id='grove', engines=Birch(), detached=True).start_cluster_sync()"
    if where == "module":
        (folder / "trees.py").write_text(BIRCH)
        code = "from trees import Birch\n" + code
    run(folder, code)
    command = [sys.executable, "-m", "broadleaf"]
    assert until(lambda: (folder / "job.1/pid").exists())
    listed = subprocess.run([*command, "list"], capture_output=True, text=True, timeout=30, check=True, cwd="/")
    assert "birch" in listed.stdout
    subprocess.run([*command, "stop", "--cluster-id", "grove"], timeout=50, check=True, cwd="/", capture_output=True)
    assert not (folder / "job.1/pid").exists()
    assert not clusters(folder)


def test_what_another_process_cannot_be_told_is_refused_at_the_start(folder):
    with pytest.raises(ipp.ClusterStartError, match=r"option cores=.*object.*'birch' cannot be passed on"):
        ipp.Cluster(n=1, engines=Birch(cores=[object()])).start_cluster_sync()
    assert not list(folder.glob("job.*"))
    assert not clusters(folder)


def test_a_class_that_cannot_be_passed_on_is_refused_at_the_start(folder):
    @dataclass
    class Held(Birch):
        """One that has what no other process can have."""

        held: ClassVar = threading.Lock()

    with pytest.raises(ipp.ClusterStartError, match=r"'birch' cannot be passed on.*entry points"):
        ipp.Cluster(n=1, engines=Held()).start_cluster_sync()
    assert not clusters(folder)


def test_a_class_that_is_missing_here_is_named():
    state = describe(Birch()) | {"engine_set_class": {"pickle": "Y25vd2hlcmUKTm9uZQou", "search_path": []}}
    with pytest.raises(ValueError, match=r"the class of engine set 'birch' cannot be loaded here: .*entry points"):
        described(state)


@pytest.mark.timeout(60)
def test_a_steward_that_fails_is_told(folder):
    code = """
import sys, warnings, threading
@dataclass
class Rotten(Birch):
    def __post_init__(self):
        super().__post_init__()
        if "broadleaf.cluster.run_steward" in sys.modules:
            raise ValueError("there is a worm in it")
told = threading.Event()
warnings.showwarning = lambda message, *_: (print(message), told.set())
with ipp.Cluster(n=1, engines=Rotten()) as rc:
    assert told.wait(30)
"""
    assert "the jobs of engine set 'birch' are no longer managed" in (said := run(folder, code))
    assert "there is a worm in it" in said


@pytest.mark.timeout(60)
def test_a_script_may_be_a_file(folder):
    @dataclass
    class Filed(Birch):
        """One whose command that submits takes a file, and whose command that ends jobs needs an argument."""

        takes_file: ClassVar[bool] = True
        cancel_arguments: ClassVar[list[str]] = ["now"]

    with ipp.Cluster(n=1, engines=Filed()) as rc:
        path = Path((folder / "job.1/file").read_text().strip())
        assert path.parent == rc.cluster.cluster_dir
        assert path.stat().st_mode & 0o777 == 0o700
        assert path.read_text() == (folder / "job.1/script").read_text()
        assert rc[:].apply_sync(lambda: 6 * 7) == [42]
    assert (folder / "ended").read_text() == "now 1\n"
    assert not clusters(folder)


def test_a_missing_command_is_told_before_anything_starts(folder, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    with pytest.raises(ipp.ClusterStartError, match="the program 'bsubmit' was not found on this host"):
        ipp.Cluster(n=1, engines=Birch()).start_cluster_sync()


@pytest.mark.timeout(60)
@pytest.mark.skipif(os.geteuid() != 0, reason="another host's name needs root")
def test_hosts_join_without_the_script_s_variables(folder):
    @dataclass
    class Apart(Birch):
        """One whose hosts are reached by a login that passes no variables on."""

        on_hosts: ClassVar[str] = 'for host in n1 n2; do bshell "$host" "$join" & done; wait'

    with ipp.Cluster(engines=Apart(engines_per_host=1, cores=[1, 1])) as rc:
        assert sorted(rc[:].apply_sync(lambda: __import__("socket").gethostname())) == ["n1", "n2"]


@pytest.mark.timeout(60)
def test_a_job_of_one_host_may_have_as_many_engines_as_the_host_has_cores(folder):
    with ipp.Cluster(engines=Birch()) as rc:
        assert len(rc) == len(os.sched_getaffinity(0))


@pytest.mark.timeout(60)
def test_a_number_of_engines_that_nothing_says_is_asked_for(folder):
    apart = dataclass(type("Apart", (Birch,), {"on_hosts": 'sh -c "$join" && :', "__annotations__": {}}))
    cluster = ipp.Cluster(engines=apart(engines_per_host=1), start_timeout_s=3.0)
    with (
        pytest.raises(ipp.ClusterStartError, match=r"1 engines came up within 3 s; how many there will be .*n"),
        cluster,
    ):
        pass


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("on_hosts", "words"),
    [
        ('env -u BROADLEAF_BLOCK sh -c "${join#*\n*\n}"', "BROADLEAF_BLOCK is not set here"),
        ('sh -c "$join" & sh -c "$join"; wait', "has already joined for this job"),
    ],
)
def test_a_host_says_what_is_wrong_with_how_it_joins(folder, on_hosts, words):
    wrong = dataclass(type("Wrong", (Birch,), {"on_hosts": on_hosts, "__annotations__": {}}))
    cluster = ipp.Cluster(engines=wrong(engines_per_host=1, cores=[2]), start_timeout_s=5.0)
    with pytest.raises(ipp.ClusterStartError, match=words), cluster:
        pass


@pytest.mark.timeout(60)
def test_a_job_that_ends_without_an_engine_says_what_its_log_holds(folder):
    broken = dataclass(type("Broken", (Birch,), {"on_hosts": "echo the disk is full", "__annotations__": {}}))
    cluster = ipp.Cluster(engines=broken(cores=[1]))
    cluster.start_controller_sync()
    try:
        cluster.scale_sync(1)
        assert until(lambda: cluster.scaling_paused)
        assert "job 3 has ended: R=1,W=600\n  | the disk is full" in cluster.scaling_paused
    finally:
        cluster.stop_cluster_sync()


@pytest.mark.timeout(60)
def test_an_error_while_cleaning_up_does_not_hide_the_first(folder):
    broken = dataclass(type("Broken", (Birch,), {"on_hosts": "echo the disk is full; sleep 60", "__annotations__": {}}))
    (folder / "complaint").write_text("the scheduler is down")
    cluster = ipp.Cluster(engines=broken(cores=[1]), start_timeout_s=1.0)
    with pytest.raises(ipp.ClusterStartError, match="the disk is full") as caught, cluster:
        pass
    assert "the scheduler is down" in "".join(caught.value.__notes__)
    assert clusters(folder)  # with which `stop --orphans` ends the job
    (folder / "complaint").unlink()
    cluster.stop_cluster_sync()
    assert not clusters(folder)


def test_an_error_while_a_submission_is_undone_does_not_hide_the_first(folder):
    class Confused(Birch):
        """One whose job has no name, neither when it is submitted nor later."""

        on_hosts: ClassVar[str] = "true"

        def job_of(self, said):
            raise ValueError(f"no job in {said!r}")

        def jobs_named(self, name):
            raise CommandError("the scheduler is down")

    with pytest.raises(ValueError, match="no job in 'job 1 is accepted") as caught:
        ipp.Cluster(n=1, engines=Confused()).start_cluster_sync()
    assert "the scheduler is down" in "".join(caught.value.__notes__)
    assert clusters(folder)  # with which `stop --orphans` finds the job
    assert until(lambda: "ended" in (folder / "job.1/state").read_text())


@pytest.mark.timeout(60)
def test_a_job_that_is_over_needs_no_end_whatever_the_scheduler_says(folder):
    (folder / "complaint").write_text("job 1: wrong state")
    broken = dataclass(type("Broken", (Birch,), {"on_hosts": "echo the disk is full", "__annotations__": {}}))
    with (
        pytest.raises(ipp.ClusterStartError, match="the disk is full") as caught,
        ipp.Cluster(engines=broken(cores=[1])),
    ):
        pass
    assert not hasattr(caught.value, "__notes__")
    assert not clusters(folder)


@pytest.mark.parametrize(
    ("said", "is_gone"), [("job 1 does not exist", True), ("job 1 was already killed", True), ("no", False)]
)
def test_a_job_may_be_gone_in_several_words(folder, said, is_gone):
    (folder / "complaint").write_text(said)
    (folder / "job.1").mkdir()
    (folder / "job.1/state").write_text("running -")
    block = Block("birch-1", facts={"job": "1", "log": str(folder / "log")})
    if is_gone:
        Birch().cancel([block])
    else:
        with pytest.raises(CommandError, match="no"):
            Birch().cancel([block])


@pytest.mark.timeout(60)
def test_status_says_that_the_scheduler_has_ended_a_job(folder):
    with ipp.Cluster(n=1, cluster_id="elm", engines=Birch()) as rc:
        subprocess.run(["bkill", "1"], check=True)
        assert until(lambda: rc.cluster.status_sync()["engines"][0]["state"] == "gone")
        assert until(lambda: "deleted" in rc.cluster.blocks()[0].reason)
        for command in (["status"], ["logs", "--engine", "0"]):
            shown = subprocess.run(
                [sys.executable, "-m", "broadleaf", *command, "--cluster-id", "elm"],
                capture_output=True, text=True, timeout=30, check=True, env=os.environ | {"COLUMNS": "200"},
            ).stdout  # fmt: skip
            assert "was lost with its host: job 1 has ended: its user has deleted it" in shown
            assert "on request" not in shown
            assert "restart_engines" not in shown
            assert command[0] == "logs" or "`broadleaf scale N` replaces lost hosts" in shown
