"""What engine sets have in common whose blocks are programs on this host: `ssh`, `mpiexec`."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from broadleaf.cluster.engine_sets.base import Block, BlockRequest, BlockState, EngineSet
from broadleaf.state import files

if TYPE_CHECKING:
    from subprocess import Popen

_LOOK_EVERY_S = 0.01


@dataclass
class ProcessSet(EngineSet):
    """Engines that come with programs on this host, one for each block."""

    def __post_init__(self) -> None:
        self._children: dict[str, Popen[bytes]] = {}

    def start_program(
        self, block: Block, request: BlockRequest, command: Sequence[str], log_path: Path, stdin: int | IO[bytes]
    ) -> Popen[bytes]:
        """Starts a block's program.

        Args:
            block: The block, whose `facts` will lead any process to the program.
            request: What was asked for.
            command: The program's words.
            log_path: Where it writes; what is there is removed.
            stdin: What it reads.

        Returns:
            The process.
        """
        import subprocess

        log = files.open_log(log_path)
        try:
            child = subprocess.Popen(
                command,
                stdin=stdin,
                stdout=log,
                stderr=log,
                env=os.environ | {"BROADLEAF_CLUSTER_ID": request.cluster_id},
                start_new_session=True,  # Ctrl-C is not for it
            )
        finally:
            os.close(log)
        self._children[block.id] = child
        block.facts |= {"pid": child.pid, "cluster_id": request.cluster_id, "log": str(log_path)}
        return child

    def child_of(self, block: Block) -> Popen[bytes] | None:
        """A block's program, if this process has started it; another one may have done so since.

        Args:
            block: The block.

        Returns:
            The process, or None.
        """
        child = self._children.get(block.id)
        return child if child is not None and child.pid == block.facts.get("pid") else None

    def runs(self, block: Block) -> bool:
        """Whether a block's program is running.

        Args:
            block: The block.

        Returns:
            Whether it is.
        """
        if (child := self.child_of(block)) is not None:
            return child.poll() is None
        return "pid" in block.facts and files.process_of_cluster(block.facts["pid"], block.facts["cluster_id"])

    @abstractmethod
    def how_it_ended(self, block: Block, code: int | None) -> tuple[BlockState, str]:
        """What the end of a block's program means.

        Args:
            block: The block.
            code: Its exit code, below 0 for a signal; None if only another process knows.

        Returns:
            'ended' or 'failed', and why.
        """

    def note_end(self, block: Block) -> None:
        """Notes how the program of a block has ended.

        Args:
            block: The block.
        """
        child = self.child_of(block)
        block.state, block.reason = self.how_it_ended(block, child.returncode if child is not None else None)

    def poll(self, blocks: Sequence[Block]) -> None:
        """Checks whether the programs are running, and how they have ended."""
        for block in blocks:
            if not block.is_over and not self.runs(block):
                self.note_end(block)

    def end_programs(self, blocks: Sequence[Block], steps: Sequence[tuple[signal.Signals | None, float]]) -> None:
        """Ends programs, and returns when they are gone.

        Args:
            blocks: Their blocks.
            steps: Signals that are sent one after the other, None for none, and the seconds to wait after each.
        """
        for number, wait_s in steps:
            running = [block for block in blocks if self.runs(block)]
            if number is not None:
                for block in running:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(block.facts["pid"], number)
            give_up_at = time.monotonic() + wait_s
            while any(map(self.runs, running)) and time.monotonic() < give_up_at:
                time.sleep(_LOOK_EVERY_S)
        self.poll(blocks)

    def log(self, block: Block) -> str:
        """What the program has written."""
        try:
            return Path(block.facts["log"]).read_text(errors="replace")
        except (OSError, KeyError):
            return ""
