"""`ClusterManager`: the clusters of all profiles, running ones that other processes started included."""

from __future__ import annotations

import time
from typing import Any

from broadleaf import config
from broadleaf.cluster.cluster import Cluster
from broadleaf.cluster.state import files, owner


class ClusterManager:
    """Clusters by key. The key of a cluster is ``profile:cluster_id``."""

    def __init__(self, **old_arguments: Any) -> None:
        """`old_arguments` are IPython Parallel's (`log`, `parent`, `config`); they are not needed."""
        if old_arguments:
            from broadleaf.compat.cluster_arguments import check_manager_arguments

            check_manager_arguments(old_arguments)
        self._clusters: dict[str, Cluster] = {}

    @property
    def clusters(self) -> dict[str, Cluster]:
        """The known clusters, by key."""
        return dict(self._clusters)

    def load_clusters(self, profile: str | None = None) -> dict[str, Cluster]:
        """Looks for clusters on disk, of one profile or of all, and returns those that run, by key.

        Files of clusters that are gone are removed, except their logs, which stay for a week. Clusters of other hosts
        or containers are left alone: only there is it known whether they are gone.
        """
        pattern = f"profiles/{profile or '*'}/*/{files.CLUSTER_FILE}"
        for path in sorted(config.base_dir().glob(pattern)):
            key = f"{path.parent.parent.name}:{path.parent.name}"
            if key in self._clusters:
                continue
            try:
                cluster = Cluster.from_file(path)
            except (files.ClusterFileError, ValueError, TypeError, KeyError):
                continue  # not ours to judge: it belongs to another version or launcher, or is half written
            if cluster.running:
                self._clusters[key] = cluster
            elif owner.may_judge(path.parent):
                cluster.remove_files(keep_logs=time.time() - path.stat().st_mtime < files.KEPT_LOG_AGE_S)
        files.remove_orphans()
        for key, cluster in list(self._clusters.items()):
            if cluster._controller is not None and not cluster.running:
                del self._clusters[key]
        return self.clusters

    def dead_clusters(self, profile: str) -> list[Cluster]:
        """Clusters of a profile that ended here without being stopped, and whose logs are kept, the latest first."""
        found = []
        for path in config.base_dir().glob(f"profiles/{profile}/*/{files.CLUSTER_FILE}"):
            try:
                cluster = Cluster.from_file(path)
            except (files.ClusterFileError, ValueError, TypeError, KeyError):
                continue
            if not cluster.running and owner.may_judge(path.parent):
                found.append((path.stat().st_mtime_ns, cluster))
        return [cluster for _, cluster in sorted(found, key=lambda entry: -entry[0])]

    def new_cluster(self, **options: Any) -> tuple[str, Cluster]:
        """A new cluster, not started; returns its key and itself. `options` are those of `Cluster`."""
        cluster = Cluster(**options)
        key = self._cluster_key(cluster)
        if key in self._clusters:
            raise KeyError(f"cluster {key!r} exists already")
        self._clusters[key] = cluster
        return key, cluster

    @staticmethod
    def _cluster_key(cluster: Cluster) -> str:
        return f"{cluster.profile}:{cluster.cluster_id}"

    def get_cluster(self, key: str) -> Cluster:
        """The cluster with this key; KeyError lists the known ones."""
        try:
            return self._clusters[key]
        except KeyError:
            known = ", ".join(self._clusters) or "none"
            raise KeyError(f"no cluster {key!r}; known: {known}") from None

    def remove_cluster(self, key: str) -> None:
        """Forgets a cluster; if it is running, it keeps running."""
        self.get_cluster(key)
        del self._clusters[key]
