"""Reports on a cluster: its state, what is missing, why a host is gone."""
