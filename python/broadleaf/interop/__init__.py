"""Broadleaf under other libraries' interfaces: asyncio, joblib, Dask, and pools of processes.

Each module is imported when somebody uses that library with Broadleaf. `backends` tells joblib, once it is imported,
that there is a backend of ours; the root of the package loads it, so it imports nothing.
"""
