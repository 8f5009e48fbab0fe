"""A scheduler whose jobs run on this host."""

from own_scheduler import folder

__all__ = ["folder"]
