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
    cluster = Cluster(n=0)
    cluster.start_cluster_sync()
    try:
        with open(cluster.connection_file) as file:
            link = _native.Link(file.read(), Interrupted(), 10.0, "interrupted")
        starts = threading.Thread(target=cluster.start_engines_sync, args=(1,))
        # The hooks are told about the new engine while this waits for a second one.
        with pytest.raises(KeyboardInterrupt):
            starts.start()
            link.wait_for_engines(2, 30.0)
        starts.join()
        link.close()
    finally:
        cluster.stop_cluster_sync()
