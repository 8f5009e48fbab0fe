"""The clusters of all profiles, including those that other processes started."""

from __future__ import annotations

import time
from typing import Any

from broadleaf.cluster.cluster import Cluster
from broadleaf.extensions import extension
from broadleaf.state import directories, files
from broadleaf.state.directories import ClusterFileError, base_dir


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
            Those that run, by key.
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
            if cluster.running:
                self._clusters[key] = cluster
            elif directories.may_judge(path.parent):
                cluster.remove_files(keep_logs=time.time() - path.stat().st_mtime < files.KEPT_LOG_AGE_S)
        files.remove_orphans()
        for key, cluster in list(self._clusters.items()):
            if cluster._controller is not None and not cluster.running:
                del self._clusters[key]
        return self.clusters

    def dead_clusters(self, profile: str) -> list[Cluster]:
        """Clusters that ended here without being stopped, and whose logs are kept.

        Args:
            profile: The profile.

        Returns:
            The clusters, the latest first.
        """
        found = []
        for path in base_dir().glob(f"profiles/{profile}/*/{files.CLUSTER_FILE}"):
            try:
                cluster = Cluster.from_file(path)
            except (ClusterFileError, ValueError, TypeError, KeyError):
                continue
            if not cluster.running and directories.may_judge(path.parent):
                found.append((path.stat().st_mtime_ns, cluster))
        return [cluster for _, cluster in sorted(found, key=lambda entry: -entry[0])]

    def new_cluster(self, **options: Any) -> tuple[str, Cluster]:
        """A new cluster, not started.

        Args:
            **options: Arguments of `Cluster`.

        Returns:
            Its key, and the cluster.

        Raises:
            KeyError: There is one of that key already.
            ValueError: As of `Cluster`.
        """
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
        """The cluster of a key.

        Args:
            key: ``profile:cluster_id``.

        Returns:
            The cluster.

        Raises:
            KeyError: There is none; the message says which there are.
        """
        try:
            return self._clusters[key]
        except KeyError:
            known = ", ".join(self._clusters) or "none"
            raise KeyError(f"no cluster {key!r}; known: {known}") from None

    def remove_cluster(self, key: str) -> None:
        """Forgets a cluster without stopping it.

        Args:
            key: ``profile:cluster_id``.

        Raises:
            KeyError: There is none.
        """
        self.get_cluster(key)
        del self._clusters[key]
