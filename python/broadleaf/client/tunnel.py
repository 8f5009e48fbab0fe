"""A cluster that is reachable only by SSH: its connection file is read over ssh, and a local port leads to its
controller.

One ssh process does both. It ends with the connection it was made for, and with this process, however that ends: the
login's command waits for the end of its standard input, whose other end this process holds.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import shlex
import shutil
import socket
import tempfile
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from broadleaf import openssh
from broadleaf.errors import ClusterConnectionError
from broadleaf.state.files import CLIENT_FILE, check_id

if TYPE_CHECKING:
    from subprocess import Popen

_SCHEME = "ssh://"
_CONNECTED = "broadleaf: connected"
_END = "broadleaf: end"
_RETRY_AFTER_S = 0.3
# Another process may take a free port before ssh does.
_PORT_TRIES = 5
# How long ssh may take to end once nothing needs it.
_END_S = 1.0
# More than ssh writes.
_LOG_BYTES = 1 << 20
# Maximum length of a unix socket's path; ssh makes its own under a longer name first.
_LONGEST_SOCKET_BYTES = 107
_LONGEST_DIRECTORY = 70

# Reports each matching connection file, newest first: whether its controller is running, or is on another host; the
# controller's host; and the file's content.
# Arguments: a file's path; or a profile and, for one cluster only, its id.
_FIND = r"""
base=${BROADLEAF_DIR:-${XDG_STATE_HOME:-$HOME/.local/state}/broadleaf}
if [ -n "$1" ]; then where=$1; set -- "$1"; else
  where=$base/profiles/$2
  if [ -n "$3" ]; then where=$where/$3; set -- "$where/CLIENT"; else set -- "$where"/*/CLIENT; fi
fi
echo "broadleaf: connected"
echo "$where"
IFS='
'
for file in $(ls -t -- "$@" 2>/dev/null); do
  pid=$(sed -n 's/^ *"pid": *\([0-9][0-9]*\).*/\1/p' "$file")
  host=$(sed -n 's/.*"host": *"\([^"]*\)".*/\1/p' "${file%/*}/owner.json" 2>/dev/null)
  state=elsewhere
  if [ "$host" = "$(uname -n)" ]; then
    state=gone
    tr '\0' '\n' < "/proc/$pid/environ" 2>/dev/null | grep -q BROADLEAF_CLUSTER_ID= && state=runs
  fi
  echo "broadleaf: $state $host"
  cat "$file"
done
echo "broadleaf: end"
exec cat > /dev/null
""".replace("CLIENT", CLIENT_FILE)


@dataclass(frozen=True)
class FarCluster:
    """Where a cluster is: a host to log in to, and which of the clusters there."""

    destination: str
    port: int = 0
    profile: str = "default"
    cluster_id: str = ""
    """The cluster's id; '' for the profile's most recent running one."""
    path: str = ""
    """The path of the connection file there, instead of profile and id."""

    @property
    def login(self) -> str:
        """The host, as messages name it."""
        return f"{self.destination}:{self.port}" if self.port else self.destination


def is_far(info: object) -> bool:
    """Whether this names a cluster on another host: ``ssh://...``."""
    return isinstance(info, str) and info.startswith(_SCHEME)


def parse(url: str) -> FarCluster:
    """Reads ``ssh://[user@]host[:port][/profile[/cluster id]]`` or ``ssh://[user@]host[:port]/path/to/client.json``.

    Raises ValueError.
    """
    found = re.fullmatch(r"ssh://((?:[^@/\s-][^@/\s]*@)?(?:\[[^\]\s]+\]|[^:@/\s-][^:@/\s]*))(?::(\d+))?(/.*)?", url)
    if found is None:
        raise ValueError(
            f"{url!r}: write it as ssh://[user@]host, with :port, /profile and /profile/cluster-id where needed"
        )
    destination, port, path = found[1].replace("[", "").replace("]", ""), int(found[2] or 0), unquote(found[3] or "")
    if path.endswith(".json"):
        return FarCluster(destination, port, path=path)
    names = [name for name in path.split("/") if name]
    if len(names) > 2:
        raise ValueError(f"{url!r}: after the host, give a profile, and optionally the id of one of its clusters")
    profile = check_id("profile", names[0]) if names else "default"
    cluster_id = check_id("cluster id", names[1]) if len(names) > 1 else ""
    return FarCluster(destination, port, profile, cluster_id)


class Tunnel:
    """A login to the host of a cluster, and a local port that leads to its controller. `close` ends both.

    `key` is a file with a private key, and `ssh_args` are additional arguments for ssh. `connection` is a copy of the
    cluster's connection file, if there is one here; then it is not read from the host. Raises `ClusterConnectionError`
    that says what failed, within `timeout_s`.
    """

    def __init__(
        self,
        cluster: FarCluster,
        timeout_s: float = 10.0,
        *,
        key: str = "",
        ssh_args: Sequence[str] = (),
        connection: Mapping[str, Any] | None = None,
    ) -> None:
        if not openssh.is_installed():
            raise ClusterConnectionError("the program `ssh` was not found on this host: install the OpenSSH client")
        self.cluster = cluster
        self.connection: dict[str, Any] = dict(connection or {})
        """The content of a connection file that leads through the tunnel."""
        self._timeout_s, self._key, self._ssh_args = timeout_s, key, ssh_args
        self._deadline = time.monotonic() + timeout_s
        self._directory = _control_directory()
        self._end: Callable[[], object] = _nothing
        self._login: Popen[bytes] | None = None
        self._leads_to_socket = False
        self._target = ""
        self._dropped = ""  # what ssh said of the last login that sshd dropped
        try:
            self._log_in()
            self._forward()
        except BaseException:
            self.close()
            raise
        finally:
            shutil.rmtree(self._directory, ignore_errors=True)  # nobody requests anything more from this ssh

    def close(self) -> None:
        """Ends ssh, and so every connection through it. May be called again."""
        self._end()

    def reopen(self) -> None:
        """Logs in again and leads the same local port to the controller. Raises `ClusterConnectionError`."""
        self.close()
        self._deadline = time.monotonic() + self._timeout_s
        self._directory = _control_directory()
        try:
            self._log_in()
            if not self._add_forward(f"127.0.0.1:{self.connection['tcp']['port']}:{self._target}"):
                raise ClusterConnectionError(
                    f"ssh to {self.cluster.login} could not open the same port on this host again: "
                    f"{openssh.last_words(self.said())}"
                )
        except BaseException:
            self.close()
            raise
        finally:
            shutil.rmtree(self._directory, ignore_errors=True)

    def is_open(self) -> bool:
        """Whether ssh runs."""
        return self._login is not None and self._login.poll() is None

    def left_s(self) -> float:
        """The remaining part of the total time."""
        return max(1.0, self._deadline - time.monotonic())

    def said(self) -> str:
        """What ssh has written to standard error."""
        return os.pread(self._log.fileno(), _LOG_BYTES, 0).decode(errors="replace")

    # The login

    def _command(self) -> list[str]:
        far = self.cluster
        # A way that leads nowhere any more is noticed soon, so that another one can be opened. The first of two values
        # counts.
        command = ["ssh", "-o", "ServerAliveInterval=2", *openssh.common_options(self._timeout_s - 1),
                   "-o", "ControlMaster=yes", "-o", "ControlPersist=no", "-o", f"ControlPath={self._directory}/ssh",
                   "-o", "ClearAllForwardings=yes"]  # fmt: skip
        if far.port:
            command += ["-p", str(far.port)]
        if self._key:
            command += ["-i", self._key]
        arguments = ["/dev/null", "", ""] if self.connection else [far.path, far.profile, far.cluster_id]
        return [*command, *self._ssh_args, "--", far.destination, shlex.join(["exec", "sh", "-s", "--", *arguments])]

    def _log_in(self) -> None:
        while True:
            text = self._try_to_log_in()
            if text is not None:
                break
            time.sleep(_RETRY_AFTER_S)
        _, _, text = text.partition(f"{_CONNECTED}\n")
        where, *found = re.split(r"^(?=broadleaf: )", text, flags=re.MULTILINE)
        if not self.connection:
            self.connection = self._chosen(where.strip(), found[:-1])

    def _try_to_log_in(self) -> str | None:
        """What the login's command has written; None if sshd was too busy."""
        import subprocess

        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - as long as ssh writes there
        child = subprocess.Popen(
            self._command(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,  # Ctrl-C is not meant for it, and no terminal is there to ask for passwords
        )
        end = weakref.finalize(self, _end, child, os.getpid())
        end.atexit = False  # its client ends it, after the connection through it
        self._end = end
        self._login = child
        _logins.add(child)
        text = self._ask(child)
        if text is not None:
            return text
        if child.poll() is None:
            words = openssh.last_words(self.said()) or self._dropped
            raise ClusterConnectionError(
                f"ssh to {self.cluster.login}: the host does not answer within {self._timeout_s:g} s"
                + (f" ({words})" if words else "")
            )
        self._end()
        words = self.said()
        if openssh.was_dropped(words) and time.monotonic() + _RETRY_AFTER_S < self._deadline:
            self._dropped = openssh.last_words(words)
            return None
        raise ClusterConnectionError(openssh.why(self.cluster.login, words))

    def _ask(self, child: Popen[bytes]) -> str | None:
        """Makes the host's shell look for connection files; None if ssh ended first, or the time is up."""
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            child.stdin.write(_FIND.encode())
            child.stdin.flush()
        except BrokenPipeError:
            child.wait()
            return None
        waiting = select.poll()
        waiting.register(child.stdout, select.POLLIN)
        received = b""
        while (left_s := self._deadline - time.monotonic()) > 0:
            if not waiting.poll(left_s * 1000):
                return None
            piece = os.read(child.stdout.fileno(), 65536)
            if not piece:
                child.wait()
                return None
            received += piece
            if received.endswith(f"{_END}\n".encode()):
                return received.decode(errors="replace")
        return None

    def _chosen(self, where: str, found: Sequence[str]) -> dict[str, Any]:
        """The connection file to use, out of all that were found."""
        unreachable = ""
        far = self.cluster
        for one in found:
            head, _, text = one.partition("\n")
            _, state, *host = head.split()
            try:
                connection: dict[str, Any] = json.loads(text)
            except ValueError:
                continue  # written or removed just now
            cluster = f"cluster {connection['cluster_id']!r}"
            if state == "gone":
                why = f"{cluster} on {far.login} has ended; start one there with `broadleaf start`"
            elif state == "elsewhere" and host and not connection.get("tcp"):
                why = (
                    f"{cluster} runs on {host[0]} and listens on that host's socket only: log in to {host[0]}, or "
                    "start it with `broadleaf start --tcp 0.0.0.0`"
                )
            else:
                return connection
            unreachable = unreachable or why
        if unreachable:
            raise ClusterConnectionError(unreachable)
        what = (
            "no connection file"
            if far.path
            else f"no cluster {far.cluster_id!r} in profile {far.profile!r}"
            if far.cluster_id
            else f"no cluster in profile {far.profile!r}"
        )
        raise ClusterConnectionError(
            f"{what} on {far.login} (looked in {where}). `broadleaf list` there shows the running clusters. If "
            "BROADLEAF_DIR is set there, it may not be set for logins over SSH: specify the connection file, as in "
            "ssh://HOST/PATH/client.json"
        )

    # The way to the controller

    def _forward(self) -> None:
        tcp, path = self.connection.get("tcp"), self.connection.get("unix_path")
        if tcp:
            there = f"[{tcp['host']}]:{tcp['port']}" if ":" in tcp["host"] else f"{tcp['host']}:{tcp['port']}"
        elif path and len(os.fsencode(path)) <= _LONGEST_SOCKET_BYTES:
            there = path
            self.connection["tls"] = True  # the socket takes TLS from other hosts, whatever the cluster's option
        else:
            raise ClusterConnectionError(
                f"cluster {self.connection['cluster_id']!r} on {self.cluster.login} has no port, and ssh cannot "
                f"reach its socket {path}: start it with `broadleaf start --tcp 127.0.0.1`"
            )
        self._leads_to_socket = not tcp
        self._target = there if tcp else re.sub(r"([\\:])", r"\\\1", there)
        for _ in range(_PORT_TRIES):
            port = _free_port()
            if self._add_forward(f"127.0.0.1:{port}:{self._target}"):
                break
        else:
            raise ClusterConnectionError(
                f"ssh to {self.cluster.login} could not open a port on this host: {openssh.last_words(self.said())}"
            )
        self.connection |= {
            "unix_path": None,
            # Where ssh forwards to a socket, it leaves Nagle's algorithm on at this end (channels.c).
            "tcp": {
                "host": "127.0.0.1",
                "port": port,
                "acknowledges_at_once": self._leads_to_socket,
                "is_forwarded": True,
            },
            "transport": "tcp",
            "reached": f"{there} over ssh to {self.cluster.login}",
        }

    def _add_forward(self, forward: str) -> bool:
        import subprocess

        command = [
            "ssh",
            "-S",
            f"{self._directory}/ssh",
            "-O",
            "forward",
            "-L",
            forward,
            "--",
            self.cluster.destination,
        ]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=self.left_s(), check=False
            )
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0

    def close_because(self) -> str:
        """Closes it, because the controller could not be reached from the other end; returns ssh's reason, or ''."""
        words = re.findall(r"open failed: (.*)", self.said())
        self.close()
        if not words:
            return ""
        if "prohibited" in words[-1]:
            return (
                f"{self.cluster.login} does not allow port forwarding ({words[-1].strip()}): see AllowTcpForwarding in "
                "its sshd_config"
            )
        reached = self.connection["reached"]
        # sshd gives no reason for a socket that it does not connect to.
        hint = (
            "; if it runs there, sshd_config may forbid it (AllowStreamLocalForwarding): start it with "
            "`broadleaf start --tcp 127.0.0.1`"
            if self._leads_to_socket
            else ""
        )
        return f"the controller could not be reached at {reached} ({words[-1].strip()}){hint}"


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def _control_directory() -> str:
    directory = tempfile.mkdtemp(prefix="broadleaf-")
    if len(directory) <= _LONGEST_DIRECTORY:
        return directory
    os.rmdir(directory)
    return tempfile.mkdtemp(prefix="broadleaf-", dir="/tmp")


def _nothing() -> None:
    pass


def _end(child: Popen[bytes], owner_pid: int) -> None:
    """Ends ssh: it ends by itself once the connections through it are closed; otherwise by force."""
    if os.getpid() != owner_pid:
        return
    import subprocess

    _let_go(child)
    for end in (_nothing, child.terminate, child.kill):
        end()
        try:
            child.wait(_END_S)
        except subprocess.TimeoutExpired:
            continue
        return


def _let_go(child: Popen[bytes]) -> None:
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


# A child that this process forks later must not keep its tunnels open, and ssh is not the child's child.
_logins: weakref.WeakSet[Popen[bytes]] = weakref.WeakSet()


def _forget_logins() -> None:
    for child in list(_logins):
        _let_go(child)
        child.returncode = 0  # so that nobody waits for it here
    _logins.clear()


os.register_at_fork(after_in_child=_forget_logins)
