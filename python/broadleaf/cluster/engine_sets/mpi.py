"""Engines that are the ranks of an MPI world: one `mpiexec` per block."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from broadleaf.cluster.cores import usable_cores
from broadleaf.cluster.engine_sets.base import Block, BlockRequest, EngineSet
from broadleaf.cluster.session import taken_over
from broadleaf.engine.environment import variables_of
from broadleaf.errors import ClusterStartError
from broadleaf.state import files

if TYPE_CHECKING:
    from subprocess import Popen

# A world that was told to stop ends by itself, once its last rank has reached MPI.Finalize.
_LEAVE_S = 12.0
_STOP_GRACE_S = 10.0


@dataclass
class MPI(EngineSet):
    """Engines that are the ranks of an MPI world, with the same numbers: rank 3 of a cluster's first world is engine 3.

    `mpiexec` is the program that starts them: by default the one beside `python`, otherwise the one on the search path.
    `mpi_args` are its arguments, such as ``["-hosts", "a,b"]``. All hosts must see the cluster's directory
    (``BROADLEAF_DIR``), which tells them how to join. `python` must have `mpi4py`.

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
        self._children: dict[str, Popen[bytes]] = {}

    def require(self) -> None:
        """Raises `ClusterStartError` without an `mpiexec`."""
        if shutil.which(self._mpiexec()[0]) is None:
            raise ClusterStartError(
                f"there is no program {self._mpiexec()[0]!r} here: install an MPI, such as `pip install mpich`, load "
                "its module, or name the program with `mpiexec=`"
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

        log = files.open_log(log_path)
        try:
            child = subprocess.Popen(
                self.command(block, request, log_path),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | {"BROADLEAF_CLUSTER_ID": request.cluster_id},
                start_new_session=True,  # Ctrl-C is not for it
            )
        finally:
            os.close(log)
        self._children[block.id] = child
        block.facts = {"pid": child.pid, "cluster_id": request.cluster_id, "log": str(log_path)}
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
            rank = ["sh", "-c", "\n".join([*self.setup, f"exec {shlex.join(rank)}"])]
        return [*self._mpiexec(), *self.mpi_args, "-n", str(block.n_engines), *rank]

    def script(self, request: BlockRequest) -> str:
        """The command of the world."""
        number = request.first_block
        block = Block(f"{self.name}-{number}", n_engines=request.n or self.engines_per_host or usable_cores())
        return shlex.join(self.command(block, request, _log(request, number)))

    def poll(self, blocks: Sequence[Block]) -> None:
        """Checks whether the programs are running, and how they have ended."""
        for block in blocks:
            if block.is_over or self._runs(block):
                continue
            child = self._children.get(block.id)
            code = child.returncode if child is not None else None
            block.state = "failed" if code else "ended"
            block.reason = f"mpiexec ended with {_ending(code)}" if code else "mpiexec has ended"

    def _runs(self, block: Block) -> bool:
        child = self._children.get(block.id)
        if child is not None:
            return child.poll() is None
        return "pid" in block.facts and files.process_of_cluster(block.facts["pid"], block.facts["cluster_id"])

    def cancel(self, blocks: Sequence[Block]) -> None:
        """Waits for worlds whose engines were told to stop, and kills those that do not end by themselves."""
        for number, wait_s in ((None, _LEAVE_S), (signal.SIGTERM, _STOP_GRACE_S), (signal.SIGKILL, _STOP_GRACE_S)):
            running = [block for block in blocks if self._runs(block)]
            for block in running if number is not None else ():
                try:
                    os.kill(block.facts["pid"], number or signal.SIGTERM)
                except ProcessLookupError:
                    continue
            deadline = time.monotonic() + wait_s
            while any(map(self._runs, running)) and time.monotonic() < deadline:
                time.sleep(0.01)
        self.poll(blocks)

    def log(self, block: Block) -> str:
        """What mpiexec has written, and the ranks until they became engines."""
        try:
            return Path(block.facts["log"]).read_text(errors="replace")
        except (OSError, KeyError):
            return ""


def _log(request: BlockRequest, number: int) -> Path:
    return request.cluster_dir / files.BLOCK_LOG.format(f"mpi-{number}")


def _ending(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"code {code}"
