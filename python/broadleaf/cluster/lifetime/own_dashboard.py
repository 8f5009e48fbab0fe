"""The dashboard that belongs to a `Cluster`."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from broadleaf.dashboard.server import Dashboard


class OwnDashboard:
    """A cluster's attribute `dashboard`."""

    @cached_property
    def dashboard(self) -> Dashboard:
        """A page that shows what the cluster does, at `cluster.dashboard.url` or in a notebook's output."""
        from broadleaf.dashboard.server import Dashboard

        return Dashboard(cast(Any, self))

    def _close_dashboard(self) -> None:
        if "dashboard" in vars(self):
            self.dashboard.close()
