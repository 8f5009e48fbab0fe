"""Launchers start a cluster's processes where the user wants them. Others register under `broadleaf.launchers`."""

from __future__ import annotations

from broadleaf.cluster.launchers.base import ClusterStartError, Launcher, StartRequest

__all__ = ["ClusterStartError", "Launcher", "StartRequest", "find_launcher", "launcher_names"]

ENTRY_POINTS = "broadleaf.launchers"


def find_launcher(name: str) -> type[Launcher]:
    """The launcher class registered as `name`. Raises ValueError that lists those there are.

    Of one that IPython Parallel has and nobody has registered here, the start fails.
    """
    if name == "local":  # the default need not wait for a scan of the installed packages
        from broadleaf.cluster.launchers.local import LocalLauncher

        return LocalLauncher
    from importlib.metadata import entry_points

    for entry_point in entry_points(group=ENTRY_POINTS, name=name):
        launcher: type[Launcher] = entry_point.load()
        return launcher
    from broadleaf.compat.launchers import absent_launcher

    if (absent := absent_launcher(name)) is not None:
        return absent
    raise ValueError(f"no launcher is called {name!r}; there are {', '.join(launcher_names())}")


def launcher_names() -> list[str]:
    """Names of all launchers installed."""
    from importlib.metadata import entry_points

    return sorted({"local", *entry_points(group=ENTRY_POINTS).names})
