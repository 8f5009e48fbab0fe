"""Engines that are the ranks of an MPI world: one `mpiexec` per block."""

from __future__ import annotations

import shlex
import shutil
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from broadleaf.cluster.cores import usable_cores
from broadleaf.cluster.engine_sets.base import Block, BlockRequest, BlockState
from broadleaf.cluster.engine_sets.processes import ProcessSet
from broadleaf.cluster.session import taken_over
from broadleaf.engine.environment import variables_of
from broadleaf.errors import ClusterStartError
from broadleaf.state import files

# A world that was told to stop ends by itself, once its last rank has reached MPI.Finalize.
_LEAVE_S = 12.0
_STOP_GRACE_S = 10.0


@dataclass
class MPI(ProcessSet):
    """Engines that are the ranks of an MPI world, with the same numbers: rank 3 of a cluster's first world is engine 3.

    `mpiexec` is the program that starts them: by default the one beside `python`, otherwise the one on the search path.
    `mpi_args` are its arguments, such as ``["-hosts", "a,b"]``. All hosts need access to the cluster's
    directory (``BROADLEAF_DIR``), which tells them how to join. `python` must have `mpi4py`.

    Each set is a separate world. When a rank dies, its whole world ends; `Cluster.restart_engines` starts it again.
    """

    name: ClassVar[str] = "mpi"
    restarts_blocks: ClassVar[bool] = True

    mpiexec: str = ""
    """Program that starts the ranks; by default the one beside `python`, else the one of the search path."""
    mpi_args: Sequence[str] = field(default_factory=list)
    """Its arguments, such as ``["-hosts", "a,b"]``."""

    def __post_init__(self) -> None:
        if isinstance(self.mpi_args, str):
            self.mpi_args = shlex.split(self.mpi_args)
        super().__post_init__()

    def require(self) -> None:
        """Raises `ClusterStartError` without an `mpiexec`."""
        if shutil.which(self._mpiexec()[0]) is None:
            raise ClusterStartError(
                f"the program {self._mpiexec()[0]!r} was not found on this host: install MPI, for example with "
                "`pip install mpich`, load its module, or name the program with `mpiexec=`"
            )

    def block_engines(self, first: int) -> int | None:
        """Number of ranks in a world: always the same as in the first."""
        return first or self.engines_per_host or usable_cores()

    def submit(self, request: BlockRequest) -> list[Block]:
        """Starts `mpiexec` for one world."""
        number = request.first_block
        while _log(request, number).exists():  # a world that has ended keeps its name
            number += 1
        block = Block(f"{self.name}-{number}", n_engines=request.n or self.engines_per_host or usable_cores())
        self._start(block, request, _log(request, number))
        return [block]

    def start_again(self, block: Block, request: BlockRequest) -> None:
        """Restarts the world of a block that has ended, with the same engine ids."""
        self._start(block, request, Path(block.facts["log"]))

    def _start(self, block: Block, request: BlockRequest, log_path: Path) -> None:
        import subprocess

        block.facts = {}
        self.start_program(block, request, self.command(block, request, log_path), log_path, subprocess.DEVNULL)
        block.state, block.reason = "running", ""

    def _mpiexec(self) -> list[str]:
        if self.mpiexec:
            return shlex.split(self.mpiexec)
        beside = Path(self.python or sys.executable).parent / "mpiexec"
        return [str(beside) if beside.exists() else "mpiexec"]

    def command(self, block: Block, request: BlockRequest, log_path: Path) -> list[str]:
        """The command that starts a block's world.

        Args:
            block: The block.
            request: What was asked for.
            log_path: Where its ranks write until they are engines.

        Returns:
            The command's words. Nothing secret is in it.
        """
        # Not every mpiexec passes its environment on. A rank that lacks something starts again.
        environment = taken_over(variables_of(request.connection))
        rank = [*(["env", *(f"{name}={value}" for name, value in environment.items())] if environment else []),
                *shlex.split(self.wrap), self.python or sys.executable, "-m", "broadleaf.mpi", "--connection",
                str(request.cluster_dir / files.ENGINE_FILE), "--world", block.id, "--log", str(log_path)]  # fmt: skip
        if self.nested_tasks:
            rank += ["--client-connection", str(request.cluster_dir / files.CLIENT_FILE)]
        if self.setup:
            rank = ["sh", "-c", self.set_up(f"exec {shlex.join(rank)}")]
        return [*self._mpiexec(), *self.mpi_args, "-n", str(block.n_engines), *rank]

    def script(self, request: BlockRequest) -> str:
        """The command of the world."""
        number = request.first_block
        block = Block(f"{self.name}-{number}", n_engines=request.n or self.engines_per_host or usable_cores())
        return shlex.join(self.command(block, request, _log(request, number)))

    def how_it_ended(self, block: Block, code: int | None) -> tuple[BlockState, str]:
        """With which code or signal `mpiexec` has ended."""
        return ("failed", f"mpiexec ended with {_ending(code)}") if code else ("ended", "mpiexec has ended")

    def cancel(self, blocks: Sequence[Block]) -> None:
        """Waits for worlds whose engines were told to stop, and kills those that do not end by themselves."""
        steps = ((None, _LEAVE_S), (signal.SIGTERM, _STOP_GRACE_S), (signal.SIGKILL, _STOP_GRACE_S))
        self.end_programs(blocks, steps)


def _log(request: BlockRequest, number: int) -> Path:
    return request.cluster_dir / files.BLOCK_LOG.format(f"mpi-{number}")


def _ending(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"code {code}"
