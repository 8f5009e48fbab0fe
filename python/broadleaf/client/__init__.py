"""The client: views, results, maps."""

from broadleaf.client.client import Client

__all__ = ["Client"]
