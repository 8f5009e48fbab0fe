"""What engine sets whose blocks are jobs have in common: where their scheduler is, and where jobs find their files."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import ClassVar

from broadleaf.cluster.engine_sets.base import Block, BlockRequest, EngineSet
from broadleaf.cluster.engine_sets.jobs.commands import CommandError
from broadleaf.cluster.engine_sets.jobs.news import News
from broadleaf.cluster.engine_sets.jobs.submit_hosts import LoginHost, SubmitHost, ThisHost
from broadleaf.openssh import via_host
from broadleaf.state import files

JOB_ENDED = "broadleaf: the job has ended"
"""The last line that a job's script writes."""


@dataclass
class BatchSet(EngineSet):
    """Engines in jobs of a scheduler."""

    program: ClassVar[str]
    """The scheduler's command that submits jobs."""
    cancel_program: ClassVar[str]
    """The scheduler's command that ends them."""
    unknown_job: ClassVar[str]
    """What that command says of a job that is gone."""

    _: KW_ONLY
    via: str = ""
    """Host where the scheduler's commands run, such as ``"ssh:login"``; by default this one."""
    shared_dir: str = ""
    """With `via`: a directory there that jobs see; by default ``~/.broadleaf``."""
    ship: bool = False
    """Whether jobs use the Broadleaf of this process, put into a directory that they see, and need only the same
    Python."""

    def __post_init__(self) -> None:
        login = via_host(self.via) if self.via else None
        self.submit_host: SubmitHost = ThisHost() if login is None else LoginHost(login, self.shared_dir)
        self.news: News = News()
        """Decides when to ask the scheduler for news of the jobs."""

    def require(self) -> None:
        """Raises `ClusterStartError` if the scheduler's programs are missing."""
        self.submit_host.require(self.program)

    def script(self, request: BlockRequest) -> str:
        """The batch script. With `via`, its directory is as configured: the login host is not asked for the path."""
        return self.batch_script(request, self._shown_directory(request), "PACKAGE" if self.ship else None)

    def _shown_directory(self, request: BlockRequest) -> Path:
        return Path(self.shared_dir or "~/.broadleaf") / request.cluster_id if self.via else request.cluster_dir

    def other_directory(self) -> str:
        """How to choose another directory in which jobs find their files.

        Returns:
            The advice.
        """
        return "name another one with shared_dir=" if self.via else "set BROADLEAF_DIR to another one"

    @abstractmethod
    def batch_script(self, request: BlockRequest, directory: Path, package: str | None) -> str:
        """The script of a job.

        Args:
            request: What was asked for.
            directory: Where the job finds its files.
            package: The directory that it imports Broadleaf from; None for the Broadleaf that is installed there.

        Returns:
            The text.
        """

    def prepared_script(self, request: BlockRequest) -> str:
        """Puts the files that a job needs where the job finds them.

        Args:
            request: What was asked for.

        Returns:
            The job's script.
        """
        directory = self.submit_host.directory(request)
        package = self.submit_host.keep_package() if self.ship else None
        self.submit_host.write(self.order_file(directory), self.join_order(request))
        return self.batch_script(request, directory, package)

    def order_file(self, directory: Path) -> Path:
        """The file from which relays read their order. Only this user can read it.

        Args:
            directory: Where the job finds its files.

        Returns:
            The path.
        """
        return directory / files.ORDER_FILE.format(self.name)

    def job_blocks(
        self, request: BlockRequest, jobs: Sequence[str], *, n_hosts: int | None, n_engines: int | None
    ) -> list[Block]:
        """One block for each submitted job.

        Args:
            request: What was asked for.
            jobs: The jobs' names.
            n_hosts: Hosts of each; None where that is not known.
            n_engines: Engines of each; None where that is not known.

        Returns:
            The blocks, in the order of the jobs.
        """
        directory = self.submit_host.directory(request)
        logs = [str(directory / files.BLOCK_LOG.format(f"{self.name}-{job}")) for job in jobs]
        self.submit_host.expect(logs)
        return [
            Block(
                f"{self.name}-{job}",
                n_hosts=n_hosts,
                n_engines=n_engines,
                reason="submitted",
                facts={"job": job, "log": log},
            )
            for job, log in zip(jobs, logs, strict=True)
        ]

    def look_now(self) -> None:
        """Makes the next `poll` ask the scheduler."""
        self.news.want_now()

    def poll(self, blocks: Sequence[Block]) -> None:
        """Asks the scheduler once for all of them, on average every 30 s.

        It asks early when a job's log says that the job has ended, but not why.
        """
        jobs = {block.facts["job"]: block for block in blocks if not block.is_over}
        logs = self.logs(list(jobs.values()))
        for job, block in jobs.items():
            self.read_log(block, logs[job])
        jobs = {job: block for job, block in jobs.items() if not block.is_over}
        ended = {job for job in jobs if JOB_ENDED in logs[job]}
        if jobs and self.news.are_due(ended) and self.note_news(jobs) and any(not jobs[job].is_over for job in ended):
            self.news.want_ends()

    def read_log(self, block: Block, log: str) -> None:
        """Notes what a job's log says about its block.

        Args:
            block: The block.
            log: What the job has written.
        """

    @abstractmethod
    def note_news(self, jobs: Mapping[str, Block]) -> bool:
        """Asks the scheduler, and notes the states of these blocks and their reasons.

        Args:
            jobs: The blocks that are not over, by their jobs.

        Returns:
            Whether the scheduler answered.
        """

    def cancel(self, blocks: Sequence[Block]) -> None:
        """Ends the jobs that are not over according to the scheduler, with one call.

        The job of a block that counts as failed may still be pending.

        Args:
            blocks: Their blocks.
        """
        jobs = [self.argument(block.facts["job"]) for block in blocks if not block.facts.get("over")]
        if jobs:
            try:
                self.submit_host.run([self.cancel_program, *jobs])
            except CommandError as error:
                if self.unknown_job not in str(error):
                    raise
        self.remove_logs(blocks)

    def argument(self, job: str) -> str:
        """A job's name as the command that ends jobs takes it.

        Args:
            job: The job's name.

        Returns:
            The argument.
        """
        return job

    def logs(self, blocks: Sequence[Block]) -> dict[str, str]:
        """What the jobs have written.

        Args:
            blocks: Their blocks.

        Returns:
            Each job's output, by its name.
        """
        texts = self.submit_host.logs([block.facts["log"] for block in blocks])
        return {block.facts["job"]: texts[block.facts["log"]] for block in blocks}

    def log(self, block: Block) -> str:
        """The job's output."""
        return self.logs([block])[block.facts["job"]]

    def remove_logs(self, blocks: Sequence[Block]) -> None:
        """Removes the logs of jobs from the host that submitted them, unless they go with the cluster's directory.

        Args:
            blocks: Their blocks.
        """
        self.submit_host.remove([block.facts["log"] for block in blocks])
