"""Broadleaf under other libraries' interfaces."""
