"""What is said of a cluster: how it is, what is missing, why a host is gone."""
