"""Engines on hosts that are reached by SSH: OpenSSH's program, one connection per host."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, ClassVar

from broadleaf import openssh
from broadleaf.cluster import package
from broadleaf.cluster.engine_sets.base import Block, BlockRequest, BlockState
from broadleaf.cluster.engine_sets.processes import ProcessSet
from broadleaf.errors import ClusterStartError
from broadleaf.openssh import LOGIN_TRIES, SSHHost, login_options, parse_host, retry_after_s
from broadleaf.state import files

if TYPE_CHECKING:
    from subprocess import Popen

# sshd drops logins beyond MaxStartups, by default 10, including those that a jump host passes on.
_LOGINS_AT_ONCE = 8
_STOP_GRACE_S = 20.0
# Below the ports that systems choose for connections by themselves.
_FIRST_TUNNEL_PORT, _TUNNEL_PORTS = 20_000, 12_000
_CONNECTED = "broadleaf: connected"


@dataclass
class SSH(ProcessSet):
    """Engines on these hosts, over SSH.

    A host is ``[user@]name``; the name may be one from `ssh_config`. ``"a:16"`` runs 16 engines; ``"a:2222:16"`` and
    ``"ssh://a:2222"`` are reached at port 2222. Logins must work without a password: with a key or an agent.

    A host that cannot connect to this one reaches it through its ssh connection, from a port on its own loopback
    interface. Its payload also takes that route, instead of going from host to host. With ``tunnel="never"``, the start
    of such a host fails.

    With `ship`, hosts need no Broadleaf: it is sent over the connection, and stored in ``~/.cache/broadleaf`` there.

    Each host's connection stays open while its engines run. When it breaks, they end.

    Raises:
        ValueError: `tunnel` is neither 'auto' nor 'never', or a host is not written like this.
    """

    name: ClassVar[str] = "ssh"
    keeps_hosts: ClassVar[bool] = True

    hosts: Sequence[str] = field(default_factory=list)
    """The hosts; a str lists them, separated by commas."""
    jump: str = ""
    """Host to go through, as ssh's ``-J``."""
    tunnel: str = "auto"
    """'auto': a host that cannot connect to this one gets to it through its ssh connection. 'never': its start
    fails."""
    ssh_args: Sequence[str] = field(default_factory=list)
    """Additional arguments for ssh."""
    connect_timeout_s: float = 10.0
    """Time that ssh has to connect, in seconds."""
    ship: bool = False
    """Whether to send Broadleaf to hosts that do not have it."""

    def __post_init__(self) -> None:
        if isinstance(self.hosts, str):
            self.hosts = [host.strip() for host in self.hosts.split(",") if host.strip()]
        if self.tunnel not in ("auto", "never"):
            raise ValueError(f"tunnel must be 'auto' or 'never', not {self.tunnel!r}")
        self._parsed = [parse_host(host) for host in self.hosts]
        super().__post_init__()
        self._logins: dict[str, _Login] = {}
        """Those that `poll` continues."""
        self._orders: dict[str, bytes] = {}

    def require(self) -> None:
        """Raises `ClusterStartError` without hosts, or if the program is missing."""
        if not self._parsed:
            raise ClusterStartError(
                "no hosts are specified for SSH: pass them, as in Cluster(engines=ipp.SSH(['a', 'b:16'])), or give "
                "them with `--hosts a,b:16` or as `hosts` in the [ssh] table of config.toml"
            )
        if not openssh.is_installed():
            raise ClusterStartError("the program `ssh` was not found on this host: install the OpenSSH client")

    def block_engines(self, first: int) -> int | None:
        """Raises `ClusterStartError`: only the given hosts can be used."""
        raise ClusterStartError(
            "engines over SSH run only on the specified hosts, all of which are in use: hosts can be released, but not "
            "added. Start a cluster with more hosts"
        )

    def submit(self, request: BlockRequest) -> list[Block]:
        """Logs in to every host, several at a time, and starts its relay."""
        blocks = self._blocks(request)
        self._logins |= {block.id: _Login(self, block, request) for block in blocks}
        try:
            while any(block.id in self._logins for block in blocks):
                self._log_in()
                time.sleep(0.005)
        except BaseException:
            self.cancel(blocks)
            raise
        return blocks

    def _log_in(self) -> None:
        """Continues the logins, as many at a time as sshd may take."""
        going = [login for login in self._logins.values() if login.has_begun]
        waiting = (login for login in self._logins.values() if not login.has_begun)
        for login in islice(waiting, _LOGINS_AT_ONCE - len(going)):
            login.begin()
            going.append(login)
        done = {login.block.id for login in going if login.is_done()}
        self._logins = {block_id: login for block_id, login in self._logins.items() if block_id not in done}

    def start_again(self, block: Block, request: BlockRequest) -> None:
        """Logs in to a block's host again; `poll` continues that."""
        block.state, block.reason = "pending", "logging in"
        self._logins[block.id] = _Login(self, block, request)
        self._log_in()

    def spare_blocks(self, request: BlockRequest, blocks: Sequence[Block]) -> list[Block]:
        """A block for each host that has had none."""
        used = {block.facts["index"] for block in blocks}
        shares = [host.n or self.engines_per_host for host in self._parsed]
        chosen = [(i, host, n) for i, (host, n) in enumerate(zip(self._parsed, shares, strict=True)) if i not in used]
        spare = self._made(request, chosen)
        for block in spare:
            block.state, block.reason = "ended", "its host is not used yet"
        return spare

    def _blocks(self, request: BlockRequest) -> list[Block]:
        shares = _shares(request.n, [host.n or self.engines_per_host for host in self._parsed])
        chosen = [
            (index, host, n)
            for index, (host, n) in enumerate(zip(self._parsed, shares, strict=True))
            if n or request.n is None  # there may be more hosts than engines
        ]
        return self._made(request, chosen)

    def _made(self, request: BlockRequest, chosen: Sequence[tuple[int, SSHHost, int]]) -> list[Block]:
        return [
            Block(
                f"ssh-{request.first_block + offset}",
                n_hosts=1,
                n_engines=n or None,
                facts={"host": host.destination, "index": index, "log": _log(request, offset)},
            )
            for offset, (index, host, n) in enumerate(chosen)
        ]

    def command(self, index: int, request: BlockRequest, tunnel: str = "") -> list[str]:
        """The command that logs in to a host and starts its relay.

        Args:
            index: The position of the host in `hosts`.
            request: What was asked for.
            tunnel: The argument of ssh's ``-R``; '' for none.

        Returns:
            The command's words.
        """
        host = self._parsed[index]
        options = login_options(host, self.connect_timeout_s)
        if self.jump:
            options += ["-J", self.jump]
        if tunnel:
            options += ["-R", tunnel]
        join = self.join_command(request, package="" if self.ship else None)
        remote = f"echo {shlex.quote(_CONNECTED)}\nexport BROADLEAF_CLUSTER_ID={request.cluster_id}\n{join}"
        return ["ssh", *options, *self.ssh_args, "--", host.destination, f"exec sh -c {shlex.quote(remote)}"]

    def script(self, request: BlockRequest) -> str:
        """The command for each host."""
        return "\n".join(shlex.join(self.command(index, request)) for index in range(len(self._parsed)))

    def start_ssh(self, block: Block, request: BlockRequest) -> Popen[bytes]:
        """Starts a block's ssh.

        The relay's order, which includes a key, goes through a nameless file or, if the host may need Broadleaf first,
        through a pipe; see `send`.

        Args:
            block: The block.
            request: What was asked for.

        Returns:
            The process.
        """
        import subprocess

        name = block.facts["host"].rpartition("@")[2]
        port = 0 if self.tunnel == "never" else _FIRST_TUNNEL_PORT + int.from_bytes(os.urandom(4)) % _TUNNEL_PORTS
        tcp = request.connection["tcp"]
        tunnel = f"127.0.0.1:{port}:{tcp['host']}:{tcp['port']}" if port else ""
        order = self.join_order(request, block=block.id, name=name, n=block.n_engines or 0, tunnel_port=port)
        content = json.dumps(order).encode()
        command, log_path = self.command(block.facts["index"], request, tunnel), Path(block.facts["log"])
        with tempfile.TemporaryFile() as file:
            file.write(content)
            file.seek(0)
            child = self.start_program(block, request, command, log_path, subprocess.PIPE if self.ship else file)
        if self.ship:
            self._orders[block.id] = content
        block.state, block.reason = "pending", "logging in"
        return child

    def send(self, block: Block, *, wants_package: bool) -> None:
        """Sends the relay's order to a host that may have needed Broadleaf first; returns at once.

        Args:
            block: The block of that host.
            wants_package: Whether it wants Broadleaf.
        """
        pipe = self._children[block.id].stdin
        assert pipe is not None  # invariant: it was started with a pipe, as it ships
        order = self._orders.pop(block.id)
        content = b"%d\n" % len(package.archive()) + package.archive() + order if wants_package else order
        threading.Thread(target=_write, args=(pipe, content), daemon=True).start()

    def forget(self, block: Block) -> None:
        """Drops what was not sent to a host that refused the login.

        Args:
            block: The block of that host.
        """
        if self._orders.pop(block.id, None) is not None and (pipe := self._children[block.id].stdin) is not None:
            with contextlib.suppress(OSError):
                pipe.close()

    def poll(self, blocks: Sequence[Block]) -> None:
        """Continues logins, and checks whether the programs are running, and why not."""
        self._log_in()
        super().poll([block for block in blocks if block.id not in self._logins])

    def how_it_ended(self, block: Block, code: int | None) -> tuple[BlockState, str]:
        """In words of ssh, or of the command on the host."""
        host, words = block.facts["host"], openssh.last_words(self.log(block))
        if code == 0:
            return "ended", "its relay has ended"
        if code is not None and code < 0:
            return "failed", f"ssh to {host} was ended by {signal.Signals(-code).name}"
        if code == openssh.FAILED:
            return "failed", openssh.why(host, words)
        return "failed", words or f"the command on {host} exited with code {code}"

    def cancel(self, blocks: Sequence[Block]) -> None:
        """Ends the connections, and waits until the programs are gone."""
        for block in blocks:
            self._logins.pop(block.id, None)
        self.end_programs(blocks, [(signal.SIGTERM, _STOP_GRACE_S), (signal.SIGKILL, _STOP_GRACE_S)])

    def log(self, block: Block) -> str:
        """What ssh and the relay's command have written."""
        text = super().log(block)
        for note in (_CONNECTED, package.WANTS, package.HAS):
            text = text.replace(f"{note}\n", "")
        return text


class _Login:
    """The login to one host, repeated if sshd was too busy."""

    def __init__(self, ssh: SSH, block: Block, request: BlockRequest) -> None:
        self.block = block
        self.has_begun = False
        self._ssh, self._request = ssh, request
        self._tries = 0
        self._next_try = 0.0

    def begin(self) -> None:
        """Starts ssh."""
        self.has_begun = True
        self._tries += 1
        self._child: Popen[bytes] | None = self._ssh.start_ssh(self.block, self._request)

    def is_done(self) -> bool:
        """Whether the host accepted the login, or never will."""
        if self._child is None:
            if time.monotonic() >= self._next_try:
                self.begin()
            return False
        block = self.block
        text = Path(block.facts["log"]).read_text(errors="replace")
        if _CONNECTED in text and (not self._ssh.ship or self._answered(text)):
            block.state, block.reason = "running", ""
            return True
        if self._child.poll() is None:
            return False
        self._ssh.forget(block)
        if self._child.returncode == openssh.FAILED and openssh.was_dropped(text) and self._tries < LOGIN_TRIES:
            self._next_try = time.monotonic() + retry_after_s(self._tries)
            self._child = None
            return False
        self._ssh.note_end(block)
        return True

    def _answered(self, text: str) -> bool:
        """Whether the host has said if it needs Broadleaf, and is being sent it."""
        is_told = package.WANTS in text or package.HAS in text
        if is_told:
            self._ssh.send(self.block, wants_package=package.WANTS in text)
        return is_told


def _write(pipe: IO[bytes], content: bytes) -> None:
    with contextlib.suppress(OSError):  # the log says what ended it
        pipe.write(content)
    with contextlib.suppress(OSError):
        pipe.close()


def _log(request: BlockRequest, offset: int) -> str:
    return str(request.cluster_dir / files.BLOCK_LOG.format(f"ssh-{request.first_block + offset}"))


def _shares(n: int | None, wanted: Sequence[int]) -> list[int]:
    """Number of engines on each host: as many as each requests, and the rest of `n` on those that do not say; 0 for the
    host's number of cores.
    """
    open_hosts = [i for i, one in enumerate(wanted) if not one]
    if n is None or not open_hosts:
        return list(wanted)
    rest = max(0, n - sum(wanted))
    shares = list(wanted)
    for offset, i in enumerate(open_hosts):
        shares[i] = rest // len(open_hosts) + (offset < rest % len(open_hosts))
    return shares
