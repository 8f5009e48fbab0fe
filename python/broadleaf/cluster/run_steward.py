"""The program of a steward's process, which `StewardProcess` starts."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading

from broadleaf.cluster.cluster import Cluster
from broadleaf.cluster.steward import Steward, StewardProcess
from broadleaf.errors import BroadleafError

# What is read from the pipe besides numbers of signals.
_HAS_ENDED = b"\0"


def main() -> None:
    """Entry point: the arguments are the cluster's file, and the descriptor of the lock that makes this its steward."""
    # The steward works on a thread, and signals only write into a pipe: a handler must not set what it waits for.
    news, tell = os.pipe()
    os.set_blocking(tell, False)
    signal.set_wakeup_fd(tell)
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
    try:
        cluster = Cluster.from_file(sys.argv[1])
        with contextlib.suppress(BroadleafError):  # it is found later
            cluster.find_unrecorded_blocks()  # the steward before may have been killed while it submitted one
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
        worker = threading.Thread(target=_work, args=(cluster, steward, tell))
        worker.start()
    except (BroadleafError, TimeoutError, OSError, ValueError, TypeError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
    while (said := os.read(news, 1)) not in (_HAS_ENDED, bytes([signal.SIGTERM])):
        if said == bytes([signal.SIGUSR1]):
            steward.wake()
    steward.end()
    worker.join()


def _work(cluster: Cluster, steward: Steward, tell: int) -> None:
    try:
        steward.run()
        if not cluster.running:
            cluster.cancel_blocks()  # pending blocks would come up for nobody
    except (BroadleafError, TimeoutError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    finally:
        os.write(tell, _HAS_ENDED)


def _wake_at_end(cluster: Cluster, steward: Steward) -> None:
    cluster.wait_stopped()
    steward.wake()
