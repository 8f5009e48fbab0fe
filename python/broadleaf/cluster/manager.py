"""`ClusterManager`: the clusters of all profiles, running ones that other processes started included."""

from __future__ import annotations

from typing import Any

from broadleaf import config
from broadleaf.cluster import files
from broadleaf.cluster.cluster import Cluster


class ClusterManager:
    """Clusters by key. The key of a cluster is ``profile:cluster_id``."""

    def __init__(self) -> None:
        self._clusters: dict[str, Cluster] = {}

    @property
    def clusters(self) -> dict[str, Cluster]:
        """Those known now, by key."""
        return dict(self._clusters)

    def load_clusters(self, profile: str | None = None) -> dict[str, Cluster]:
        """Looks for clusters on disk, of one profile or of all, and returns those that run, by key.

        Files of clusters that are gone are removed.
        """
        pattern = f"profiles/{profile or '*'}/*/{files.CLUSTER_FILE}"
        for path in sorted(config.base_dir().glob(pattern)):
            key = f"{path.parent.parent.name}:{path.parent.name}"
            if key in self._clusters:
                continue
            try:
                cluster = Cluster.from_file(path)
            except (files.ClusterFileError, ValueError, TypeError, KeyError):
                continue  # not ours to judge: another version's or launcher's, or half written
            if cluster.running:
                self._clusters[key] = cluster
            else:
                cluster.remove_files()
        files.remove_orphans()
        for key, cluster in list(self._clusters.items()):
            if cluster._launcher is not None and not cluster.running:
                del self._clusters[key]
        return self.clusters

    def new_cluster(self, **options: Any) -> tuple[str, Cluster]:
        """A new cluster, not started; returns its key and itself. `options` are those of `Cluster`."""
        cluster = Cluster(**options)
        key = f"{cluster.profile}:{cluster.cluster_id}"
        if key in self._clusters:
            raise KeyError(f"cluster {key!r} exists already")
        self._clusters[key] = cluster
        return key, cluster

    def get_cluster(self, key: str) -> Cluster:
        """The cluster of this key; KeyError says which there are."""
        try:
            return self._clusters[key]
        except KeyError:
            known = ", ".join(self._clusters) or "none"
            raise KeyError(f"no cluster {key!r}; known: {known}") from None

    def remove_cluster(self, key: str) -> None:
        """Forgets a cluster; it goes on running if it does."""
        self.get_cluster(key)
        del self._clusters[key]
