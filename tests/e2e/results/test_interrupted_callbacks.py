"""Ctrl-C while the link calls back."""

import os
import signal
import threading

import pytest
from broadleaf import _native
from broadleaf.cluster import Cluster

pytestmark = pytest.mark.timeout(60)


class Interrupted:
    """Hooks in which Ctrl-C arrives once; its handler then runs at an instruction of theirs."""

    def __init__(self):
        self.is_due = True

    def on_event(self, kind, body):
        if self.is_due:
            self.is_due = False
            os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_during_a_callback_ends_the_wait():
    cluster = Cluster(n=1)
    cluster.start_cluster_sync()
    try:
        with open(cluster.connection_file) as file:
            link = _native.Link(file.read(), Interrupted(), 10.0, "interrupted")
        assert link.wait_for_engines(1, 30.0)
        [(_, _, pid, _)] = link.engines()
        end = threading.Thread(target=os.kill, args=(pid, signal.SIGKILL))
        # The hooks are told about the engine's death while this waits for a second one.
        with pytest.raises(KeyboardInterrupt):
            end.start()
            link.wait_for_engines(2, 30.0)
        end.join()
        link.close()
    finally:
        cluster.stop_cluster_sync()
