"""The clusters of all profiles, including those that other processes started."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any, NamedTuple

from broadleaf.cluster.cluster import Cluster
from broadleaf.cluster.engine_sets import Block
from broadleaf.cluster.steward import StewardProcess
from broadleaf.errors import BroadleafError
from broadleaf.extensions import extension
from broadleaf.state import directories, files
from broadleaf.state.directories import ClusterFileError, base_dir


class Orphans(NamedTuple):
    """What a cluster has left that was killed, and that nothing ends by itself."""

    cluster: Cluster
    processes: dict[int, str]
    """The names of processes on this host, by id."""
    blocks: list[Block]
    """Jobs in their scheduler's queue, each with its current state and the reason for it."""


class ClusterManager:
    """The clusters of all profiles, including those that other processes started.

    The key of a cluster is ``profile:cluster_id``.

    Args:
        **old_arguments: Arguments of IPython Parallel's `ClusterManager` (`log`, `parent`, `config`), without effect.

    Raises:
        TypeError: IPython Parallel's `ClusterManager` has no argument with this name either.
    """

    def __init__(self, **old_arguments: Any) -> None:
        if old_arguments:
            extension("manager arguments")(old_arguments)
        self._clusters: dict[str, Cluster] = {}

    @property
    def clusters(self) -> dict[str, Cluster]:
        """The known clusters, by key."""
        return dict(self._clusters)

    def load_clusters(self, profile: str | None = None) -> dict[str, Cluster]:
        """Looks for clusters on disk.

        Files of clusters that are gone are removed, except for their logs, which are kept for a week. Files from other
        hosts or containers are left alone: only there is it known whether the cluster is gone.

        Args:
            profile: The profile; None for all.

        Returns:
            The running clusters, by key. One whose controller is just being started again counts.
        """
        pattern = f"profiles/{profile or '*'}/*/{files.CLUSTER_FILE}"
        for path in sorted(base_dir().glob(pattern)):
            key = f"{path.parent.parent.name}:{path.parent.name}"
            if key in self._clusters:
                continue
            try:
                cluster = Cluster.from_file(path)
            except (ClusterFileError, ValueError, TypeError, KeyError):
                continue  # not ours to judge: it belongs to another version or launcher, or is half written
            if not _is_there(cluster) and directories.may_judge(path.parent):
                cluster.remove_files(keep_logs=time.time() - path.stat().st_mtime < files.KEPT_LOG_AGE_S)
            if _is_there(cluster):
                self._clusters[key] = cluster
        files.remove_orphans()
        for key, cluster in list(self._clusters.items()):
            if cluster.was_started and not _is_there(cluster):
                del self._clusters[key]
        return self.clusters

    def dead_clusters(self, profile: str | None = None) -> list[Cluster]:
        """Clusters that ended here without being stopped, and whose logs are kept.

        Args:
            profile: The profile; None for all.

        Returns:
            The clusters, the latest first.
        """
        found = []
        for path in base_dir().glob(f"profiles/{profile or '*'}/*/{files.CLUSTER_FILE}"):
            try:
                cluster = Cluster.from_file(path)
            except (ClusterFileError, ValueError, TypeError, KeyError):
                continue
            if not _is_there(cluster) and directories.may_judge(path.parent):
                found.append((path.stat().st_mtime_ns, cluster))
        return [cluster for _, cluster in sorted(found, key=lambda entry: -entry[0])]

    def orphans(self, profile: str | None = None) -> list[Orphans]:
        """Clusters that were killed and have left processes or jobs behind.

        Schedulers are asked about jobs. `Cluster.stop_cluster_sync` ends what a cluster has left.

        Args:
            profile: The profile; None for all.

        Returns:
            The clusters that have left something behind, the latest first.
        """
        found = (_left_by(cluster) for cluster in self.dead_clusters(profile))
        return [orphans for orphans in found if orphans.processes or orphans.blocks]

    def new_cluster(self, **options: Any) -> tuple[str, Cluster]:
        """A new cluster, not started.

        Args:
            **options: Arguments of `Cluster`.

        Returns:
            Its key, and the cluster.

        Raises:
            KeyError: A cluster with that key already exists.
            ValueError: As for `Cluster`.
        """
        cluster = Cluster(**options)
        key = self._cluster_key(cluster)
        if key in self._clusters:
            raise KeyError(f"cluster {key!r} already exists")
        self._clusters[key] = cluster
        return key, cluster

    @staticmethod
    def _cluster_key(cluster: Cluster) -> str:
        return f"{cluster.profile}:{cluster.cluster_id}"

    def get_cluster(self, key: str) -> Cluster:
        """The cluster of a key.

        Args:
            key: ``profile:cluster_id``.

        Returns:
            The cluster.

        Raises:
            KeyError: There is no such cluster; the message lists the known ones.
        """
        try:
            return self._clusters[key]
        except KeyError:
            known = ", ".join(self._clusters) or "none"
            raise KeyError(f"unknown cluster {key!r}; known: {known}") from None

    def remove_cluster(self, key: str) -> None:
        """Forgets a cluster without stopping it.

        Args:
            key: ``profile:cluster_id``.

        Raises:
            KeyError: There is none.
        """
        self.get_cluster(key)
        del self._clusters[key]


def _is_there(cluster: Cluster) -> bool:
    return cluster.running or cluster.is_coming_back


def _left_by(cluster: Cluster) -> Orphans:
    pids = cluster.processes_here()
    if (steward := StewardProcess(cluster.cluster_dir).pid()) is not None:
        pids.append(steward)
    for block in cluster.all_blocks():  # `ssh` and `mpiexec`
        if files.process_of_cluster(pid := block.facts.get("pid", 0), cluster.cluster_id):
            pids.append(pid)
    blocks = list[Block]()
    if files.may_have_jobs(cluster.cluster_file):
        with contextlib.suppress(BroadleafError):  # it does not answer: it is asked again
            cluster.find_unrecorded_blocks()
        cluster.engines_from.look_now()
        blocks = [block for block in cluster.blocks() if not block.is_over]
        if not blocks:
            cluster.write_cluster_file()  # nobody needs to ask again
    return Orphans(cluster, {pid: _name_of(pid) for pid in pids}, blocks)


def _name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "it has just ended"
