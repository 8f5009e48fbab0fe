"""Engines in Slurm jobs: one `sbatch` per block, which runs one `srun` that starts a relay on each node."""

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
    check_directory,
    check_lines,
    check_value,
    clock_time,
    walltime_seconds,
)

_STATES: dict[str, BlockState] = {
    "PENDING": "pending",
    "CONFIGURING": "pending",
    "REQUEUED": "pending",
    "RUNNING": "running",
    "COMPLETING": "running",
    "SUSPENDED": "running",
    "COMPLETED": "ended",
}
_WHY = {
    "TIMEOUT": "its walltime has run out",
    "PREEMPTED": "it was preempted",
    "OUT_OF_MEMORY": "it ran out of memory",
    "NODE_FAIL": "a node failed",
    "CANCELLED": "it was cancelled",
    "BOOT_FAIL": "a node did not boot",
    "DEADLINE": "its deadline is over",
}
# What Slurm writes into the log of a job that it ends. A job that is preempted or requeued may come back.
_ENDED_BY_SLURM = re.compile(r"\*\*\* JOB \d+ ON \S+ CANCELLED AT \S+(?: DUE TO (TIME LIMIT))? \*\*\*")
# A job that is pending for one of these reasons stays so until somebody changes the job.
_HOPELESS = frozenset({
    "PartitionNodeLimit", "PartitionTimeLimit", "BadConstraints", "InvalidAccount", "InvalidQOS", "JobHeldUser",
    "JobHeldAdmin", "AccountNotAllowed", "QOSNotAllowed", "DependencyNeverSatisfied", "ReservationDeleted",
    "JobLaunchFailure",
})  # fmt: skip
# One that is pending for these may run, and nobody but the site knows when.
_UP_TO_THE_SITE = {
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition is inactive",
    "Reservation": "its reservation has not started",
    "ReqNodeNotAvail": "nodes that it needs are down or reserved",
    "BeginTime": "its start time has not come yet",
    "Licenses": "its licenses are in use",
}


@dataclass
class Slurm(BatchSet):
    """Engines in Slurm jobs.

    `nodes` nodes with `engines_per_host` engines each, or `n` engines wherever Slurm puts them, in one job; with
    `array`, a job array whose jobs have one node each and can start one by one. The script has directives only for the
    options that you set: `walltime` ("30m", "1:00:00", or seconds), `partition`, `account`, and for
    everything else the lines in `sbatch`, such as ``["--mem=8G", "--exclusive"]``.

    The nodes need access to the cluster's directory. At most sites, they have it: they share your home directory.
    With ``via="ssh:login"``, Slurm's commands run on that host, and the nodes need access to its `shared_dir` instead.
    With `ship`, Broadleaf need not be installed on the nodes.
    """

    name: ClassVar[str] = "slurm"
    title: ClassVar[str] = "Slurm"
    program: ClassVar[str] = "sbatch"
    arguments: ClassVar[Sequence[str]] = ("--parsable",)
    marker: ClassVar[str] = "#SBATCH"
    on_hosts: ClassVar[str] = (
        'srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 \\\n'
        '  --kill-on-bad-exit=0 --wait=0 --mpi=none --cpu-bind=none sh -c "$join"'
    )
    cancel_program: ClassVar[str] = "scancel"
    unknown_job: ClassVar[str | Sequence[str]] = "Invalid job id"

    nodes: int = 0
    """Number of nodes; 0 leaves it to Slurm."""
    walltime: str | float = ""
    """Time limit of the job: "30m", "1:00:00", or a number of seconds; also as `sbatch --time` takes it, except for a
    bare number."""
    partition: str = ""
    """Partition."""
    account: str = ""
    """Account."""
    sbatch: Sequence[str] = field(default_factory=list)
    """Arguments for all other options of `sbatch`, such as ``"--mem=8G"``."""
    array: bool = False
    """Whether to submit a job array with a node in each of its jobs, which can start one by one."""

    def block_engines(self, first: int) -> int | None:
        """Engines of a job, where its options say how many."""
        return self.engines_per_host * (self.nodes or 1) or None

    def job_of(self, said: str) -> str:
        """The number that `sbatch --parsable` prints, perhaps before the name of a cluster."""
        return said.strip().splitlines()[-1].partition(";")[0]

    @property
    def cancel_arguments(self) -> Sequence[str]:  # type: ignore[override]
        """The clusters of the jobs, if they are not those of the host."""
        return self._clusters()

    def _clusters(self) -> list[str]:
        """Slurm's commands know jobs of other clusters only if they are told which."""
        found = [_CLUSTERS.match(line) for line in self.sbatch]
        return [f"--clusters={match[1]}" for match in found if match][-1:]

    def _squeue(self, *arguments: str) -> str:
        return self.submit_host.run(["squeue", *self._clusters(), "-h", "-r", *arguments])

    def jobs_named(self, name: str) -> list[str]:
        """Asks `squeue`."""
        return self._squeue("-u", self.submit_host.user(), "-n", name, "-o", "%i").split()

    def submitted(self, request: BlockRequest, job: str) -> list[Block]:
        """A block for the job, or for each of an array."""
        jobs = [f"{job}_{i}" for i in range(self.nodes or 1)] if self.array else [job]
        n_hosts = 1 if self.array else self.nodes or None
        n_engines = (self._per_host(request) * n_hosts if n_hosts else request.n) or None
        return self.job_blocks(request, jobs, n_hosts=n_hosts, n_engines=n_engines)

    def _per_host(self, request: BlockRequest) -> int:
        if request.n and self.nodes and not self.engines_per_host:
            return -(-request.n // self.nodes)
        return self.engines_per_host

    @property
    def job_variable(self) -> str:  # type: ignore[override]
        """The job's number, with that of its place in an array."""
        return "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID" if self.array else "$SLURM_JOB_ID"

    def directives(self, request: BlockRequest, directory: Path) -> list[str]:
        """One for each option that was given."""
        job = "%A_%a" if self.array else "%j"
        # A backslash would turn off all that begins with a percent sign.
        checked = check_directory(directory, "Slurm", "\\", self.other_directory())
        output = self.log_file(Path(str(checked).replace("%", "%%")), job)
        found = [f"--job-name={self.job_name(request)}", _word(f"--output={output}")]
        per_host = self._per_host(request)
        if self.array:
            found += [f"--array=0-{(self.nodes or 1) - 1}", "--nodes=1"]
        elif self.nodes:
            found.append(f"--nodes={self.nodes}")
        if per_host:
            found.append(f"--ntasks-per-node={per_host}")
        elif request.n and not self.nodes:
            found.append(f"--ntasks={request.n}")
        options = [
            ("walltime", "time", clock_time(self.walltime)),
            ("partition", "partition", self.partition),
            ("account", "account", self.account),
        ]
        found += [_word(f"--{name}={check_value(option, value, 'Slurm')}") for option, name, value in options if value]
        # Words of their own, or one argument whose value nobody has quoted.
        lines = check_lines("sbatch", self.sbatch, "Slurm")
        return found + [_word(line) if _ARGUMENT.fullmatch(line) else line for line in lines]

    def preparations(self, request: BlockRequest) -> list[str]:
        """The block's name after a requeue, the end of the job, and its tasks."""
        return [
            # A job that was requeued joins under new names: its engines are different ones.
            'BROADLEAF_BLOCK="$BROADLEAF_BLOCK${SLURM_RESTART_COUNT:+.$SLURM_RESTART_COUNT}"',
            # Only newer versions of Slurm provide the end time in the environment.
            "ends=${SLURM_JOB_END_TIME:+@$SLURM_JOB_END_TIME}",
            f'ends="${{ends:-{self._end()}}}"',
            'export BROADLEAF_ENDS_AT="$(date -d "${ends:-unknown}" +%s 2>/dev/null)"',
            *(['export BROADLEAF_TASKS_PER_NODE="$SLURM_TASKS_PER_NODE"'] if self._counts_tasks(request) else []),
        ]

    def _end(self) -> str:
        """The end of the job for `date`, in words of the shell. Slurm is asked only where no option tells it."""
        walltime_s = (
            0 if any(line.startswith(("--time", "-t")) for line in self.sbatch) else walltime_seconds(self.walltime)
        )
        if walltime_s:
            return f"@$(($(date +%s) + {-(-walltime_s // 60) * 60}))"  # Slurm counts whole minutes
        return '$(squeue -h -j "$SLURM_JOB_ID" -o %e 2>/dev/null)'

    def _counts_tasks(self, request: BlockRequest) -> bool:
        return not self.engines_per_host and request.n is not None

    def why_refused(self, script: str, said: str) -> str:
        """Slurm's words, and the option that they are about."""
        return said + self._offending(said)

    def _offending(self, said: str) -> str:
        """The option that Slurm's message is about, if it names one."""
        for name, value in (("partition", self.partition), ("account", self.account), ("walltime", self.walltime)):
            names = ("time limit", "--time") if name == "walltime" else (name,)
            if value and any(one in said.lower() for one in names):
                return f" (from {name}={value!r})"
        for line in self.sbatch:
            if line.lstrip("-").partition("=")[0].partition(" ")[0] in said:
                return f" (from the line {line!r} in sbatch)"
        return ""

    def read_log(self, block: Block, log: str) -> None:
        """Notes that Slurm has ended a job, and why. This costs no call."""
        if told := _ENDED_BY_SLURM.search(log):
            block.state = "failed"
            block.reason = _reason(block.facts["job"], "TIMEOUT" if told[1] else "CANCELLED", "")
            block.facts["over"] = True

    def note_news(self, jobs: Mapping[str, Block]) -> bool:
        """Asks `squeue` once for all of them."""
        known = ",".join(dict.fromkeys(job.partition("_")[0] for job in jobs))
        try:
            said = self._squeue("-t", "all", "-j", known, "-o", "%i|%T|%r")
        except CommandError as error:
            if not self.means_gone(str(error)):
                return False
            said = ""
        seen = {line.split("|")[0].strip(): line.split("|")[1:] for line in said.splitlines() if "|" in line}
        for job, block in jobs.items():
            state, reason = seen.get(job, ["GONE", ""])
            block.state = _STATES.get(state, "failed")
            block.reason = _reason(job, state, reason)
            block.facts["over"] = block.is_over
            block.is_ending = state == "COMPLETING"
            block.warning = ""
            if state == "PENDING":
                cause = reason.strip("()").partition(",")[0]
                if cause in _HOPELESS:
                    block.state = "failed"
                elif cause in _UP_TO_THE_SITE:
                    block.warning = f"{_reason(job, state, reason)}: {_UP_TO_THE_SITE[cause]}"
        return True


# Clusters that a job may go to, as an argument of `sbatch`.
_CLUSTERS = re.compile(r"(?:--clusters|--cluster|-M)[=\s]*([^\s#]+)")
# One argument, and neither a second one nor a comment behind it.
_ARGUMENT = re.compile(r"--[A-Za-z-]+=(?:(?!\s-)[^'\"\\#])*")


def _word(text: str) -> str:
    """An argument as Slurm reads it in a directive: quoted if it has anything that ends a word or begins a comment."""
    if not re.search(r"[\s'\"\\#]", text):
        return text
    return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'


def _reason(job: str, state: str, reason: str) -> str:
    if state == "PENDING":
        return f"job {job} is pending: {reason}"
    if state == "GONE":
        return f"job {job} is no longer known to Slurm"
    if state in _WHY:
        return f"job {job}: {_WHY[state]} ({state})"
    words = "" if reason in ("None", "") else f" ({reason})"
    return f"job {job} is {state.lower().replace('_', ' ')}{words}"
