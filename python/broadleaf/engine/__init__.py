"""The engine: a plain Python process with a namespace, run by the node through the fork server."""
