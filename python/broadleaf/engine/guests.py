"""Guests of a host: engines that its fork server has not started, the ranks of MPI worlds.

A rank connects to a socket beside the node's, says which rank of which world it is, and gets an engine slot and
everything that a forked engine would have been given. It is not a child of the fork server: its end shows on a
descriptor of its process, and only mpiexec knows what ended it.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from broadleaf import _native
from broadleaf.engine.guest_link import MAX_BYTES, SOCKET
from broadleaf.engine.process import LAST_OUTPUT_BYTES, Capture, Exited, last_output

if TYPE_CHECKING:
    from broadleaf.engine.process import HostConfig

# Asks again for a slot whose last engine has not ended yet.
_ASK_AGAIN_S = 0.25
# What mpiexec says about the end of a world arrives a moment later, and a task waits a second for its certificate.
_WORDS_WAIT_S = 0.6
_LOOK_EVERY_S = 0.02


class _Guest:
    """One that is connected."""

    def __init__(self, link: socket.socket, pid: int, process: int) -> None:
        self.link = link
        self.pid = pid
        self.process = process
        """Descriptor of its process."""
        self.world = ""
        self.rank = 0
        self.size = 0
        self.log_path = ""
        """Where mpiexec writes, if that is a file of this host."""
        self.log_bytes = 0
        """The size of that file when the guest came."""
        self.engine_id: int | None = None
        self.capture: Capture | None = None
        self.ask_at = float("inf")
        self.left = False
        """Whether it said that it leaves of its own accord."""
        self.ended_at: float | None = None
        self.is_heard = True
        """Whether its connection is read."""


class Guests:
    """Lets guests in, assigns them slots, and reports their ends."""

    def __init__(
        self,
        config: HostConfig,
        selector: selectors.BaseSelector,
        report: Callable[[dict[str, Any]], None],
    ) -> None:
        self._config = config
        self._selector = selector
        self._report = report
        self._guests: list[_Guest] = []
        self._gone: dict[tuple[str, int], int] = {}
        """Process ids of those that went before they got their slot."""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        # A path may be longer than the name of a socket.
        directory = os.open(config.run_dir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            path = f"/proc/self/fd/{directory}/{SOCKET}"
            self._listener.bind(path)
            os.chmod(path, 0o600)  # whatever the umask
        finally:
            os.close(directory)
        self._listener.listen(128)
        self._listener.setblocking(False)
        selector.register(self._listener, selectors.EVENT_READ, self._on_connection)
        self._idle_since = time.monotonic()
        self._had_one = False

    def is_wanted(self) -> bool:
        """Whether this host has guests or may get some; always true if it does not exist only for guests."""
        if self._guests or not self._config.ends_with_guests:
            return True
        idle_s = time.monotonic() - self._idle_since
        return not self._had_one and idle_s < self._config.options["start_timeout_s"]

    def patience_s(self) -> float | None:
        """Time until `on_time` has something to do; None for never."""
        now = time.monotonic()
        due = [guest.ask_at for guest in self._guests if guest.engine_id is None and guest.ask_at < float("inf")]
        if any(guest.ended_at is not None for guest in self._guests):
            due.append(now + _LOOK_EVERY_S)
        if self._config.ends_with_guests and not self._guests:
            due.append(self._idle_since + self._config.options["start_timeout_s"])
        return max(0.0, min(due) - now) if due else None

    def on_time(self) -> None:
        """Asks again for slots, and reports ends about which nothing more will become known."""
        now = time.monotonic()
        for guest in list(self._guests):
            if guest.ended_at is not None:
                self._end(guest, now)
            elif guest.engine_id is None and guest.ask_at <= now:
                self._ask(guest)

    def seat(self, engine_id: int, world: str, rank: int) -> None:
        """Gives the guest its slot, with everything that an engine needs to know."""
        guest = next((one for one in self._guests if (one.world, one.rank) == (world, rank) and not one.ended_at), None)
        if guest is None or guest.engine_id is not None:
            pid = guest.pid if guest else self._gone.pop((world, rank), 0)
            if guest is None:
                self._report({"exited": dict(_exit(engine_id, pid, None, ""))})
            return
        capture = self._create_capture(engine_id)
        setup = {
            "connection": json.dumps(json.loads(self._config.connection) | {"private_key": _native.give_key()}),
            "engine_id": engine_id,
            "options": self._config.options,
            "capture": capture.to_dict() if capture else None,
            "log_path": self._config.log_path(engine_id),
            "sys_path": self._config.sys_path,
            "directory": self._config.directory,
        }
        try:
            socket.send_fds(guest.link, [json.dumps(setup).encode()], capture.numbers() if capture else [])
        except OSError as error:  # it is going
            sys.stderr.write(f"broadleaf: rank {rank} of {world} cannot be told its engine slot: {error}\n")
        if capture:
            capture.close_write_ends()
        guest.engine_id, guest.capture = engine_id, capture
        self._report({"spawned": {"engine": engine_id, "pid": guest.pid}})

    def kill(self) -> None:
        """Ends all of them by force."""
        for guest in self._guests:
            try:
                signal.pidfd_send_signal(guest.process, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def close(self) -> None:
        """In a child of the fork server: releases what belongs to the server."""
        self._listener.close()
        for guest in self._guests:
            guest.link.close()
            os.close(guest.process)
            if guest.capture:
                guest.capture.close()

    def _create_capture(self, engine_id: int) -> Capture | None:
        if not self._config.options["capture_descriptors"]:
            return None
        try:
            return Capture.create(self._config.log_path(engine_id))
        except OSError:
            return None

    def _on_connection(self) -> None:
        try:
            link, _ = self._listener.accept()
        except OSError:
            return  # it has gone again
        pid, uid, _ = struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        try:
            if uid != os.getuid():
                raise ProcessLookupError
            process = os.pidfd_open(pid)
        except OSError:
            link.close()
            return
        link.setblocking(False)
        guest = _Guest(link, pid, process)
        self._guests.append(guest)
        self._had_one = True
        self._selector.register(link, selectors.EVENT_READ, lambda: self._on_messages(guest))
        self._selector.register(process, selectors.EVENT_READ, lambda: self._on_end(guest))

    def _on_messages(self, guest: _Guest) -> None:
        """Reads everything that a guest has sent."""
        while guest.is_heard:
            try:
                text = guest.link.recv(MAX_BYTES)
            except BlockingIOError:
                return
            except OSError:
                text = b""
            try:
                if not text:
                    raise ValueError("nothing more")
                self._obey(guest, json.loads(text))
            except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
                if text:
                    sys.stderr.write(f"broadleaf: process {guest.pid} sent what no rank sends: {error!r}\n")
                self._selector.unregister(guest.link)  # its process signals its end
                guest.is_heard = False

    def _obey(self, guest: _Guest, message: dict[str, Any]) -> None:
        if "hello" in message:
            is_ours = message["hello"] == json.loads(self._config.connection)["server_public_key"]
            guest.link.send(b"welcome" if is_ours else b"another cluster")
        elif "join" in message:
            join = message["join"]
            guest.world, guest.rank, guest.size = str(join["world"]), int(join["rank"]), int(join["size"])
            guest.log_path = str(join["log"])
            guest.log_bytes = _size_of(guest.log_path)
            self._ask(guest)
        elif "leaves" in message:
            guest.left = True

    def _ask(self, guest: _Guest) -> None:
        guest.ask_at = time.monotonic() + _ASK_AGAIN_S
        self._report(
            {"guest": {"world": guest.world, "size": guest.size, "rank": guest.rank, "pid": guest.pid}},
        )

    def _on_end(self, guest: _Guest) -> None:
        self._on_messages(guest)  # for example that it leaves
        self._selector.unregister(guest.process)
        guest.ended_at = time.monotonic()
        self._end(guest, guest.ended_at)

    def _end(self, guest: _Guest, now: float) -> None:
        """Reports the end once mpiexec has said why, or will not say."""
        if guest.engine_id is not None and guest.ended_at is not None and not guest.left:
            words = _words(guest)
            if not words and guest.log_path and now - guest.ended_at < _WORDS_WAIT_S:
                return
            self._report({"exited": dict(_exit(guest.engine_id, guest.pid, None, self._last_output(guest, words)))})
        elif guest.engine_id is not None:
            self._report({"exited": dict(_exit(guest.engine_id, guest.pid, 0, ""))})
        elif guest.world:
            self._gone[guest.world, guest.rank] = guest.pid
        self._forget(guest)

    def _last_output(self, guest: _Guest, words: str) -> str:
        """What is known about a rank's end: its last output, which rank it was, and what mpiexec says."""
        own = ""
        if guest.capture:
            own = guest.capture.last_output(guest.capture.save_rest())
        own = own or (last_output(self._config.log_path(guest.engine_id)) if guest.engine_id is not None else "")
        who = f"rank {guest.rank} of {guest.size} in MPI world {guest.world}"
        said = f"{who}; mpiexec says:\n{words}" if words else who
        return f"{own.rstrip()}\n{said}".lstrip()[-LAST_OUTPUT_BYTES:]

    def _forget(self, guest: _Guest) -> None:
        self._guests.remove(guest)
        self._idle_since = time.monotonic()
        if guest.capture:
            guest.capture.close()
        if guest.is_heard:
            self._selector.unregister(guest.link)
            guest.is_heard = False
        guest.link.close()
        os.close(guest.process)
        try:
            os.killpg(guest.pid, signal.SIGKILL)  # what its tasks left behind
        except (ProcessLookupError, PermissionError):
            pass


def _exit(engine_id: int, pid: int, code: int | None, last_output: str) -> Exited:
    return {
        "engine": engine_id,
        "pid": pid,
        "code": code,
        "signal": None,
        "out_of_memory": False,
        "last_output": last_output,
    }


def _size_of(path: str) -> int:
    try:
        return os.stat(path).st_size if path else 0
    except OSError:
        return 0


def _words(guest: _Guest) -> str:
    """What mpiexec has written since the guest came, without empty lines."""
    try:
        with open(guest.log_path, "rb") as log:
            log.seek(guest.log_bytes)
            text = log.read(1 << 16).decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(line.rstrip() for line in text.splitlines() if line.strip(" =-\t"))[:1500]
