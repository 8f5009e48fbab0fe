"""What lives as long as a `Cluster`: its dashboard, and its end with the process."""
