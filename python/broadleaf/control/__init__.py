"""Requests to a cluster's controller: what a client and a `Cluster` share."""
