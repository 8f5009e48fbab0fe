"""OpenSSH's client: its options and messages, hosts to log in to, and connections that several logins share."""

from __future__ import annotations

import contextlib
import os
import random
import re
import select
import shlex
import shutil
import tempfile
import threading
import time
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broadleaf.errors import ClusterStartError

if TYPE_CHECKING:
    from subprocess import Popen


# OpenSSH's program: how Broadleaf calls it, and what its messages mean.


# Words of ssh, and what they mean.
_CAUSES = (
    (r"Could not resolve hostname", "no such host"),
    (r"No route to host|Network is unreachable", "no route to the host"),
    (r"Connection refused", "no SSH server is listening there"),
    (r"timed out|Timeout", "the host does not answer"),
    (r"Permission denied \([^)]*(password|keyboard-interactive)", "it accepts none of your keys, and asks for a "
     "password, which cannot be typed here: copy a key to it with `ssh-copy-id`"),
    (r"connect to host .*Permission denied", "this host is not allowed to connect to it"),
    (r"Permission denied", "it accepts none of your keys"),
    (r"Host key verification failed|host key .*changed", "its host key is not in known_hosts or has "
     "changed: log in once with `ssh`"),
)  # fmt: skip
_DROPPED = re.compile(r"kex_exchange_identification|Connection (closed|reset) by|Broken pipe|Exceeded MaxStartups")

FAILED = 255
"""The exit code with which ssh reports its own failure; otherwise it has that of the command on the host."""


def is_installed() -> bool:
    """Whether the program is there."""
    return shutil.which("ssh") is not None


def common_options(connect_timeout_s: float) -> list[str]:
    """Options of every login: nobody is asked anything, and a dead connection is noticed."""
    return ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={max(1, round(connect_timeout_s))}",
            "-o", "ServerAliveInterval=10", "-o", "ServerAliveCountMax=3", "-o", "RemoteCommand=none",
            "-o", "LogLevel=INFO", "-x", "-a", "-T"]  # fmt: skip


def why(destination: str, words: str) -> str:
    """Why there is no connection to `destination`, according to ssh."""
    essence = last_words(words)
    for said in (essence, words):  # with jump hosts, the cause comes before what each of them says
        for pattern, meaning in _CAUSES:
            if found := re.search(f".*(?:{pattern}).*", said):
                return f"ssh to {destination}: {meaning} ({found[0].strip()})"
    return f"ssh to {destination} ended: {essence or 'it printed nothing'}"


def was_dropped(words: str) -> bool:
    """Whether sshd dropped the login because of simultaneous ones (its option `MaxStartups`); if so, try again."""
    return _DROPPED.search(words) is not None and "open failed" not in words  # a message of a jump host


def last_words(text: str) -> str:
    """The last lines of the output, without ssh's own notes."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("Warning: Permanently")]
    return "; ".join(line for line in lines[-3:] if not line.startswith("broadleaf: "))


# Logins over SSH: hosts as people write them, and one connection for many commands.


LOGIN_TRIES = 8
_RETRY_AFTER_S = 0.5
_CONNECTED = b"broadleaf: connected\n"
_COMMAND_TIMEOUT_S = 60.0

_HOST = re.compile(
    r"(?P<scheme>ssh://)?(?P<user>[^@\s:-][^@\s:]*@)?(?:\[(?P<literal>[^\]\s]+)\]|(?P<name>[^:@\s/-][^:@\s/]*))"
    r"(?P<numbers>(?::\d+){0,2})"
)


@dataclass(frozen=True)
class SSHHost:
    """A host as it was given; 0 if it does not define a port or a number of engines."""

    destination: str
    port: int
    n: int


def parse_host(text: str) -> SSHHost:
    """Reads ``[user@]name[:engines]``, ``[user@]name:port:engines`` or ``ssh://[user@]name[:port]``.

    Raises ValueError.
    """
    found = _HOST.fullmatch(text)
    if found is None:
        raise ValueError(
            f"host {text!r}: write it as [user@]name, [user@]name:engines, [user@]name:port:engines or "
            "ssh://[user@]name:port"
        )
    numbers = [int(number) for number in (found["numbers"] or "").split(":") if number]
    if len(numbers) == 1:
        numbers = [*numbers, 0] if found["scheme"] else [0, *numbers]
    port, n = numbers or (0, 0)
    return SSHHost((found["user"] or "") + (found["literal"] or found["name"]), port, n)


def login_options(host: SSHHost, connect_timeout_s: float) -> list[str]:
    """ssh options for a login without a terminal, whose loss is noticed."""
    options = common_options(connect_timeout_s)
    return [*options, "-p", str(host.port)] if host.port else options


def retry_after_s(tries: int) -> float:
    """How long to wait after this many dropped logins."""
    return _RETRY_AFTER_S * tries * (0.5 + random.random())


class SSHMaster:
    """One login, through which commands run there without logging in again.

    It is made when first needed, made again if it breaks, and ends with this process, however that ends.
    """

    def __init__(self, host: SSHHost, connect_timeout_s: float = 10.0) -> None:
        self.host = host
        self._connect_timeout_s = connect_timeout_s
        self._lock = threading.Lock()
        self._child: Popen[bytes] | None = None
        self._socket = ""

    def run(self, command: str, data: bytes = b"") -> tuple[int, bytes, str]:
        """Runs a command in the login shell with `data` as its input: returns exit code, output, and errors.

        Raises `ClusterStartError` if the login fails.
        """
        import subprocess

        with self._lock:
            self._connect()
            line = ["ssh", "-S", self._socket, *login_options(self.host, self._connect_timeout_s), "--",
                    self.host.destination, f"exec sh -lc {shlex.quote(command)}"]  # fmt: skip
        try:
            done = subprocess.run(line, input=data, capture_output=True, timeout=_COMMAND_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            raise ClusterStartError(
                f"{self.host.destination} did not answer within {_COMMAND_TIMEOUT_S:g} s: {command[:80]}"
            ) from None
        return done.returncode, done.stdout, done.stderr.decode(errors="replace")

    def _connect(self) -> None:
        if self._child is not None and self._child.poll() is None:
            return
        for tries in range(1, LOGIN_TRIES + 1):
            words = self._login()
            if not words:
                return
            if not was_dropped(words) or tries == LOGIN_TRIES:
                raise ClusterStartError(why(self.host.destination, words))
            time.sleep(retry_after_s(tries))

    def _login(self) -> str:
        """Why there is no connection; '' if there is one now."""
        import subprocess

        # The path is short, as sockets need; whoever waits for ssh removes it, even if this process is gone.
        folder = tempfile.mkdtemp(prefix="broadleaf-ssh-")
        self._socket = f"{folder}/s"
        options = ["-M", "-S", self._socket, "-o", "ControlPersist=no"]
        remote = f"echo {_CONNECTED.decode().strip()}; exec cat > /dev/null"
        line = ["ssh", *options, *login_options(self.host, self._connect_timeout_s), "--", self.host.destination,
                f"exec sh -c {shlex.quote(remote)}"]  # fmt: skip
        with tempfile.TemporaryFile() as errors:
            child = subprocess.Popen(
                ["sh", "-c", '"$@"; code=$?; rm -rf "$0"; exit $code', folder, *line],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,  # Ctrl-C is not for it
            )
            said = _first_line(child, self._connect_timeout_s * 2)
            if said == _CONNECTED:
                self._child = child
                weakref.finalize(self, _end, child, os.getpid())
                return ""
            _end(child, os.getpid())
            errors.seek(0)
            return errors.read().decode(errors="replace") or "Timeout: it printed nothing"


def _first_line(child: Popen[bytes], timeout_s: float) -> bytes:
    if child.stdout is None:
        raise AssertionError("invariant: stdout is a pipe")
    deadline, said = time.monotonic() + timeout_s, b""
    while not said.endswith(_CONNECTED) and time.monotonic() < deadline:
        readable, _, _ = select.select([child.stdout], [], [], max(0.0, deadline - time.monotonic()))
        if readable:
            part = os.read(child.stdout.fileno(), 4096)
            if not part:
                break
            said += part
    return said[-len(_CONNECTED) :]


def _end(child: Popen[bytes], owner_pid: int) -> None:
    """Ends a connection: what runs there ends when its input does."""
    if os.getpid() != owner_pid:
        return  # a process that was forked from its owner
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    import subprocess

    try:
        child.wait(5.0)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, 9)
        child.wait()


def via_host(via: str) -> SSHHost:
    """Reads ``ssh:[user@]name`` or ``ssh://[user@]name:port``. Raises ValueError."""
    try:
        if not via.startswith("ssh:"):
            raise ValueError
        host = parse_host(via if via.startswith("ssh://") else via.removeprefix("ssh:"))
    except ValueError:
        raise ValueError(f"via={via!r}: write it as ssh:[user@]name or ssh://[user@]name:port") from None
    if host.n:
        raise ValueError(f"via={via!r}: write the port as in ssh://{host.destination}:{host.n}")
    return host
