"""The process that `broadleaf list` names, and what ends with it."""

import os
import signal

import pytest
from broadleaf import Cluster
from waiting import until

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("n", [0, 2])
def test_a_detached_cluster_ends_with_the_process_that_list_names(cluster_processes, n):
    cluster = Cluster(n=n, detached=True)
    cluster.start_cluster_sync()
    try:
        cluster.wait_for_engines_sync()
        os.kill(cluster.to_dict()["controller"]["fork_server_pid"], signal.SIGKILL)
        assert until(lambda: not cluster_processes(cluster.cluster_id), 30), cluster_processes(cluster.cluster_id)
    finally:
        cluster.stop_cluster_sync()
        cluster.remove_files()
