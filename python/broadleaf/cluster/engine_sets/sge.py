"""Engines in Grid Engine jobs: one `qsub` per block, which runs one `qrsh -inherit` for each host that it was given."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from broadleaf.cluster.engine_sets.base import Block, BlockRequest, BlockState
from broadleaf.cluster.engine_sets.batch import (
    BatchSet,
    CommandError,
    check_directory,
    check_lines,
    check_value,
    clock_time,
    walltime_seconds,
)
from broadleaf.errors import ClusterStartError

_HOSTS = re.compile(r"^broadleaf: the job has (\d+) hosts$", re.MULTILINE)
# A job's end appears in the accounting file after the queue has forgotten the job.
_ACCOUNTING_S = 10.0
_MAX_REASONS = 4
# A job that is held until others have ended need not be released by anybody.
_AFTER = "it runs after the jobs "
# Grid Engine has quotes for words with spaces, but no way to write these: a comment begins at a number sign, quoted or
# not, and paths are lists with hosts and variables in them.
_NOT_IN_WORDS = "\"'#"
_NOT_IN_PATHS = _NOT_IN_WORDS + "$,:"
# Codes in the field `failed` of `qacct`: the job exceeded a limit; the job was killed.
_LIMITS = "37"
_KILLED = "100"


@dataclass
class SGE(BatchSet):
    """Engines in Grid Engine jobs.

    One job of `slots` slots in the parallel environment `pe`, with an engine for each slot on the hosts that Grid
    Engine chooses; `n` means the same as `slots`. With `array`, or without a `pe`, an array of jobs that can start one
    by one: with one slot each, or with `engines_per_host` slots of the `pe`. The script has lines only for the options
    that you set: `walltime` ("30m", "1:00:00", or seconds), `queue`, `project`, and for everything
    else the lines in `sge`, such as ``["-l mem_free=8G", "-R y"]``.

    The parallel environment needs ``control_slaves TRUE``. The hosts need access to the cluster's directory. At most
    sites, they have it because they share your home directory. With ``via="ssh:login"``, Grid Engine's commands run on
    that host, and the jobs' hosts need access to its `shared_dir` instead. With `ship`, Broadleaf need not be installed
    on the jobs' hosts.
    """

    name: ClassVar[str] = "sge"
    title: ClassVar[str] = "Grid Engine"
    program: ClassVar[str] = "qsub"
    arguments: ClassVar[Sequence[str]] = ("-terse",)
    marker: ClassVar[str] = "#$"
    cancel_program: ClassVar[str] = "qdel"
    unknown_job: ClassVar[str | Sequence[str]] = "does not exist"

    slots: int = 0
    """Slots of the job, or of the array."""
    pe: str = ""
    """Parallel environment."""
    array: bool = False
    """Whether to submit an array of jobs, which can start one by one."""
    walltime: str | float = ""
    """Time limit of the job: "30m", "1:00:00", or a number of seconds; also as `-l h_rt` takes it."""
    queue: str = ""
    """Queue."""
    project: str = ""
    """Project."""
    sge: Sequence[str] = field(default_factory=list)
    """Lines for all other options of `qsub`, such as ``"-l mem_free=8G"``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._gone_since: dict[str, float] = {}

    def require(self) -> None:
        """Raises `ClusterStartError` if Grid Engine's programs, or a required parallel environment, are missing."""
        super().require()
        if self.engines_per_host > 1 and not self.pe:
            raise ClusterStartError(
                f"engines_per_host={self.engines_per_host} needs jobs with that many slots: set pe= to a parallel "
                "environment; `qconf -spl` lists those of your site"
            )

    def block_engines(self, first: int) -> int | None:
        """Engines of a job, where its options say how many."""
        return self.slots or None

    def job_of(self, said: str) -> str:
        """The number that `qsub -terse` prints, for an array before its tasks."""
        return said.strip().splitlines()[-1].partition(".")[0]

    def jobs_named(self, name: str) -> list[str]:
        """Asks `qstat`."""
        return list(_states(self._queue(), name))

    def _queue(self) -> str:
        return self.submit_host.run(["qstat", "-xml", "-u", self.submit_host.user()])

    def submitted(self, request: BlockRequest, job: str) -> list[Block]:
        """A block for the job, or for each of an array."""
        jobs = [f"{job}_{task}" for task in range(1, self._n_jobs(request) + 1)] if self._is_array else [job]
        per_host = self.engines_per_host
        n_engines = (per_host or 1) if self._is_array else None if per_host else self._n_slots(request)
        return self.job_blocks(request, jobs, n_hosts=None if self.pe else 1, n_engines=n_engines)

    @property
    def _is_array(self) -> bool:
        return self.array or not self.pe

    def _n_slots(self, request: BlockRequest) -> int:
        return self.slots or request.n or 1

    def _n_jobs(self, request: BlockRequest) -> int:
        return -(-self._n_slots(request) // (self.engines_per_host or 1))

    @property
    def job_variable(self) -> str:  # type: ignore[override]
        """The job's number, with that of its place in an array."""
        return "${JOB_ID}_$SGE_TASK_ID" if self._is_array else "$JOB_ID"

    @property
    def on_hosts(self) -> str:  # type: ignore[override]
        """One `qrsh -inherit` for each host that provides slots, or a relay if there is only one host."""
        return _ON_ITS_HOSTS if self.pe else _ON_ITS_HOST

    def directives(self, request: BlockRequest, directory: Path) -> list[str]:
        """One for each option that was given, besides its shell, name and output."""
        checked = check_directory(directory, "Grid Engine", _NOT_IN_PATHS, self.other_directory())
        output = self.log_file(checked, "$JOB_ID_$TASK_ID" if self._is_array else "$JOB_ID")
        found = ["-S /bin/sh", f"-N {self.job_name(request)}", "-j y", f"-o {_word(str(output))}", "-w e"]
        if self._is_array:
            found.append(f"-t 1-{self._n_jobs(request)}")
        if self.pe:
            found.append(
                f"-pe {_value('pe', self.pe)} {(self.engines_per_host or 1) if self.array else self._n_slots(request)}"
            )
        if self.walltime:
            found.append(f"-l {_value('walltime', clock_time(self.walltime), 'h_rt=')}")
        flags = [("q", "queue", self.queue), ("P", "project", self.project)]
        found += [f"-{flag} {_value(option, value)}" for flag, option, value in flags if value]
        return found + check_lines("sge", self.sge, "Grid Engine")

    def preparations(self, request: BlockRequest) -> list[str]:
        """The block's name after a restart, and the end of the job."""
        ends_in_s = walltime_seconds(self.walltime)
        return [
            # A job that was restarted joins under new names: its engines are different ones.
            '[ "$RESTARTED" != 1 ] || BROADLEAF_BLOCK=$BROADLEAF_BLOCK.1',
            *([f"export BROADLEAF_ENDS_AT=$(($(date +%s) + {ends_in_s}))"] if ends_in_s else []),
        ]

    def read_log(self, block: Block, log: str) -> None:
        """Notes how many hosts a job was given."""
        if block.n_hosts is None and (told := _HOSTS.search(log)):
            block.n_hosts = int(told[1])

    def note_news(self, jobs: Mapping[str, Block]) -> bool:
        """Asks `qstat` once for all of them, and once more for the reasons of those that wait."""
        try:
            seen = _states(self._queue())
        except CommandError:
            return False
        waiting = {job for job in jobs if (state := seen.get(job, "")) and not _runs(state)}
        why = self._reasons(waiting) if waiting else {}
        for job, block in jobs.items():
            if job in seen:
                _note(block, job, seen[job], why.get(job.partition("_")[0], ""))
            elif not self._note_end(block, job):
                self.news.want_ends()
        return True

    def _note_end(self, block: Block, job: str) -> bool:
        """Whether it is known how a job that is no longer in the queue has ended."""
        since = self._gone_since.setdefault(job, time.monotonic())
        try:
            block.state, block.reason = _how_it_ended(job, self._accounting(job))
        except (CommandError, KeyError):
            if time.monotonic() - since < _ACCOUNTING_S:
                return False
            block.state, block.reason = "failed", f"job {job} is no longer known to Grid Engine"
        block.facts["over"] = True
        return True

    def argument(self, job: str) -> str:
        """A task of an array is ``JOB.TASK`` for `qdel`."""
        return job.replace("_", ".")

    def _accounting(self, job: str) -> str:
        return self.submit_host.run(["qacct", "-j", job.partition("_")[0]])

    def why_refused(self, script: str, said: str) -> str:
        """The words of `qsub`; if it knows no suitable queue, what it says about each one."""
        words = said
        if "no suitable queues" in words:
            try:
                self.submit_host.run(["qsub", "-w", "v"], text=script)
            except CommandError as more:
                words = str(more)
        lines = [line.strip() for line in words.replace("Unable to run job: ", "").splitlines()]
        return "; ".join(line for line in lines if line and line != "Exiting.")

    def _reasons(self, jobs: Iterable[str]) -> dict[str, str]:
        """Why jobs wait, or cannot be started, by number."""
        numbers = ",".join(dict.fromkeys(job.partition("_")[0] for job in jobs))
        try:
            return _reasons(self.submit_host.run(["qstat", "-j", numbers]))
        except CommandError:
            return {}


def _value(option: str, value: str, name: str = "") -> str:
    """The value of an option, after `name`, as one word of a directive. Raises `ClusterStartError` if it cannot be."""
    return _word(name + check_value(option, value, "Grid Engine", _NOT_IN_WORDS))


def _word(text: str) -> str:
    return f'"{text}"' if re.search(r"\s", text) else text


_ON_ITS_HOST = 'BROADLEAF_TASKS_PER_NODE=1 sh -c "$join"'
# A host has a line for each queue that provides slots on it.
_ON_ITS_HOSTS = """\
hosts=$(awk '{slots[$1] += $2} END {for (host in slots) print host ":" slots[host]}' "$PE_HOSTFILE")
echo "broadleaf: the job has $(echo "$hosts" | wc -l) hosts"
relays= code=0
for host in $hosts; do
  printf '%s\\n' "$join" | qrsh -inherit "${host%:*}" /usr/bin/env BROADLEAF_TASKS_PER_NODE="${host#*:}" /bin/sh -s &
  relays="$relays $!"
done
for relay in $relays; do wait $relay || code=$?; done
(exit $code)"""


def _states(xml: str, name: str = "") -> dict[str, str]:
    """What `qstat -xml` says about each job, or task of an array: letters such as `qw` and `r`. Of those with a name,
    if it is given."""
    from xml.etree import ElementTree

    found = {}
    for entry in ElementTree.fromstring(xml).iter("job_list"):
        job, state = entry.findtext("JB_job_number", ""), entry.findtext("state", "")
        tasks = entry.findtext("tasks", "")
        if name and entry.findtext("JB_name") != name:
            continue
        for one in [f"{job}_{task}" for task in _tasks(tasks)] or [job]:
            found[one] = state
    return found


def _tasks(text: str) -> Iterator[int]:
    """The numbers of ``"1-5:2,8"``."""
    for part in filter(None, text.split(",")):
        first, _, rest = part.partition("-")
        last, _, step = rest.partition(":")
        yield from range(int(first), int(last or first) + 1, int(step or 1))


def _runs(state: str) -> bool:
    return any(letter in state for letter in "rtsSTd")


def _reasons(said: str) -> dict[str, str]:
    """Why jobs wait, or cannot be started, by number, in the words of `qstat -j`."""
    found = {}
    for part in re.split(r"^=+$", said, flags=re.MULTILINE):
        number = re.search(r"^job_number:\s*(\d+)", part, re.MULTILINE)
        if number:
            errors = re.findall(r"^error reason\s+\d+:\s*(.*)", part, re.MULTILINE)
            _, _, info = part.partition("scheduling info:")
            others = re.search(r"^jid_predecessor_list(?: \(req\))?:\s*(\S.*)", part, re.MULTILINE)
            lines = [*errors, *(line.strip() for line in info.splitlines() if line.strip())]
            lines.sort(key=lambda line: line.startswith("queue instance"))  # about the job first, then about queues
            found[number[1]] = "; ".join([*([f"{_AFTER}{others[1].strip()}"] if others else []), *lines][:_MAX_REASONS])
    return found


def _note(block: Block, job: str, state: str, why: str) -> None:
    """Sets a block's state from that of its job in the queue. A job that is held or in error stays so until somebody
    changes it.
    """
    block.is_ending = "d" in state
    if _runs(state):
        block.state, block.reason = "running", f"job {job} is running"
        return
    words = {"E": "cannot be started"} | ({} if why.startswith(_AFTER) else {"h": "is held"})
    is_hopeless = next((words[letter] for letter in words if letter in state), "")
    block.state = "failed" if is_hopeless else "pending"
    block.reason = f"job {job} {is_hopeless or 'is pending'} ({state})" + (f": {why}" if why else "")


def _how_it_ended(job: str, accounting: str) -> tuple[BlockState, str]:
    """State and reason, from the output of `qacct`. Raises KeyError if it has no record of this job."""
    task = job.partition("_")[2]
    for part in re.split(r"^=+$", accounting, flags=re.MULTILINE):
        entry = dict(re.findall(r"^(\w+) +(.*?) *$", part, re.MULTILINE))
        if entry and (not task or entry["taskid"] == task):
            break
    else:
        raise KeyError(job)
    failed, exit_status = entry["failed"], entry["exit_status"]
    code, _, words = failed.partition(":")
    if code.strip() == _LIMITS:
        return "failed", f"job {job}: its walltime has run out, or another limit ({words.strip()})"
    if code.strip() == _KILLED:
        return "failed", f"job {job} was deleted or killed (exit status {exit_status})"
    if code.strip() != "0":
        return "failed", f"job {job} failed: {words.strip()}"
    return ("ended" if exit_status.split()[0] == "0" else "failed"), f"job {job} ended with exit status {exit_status}"
