"""Engines in jobs of PBS: OpenPBS, PBS Professional and Torque."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from broadleaf.cluster.engine_sets.base import Block, BlockRequest, BlockState
from broadleaf.cluster.engine_sets.batch import (
    BatchSet,
    CommandError,
    NodeJobs,
    check_lines,
    check_value,
    clock_time,
)

_STATES: dict[str, BlockState] = {
    "Q": "pending", "H": "pending", "W": "pending", "T": "pending", "M": "pending",
    "R": "running", "E": "running", "S": "running", "U": "running", "B": "running",
    "C": "ended", "F": "ended", "X": "ended",
}  # fmt: skip
_NEVER_RUNS = "Can Never Run"
_HAS_FINISHED = "has finished"
# What `qdel` says about a job that has ended, of OpenPBS and of Torque.
_GONE = ("Unknown Job", _HAS_FINISHED, "invalid state")
# Words of a directive end at spaces, and Torque has no quotes.
_NOT_IN_WORDS = " \t\"'#,"
_WALLTIME = "-29"
# One task on the first slot of each host; what it writes would reach the job's output at its end.
_ON_ITS_HOSTS = """\
hosts= relays= i=0 code=0
while read -r host; do
  case " $hosts " in *" $host "*) ;; *)
    hosts="$hosts $host"
    pbsdsh -n $i -- /bin/sh -c 'exec >>"$1" 2>&1; exec /bin/sh -c "$2"' sh "$log" "$join" </dev/null &
    relays="$relays $!" ;;
  esac
  i=$((i + 1))
done <"$PBS_NODEFILE"
for relay in $relays; do wait $relay || code=$?; done
(exit $code)"""


@dataclass
class PBS(NodeJobs):
    """Engines in PBS jobs.

    A job has `nodes` hosts with `engines_per_host` engines each, or `n` engines divided among them. The script has
    directives only for the options that you set: `walltime` ("30m", "1:00:00", or seconds), `queue`, `account`, and for
    everything else the lines in `pbs`, such as ``["-l place=excl"]``. If one of these lines selects hosts, such as
    ``"-l select=2:ncpus=8"``, it replaces the line for `nodes`.

    The hosts need access to the cluster's directory. At most sites, they have it: they share your home directory.
    With ``via="ssh:login"``, the commands of PBS run on that host, and the jobs' hosts need access to its `shared_dir`
    instead. With `ship`, Broadleaf need not be installed on the jobs' hosts.
    """

    name: ClassVar[str] = "pbs"
    title: ClassVar[str] = "PBS"
    program: ClassVar[str] = "qsub"
    marker: ClassVar[str] = "#PBS"
    job_variable: ClassVar[str] = "$PBS_JOBID"
    cancel_program: ClassVar[str] = "qdel"
    unknown_job: ClassVar[str | Sequence[str]] = _GONE

    pbs: Sequence[str] = field(default_factory=list)
    """Lines for all other options of `qsub`, such as ``"-l place=excl"``."""

    @property
    def on_hosts(self) -> str:  # type: ignore[override]
        """One `pbsdsh` for each host, or a relay if there is only one host."""
        return _ON_ITS_HOSTS if self.nodes > 1 else BatchSet.on_hosts

    def directives(self, request: BlockRequest, directory: Path) -> list[str]:
        """One for each option that was given, besides its name and output."""
        # Each life of a job would join under the same name: another job takes the place of one that is lost.
        found = [f"-N {self.job_name(request)}", "-j oe", "-o /dev/null", "-r n"]
        lines = check_lines("pbs", self.pbs, "PBS")
        if not any(re.match(r"-l\s*(select|nodes)=", line) for line in lines):
            per_host = self.host_engines(request)
            found.append(f"-l nodes={self.nodes}" + (f":ppn={per_host}" if per_host else ""))
        if self.walltime:
            found.append(f"-l walltime={_value('walltime', clock_time(self.walltime))}")
        flags = [("q", "queue", self.queue), ("A", "account", self.account)]
        found += [f"-{flag} {_value(option, value)}" for flag, option, value in flags if value]
        return found + lines

    def job_name(self, request: BlockRequest) -> str:
        """A short one: Torque takes 15 characters."""
        return f"leaf-{super().job_name(request).rpartition('-')[2]}"

    def jobs_named(self, name: str) -> list[str]:
        """Asks `qstat` about all jobs."""
        said = self._qstat([], [])
        if complaints := _complaints(said):
            raise CommandError("; ".join(complaints))
        owner = f"{self.submit_host.user()}@"
        return [
            job
            for job, attributes in _jobs(said).items()
            if attributes.get("job_name") == name
            and attributes.get("job_owner", "").startswith(owner)
            and _STATES.get(attributes.get("job_state", "")) != "ended"
        ]

    def job_of(self, said: str) -> str:
        """The name that `qsub` prints, such as ``17.server``."""
        return said.strip().splitlines()[-1].strip()

    def note_news(self, jobs: Mapping[str, Block]) -> bool:
        """Asks `qstat` once for all of them, and once more how those have ended that it only remembers."""
        try:
            said = self._qstat([], jobs)
            seen = _jobs(said)
            # Torque, which has no such history, never says so.
            if past := [job for job in jobs if job not in seen and f"{job} Job {_HAS_FINISHED}" in said]:
                seen |= _jobs(self._qstat(["-x"], past))
        except CommandError:
            return False
        if not all(any(words in line for words in _GONE) for line in _complaints(said)):
            return False  # the server does not answer
        for job, block in jobs.items():
            self.note(block, *_state(job, seen.get(job)))
            block.is_ending = seen.get(job, {}).get("job_state") == "E"
        return True

    def _qstat(self, options: Sequence[str], jobs: Mapping[str, Block] | Sequence[str]) -> str:
        # It fails if it does not know one of them, and tells of the others all the same.
        return self.submit_host.run(["sh", "-c", 'qstat -f "$@" 2>&1 || :', "sh", *options, *jobs])


def _value(option: str, value: str) -> str:
    return check_value(option, value, "PBS", _NOT_IN_WORDS)


def _complaints(said: str) -> list[str]:
    return [line for line in said.splitlines() if line.startswith(("qstat:", "Cannot", "Connection"))]


def _jobs(said: str) -> dict[str, dict[str, str]]:
    """The attributes of each job, from the output of `qstat -f`, which breaks long lines."""
    found: dict[str, dict[str, str]] = {}
    attributes, name = dict[str, str](), ""
    for line in said.splitlines():
        if line.startswith("Job Id:"):
            attributes = found.setdefault(line.partition(":")[2].strip(), {})
        elif match := re.match(r"\s+([\w.]+) = (.*)", line):
            name = match[1].lower()
            attributes[name] = match[2]
        elif line.startswith("\t") and name:
            attributes[name] += line.strip("\t")
    return found


def _state(job: str, attributes: Mapping[str, str] | None) -> tuple[BlockState, str]:
    if attributes is None:
        return "failed", f"job {job} is no longer known to PBS"
    state, comment = attributes.get("job_state", ""), attributes.get("comment", "")
    why = f": {comment}" if comment else ""
    known = _STATES.get(state, "running")
    if known == "running":
        return known, f"job {job} is running"
    if known == "ended":
        return _end(job, attributes.get("exit_status", ""), why)
    if state == "H" and "depend" not in attributes:
        return "failed", f"job {job} is held{why}"
    return ("failed" if comment.startswith(_NEVER_RUNS) else "pending"), f"job {job} is pending ({state}){why}"


def _end(job: str, code: str, why: str) -> tuple[BlockState, str]:
    if code == _WALLTIME:
        return "failed", f"job {job}: its walltime has run out{why}"
    words = f" with exit status {code}" if code else ""
    return ("failed" if code not in ("", "0") else "ended"), f"job {job} has ended{words}{why}"
