"""The dashboard: one page that shows what a cluster is doing."""
