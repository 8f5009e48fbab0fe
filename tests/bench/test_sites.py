"""Benchmarks on a site: its description, and what is counted about its scheduler."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from broadleaf.bench.record import UNITS
from broadleaf.bench.turn import System, Turn
from click.testing import CliRunner

from benchmarks.commands import group
from benchmarks.environments import ON_SITES, PEERS
from benchmarks.sites.cases import FIGURES
from benchmarks.sites.command import AtSite
from benchmarks.sites.jobs import Jobs, status_calls
from benchmarks.sites.site import VARIABLE, Site

pytestmark = pytest.mark.timeout(60)

# Runs the job at once, and keeps its script.
_SBATCH = """#!/bin/sh
echo "Submitted batch job 17"
for last do :; done
cp "$last" {folder}/script
echo "$@" > {folder}/arguments
PATH=$PATH sh "$last" > /dev/null
"""
_SDIAG = """#!/bin/sh
cat << END
Remote Procedure Call statistics by message type
\tREQUEST_PARTITION_INFO                  ( 2009) count:50     ave_time:206    total_time:10301
\tREQUEST_JOB_INFO                        ( 2003) count:12     ave_time:300    total_time:3600
\tREQUEST_JOB_INFO_SINGLE                 ( 2021) count:3      ave_time:300    total_time:900
\tREQUEST_JOB_USER_INFO                   ( 2039) count:1      ave_time:300    total_time:300
\tREQUEST_SUBMIT_BATCH_JOB                ( 4003) count:7      ave_time:300    total_time:2100
END
"""
_SQUEUE = "#!/bin/sh\nexit 0\n"
_SCANCEL = '#!/bin/sh\necho "$@" > {folder}/cancelled\n'


@pytest.fixture
def scheduler(tmp_path, monkeypatch) -> Path:
    """The folder of a scheduler's programs that do next to nothing."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, text in (("sbatch", _SBATCH), ("squeue", _SQUEUE), ("scancel", _SCANCEL)):
        (programs / name).write_text(text.format(folder=tmp_path))
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def test_questions_that_slurm_answered_are_counted_whoever_asked(scheduler):
    (scheduler / "programs" / "sdiag").write_text(_SDIAG)
    (scheduler / "programs" / "sdiag").chmod(0o755)
    assert status_calls() == 12 + 3 + 1


SCRIPT = "#!/bin/sh\n#SBATCH --nodes=1\n\n# words\nsqueue -h\nexit 0\n"


@pytest.mark.parametrize("by", ["file", "input"])
def test_calls_of_the_scheduler_are_counted_those_in_jobs_too(scheduler, by):
    path = os.environ["PATH"]
    jobs = Jobs(Site(("n1",), str(scheduler / "shared")))
    script = scheduler / "job.sh"
    script.write_text(SCRIPT)
    command, text = (["sbatch", "--hold", str(script)], None) if by == "file" else (["sbatch", "--hold"], SCRIPT)
    said = subprocess.run(command, input=text, text=True, capture_output=True, check=True).stdout
    assert said == "Submitted batch job 17\n"
    assert jobs.calls() == ["sbatch", "squeue"]
    assert (scheduler / "arguments").read_text().startswith("--hold /")
    ran = (scheduler / "script").read_text().splitlines()
    assert ran[4].startswith("date ")
    assert ran[:4] + ran[5:] == SCRIPT.splitlines(), "nothing but the time is added, after the directives"
    assert jobs.first_line_s() > 1e9
    jobs.finish()
    assert (scheduler / "cancelled").read_text() == "17\n"
    assert os.environ["PATH"] == path
    assert not list((scheduler / "shared").iterdir())


def test_a_refusal_of_the_scheduler_is_passed_on(scheduler):
    (scheduler / "programs" / "sbatch").write_text("#!/bin/sh\necho no such partition >&2\nexit 3\n")
    jobs = Jobs(Site(("n1",), str(scheduler / "shared")))
    done = subprocess.run(["sbatch"], input=SCRIPT, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (3, "no such partition\n")
    jobs.finish()
    assert not (scheduler / "cancelled").exists()


def test_a_turn_runs_where_the_site_says(tmp_path, monkeypatch):
    monkeypatch.setenv("OF_THIS_HOST", "yes")
    login = [sys.executable, "-c", "import os, sys; os.environ.clear(); os.execvp(sys.argv[1], sys.argv[1:])"]
    site = Site(("n1", "n2"), str(tmp_path), tuple(login))
    asked = 'import os, sys; sys.stdin.readline(); print(\'{"seen": "%s"}\' % sorted(os.environ), flush=True)'
    monkeypatch.setattr(System, "command", lambda *_: [sys.executable, "-c", asked])
    with Turn(System("asked", ""), 1, AtSite(site)) as turn:
        seen = turn.ask({"do": "describe"})["seen"]
    assert VARIABLE in seen
    assert "OF_THIS_HOST" not in seen


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('hosts = ["a"]', "shared"),
        ('shared = "/s"\nhosts = []', "hosts"),
        ('shared = "/s"\nhosts = ["a"]\nnodes = 3', "a site has no nodes"),
        ("hosts", "Expected"),
    ],
)
def test_a_description_that_does_not_fit_is_explained(tmp_path, text, said):
    path = tmp_path / "site.toml"
    path.write_text(text)
    done = CliRunner().invoke(group, ["clusters", "--site", str(path)])
    assert done.exit_code == 2
    assert said in done.stderr.replace("\n", " ")


def test_a_site_is_read_and_passed_on(tmp_path, monkeypatch):
    path = tmp_path / "site.toml"
    path.write_text('hosts = ["a", "b"]\nshared = "/s"\nlogin = ["ssh", "gate"]\n')
    site = Site.read(path)
    assert site == Site(("a", "b"), "/s", ("ssh", "gate"))
    monkeypatch.setenv(VARIABLE, site.text())
    assert Site.here() == site


def test_a_case_that_there_is_not_is_refused(tmp_path):
    path = tmp_path / "site.toml"
    path.write_text('hosts = ["a"]\nshared = "/s"\n')
    done = CliRunner().invoke(group, ["clusters", "--site", str(path), "--cases", "slrum"])
    assert done.exit_code == 2
    assert "slurm" in done.stderr


def test_every_figure_has_a_unit_and_every_system_an_adapter():
    assert FIGURES.keys() <= UNITS.keys()
    assert all(find_spec(system.adapter) for system in (*PEERS.values(), *ON_SITES.values()))
