"""OpenSSH's program: how Broadleaf calls it, and what its messages mean."""

from __future__ import annotations

import re
import shutil

# Words of ssh, and what they mean.
_CAUSES = (
    (r"Could not resolve hostname", "no such host"),
    (r"No route to host|Network is unreachable", "no route to the host"),
    (r"Connection refused", "nothing listens for SSH there"),
    (r"timed out|Timeout", "the host does not answer"),
    (r"Permission denied \([^)]*(password|keyboard-interactive)", "no key of yours opens it, and it wants a "
     "password, which nobody can type here: give it a key with `ssh-copy-id`"),
    (r"connect to host .*Permission denied", "this host is not allowed to connect to it"),
    (r"Permission denied", "no key of yours opens it"),
    (r"Host key verification failed|host key .*changed", "its host key is not in known_hosts, or is another "
     "one: log in once with `ssh`"),
)  # fmt: skip
_DROPPED = re.compile(r"kex_exchange_identification|Connection (closed|reset) by|Broken pipe|Exceeded MaxStartups")

FAILED = 255
"""The exit code with which ssh reports its own failure; otherwise it has that of the command on the host."""


def is_installed() -> bool:
    """Whether the program is there."""
    return shutil.which("ssh") is not None


def options(connect_timeout_s: float) -> list[str]:
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
    return f"ssh to {destination} ended: {essence or 'it says nothing'}"


def was_dropped(words: str) -> bool:
    """Whether sshd dropped the login because of simultaneous ones (its option `MaxStartups`); if so, try again."""
    return _DROPPED.search(words) is not None and "open failed" not in words  # a message of a jump host


def last_words(text: str) -> str:
    """The last lines of the output, without ssh's own notes."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("Warning: Permanently")]
    return "; ".join(line for line in lines[-3:] if not line.startswith("broadleaf: "))
