"""Defines engine sets: kinds of places where engines run, with the methods by which a cluster gets hosts there.

For a site with its own scheduler, write a subclass of `EngineSet`, about a page of Python, and register it as an entry
point of the group ``broadleaf.engine_sets``:

    @dataclass
    class Lantern(EngineSet):
        name: ClassVar[str] = "lantern"
        queue: str = ""  # an option: of the constructor, of `broadleaf start --set`, of the table [lantern]

        def submit(self, request):
            job = run(["lsubmit", "-q", self.queue], input=self.script(request))
            return [Block(f"lantern-{job}", n_hosts=1)]
        ...
"""

from __future__ import annotations

import dataclasses
import shlex
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from broadleaf.cluster.credentials import python_version
from broadleaf.cluster.engine_sets.options import check_types
from broadleaf.cluster.package import receive_code
from broadleaf.cluster.session import export_command
from broadleaf.engine.environment import variables_of
from broadleaf.errors import ClusterStartError
from broadleaf.state import files
from broadleaf.state.directories import read_json

BlockState = Literal["pending", "running", "ended", "failed"]

# Runs on each host, in whatever Python is found there, which may be too old for anything but this.
_JOIN = """\
import sys
if "%d.%d" % sys.version_info[:2] != "{version}":
    sys.exit("wrong Python: %s is %d.%d, and the cluster has {version}; set python= to one that fits"
             % ((sys.executable,) + tuple(sys.version_info[:2])))
sys.path[:1] = []
{package}try:
    from broadleaf.cluster.join import main
except ImportError as error:
    sys.exit("Broadleaf cannot be imported by %s: %s; install it there, set python=, or have it sent with ship=True"
             % (sys.executable, error))
main()"""


class BlockRequest(NamedTuple):
    """What a set is asked to start."""

    cluster_id: str
    cluster_dir: Path
    """A private directory where the set may keep files, such as logs."""
    n: int | None
    """Engines asked for; None for as many as the hosts have cores."""
    connection: Mapping[str, Any]
    """What relays join by: the content of `engine.json`. It holds a key, which must travel by standard input or in a
    file of mode 0600, and never in a command line, a script or a log."""
    first_block: int = 0
    """A number that no block of the cluster has had, for sets that number their blocks."""


@dataclass
class Block:
    """What a set has started with one request: a batch job, or an ssh connection. It runs a relay on each host."""

    id: str
    """Unique in the cluster. Relays are called ``<host>:<id>``."""
    n_hosts: int | None = None
    """Hosts that it will have; None where that is not known before it runs."""
    n_engines: int | None = None
    """Engines that it will have; None where that is not known before it runs."""
    state: BlockState = "pending"
    reason: str = ""
    """Why it is pending, has ended or failed: the scheduler's words."""
    warning: str = ""
    """Why it may be pending for long, where that is up to the site; '' otherwise."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What its set needs to find it again, ready for JSON."""
    hosts: list[str] = field(default_factory=list)
    """Its hosts that have joined, as `Cluster.blocks` found them."""
    engines: list[int] = field(default_factory=list)
    """Its engines that are up, as `Cluster.blocks` found them."""
    deadline: float | None = None
    """When its job ends, in seconds since 1970, as `Cluster.blocks` found it; None where that is not known."""
    is_ending: bool = False
    """Whether its scheduler is ending it, and has not finished that: it brings no more engines."""
    draining: bool = False
    """Whether it takes no new tasks: it is being released, or its scheduler has announced its end."""
    is_released: bool = False
    """Whether it is being released, or was: because it is not needed, or on request."""

    @property
    def is_over(self) -> bool:
        """Whether nothing of it is running, or will run."""
        return self.state in ("ended", "failed")


def block_and_life(host: str, blocks: Mapping[str, Block]) -> tuple[Block, int] | None:
    """The block, of these by their ids, whose relay is called `host`, and how often it was put back into the queue.

    After a requeue the relay's name has a number at the end.
    """
    name = host.rpartition(":")[2]
    if name in blocks:
        return blocks[name], 0
    stem, _, life = name.rpartition(".")
    return (blocks[stem], int(life)) if stem in blocks and life.isdigit() else None


@dataclass
class EngineSet(ABC):
    """A kind of place where engines run, with its options. The fields of a subclass are its options."""

    name: ClassVar[str]
    """The name in ``Cluster(engines=name)``, `broadleaf start --engines name`, and the table ``[name]`` of
    `config.toml`."""
    is_remote: ClassVar[bool] = True
    """Whether its engines come with relays, for which the controller listens on TCP."""

    is_adoptable: ClassVar[bool] = False
    """Whether any process can take over its blocks, because their `facts` are all that it needs. A separate process can
    then scale a detached cluster."""

    leaves_jobs: ClassVar[bool] = False
    """Whether its blocks are jobs, which stay in their scheduler's queue until somebody cancels them."""

    restarts_blocks: ClassVar[bool] = False
    """Whether `start_again` restarts its engines a whole block at a time, because the controller cannot restart
    them."""

    keeps_hosts: ClassVar[bool] = False
    """Whether its hosts are fixed: `start_again` restarts a block that has ended on the same host."""

    _: KW_ONLY
    engines_per_host: int = 0
    """Engines on each host; 0 for one for every core that the relay there may use."""
    min_engines: int = 0
    """Minimum number of engines that must be up for the cluster to start; 0 for all."""
    queue_timeout_s: float = 86_400.0
    """How long a block may be pending before its start counts as failed, in seconds."""
    python: str = ""
    """Python on the hosts; by default the path of this process's Python on hosts where it exists, otherwise
    `python3`."""
    setup: Sequence[str] = field(default_factory=list)
    """Shell commands that each host runs first, such as ``module load python``, in a login shell of bash if the host
    has bash."""
    setup_errors: str = "stop"
    """What happens if one of them fails: with 'stop', the start fails; with 'warn', the failure is only logged."""
    wrap: str = ""
    """Command that starts Python on the hosts, such as ``apptainer exec image.sif``."""
    interface: str = ""
    """Network interface of this host to which relays connect; by default any."""
    nested_tasks: bool = False
    """Whether tasks on the hosts may submit tasks. If so, the clients' key is sent to the hosts as well."""

    def __init_subclass__(cls, **more: Any) -> None:
        """Refuses options of types that another process could not be told, if it has to make the same set.

        Args:
            **more: For other base classes.

        Raises:
            TypeError: An option has such a type.
        """
        super().__init_subclass__(**more)
        if cls.is_adoptable:
            check_types(cls)

    @abstractmethod
    def submit(self, request: BlockRequest) -> list[Block]:
        """Starts what was requested, as one block or several, and returns at once.

        Args:
            request: The request.

        Returns:
            The blocks.

        Raises:
            ClusterStartError: The scheduler refused the whole request. The message contains its reason.
        """

    def block_engines(self, first: int) -> int | None:
        """The number of engines in each block that `Cluster.scale` and `adapt` request.

        Args:
            first: Number of engines in the cluster's first block; 0 if there is none.

        Returns:
            That number. None if a block has as many engines as were requested.

        Raises:
            ClusterStartError: No more blocks can be added. If the hosts are fixed, lost ones can still come back.
        """
        return None

    @abstractmethod
    def poll(self, blocks: Sequence[Block]) -> None:
        """Sets `state` and `reason` of blocks, all with one call to the scheduler.

        It is called many times a second while a cluster starts, so it must not ask the scheduler each time.

        Args:
            blocks: The blocks.
        """

    @abstractmethod
    def cancel(self, blocks: Sequence[Block]) -> None:
        """Ends blocks, and returns when their processes on this host are gone.

        Blocks that have already ended are not an error.

        Args:
            blocks: The blocks.
        """

    @abstractmethod
    def log(self, block: Block) -> str:
        """The output of a block.

        Args:
            block: The block.

        Returns:
            The text; '' if there is none.
        """

    def why_silent(self, block: Block) -> str:
        """The likely reason why a block has ended without any output.

        Args:
            block: The block.

        Returns:
            A sentence; '' if nothing is known.
        """
        return ""

    def look_now(self) -> None:  # noqa: B027 (nothing, for a set that always looks)
        """Makes the next `poll` ask the scheduler, even if it did so a moment ago."""

    def require(self) -> None:  # noqa: B027 (nothing, for a set that is always there)
        """Called before anything starts: checks that this set can be used.

        Raises:
            ClusterStartError: This set cannot be used here.
        """

    def start_again(self, block: Block, request: BlockRequest) -> None:
        """Restarts a block that has ended, with the same id; only for sets with `restarts_blocks` or `keeps_hosts`.

        Args:
            block: The block.
            request: The request, for its engines.

        Raises:
            ClusterStartError: It does not start.
        """
        raise NotImplementedError

    def spare_blocks(self, request: BlockRequest, blocks: Sequence[Block]) -> list[Block]:
        """Blocks for hosts that have not had one yet, which `start_again` can start; only for sets with `keeps_hosts`.

        Args:
            request: The request, for their engines.
            blocks: All blocks so far.

        Returns:
            A block for each host of the set that has not had one.
        """
        return []

    def adopt(self, blocks: Sequence[Block]) -> None:  # noqa: B027 (nothing, for a set that `facts` tell all)
        """Takes over blocks that another process has submitted; called before any other method for them.

        Args:
            blocks: The blocks.
        """

    def jobs_of(self, request: BlockRequest) -> list[Block]:
        """Jobs of a cluster that are in the scheduler's queue, no matter which process submitted them; only for sets
        with `leaves_jobs`.

        Args:
            request: A request of that cluster.

        Returns:
            A block for each.

        Raises:
            BroadleafError: The scheduler does not answer.
        """
        return []

    def options(self) -> dict[str, Any]:
        """Its options, from which another process creates the same set.

        Returns:
            A dict, ready for JSON.
        """
        return dataclasses.asdict(self)

    def script(self, request: BlockRequest) -> str:
        """The script or command that `submit` would run, for users to read.

        Args:
            request: The request.

        Returns:
            The text. It contains no secrets.
        """
        return self.join_command(request)

    def join_command(self, request: BlockRequest, *arguments: str, package: str | None = None) -> str:
        """Shell code that runs a relay on the host where it is executed.

        The relay reads its order (see `join_order`) from the file that the arguments name, otherwise from standard
        input.

        Args:
            request: The request.
            *arguments: Arguments of that program.
            package: The directory on that host from which Broadleaf is imported; "" if standard input provides
                Broadleaf before the order, None for the Broadleaf that is installed there.

        Returns:
            The text.
        """
        imported_from = "" if package is None else f"sys.path.insert(0, {package!r})\n"
        if package == "":
            imported_from = f"{receive_code()}\nsys.path.insert(0, package)\n"
        code = _JOIN.format(version=python_version(), package=imported_from)
        if self.python:
            find, python = [], shlex.quote(self.python)
        else:
            find, python = [f"python={shlex.quote(sys.executable)}", '[ -x "$python" ] || python=python3'], '"$python"'
        start = " ".join(
            filter(None, ["exec", self.wrap, python, "-c", shlex.quote(code), *map(shlex.quote, arguments)])
        )
        # The relay's interpreter is its engines' as well, if it starts with the environment that they need.
        exported = export_command(variables_of(request.connection))
        return self.set_up("\n".join([*exported, *find, start]))

    def set_up(self, code: str) -> str:
        """Shell code that runs the set-up commands, and then other code.

        Args:
            code: The other code, for any shell.

        Returns:
            The text, for any shell.

        Raises:
            ClusterStartError: `setup_errors` is neither 'stop' nor 'warn'.
        """
        if self.setup_errors not in ("stop", "warn"):
            raise ClusterStartError(f"setup_errors must be 'stop' or 'warn', not {self.setup_errors!r}")
        if not self.setup:
            return code
        lines = ['failed() { echo "set-up command failed with code $1: $command" >&2; }']
        if self.setup_errors == "stop":
            lines.append("trap 'failed $?' EXIT")  # the shell may also be ended by a command
        on_failure = 'exit "$code"' if self.setup_errors == "stop" else 'failed "$code"'
        for command in self.setup:
            lines += [f"command={shlex.quote(command)}", command, f'code=$?; [ "$code" = 0 ] || {on_failure}']
        if self.setup_errors == "stop":
            lines.append("trap - EXIT")
        script = shlex.quote("\n".join([*lines, code]))
        # `module` is a function that the profile of bash defines, and other shells do not inherit functions.
        return (
            f'script={script}\nif command -v bash >/dev/null; then exec bash -l -c "$script"; fi\nexec sh -c "$script"'
        )

    def join_order(
        self, request: BlockRequest, *, block: str = "", name: str = "", n: int = 0, tunnel_port: int = 0
    ) -> dict[str, Any]:
        """The order that the relay of `join_command` reads.

        Args:
            request: The request.
            block: The block's id; by default that in the environment variable ``BROADLEAF_BLOCK``.
            name: The host's name in the cluster; by default the host's own.
            n: Number of engines; by default `engines_per_host`.
            tunnel_port: A port of the host's own loopback interface that leads to the controller: the relay uses it if
                it can reach none of the controller's addresses.

        Returns:
            A dict, ready for JSON. It contains a key.
        """
        return {
            "connection": dict(request.connection),
            "client": read_json(request.cluster_dir / files.CLIENT_FILE) if self.nested_tasks else None,
            "block": block,
            "name": name,
            "n": n or self.engines_per_host,
            "tunnel_port": tunnel_port,
        }
