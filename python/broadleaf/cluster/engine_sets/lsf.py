"""Engines in jobs of LSF: one `bsub` per block, which runs one `blaunch` for each of its hosts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from broadleaf.cluster.engine_sets.base import Block, BlockRequest, BlockState
from broadleaf.cluster.engine_sets.batch import (
    BatchSet,
    CommandError,
    NodeJobs,
    check_directory,
    check_lines,
    check_value,
    walltime_seconds,
)
from broadleaf.errors import ClusterStartError

# PSUSP: it was suspended before it ran, and stays so until somebody resumes it. UNKWN: its host does not answer.
_STATES: dict[str, BlockState] = {
    "PEND": "pending", "WAIT": "pending", "PROV": "pending", "PSUSP": "failed",
    "RUN": "running", "SSUSP": "running", "USUSP": "running", "UNKWN": "running",
    "DONE": "ended", "EXIT": "failed", "ZOMBI": "failed",
}  # fmt: skip
_SUBMITTED = re.compile(r"Job <(\d+)> is submitted")
_NO_JOBS = "No job found"
_NOT_FOUND = re.compile("No (unfinished )?job found|Job <.*> is not found")
_GONE = ("No matching job found", "Job has already finished")
_NOT_IN_WORDS = " \t\"'#"
# `blaunch` passes a command on as `rsh` does, in words that a shell reads again: so it is a file.
_ON_ITS_HOSTS = """\
script="${log%.log}.sh"
printf '%s\\n' "$join" >"$script"
relays= code=0
set -- $LSB_MCPU_HOSTS
while [ $# -gt 0 ]; do
  blaunch "$1" /bin/sh "$script" </dev/null &
  relays="$relays $!"
  shift 2
done
for relay in $relays; do wait $relay || code=$?; done
rm -f "$script"
(exit $code)"""


@dataclass
class LSF(NodeJobs):
    """Engines in LSF jobs.

    A job has `nodes` hosts with `engines_per_host` engines each, a slot for each, or `n` engines divided among them.
    The script has directives only for the options that you set: `walltime` ("30m", "1:00:00", or seconds),
    `queue`, `account` (LSF's project), and for everything else the lines in `lsf`, such as ``"-x"``.

    The hosts need access to the cluster's directory. At most sites, they have it: they share your home directory.
    With ``via="ssh:login"``, LSF's commands run on that host, and the jobs' hosts need access to its `shared_dir`
    instead. With `ship`, Broadleaf need not be installed on the jobs' hosts.
    """

    name: ClassVar[str] = "lsf"
    title: ClassVar[str] = "LSF"
    program: ClassVar[str] = "bsub"
    marker: ClassVar[str] = "#BSUB"
    job_variable: ClassVar[str] = "$LSB_JOBID"
    cancel_program: ClassVar[str] = "bkill"
    unknown_job: ClassVar[str | Sequence[str]] = _GONE

    lsf: Sequence[str] = field(default_factory=list)
    """Lines for all other options of `bsub`, such as ``'-R "rusage[mem=8000]"'``."""

    @property
    def on_hosts(self) -> str:  # type: ignore[override]
        """One `blaunch` for each host, or a relay if there is only one host."""
        return _ON_ITS_HOSTS if self.nodes > 1 else BatchSet.on_hosts

    def directives(self, request: BlockRequest, directory: Path) -> list[str]:
        """One for each option that was given, besides its name, output and slots."""
        if self.nodes > 1:
            check_directory(directory, "LSF", _NOT_IN_WORDS + "$;&|<>()`\\*?[]~", self.other_directory())
        per_host = self.host_engines(request) or 1
        # Each life of a job would join under the same name: another job takes the place of one that is lost.
        found = [f"-J {self.job_name(request)}", "-o /dev/null", "-rn"]
        found += [f"-n {per_host * self.nodes}", f'-R "span[ptile={per_host}]"']
        limit = _run_limit(self.walltime)
        flags = [("W", "walltime", limit), ("q", "queue", self.queue), ("P", "account", self.account)]
        found += [f"-{flag} {_value(option, value)}" for flag, option, value in flags if value]
        return found + check_lines("lsf", self.lsf, "LSF")

    def jobs_named(self, name: str) -> list[str]:
        """Asks `bjobs`."""
        try:
            said = self.submit_host.run(["bjobs", "-json", "-o", "jobid", "-J", name])
        except CommandError as error:
            if _NOT_FOUND.search(str(error)):
                return []
            raise
        try:
            return [str(record["JOBID"]) for record in json.loads(said)["RECORDS"]]
        except (ValueError, KeyError, TypeError):
            raise CommandError(f"unexpected output of `bjobs`: {said.strip()}") from None

    def job_of(self, said: str) -> str:
        """The number in "Job <17> is submitted to queue <normal>."; a busy LSF says more before that."""
        if (found := _SUBMITTED.search(said)) is None:
            raise ClusterStartError(f"LSF accepted the job without returning its id: {said.strip()}")
        return found[1]

    def note_news(self, jobs: Mapping[str, Block]) -> bool:
        """Asks `bjobs` once for all jobs of this user, also those that have ended a short time ago."""
        fields = "jobid stat exit_code exit_reason pend_reason"
        try:
            said = self.submit_host.run(["bjobs", "-a", "-json", "-o", fields])
            records = json.loads(said)["RECORDS"]
        except CommandError as error:
            if _NO_JOBS not in str(error):
                return False
            records = []
        except (ValueError, KeyError, TypeError):
            return False
        seen = {str(record.get("JOBID")): record for record in records}
        for job, block in jobs.items():
            self.note(block, *_state(job, seen.get(job)))
        return True


def _value(option: str, value: str) -> str:
    return check_value(option, value, "LSF", _NOT_IN_WORDS)


def _run_limit(walltime: str | float) -> str:
    """A walltime as hours and minutes, which is all that LSF counts; its own form unchanged."""
    minutes = -(-walltime_seconds(walltime) // 60)
    return f"{minutes // 60}:{minutes % 60:02}" if minutes else str(walltime)


def _state(job: str, record: Mapping[str, Any] | None) -> tuple[BlockState, str]:
    if record is None:
        return "failed", f"job {job} is no longer known to LSF"
    state = str(record.get("STAT", ""))
    known = _STATES.get(state, "running")
    pending, exited = (str(record.get(name, "")).strip().rstrip(";") for name in ("PEND_REASON", "EXIT_REASON"))
    if known == "pending":
        return known, f"job {job} is pending: {pending or state}"
    if known == "running":
        return known, f"job {job} is running" + ("" if state == "RUN" else f" ({state})")
    if state == "PSUSP":
        return known, f"job {job} is held (PSUSP)" + (f": {pending}" if pending else "")
    code = str(record.get("EXIT_CODE", ""))
    if "TERM_RUNLIMIT" in exited:
        return known, f"job {job}: its walltime has run out ({exited})"
    words = f" with exit status {code}" if code else ""
    return known, f"job {job} has ended{words}" + (f" ({exited})" if exited else "")
