"""The program of a steward's process, which `StewardProcess` starts."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
import time

from broadleaf.cluster.cluster import Cluster, ClusterStateError
from broadleaf.cluster.restarts import Restarts
from broadleaf.cluster.steward import Steward, StewardProcess
from broadleaf.errors import BroadleafError
from broadleaf.state import files

# What is read from the pipe besides numbers of signals.
_HAS_ENDED = b"\0"
_END = bytes([signal.SIGTERM])
_NEW_ORDER = bytes([signal.SIGUSR1])


def main() -> None:
    """Entry point: the arguments are the cluster's file, and the descriptor of the lock that makes this its steward."""
    news, restarts = _News(), Restarts()
    try:
        cluster = Cluster.from_file(sys.argv[1])
        with contextlib.suppress(BroadleafError):  # it is found later
            cluster.find_unrecorded_blocks()  # the steward before may have been killed while it submitted one
        while not cluster.running or _serve(cluster, news):
            if not _bring_back(cluster, restarts, news):
                break
        with cluster.lock:  # nobody is just starting the controller
            if not cluster.running:
                cluster.cancel_blocks()  # pending blocks would come up for nobody
    except (BroadleafError, TimeoutError, OSError, ValueError, TypeError) as error:
        sys.exit(f"{type(error).__name__}: {error}")


class _AskedToEnd(BaseException):
    """This process is to end, while it starts a controller."""


class _News:
    """What the main thread is told: by signals, and by the thread on which the steward works.

    Signals only write into a pipe, because a handler must not set what the steward waits for. But the one that ends
    this process also interrupts the start of a controller, which may take long.
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._is_starting = self._is_asked_to_end = False
        signal.set_wakeup_fd(self._write)
        signal.signal(signal.SIGTERM, self._on_end)
        signal.signal(signal.SIGUSR1, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})

    def _on_end(self, _number: int, _frame: object) -> None:
        self._is_asked_to_end = True
        if self._is_starting:
            raise _AskedToEnd

    def tell(self, what: bytes) -> None:
        """For the steward's thread."""
        os.write(self._write, what)

    def next(self, timeout_s: float | None = None) -> bytes:
        """What is told next; nothing if there is none in time."""
        readable, _, _ = select.select([self._read], [], [], timeout_s)
        return os.read(self._read, 1) if readable else b""

    def is_end_asked_within(self, seconds: float) -> bool:
        """Waits for so long, unless this process is to end."""
        until = time.monotonic() + seconds
        while not self._is_asked_to_end and (left_s := until - time.monotonic()) > 0:
            self.next(left_s)
        return self._is_asked_to_end

    def start_controller(self, cluster: Cluster) -> None:
        """Starts it again. Raises `_AskedToEnd`, and what `Cluster.resume_controller_sync` raises."""
        try:
            self._is_starting = True
            if self._is_asked_to_end:
                raise _AskedToEnd
            cluster.resume_controller_sync()
        finally:
            self._is_starting = False


def _serve(cluster: Cluster, news: _News) -> bool:
    """Looks after the cluster until its controller has ended, or this process is to end. Returns whether to go on."""
    own = StewardProcess(cluster.cluster_dir)
    steward = Steward(
        cluster,
        None,
        one_at_a_time=False,
        on_paused=own.tell,
        new_order=own.new_order,
        on_order=lambda: own.tell(""),
    )
    threading.Thread(target=_wake_at_end, args=(cluster, steward), daemon=True).start()
    worker = threading.Thread(target=_work, args=(cluster, steward, own, news))
    worker.start()
    while (said := news.next()) not in (_HAS_ENDED, _END):
        if said == _NEW_ORDER:
            steward.wake()
    steward.end()
    worker.join()
    return said == _HAS_ENDED


def _work(cluster: Cluster, steward: Steward, own: StewardProcess, news: _News) -> None:
    os.nice(5)  # this thread; see how this process is started
    try:
        if cluster.may_have_steward_process:
            steward.run()
        else:  # its blocks can only be managed by the program that has started them
            own.new_order()
            own.tell("")
            steward.stand_by()
    except BaseException:
        news.tell(_END)
        raise
    news.tell(_HAS_ENDED)


def _wake_at_end(cluster: Cluster, steward: Steward) -> None:
    cluster.wait_stopped()
    steward.wake()


def _bring_back(cluster: Cluster, restarts: Restarts, news: _News) -> bool:
    """Starts the controller, which has ended, again. Returns whether it runs."""
    own = StewardProcess(cluster.cluster_dir)
    how = _how_it_ended(cluster)
    restarts.ended(time.monotonic(), how)
    while not cluster.running:
        if not (cluster.cluster_dir / files.RESTART_FILE).exists():
            return False  # it was stopped, or kept no journal
        if not cluster.detached:
            restarts.give_up("the cluster is not detached, so only the program that started it can do that")
        if why := restarts.why_given_up:
            own.tell_why_given_up(why)
            _log(f"the controller has ended, and is not started again: {why}")
            return False
        if news.is_end_asked_within(restarts.pause_s(time.monotonic())):
            return False
        try:
            news.start_controller(cluster)
        except _AskedToEnd:
            return False
        except ClusterStateError as error:
            if not cluster.running:  # otherwise somebody else was first
                restarts.give_up(str(error))
        except (BroadleafError, TimeoutError, OSError, ValueError) as error:
            restarts.ended(time.monotonic(), str(error))
            own.tell(f"the controller has ended, and could not be started again so far: {error}")
            _log(f"the controller was not started: {error}")
    restarts.came_up(time.monotonic())
    _log(f"the controller runs again ({how})")
    return True


def _how_it_ended(cluster: Cluster) -> str:
    code = cluster.exit_code(0.0)
    if code is None:
        return "it has ended"  # whoever has started it knows how
    return f"it was ended by {signal.Signals(code - 128).name}" if code > 128 else f"it has exited with code {code}"


def _log(text: str) -> None:
    print(f"broadleaf: {text}", file=sys.stderr, flush=True)
