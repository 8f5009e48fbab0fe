"""Starts the fork server of a host."""
