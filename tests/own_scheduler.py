"""A scheduler that Broadleaf does not know, whose jobs run on this host, and an engine set for it."""

from __future__ import annotations

import os

import pytest

__all__ = ["BIRCH", "Birch", "clusters", "folder"]

# A job is a directory with its process, its state and, once it was ended, a reason.
PROGRAMS = {
    "bsubmit": """
number=$(($(ls -d "{folder}"/job.* 2>/dev/null | wc -l) + 1)); job="{folder}/job.$number"; mkdir "$job"
if [ $# -gt 0 ]; then cp "$1" "$job/script"; echo "$1" >"$job/file"; else cat >"$job/script"; fi
BIRCH_JOB=$number setsid "{folder}/programs/run" "$job" >/dev/null 2>&1 </dev/null &
echo "job $number is accepted"
""",
    "bstat": """
for number; do [ ! -e "{folder}/job.$number" ] || echo "$number $(cat "{folder}/job.$number/state")"; done
""",
    "bkill": """
echo "$@" >>"{folder}/ended"
if [ -e "{folder}/complaint" ]; then cat "{folder}/complaint" >&2; exit 1; fi
if [ "$1" = now ]; then shift; fi
for number; do
  job="{folder}/job.$number"
  [ -e "$job" ] || { echo "job $number does not exist" >&2; exit 1; }
  [ -e "$job/pid" ] || { echo "job $number was already killed" >&2; exit 1; }
  echo "ended its user has deleted it" >"$job/state"
  env kill -TERM -- "-$(cat "$job/pid")"; rm -f "$job/pid"
done
""",
    # As `ssh` does: with a shell of its own, none of the caller's variables, and the words that the shell makes of it.
    "bshell": """
host=$1; shift
exec env -i PATH="$PATH" HOME="$HOME" unshare --uts sh -c 'hostname "$0"; exec sh -c "$1"' "$host" "$*"
""",
}  # fmt: skip
# Runs a job.
RUN = """#!/bin/sh
job=$1
echo $$ >"$job/pid"; echo "running -" >"$job/state"
sh "$job/script"
[ ! -e "$job/pid" ] || { rm "$job/pid"; echo "ended R=1,W=600" >"$job/state"; }
"""
# In the program that starts the cluster, whose module is called `__main__`.
BIRCH = """
from dataclasses import dataclass, field
from typing import ClassVar

import broadleaf as ipp
from broadleaf.cluster.engine_sets.batch import CommandError

STATES = {"running": "running", "ended": "ended"}


@dataclass
class Birch(ipp.BatchSet):
    name: ClassVar[str] = "birch"
    title: ClassVar[str] = "Birch"
    program: ClassVar[str] = "bsubmit"
    marker: ClassVar[str] = "#BIRCH"
    job_variable: ClassVar[str] = "$BIRCH_JOB"
    cancel_program: ClassVar[str] = "bkill"
    unknown_job: ClassVar[list[str]] = ["does not exist", "already killed"]

    cores: list[int] = field(default_factory=list)

    def block_engines(self, first):
        return sum(self.cores) or None

    def directives(self, request, directory):
        return [f"--output {self.log_file(directory, '%j')}"]

    def preparations(self, request):
        return [f'exec >"{self.log_file(request.cluster_dir, "$BIRCH_JOB")}" 2>&1']

    def job_of(self, said):
        return said.split()[1]

    def note_news(self, jobs):
        try:
            lines = self.submit_host.run(["bstat", *jobs]).splitlines()
        except CommandError:
            return False
        seen = {job: (state, why) for job, state, why in (line.split(None, 2) for line in lines)}
        for job, block in jobs.items():
            state, why = seen.get(job, ("gone", "-"))
            self.note(block, STATES.get(state, "failed"), f"job {job} has {state}: {why}")
        return True
"""
SPACE = {"__name__": __name__}
exec(compile(BIRCH, "birch", "exec", dont_inherit=True), SPACE)
Birch = SPACE["Birch"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where the scheduler has its jobs; its programs are on the path."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, text in PROGRAMS.items():
        (programs / name).write_text("#!/bin/sh" + text.replace("{folder}", str(tmp_path)))
        (programs / name).chmod(0o755)
    (programs / "run").write_text(RUN)
    (programs / "run").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("BROADLEAF_DIR", str(tmp_path / "broadleaf"))
    return tmp_path


def clusters(folder):
    """The directories of clusters that are left."""
    return list((folder / "broadleaf").glob("profiles/*/*/*"))
