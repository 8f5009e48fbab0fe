"""Engines in jobs of schedulers that PSI/J supports, such as Flux and Cobalt.

PSI/J submits and cancels jobs; relays report everything else.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

from broadleaf.cluster.engine_sets.base import Block, BlockRequest, EngineSet
from broadleaf.cluster.engine_sets.batch import check_directory, check_value, walltime_seconds
from broadleaf.errors import ClusterStartError
from broadleaf.private_files import open_private
from broadleaf.state import files
from broadleaf.state.directories import base_dir, write_json

_ENDED = "broadleaf: the relay has ended with code"
_ENDED_LINE = re.compile(rf"^{_ENDED} (\d+)$", re.MULTILINE)
_WORK_FILES = (".out", ".ec", ".nodefile")
# How long the script of a job may take to end after its relays.
_LAST_WORD_S = 5.0
# Runs once for each slot: the first one on a host becomes its relay, the others wait until that ends. They meet at a
# file of the host, since not every shared file system has locks. Nobody else can guess its name, or open it.
_ON_A_SLOT = """\
lock=/tmp/broadleaf-{name}
mask=$(umask)
umask 077
exec 2>&1 9> "$lock"
umask "$mask"
if ! flock -n 9; then flock 9; exit 0; fi
sh -c {join}
code=$?
rm -f "$lock"
echo "{ended} $code"
exit $code
"""


@dataclass
class PSIJ(EngineSet):
    """Engines in jobs that PSI/J submits.

    PSI/J calls schedulers ``"pbs"``, ``"pbs_classic"``, ``"lsf"``, ``"cobalt"``, ``"flux"`` and ``"slurm"``. A job has
    `nodes` nodes with `engines_per_host` engines each; without that number, `n` engines are divided among them.
    `attributes` are additional options of the scheduler, such as ``["l=place=excl"]``. Its `launcher` is PSI/J's
    "single" for one node, otherwise "srun" with Slurm and "mpirun" elsewhere.

    It needs the package `psij-python`. The nodes need access to the cluster's directory. At most sites, they have it
    because they share your home directory.
    """

    name: ClassVar[str] = "psij"
    leaves_jobs: ClassVar[bool] = True

    executor: str = ""
    """The scheduler, as PSI/J calls it."""
    nodes: int = 1
    """Nodes of a job."""
    walltime: str | float = ""
    """How long a job may run: "30m", "1:00:00", or a number of seconds; '' for the scheduler's default."""
    queue: str = ""
    """Queue of the jobs; '' for the scheduler's default."""
    account: str = ""
    """Account that pays; '' for the default."""
    attributes: Sequence[str] = ()
    """More options of the scheduler."""
    launcher: str = ""
    """PSI/J's launcher, which starts a relay on each node; '' chooses one."""

    def __post_init__(self) -> None:
        self.attributes = list(self.attributes)
        self._executor: Any = None
        self._jobs: dict[str, Any] = {}

    def require(self) -> None:
        """Raises `ClusterStartError` without PSI/J, or if it does not support the scheduler."""
        psij = _psij()
        known = sorted(psij.JobExecutor.get_executor_names())
        if self.executor not in known:
            raise ClusterStartError(
                f"PSI/J has no executor {self.executor!r}: name one with executor=; it has {', '.join(known)}"
            )
        if self.walltime and not walltime_seconds(self.walltime):
            raise ClusterStartError(f"walltime={self.walltime!r}: write it as 30m, 1:30:00, or a number of seconds")
        if self.executor == "lsf" and not self.walltime:
            raise ClusterStartError("PSI/J needs a time limit to submit jobs to LSF: set walltime=")

    def block_engines(self, first: int) -> int | None:
        """Number of engines in a job, if its options define it."""
        return self.engines_per_host * self.nodes or None

    def submit(self, request: BlockRequest) -> list[Block]:
        """Writes the relays' order into a private file, and has PSI/J submit a job."""
        psij = _psij()
        block_id = f"{self.name}-{os.urandom(3).hex()}"
        write_json(_order_file(request), self.join_order(request, n=self._per_host(request)))
        script = request.cluster_dir / files.BLOCK_SCRIPT.format(block_id)
        with os.fdopen(open_private(script, os.O_WRONLY | os.O_TRUNC), "w") as file:
            file.write(self._slot_script(request, block_id, os.urandom(16).hex()))
        job = self._job(request, block_id)
        try:
            self._psij_executor().submit(job)
        except (psij.SubmitException, OSError) as error:
            self._work_file(f"{job.id}.job").unlink(missing_ok=True)
            raise ClusterStartError(f"{self.executor} refuses the job: {str(error).strip()}") from None
        self._jobs[block_id] = job
        return [
            Block(
                block_id,
                n_hosts=self.nodes,
                n_engines=self._per_host(request) * self.nodes or None,
                reason=f"job {job.native_id} was submitted",
                facts={"job": job.native_id, "psij": job.id, "log": str(_log(request, block_id)),
                       "script": str(script)},
            )
        ]  # fmt: skip

    def _per_host(self, request: BlockRequest) -> int:
        return self.engines_per_host or (-(-request.n // self.nodes) if request.n else 0)

    def _slot_script(self, request: BlockRequest, block_id: str, unguessable: str) -> str:
        join = self.join_command(request, str(_order_file(request)))
        head = f"export BROADLEAF_CLUSTER_ID={request.cluster_id} BROADLEAF_BLOCK={block_id}\n"
        return f"#!/bin/sh\n{head}" + _ON_A_SLOT.format(name=unguessable, join=shlex.quote(join), ended=_ENDED)

    def _job(self, request: BlockRequest, block_id: str) -> Any:
        psij = _psij()
        # PSI/J puts quotes around most of these, and then more quotes around those.
        base = base_dir().absolute()
        check_directory(base, "PSI/J", _quoted(str(base)), "set BROADLEAF_DIR to another one")
        for option, value in (("queue", self.queue), ("account", self.account)):
            check_value(option, value, "PSI/J", _quoted(value))
        for attribute in self.attributes:
            check_value("attributes", attribute, "PSI/J", "\"'")
        options = [option.partition("=") for option in self.attributes]
        duration = timedelta(seconds=walltime_seconds(self.walltime)) if self.walltime else None
        attributes = psij.JobAttributes(
            queue_name=self.queue or None,
            account=self.account or None,
            custom_attributes={f"{self.executor.partition('_')[0]}.{name}": value for name, _, value in options}
            or None,
        )
        attributes.duration = duration  # its own default would be a limit that nobody requested
        log = str(_log(request, block_id))
        spec = psij.JobSpec(
            executable="/bin/sh",
            arguments=[str(request.cluster_dir / files.BLOCK_SCRIPT.format(block_id))],
            stdout_path=log,
            stderr_path=_errors(log),
            resources=psij.ResourceSpecV1(node_count=self.nodes, processes_per_node=self._per_host(request) or 1),
            attributes=attributes,
            launcher=self._launcher(),
        )
        return psij.Job(spec)

    def _launcher(self) -> str:
        if self.launcher:
            return self.launcher
        return "single" if self.nodes == 1 else "srun" if self.executor == "slurm" else "mpirun"

    def _psij_executor(self) -> Any:
        if self._executor is None:
            psij = _psij()
            config = psij.JobExecutorConfig(work_directory=_work())
            self._executor = psij.JobExecutor.get_instance(self.executor, config=config)
        return self._executor

    def script(self, request: BlockRequest) -> str:
        """The batch script, as PSI/J writes it, and the command that it runs for each slot."""
        psij = _psij()
        block_id = f"{self.name}-BLOCK"
        with tempfile.TemporaryDirectory() as work:
            config = psij.JobExecutorConfig(work_directory=Path(work))
            executor = psij.JobExecutor.get_instance(self.executor, config=config)
            job = self._job(request, block_id)
            text = io.StringIO()
            executor.generate_submit_script(job, executor._create_script_context(job), text)
            script = text.getvalue().replace(work, str(_work())).replace(job.id, "JOB")
        lines = [line for line in script.splitlines() if line.strip()]
        return "\n".join(
            [*lines, "", f"# {files.BLOCK_SCRIPT.format(block_id)}:", self._slot_script(request, block_id, "NAME")]
        )

    def poll(self, blocks: Sequence[Block]) -> None:
        """Reads what relays have written, and what PSI/J knows about jobs that this process has submitted."""
        for block in blocks:
            if block.is_over:
                continue
            codes = [int(code) for code in _ENDED_LINE.findall(self.log(block))]
            if len(codes) >= self.nodes:
                block.state = "failed" if any(codes) else "ended"
                block.reason = f"job {block.facts['job']} exited with code {max(codes)}"
                continue
            job = self._jobs.get(block.id)
            if job is None:
                continue
            status = job.status
            if status.final:
                words = (status.message or "").strip() or "its walltime has run out, or it was cancelled"
                block.state = "ended" if status.state.name == "COMPLETED" and codes else "failed"
                block.reason = f"job {block.facts['job']} is {status.state.name.lower()}: {words}"
            elif status.state.name == "ACTIVE":
                block.state, block.reason = "running", ""
            else:
                block.reason = f"job {block.facts['job']} is pending"

    def cancel(self, blocks: Sequence[Block]) -> None:
        """Has PSI/J cancel the jobs that may run, and removes their files."""
        psij = _psij()
        for block in blocks:
            facts = block.facts
            executor = self._psij_executor()
            if not facts.get("over") and len(_ENDED_LINE.findall(self.log(block))) < self.nodes:
                job = self._jobs.get(block.id)
                if job is None:
                    job = psij.Job()
                    executor.attach(job, facts["job"])
                with contextlib.suppress(psij.SubmitException):  # it has ended
                    executor.cancel(job)
            facts["over"] = True
        give_up_at = time.monotonic() + _LAST_WORD_S
        for facts in (block.facts for block in blocks):
            # The job's script writes its exit code last; the file would remain.
            out, code = self._work_file(facts["job"] + ".out"), self._work_file(facts["job"] + ".ec")
            while out.exists() and not code.exists() and time.monotonic() < give_up_at:
                time.sleep(0.02)
            names = [facts["psij"] + ".job", *(facts["job"] + suffix for suffix in _WORK_FILES)]
            for path in [Path(facts["script"]), *map(self._work_file, names)]:
                path.unlink(missing_ok=True)

    def _work_file(self, name: str) -> Path:
        return _work() / self.executor / name

    def log(self, block: Block) -> str:
        """What the relays have written, and their errors."""
        return "".join(_read(Path(path)) for path in (block.facts["log"], _errors(block.facts["log"])))


def _psij() -> Any:
    try:
        import psij  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ClusterStartError(
            'PSI/J, which submits jobs to this scheduler, is not installed here: pip install "broadleaf[psij]"'
        ) from None
    return psij


def _order_file(request: BlockRequest) -> Path:
    return request.cluster_dir / files.ORDER_FILE.format("psij")


def _log(request: BlockRequest, block_id: str) -> Path:
    return request.cluster_dir / files.BLOCK_LOG.format(block_id)


def _work() -> Path:
    """Where PSI/J stores its scripts; jobs must see it."""
    return base_dir().absolute() / "psij"


def _errors(log: str) -> str:
    """Where launchers write their errors."""
    return log.removesuffix(".log") + ".errors.log"


def _quoted(text: str) -> str:
    """The characters for which PSI/J puts a text in quotes."""
    return "".join(character for character in text if shlex.quote(character) != character)


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
