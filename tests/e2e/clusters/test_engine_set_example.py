"""The example of an engine set for a batch scheduler, with programs that do what PBS's do, on this host."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import broadleaf as ipp
import pytest
from broadleaf.cluster.engine_sets import Block
from broadleaf.cluster.engine_sets.batch import CommandError
from waiting import until

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
QSUB = """#!/bin/sh
cat >"{folder}/script"
grep -q "#PBS -q nowhere" "{folder}/script" && {{ echo "qsub: Unknown queue" >&2; exit 1; }}
PBS_JOBID=17.here setsid sh "{folder}/script" >/dev/null 2>&1 </dev/null &
echo $! >"{folder}/pid"
echo 17.here
"""
QSTAT = """#!/bin/sh
echo "Job id  Name  User  Time  S  Queue"
kill -0 "$(cat "{folder}/pid")" 2>/dev/null && echo "17.here broadleaf me 0 R short"
exit 0
"""
QDEL = """#!/bin/sh
echo "$@" >"{folder}/deleted"
exec env kill -TERM -- "-$(cat "{folder}/pid")"
"""


@pytest.fixture
def pbs(tmp_path, monkeypatch):
    """The example's module, and PBS's programs on the path."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, text in (("qsub", QSUB), ("qstat", QSTAT), ("qdel", QDEL)):
        (programs / name).write_text(text.format(folder=tmp_path))
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import pbs_engines

    yield pbs_engines
    del sys.modules["pbs_engines"]


def test_engines_run_in_a_job_and_the_job_ends_with_the_cluster(pbs, tmp_path):
    with ipp.Cluster(n=3, engines=pbs.PBS(queue="short", walltime="1:00:00")) as rc:
        assert rc[:].apply_sync(lambda: 6 * 7) == [42, 42, 42]
        script = (tmp_path / "script").read_text()
        job = int((tmp_path / "pid").read_text())
    assert "#PBS -q short\n#PBS -l walltime=1:00:00\n" in script
    assert until(lambda: not Path(f"/proc/{job}").exists() or "Z" in Path(f"/proc/{job}/stat").read_text().split()[2])


def test_a_refusal_has_the_scheduler_s_words(pbs):
    with pytest.raises(ipp.ClusterStartError, match=r"PBS refuses the job: .*Unknown queue"):
        ipp.Cluster(n=1, engines=pbs.PBS(queue="nowhere")).start_cluster_sync()


def test_news_of_a_job(pbs, tmp_path):
    engines = pbs.PBS()
    block = Block("pbs-17.here", facts={"job": "17.here"})
    (tmp_path / "pid").write_text(str(os.getpid()))
    assert engines.note_news({"17.here": block})
    assert (block.state, block.reason) == ("running", "job 17.here is running")
    (tmp_path / "pid").write_text("999999999")
    assert engines.note_news({"17.here": block})
    assert block.is_over
    assert "not known to PBS" in block.reason


def test_jobs_are_ended_by_their_names(pbs, tmp_path):
    (tmp_path / "pid").write_text("999999999")
    engines = pbs.PBS()
    with pytest.raises(CommandError):
        engines.cancel([Block("pbs-17.here", facts={"job": "17.here", "log": str(tmp_path / "log")})])
    assert (tmp_path / "deleted").read_text() == "17.here\n"


def test_it_is_short():
    assert len((EXAMPLES / "pbs_engines.py").read_text().splitlines()) < 80
